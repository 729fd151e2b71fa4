"""Attention maps are the weights that the model itself uses."""

import pytest
import torch
from small_models import HEADS, WIDTH, assert_same, decoder, decoder_spec, encoder, tokens

from whence import Alibi, Epar, Rotary, Sink, Sinusoidal, WhenceError
from whence.models import attention_maps, build


def by_hand(model, text):
    """The weights of every layer from its projections, for a decoder with Alibi and pre-norm."""
    x, maps = model.body.embedding(text), []
    for layer in model.body.layers:
        attention, seen = layer.attention, layer.attention_norm(x)
        q, k = (p(seen).unflatten(2, (HEADS, -1)).transpose(1, 2) for p in (attention.queries, attention.keys))
        distance = torch.arange(text.shape[1])[:, None] - torch.arange(text.shape[1])
        scores = q @ k.mT * q.shape[-1] ** -0.5 - attention.position.slope().reshape(-1, 1, 1) * distance
        maps.append(scores.masked_fill(distance < 0, -torch.inf).softmax(-1))
        x = layer(x)
    return torch.stack(maps)


def test_maps_match_a_computation_by_hand():
    model = decoder(Alibi(HEADS)).eval()
    assert_same(attention_maps(model, tokens()), by_hand(model, tokens()).detach())


def test_shapes_and_sums():
    maps = attention_maps(decoder(Rotary(), layers=3), tokens())
    assert maps.shape == (3, 2, HEADS, 9, 9) and not maps.requires_grad
    assert_same(maps.sum(-1), torch.ones_like(maps[..., 0]))
    assert not maps.triu(1).any()
    assert (attention_maps(decoder(Sink(HEADS)), tokens()).sum(-1) < 1).all()


def test_an_encoder_attends_to_real_tokens_only():
    real = torch.arange(9).lt(6).expand(2, 9)
    maps = attention_maps(encoder(Sinusoidal(WIDTH)), tokens(), real)
    assert not maps[..., 6:].any() and maps[:, :, :, :6, :6].min() > 0


@pytest.mark.parametrize("backend", ["auto", "blockwise"])
def test_the_model_is_restored(backend):
    model = build(decoder_spec(dropout=0.5), Epar(HEADS, learnable=True, context=64), backend=backend, seed=0)
    first, second = (attention_maps(model, tokens()) for _ in range(2))
    assert torch.equal(first, second)  # without dropout
    with pytest.raises(WhenceError):
        attention_maps(model, tokens(), torch.ones(2, 9))
    assert all(module.training for module in model.modules())
    assert all(layer.attention.backend == backend for layer in model.body.layers)

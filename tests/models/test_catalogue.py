"""Every mechanism plugs into a decoder, and into an encoder where it can look both ways: one step moves all that learns."""

import pytest
import torch
import torch.nn.functional as F
from small_models import HEAD_WIDTH, HEADS, decoder, encoder, tokens

from whence import Rotary, T5Bias
from whence.position.catalogue import CATALOGUE

BOTH_WAYS = [entry for entry in CATALOGUE if not entry.make(HEADS, HEAD_WIDTH).causal_only]

#: adds the same to every score of a row where nothing else acts on scores, and a softmax does not see that
MAY_STAND_STILL = ("attention.keys.bias", "position.network.2.bias")


def step(model, loss_of):
    """One step of training; the losses before and after, and the parameters that did not move."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = loss_of(model)
    loss.backward()
    for name, p in model.named_parameters():
        if p.requires_grad:
            assert p.grad is not None and torch.isfinite(p.grad).all(), name
            # what is only rounding is no gradient
            p.grad.masked_fill_(p.grad.abs() < 1e-13, 0)
    optimiser.step()
    still = {name for name, p in model.named_parameters() if p.requires_grad and torch.equal(p, before[name])}
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad and not torch.equal(p, before[name])}
    assert not frozen
    return loss.item(), loss_of(model).item(), still


def predict_next(model):
    text = tokens(batch=4)
    return F.cross_entropy(model(text)[:, :-1].flatten(0, 1), text[:, 1:].flatten())


def predict_class(model):
    key_mask = torch.arange(9) < torch.tensor([[9], [6], [3]])
    return F.cross_entropy(model(tokens(batch=3), key_mask), torch.arange(3))


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_one_step_of_a_decoder(entry):
    before, after, still = step(decoder(entry.make(HEADS, HEAD_WIDTH), dropout=0.0), predict_next)
    assert after < before < 10
    assert all(name.endswith(MAY_STAND_STILL) for name in still), still


@pytest.mark.parametrize("entry", BOTH_WAYS, ids=lambda entry: entry.name)
def test_one_step_of_an_encoder(entry):
    before, after, still = step(encoder(entry.make(HEADS, HEAD_WIDTH), dropout=0.0), predict_class)
    assert after < before < 10
    assert all(name.endswith(MAY_STAND_STILL) for name in still), still


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(
    "ends", [{"tie_embeddings": True, "init": "scaled"}, {"tie_embeddings": False, "final_norm": False}]
)
def test_every_build_of_a_decoder_learns(norm, activation, ends):
    model = decoder(T5Bias(HEADS) + Rotary(), dropout=0.0, norm=norm, activation=activation, num_kv_heads=1, **ends)
    before, after, still = step(model, predict_next)
    assert after < before and not still


def test_dropout_acts_in_training_alone():
    for make, give in ((decoder, tokens()), (encoder, tokens())):
        model = make(dropout=0.5)
        assert not torch.equal(model(give), model(give))
        model.eval()
        assert torch.equal(model(give), model(give))


def test_training_is_reproducible():
    losses = []
    for _ in range(2):
        model = decoder(dropout=0.2)
        torch.manual_seed(1)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            optimiser.zero_grad()
            loss = predict_next(model)
            loss.backward()
            optimiser.step()
        losses.append(loss.item())
    assert losses[0] == losses[1]

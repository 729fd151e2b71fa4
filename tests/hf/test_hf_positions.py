"""A position inside a tiny llama is what a dense float64 computation, written out here, says it is."""

import math

import pytest
import torch
from tiny_models import left_padded, tiny, tokens

import whence
from whence import hf


def model_with_plain_attention(model, ids, score, base=10000.0):
    """A llama in float64, dense and by the book: ``score(layer, heads, scores, distance)`` is what position does to scores."""
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}
    config, length = model.config, ids.shape[1]
    heads, groups = config.num_attention_heads, config.num_attention_heads // config.num_key_value_heads
    width = config.hidden_size // heads
    place = torch.arange(length, dtype=torch.float64)
    distance = place[:, None] - place

    def norm(x, weight):
        return weight * x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()

    def turned(x):  # pairs of columns as complex numbers
        angle = place[:, None] * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        pair = torch.complex(x[..., : width // 2], x[..., width // 2 :]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((pair.real, pair.imag), -1)

    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}."
        h = norm(x, weights[at + "input_layernorm.weight"])
        q, k, v = (
            (h @ weights[f"{at}self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, width)).transpose(1, 2)
            for name in "qkv"
        )
        k, v = (y.repeat_interleave(groups, 1) for y in (k, v))
        if base is not None:
            q, k = turned(q), turned(k)
        scores = score(layer, q @ k.transpose(-1, -2) / math.sqrt(width), distance)
        mixed = scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v
        x = x + mixed.transpose(1, 2).flatten(2) @ weights[at + "self_attn.o_proj.weight"].T
        h = norm(x, weights[at + "post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(h @ weights[at + "mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ weights[at + "mlp.up_proj.weight"].T)) @ weights[at + "mlp.down_proj.weight"].T
    return norm(x, weights["model.norm.weight"]) @ weights["lm_head.weight"].T


@torch.no_grad()
def test_a_score_scale_and_a_bias_by_layer_equal_a_dense_computation():
    model, ids = tiny("llama"), tokens(length=23)
    allowed = (
        4
        * (model(ids).logits - model_with_plain_attention(model, ids, lambda layer, scores, distance: scores))
        .abs()
        .max()
    )
    assert allowed < 1e-4

    def build(layer):
        return whence.PowerPrior(4, alpha=[0.1, 0.2, 0.3, 0.4], beta=0.7) + whence.Epar(4, beta=3.0 + layer, context=16)

    def written_out(layer, scores, distance):
        alpha = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)[:, None, None]
        factor = (1 + 0.5 * torch.exp(-(3.0 + layer) * distance.abs() / 16)) / 1.5
        return scores * factor - (alpha * distance.abs()) ** 0.7

    wanted = model_with_plain_attention(model, ids, written_out)
    assert (wanted - model(ids).logits).abs().max() > 100 * allowed
    with hf.attach(model, build):
        assert (model(ids).logits - wanted).abs().max() <= allowed


@torch.no_grad()
def test_the_models_rotation_can_be_replaced_or_removed():
    model, ids = tiny("llama"), tokens()
    before = model(ids).logits
    with hf.attach(model, whence.Rotary(), keep_rotary=False):
        torch.testing.assert_close(model(ids).logits, before, atol=1e-5, rtol=0)
        torch.testing.assert_close(one_by_one(model, ids), before, atol=1e-5, rtol=0)
    with hf.attach(model, whence.NoPosition(), keep_rotary=False):
        unturned = model(ids).logits
        # without any position, a causal model's last token does not see in which order the others came
        assert (unturned - before).abs().max() > 0.1
    one_layer = tiny("llama", num_hidden_layers=1)
    mixed = ids[:, [2, 0, 1, *range(3, ids.shape[1])]]
    with hf.attach(one_layer, whence.NoPosition(), keep_rotary=False):
        last, other = one_layer(ids).logits[:, -1], one_layer(mixed).logits[:, -1]
        torch.testing.assert_close(last, other, atol=1e-5, rtol=0)
    assert (one_layer(ids).logits[:, -1] - one_layer(mixed).logits[:, -1]).abs().max() > 1e-3
    assert torch.equal(model(ids).logits, before)


@torch.no_grad()
def test_rotation_is_removed_in_selected_layers_only():
    model, ids = tiny("llama"), tokens()
    before = model(ids).logits
    with hf.attach(model, whence.Rotary(), keep_rotary=False, layers=[0]):
        torch.testing.assert_close(model(ids).logits, before, atol=1e-5, rtol=0)


MECHANISMS = {
    "absolute": lambda: whence.Epar(4, length="query", beta=4.0),
    "bias": lambda: whence.T5Bias(4, std=1.0),
    "content_bias": lambda: whence.Cope(8),
    "value_bias": lambda: whence.Shaw(8, clip=4, std=0.3),
    "fire": lambda: whence.Fire(4),
    "sink": lambda: whence.StableMask(4, context=32),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@torch.no_grad()
def test_padding_and_caching_do_not_change_the_result(mechanism):
    model, ids = tiny("llama"), tokens()
    padded = left_padded(ids, (4, 0))
    with hf.attach(model, MECHANISMS[mechanism]()):
        alone, other = model(ids[:1, 4:]).logits, model(ids[1:]).logits
        together = model(**padded).logits
        torch.testing.assert_close(together[:1, 4:], alone, atol=2e-5, rtol=0)
        torch.testing.assert_close(together[1:], other, atol=2e-5, rtol=0)
        steps = one_by_one(model, **padded)
        torch.testing.assert_close(steps[:1, 4:], alone, atol=2e-5, rtol=0)
        torch.testing.assert_close(steps[1:], other, atol=2e-5, rtol=0)


def one_by_one(model, input_ids, attention_mask=None, position_ids=None, cache=None, first=6):
    """The logits of a cached forward: the first tokens together, then each alone."""
    parts = []
    for begin, end in [(0, first)] + [(n, n + 1) for n in range(first, input_ids.shape[1])]:
        out = model(
            input_ids[:, begin:end],
            attention_mask=None if attention_mask is None else attention_mask[:, :end],
            position_ids=None if position_ids is None else position_ids[:, begin:end],
            past_key_values=cache,
            use_cache=True,
        )
        cache = out.past_key_values
        parts.append(out.logits)
    return torch.cat(parts, 1)

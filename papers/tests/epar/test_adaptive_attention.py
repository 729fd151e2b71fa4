"""Adaptive attention: what its terms are, that they move keys, and that the source's per-row form is a temperature."""

import pytest
import torch

from whence import Epar, NoPosition, Sinusoidal, attend
from whence.errors import WhenceError
from whence_papers.epar.attention import (
    AdaptiveAttention,
    AdaptiveModel,
    ContentAware,
    FusedAdapter,
    PerRow,
    TaskAware,
    prefix_mean,
)

W, T, HEADS, CONTEXT = 12, 10, 3, 16


def fused(width=W):
    return FusedAdapter(TaskAware(width, CONTEXT), ContentAware(width))


ADAPTERS = {"task": lambda: TaskAware(W, CONTEXT), "content": lambda: ContentAware(W), "fused": fused}


def layer(adapter, position=None, *, causal=True, temperature=1.0, seed=0):
    torch.manual_seed(seed)
    position = Epar(HEADS, beta=2.0, context=CONTEXT) if position is None else position
    attention_layer = AdaptiveAttention(W, HEADS, position, adapter(), causal=causal, temperature=temperature).double()
    for (
        parameter
    ) in attention_layer.adapter.parameters():  # louder than torch's start, so that a test can see each term
        parameter.data += torch.randn_like(parameter)
    return attention_layer


def inputs(seed=1):
    return torch.randn(2, T, W, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def split(attention_layer, x):
    q, k = (p(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for p in (attention_layer.queries, attention_layer.keys))
    return (q @ k.mT) * (W // HEADS) ** -0.5


def effect(attention_layer):
    d = (torch.arange(T)[:, None] - torch.arange(T)).abs().double()
    epar = attention_layer.position
    return epar.alpha() * (1 + epar.gamma() * torch.exp(-epar.beta() * d.flatten() / CONTEXT)) / (1 + epar.gamma())


def terms_by_hand(reading, attention_layer):
    """The score term of each row and key by the formula in the docstring of ``adapters``, with loops."""
    out = torch.zeros(2, T, T, dtype=torch.float64)
    adapter = attention_layer.adapter
    content = adapter if isinstance(adapter, ContentAware) else getattr(adapter, "content", None)
    for b in range(2):
        for i in range(T):
            share = 1.0 if reading.task_share is None else float(reading.task_share[b, i])
            for j in range(T):
                if reading.slope is not None:
                    out[b, i, j] += share * float(reading.slope[b, i]) * (j - i) / CONTEXT
                if reading.importance is not None:
                    rest = 1.0 if reading.task_share is None else 1 - share
                    out[b, i, j] += rest * float(content.strength()) * float(reading.importance[b, j])
    return out


def trust_by_hand(reading):
    """What is left of the score of queries and keys in each row: a fifth under a type that leans, all under one that does not."""
    out = torch.ones(2, 1, T, 1, dtype=torch.float64)
    if reading.task_weights is not None:
        leaning = reading.task_weights[..., 0] + reading.task_weights[..., 2]  # near and far
        share = 1.0 if reading.task_share is None else reading.task_share
        out[:, 0, :, 0] -= 0.8 * share * leaning
    return out


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("causal", (True, False))
@torch.no_grad()
def test_the_terms_are_those_of_the_formula(name, causal):
    attention_layer, x = layer(ADAPTERS[name], causal=causal, temperature=0.8), inputs()
    weights, reading = attention_layer.inspect_attention(x)
    scores = trust_by_hand(reading) * split(attention_layer, x) + terms_by_hand(reading, attention_layer)[:, None]
    logits = scores * effect(attention_layer).reshape(HEADS, T, T) / 0.8
    if causal:
        logits = logits.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(weights, logits.softmax(-1), rtol=1e-11, atol=1e-13)
    v = attention_layer.values(x).unflatten(2, (HEADS, -1)).transpose(1, 2)
    want = attention_layer.out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(
        attention_layer(x), want, rtol=1e-10, atol=1e-12
    )  # another backend than the weights' one


def orders(logits_or_weights):
    return logits_or_weights.argsort(-1)


@torch.no_grad()
def test_per_row_is_a_temperature_and_nothing_else():
    """Scaling a row changes no order of keys, and equals attention with that row's own temperature."""
    attention_layer, x = layer(lambda: PerRow(W)), inputs()
    plain = layer(lambda: PerRow(W))
    plain.adapter = None
    weights, reading = attention_layer.inspect_attention(x)
    before, _ = plain.inspect_attention(x)
    scale = reading.row_scale
    assert (scale > 0).all() and float((scale - 1).abs().max()) > 0.2  # it does something
    assert float((weights - before).abs().max()) > 0.01
    for row in range(T):
        seen = slice(0, row + 1)
        assert torch.equal(orders(weights[:, :, row, seen]), orders(before[:, :, row, seen]))
        for b in range(2):
            q, k = (
                p(x)[b : b + 1].unflatten(2, (HEADS, -1)).transpose(1, 2)
                for p in (attention_layer.queries, attention_layer.keys)
            )
            _, alone = attend(
                q[:, :, row : row + 1], k, k, position=attention_layer.position, causal=True, return_weights=True,
                temperature=1 / float(scale[b, row]), q_positions=torch.tensor([row]), k_positions=torch.arange(T),
            )  # fmt: skip
            torch.testing.assert_close(weights[b, :, row], alone[0, :, 0], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ADAPTERS)
def test_terms_on_keys_change_the_order_of_keys(name):
    attention_layer, x = layer(ADAPTERS[name]), inputs()
    weights, _ = attention_layer.inspect_attention(x)
    attention_layer.adapter = None
    before, _ = attention_layer.inspect_attention(x)
    assert not torch.equal(orders(weights[:, :, -1]), orders(before[:, :, -1]))


@pytest.mark.parametrize("kind, nearer", (("near", True), ("far", False)))
def test_a_task_type_does_what_its_name_says(kind, nearer):
    attention_layer, x = layer(ADAPTERS["task"], NoPosition()), inputs()
    with torch.no_grad():
        attention_layer.adapter.task_logits.weight.zero_()
        attention_layer.adapter.task_logits.bias.copy_(
            40.0 * torch.tensor([t == kind for t in attention_layer.adapter.types])
        )
    weights, reading = attention_layer.inspect_attention(x)
    attention_layer.adapter = None
    before, _ = attention_layer.inspect_attention(x)
    distance = torch.arange(T - 1, -1, -1).double()
    moved = (weights[:, :, -1] @ distance) - (before[:, :, -1] @ distance)
    assert (moved < 0).all() if nearer else (moved > 0).all()
    assert (reading.slope > 0).all() if nearer else (reading.slope < 0).all()


@torch.no_grad()
def test_a_neutral_type_differs_from_near_and_far_together():
    """Else the weight of "anywhere" would mean nothing: half near and half far have its slope, and must not be it."""
    attention_layer, x = layer(ADAPTERS["task"], NoPosition()), inputs()
    attention_layer.adapter.task_logits.weight.zero_()
    attention_layer.adapter.task_logits.bias.copy_(torch.tensor([0.0, 80.0, 0.0]))
    anywhere, read = attention_layer.inspect_attention(x)
    attention_layer.adapter.task_logits.bias.copy_(torch.tensor([80.0, 0.0, 80.0]))
    both_ways, read_both = attention_layer.inspect_attention(x)
    torch.testing.assert_close(read.slope, read_both.slope, rtol=0, atol=1e-12)
    assert float((anywhere - both_ways).abs().max()) > 0.01
    attention_layer.adapter = None
    torch.testing.assert_close(
        anywhere, attention_layer.inspect_attention(x)[0], rtol=1e-11, atol=1e-13
    )  # queries and keys alone


def test_important_keys_gain_in_every_row():
    attention_layer, x = layer(ADAPTERS["content"], NoPosition()), inputs()
    weights, reading = attention_layer.inspect_attention(x)
    attention_layer.adapter = None
    gained = (weights / attention_layer.inspect_attention(x)[0])[
        :, :, -1
    ]  # up to the row's normaliser, exp(strength * importance)
    for b in range(2):
        assert torch.equal(gained[b, 0].argsort(), reading.importance[b].argsort())


@pytest.mark.parametrize("name", [*ADAPTERS, "row"])
def test_no_row_reads_the_future(name):
    attention_layer = layer({**ADAPTERS, "row": lambda: PerRow(W)}[name])
    x = inputs()
    changed = x.clone()
    changed[:, 6:] += 3.0
    torch.testing.assert_close(attention_layer(x)[:, :6], attention_layer(changed)[:, :6], rtol=1e-12, atol=1e-13)
    assert float((attention_layer(x)[:, 6:] - attention_layer(changed)[:, 6:]).abs().max().detach()) > 0.01


@pytest.mark.parametrize("name", [*ADAPTERS, "row"])
def test_every_parameter_trains(name):
    attention_layer = layer({**ADAPTERS, "row": lambda: PerRow(W)}[name], Epar(HEADS, learnable=True, context=CONTEXT))
    attention_layer(inputs()).square().sum().backward()
    # a bias of the keys adds one number to a whole row, except where EPAR's factor tells the keys apart
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in attention_layer.parameters())


def test_importance_depends_on_the_token_and_task_weights_on_the_prefix():
    attention_layer, x = layer(fused), inputs()
    changed = x.clone()
    changed[:, 3] += 2.0
    (_, one), (_, two) = attention_layer.inspect_attention(x), attention_layer.inspect_attention(changed)
    same = torch.arange(T) != 3
    assert torch.equal(one.importance[:, same], two.importance[:, same])
    assert (one.importance[:, 3] != two.importance[:, 3]).all()
    assert torch.equal(one.task_weights[:, :3], two.task_weights[:, :3])
    assert (one.slope[:, 3:] != two.slope[:, 3:]).all() and (one.task_share[:, 3:] != two.task_share[:, 3:]).all()


def test_half_precision_around_it():
    attention_layer = layer(fused).float()
    with torch.autocast("cpu", torch.bfloat16):
        out = attention_layer(inputs().float())
    torch.testing.assert_close(out.float(), attention_layer(inputs().float()), rtol=0.1, atol=0.1)


def test_prefix_mean():
    x = inputs()
    torch.testing.assert_close(prefix_mean(x, True)[:, 4], x[:, :5].mean(1))
    torch.testing.assert_close(prefix_mean(x, False)[:, 4], x.mean(1))


def test_the_small_model():
    one, same, other = (AdaptiveModel(9, fused, seed=seed) for seed in (3, 3, 4))
    tokens = torch.randint(9, (2, 7))
    assert one(tokens).shape == (2, 7, 9) and torch.equal(one(tokens), same(tokens))
    assert not torch.equal(one(tokens), other(tokens))
    weights, reading = one.inspect_attention(tokens)
    assert weights.shape == (2, 2, 7, 7) and reading.task_weights.shape == (2, 7, 3) and not weights.requires_grad
    torch.manual_seed(0)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    AdaptiveModel(9, fused)
    assert torch.equal(torch.rand(1), drawn)


@pytest.mark.parametrize(
    "call, text",
    (
        (lambda: AdaptiveAttention(10, 3), r"embed_dim, heads.*10 and 3"),
        (lambda: AdaptiveAttention(8, 2, adapter=TaskAware(6, 4)), r"adapter.*6.*8.*embed_dim=8"),
        (lambda: AdaptiveAttention(8, 2, Sinusoidal(8)), r"position.*Sinusoidal.*without_embedding"),
        (lambda: TaskAware(8, 0), r"context, types.*0 and 3"),
        (lambda: TaskAware(8, 4, types={"a": 2.0}), r"types.*{'a': 2\.0}.*strength"),
        (lambda: ContentAware(8, types={"a": 2.0}), r"types.*{'a': 2\.0}"),
        (lambda: FusedAdapter(TaskAware(8, 4), ContentAware(6)), r"task, content.*8 and 6"),
        (lambda: AdaptiveModel(9)(torch.zeros(1, 2).long(), torch.ones(1, 2)), r"key_mask.*a mask"),
    ),
)
def test_usage_errors(call, text):
    with pytest.raises(WhenceError, match=text):
        call()

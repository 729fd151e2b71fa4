"""Mechanisms acting together are the formula one would write by hand, on every backend, with gradients.

The formula is written here a second time, from the papers and without whence's own code: dense, in float64, one loop or
one line a mechanism. Rotations chain, factors multiply, biases and content terms add, and a sink is one more logit.
"""

import math

import pytest
import torch

import whence
from whence import (
    Alibi,
    Attention,
    Cope,
    Epar,
    Fire,
    Kerple,
    Learned,
    NoPosition,
    PowerPrior,
    Recency,
    Rotary,
    Sandwich,
    Shaw,
    Sink,
    Sinusoidal,
    StableMask,
    T5Bias,
    TransformerXL,
    attend,
    without_embedding,
)  # fmt: skip
from whence.checks import CHECKS

HEADS, GROUPS, TOKENS, HEAD_WIDTH, WIDTH = 4, 2, 9, 4, 16
CONTEXT = 24


# --- what each mechanism is, by hand; d is [T, S], p is [T] -------------------------------------------------------------


def turn(part, x, p):
    """Pairs of columns as complex numbers, turned: layout "half"."""
    half = x.shape[-1] // 2
    angle = p[:, None] * torch.tensor([10000.0 ** (-i / half) for i in range(half)], dtype=x.dtype)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)


def decay(part, d, p):
    length = {"context": part.context, "query": p[:, None] + 1, "sequence": d.shape[1]}[part.length]
    alpha, beta = (n()[:, :, None] for n in (part.alpha, part.beta))
    fading = torch.exp(-beta * d.abs() / length)
    if part.form == "basic":
        return alpha * fading
    gamma = part.gamma()[:, :, None]
    return alpha * (1 + gamma * fading) / (1 + gamma)


def fire(part, d, p):
    c, first, last = part.c.abs(), part.network[0], part.network[2]
    floor = (part.multiplier * part.threshold).abs()
    share = torch.log(1 + c * d.abs()) / (torch.log(1 + c * torch.maximum(floor, p[:, None])) + 1e-6)
    hidden = torch.relu(share[..., None] * first.weight[:, 0] + first.bias)
    return (hidden @ last.weight.T + last.bias).permute(2, 0, 1)


def sandwich(part, d, p):
    total = sum(torch.cos(d / 10000.0 ** (2 * i / part.dim)) for i in range(part.dim // 2))
    return torch.stack([total * part.heads / (8 * h) for h in range(1, part.heads + 1)])


BIAS = {
    Alibi: lambda part, d, p: -part.slope()[:, :, None] * d.abs(),
    Kerple: lambda part, d, p: -part.r1()[:, :, None] * torch.log(1 + part.r2()[:, :, None] * d.abs()),
    PowerPrior: lambda part, d, p: -torch.where(d == 0, 0.0, (part.alpha.abs()[:, :, None] * d.abs().clamp(min=1)) ** part.beta()[:, :, None]),
    T5Bias: lambda part, d, p: part.table[d.clamp(min=0).long()].permute(2, 0, 1),  # below 16 a bucket is a distance
    Recency: lambda part, d, p: part.table[(d + 1).clamp(0, part.max_length - 1).long()][None],
    Fire: fire,
    Sandwich: sandwich,
}  # fmt: skip


def shaw_content(part, q, k, scores, visible, d, scale):
    table = part.key_table[(-d).clamp(-part.clip, part.clip).long() + part.clip]  # [T, S, D]
    return scale * torch.einsum("bhtd,tsd->bhts", q, table)


def shaw_values(part, weights, d):
    table = part.value_table[(-d).clamp(-part.clip, part.clip).long() + part.clip]
    return torch.einsum("bhts,tse->bhte", weights, table)


def cope_content(part, q, k, scores, visible, d, scale):
    gates = torch.where(visible, torch.sigmoid(scores), 0.0)
    count = torch.stack([gates[..., j:].sum(-1) for j in range(gates.shape[-1])], -1).clamp(max=part.positions - 1)
    low = count.detach().floor()
    share = (count - low)[..., None]
    rows = (1 - share) * part.e[low.long()] + share * part.e[count.detach().ceil().long()]
    return (q[:, :, :, None] * rows).sum(-1)


def transformer_xl_content(part, q, k, scores, visible, d, scale):
    rate = torch.tensor([10000.0 ** (-2 * i / part.embed_dim) for i in range(part.embed_dim // 2)], dtype=q.dtype)
    r = torch.cat([torch.sin(d[..., None] * rate), torch.cos(d[..., None] * rate)], -1)  # [T, S, width]
    keys = torch.einsum("hdw,tsw->htsd", part.projection.view(part.heads, part.head_dim, part.embed_dim), r)
    by_key = (part.u[:, None, None] * k[:, :, None]).sum(-1)  # [B, H, 1, S]
    by_distance = ((q + part.v[:, None])[:, :, :, None] * keys).sum(-1)
    return scale * (by_key + by_distance)


CONTENT = {Shaw: shaw_content, Cope: cope_content, TransformerXL: transformer_xl_content}


def stable_mask(part, p):
    rows = []
    for n in p.long().tolist():
        later = torch.arange(n + 1, part.context, dtype=p.dtype)
        rows.append(torch.logsumexp(-part.gamma() * later, -1))
    return torch.stack(rows, -1)


SINK = {Sink: lambda part, p: part.value.expand(-1, len(p)), StableMask: stable_mask}


def sines(part, p):
    pairs = [(torch.sin(p / 10000.0 ** (i / part.embed_dim)), torch.cos(p / 10000.0 ** (i / part.embed_dim))) for i in range(0, part.embed_dim, 2)]  # fmt: skip
    return torch.stack([column for pair in pairs for column in pair], -1)


EMBED = {Sinusoidal: sines, Learned: lambda part, p: part.table[p.long()]}


def by_hand(position, q, k, v, p, scale, temperature):
    """Dense causal attention of all parts together."""
    parts = [part for part in position.parts if type(part) not in (*EMBED, NoPosition)]
    assert all(type(part) in (*BIAS, *CONTENT, *SINK, Rotary, Epar) for part in parts)
    share = q.shape[1] // k.shape[1]
    p = p.to(q.dtype)
    for part in parts:
        if isinstance(part, Rotary):
            q, k = turn(part, q, p), turn(part, k, p)
    k, v = (torch.stack([t[:, h // share] for h in range(q.shape[1])], 1) for t in (k, v))
    d = p[:, None] - p[None, :]
    visible = d >= 0
    scores = scale * torch.einsum("bhtd,bhsd->bhts", q, k)
    content = [CONTENT[type(part)](part, q, k, scores, visible, d, scale) for part in parts if type(part) in CONTENT]
    factors = [decay(part, d, p) for part in parts if isinstance(part, Epar)]
    biases = [BIAS[type(part)](part, d, p) for part in parts if type(part) in BIAS]
    logits = (sum(content, scores) * math.prod(factors) + sum(biases)) / temperature
    exponentials = torch.where(visible, torch.exp(logits), 0.0)
    total = exponentials.sum(-1, keepdim=True)
    for part in parts:
        if type(part) in SINK:
            total = total + torch.exp(SINK[type(part)](part, p) / temperature)[None, :, :, None]
    weights = exponentials / total
    out = weights @ v
    for part in parts:
        if isinstance(part, Shaw):
            out = out + shaw_values(part, weights, d)
    return out


# --- the compositions ---------------------------------------------------------------------------------------------------

COMPOSITIONS = {
    "Rotary + Epar": lambda: Rotary() + Epar(HEADS, learnable=True, context=CONTEXT),
    "Epar + Rotary": lambda: Epar(HEADS, learnable=True, context=CONTEXT) + Rotary(),
    "Alibi + Epar": lambda: Alibi(HEADS, learnable=True) + Epar(HEADS, learnable=True, length="query"),
    "Epar + Epar": lambda: Epar(HEADS, learnable=True, form="basic", context=7) + Epar(HEADS, learnable=True, length="query"),
    "Epar by sequence + Kerple": lambda: Epar(HEADS, learnable=True, length="sequence") + Kerple(HEADS),
    "Rotary + Rotary": lambda: Rotary() + Rotary(),
    "Shaw + Alibi": lambda: Shaw(HEAD_WIDTH, clip=3, std=0.5) + Alibi(HEADS, learnable=True),
    "Shaw + Shaw": lambda: Shaw(HEAD_WIDTH, clip=2, std=0.5) + Shaw(HEAD_WIDTH, clip=5, std=0.5),
    "Cope + Rotary": lambda: Cope(HEAD_WIDTH, positions=4) + Rotary(),
    "Cope + Epar": lambda: Cope(HEAD_WIDTH, positions=6) + Epar(HEADS, learnable=True, context=CONTEXT),
    "TransformerXL + Epar": lambda: TransformerXL(HEADS, HEAD_WIDTH, std=0.5) + Epar(HEADS, learnable=True, context=CONTEXT),
    "Fire + Sink": lambda: Fire(HEADS, threshold=4.0) + Sink(HEADS, value=0.5),
    "PowerPrior + Sandwich": lambda: PowerPrior(HEADS, alpha=0.3, beta=0.7) + Sandwich(HEADS, dim=8),
    "Recency + NoPosition": lambda: Recency(5) + NoPosition(),
    "Rotary + Alibi + Sink": lambda: Rotary() + Alibi(HEADS, learnable=True) + Sink(HEADS),
    "T5Bias + Rotary + StableMask": lambda: T5Bias(HEADS, std=1.0) + Rotary() + StableMask(HEADS, context=CONTEXT, learnable=True),
    "StableMask + Rotary + Sink": lambda: StableMask(HEADS, context=CONTEXT, learnable=True) + Rotary() + Sink(HEADS, value=0.5),
    "StableMask + StableMask": lambda: StableMask(HEADS, context=CONTEXT, learnable=True) + StableMask(HEADS, context=CONTEXT, gamma=0.1),
    "Epar + Fire + Sink": lambda: Epar(HEADS, learnable=True, context=CONTEXT) + Fire(HEADS, threshold=4.0) + Sink(HEADS),
    "Shaw + TransformerXL + Cope": lambda: Shaw(HEAD_WIDTH, std=0.5) + TransformerXL(HEADS, HEAD_WIDTH, std=0.5) + Cope(HEAD_WIDTH),
    "Rotary + Shaw + Epar": lambda: Rotary() + Shaw(HEAD_WIDTH, std=0.5) + Epar(HEADS, learnable=True, context=CONTEXT),
    "Alibi + Kerple + PowerPrior": lambda: Alibi(HEADS) + Kerple(HEADS) + PowerPrior(HEADS, alpha=0.2, beta=1.5),
}  # fmt: skip

AT_INPUT = {
    "Sinusoidal + Alibi": lambda: Sinusoidal(WIDTH) + Alibi(HEADS, learnable=True),
    "Learned + Epar + Sink": lambda: Learned(WIDTH, 40, std=1.0) + Epar(HEADS, learnable=True, context=CONTEXT) + Sink(HEADS),
    "Sinusoidal + Learned": lambda: Sinusoidal(WIDTH) + Learned(WIDTH, 40, std=1.0),
    "Rotary + Learned + Shaw": lambda: Rotary() + Learned(WIDTH, 40, std=1.0) + Shaw(HEAD_WIDTH, std=0.5),
}  # fmt: skip

PLACES = {
    "counted from 0": torch.arange(TOKENS),
    "counted from 5": torch.arange(TOKENS) + 5,
    "with gaps": torch.tensor([0, 1, 3, 4, 5, 9, 10, 13, 14]),
}


def build(make):
    torch.manual_seed(0)
    position = make().double()
    with torch.no_grad():
        for p in position.parameters():  # so that heads differ and nothing stands at a symmetric start
            p.add_(torch.randn_like(p) * 0.2)
    return position


def assert_same(results, names):
    """Outputs and gradients of each way against those by hand."""
    for way, values in results.items():
        for name, actual, expected in zip(names, values, results["by hand"], strict=True):
            torch.testing.assert_close(
                actual, expected, rtol=1e-9, atol=1e-11, msg=lambda m, w=way, n=name: f"{w}, {n}: {m}"
            )


def with_gradients(out, wanted):
    loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()
    grads = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [out, *(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads, strict=True))]


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_a_composition_is_the_formula_written_by_hand(composition, places):
    position, p = build(COMPOSITIONS[composition]), PLACES[places]
    q = torch.randn(2, HEADS, TOKENS, HEAD_WIDTH, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, GROUPS, TOKENS, HEAD_WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2))
    names, learnt = zip(*position.named_parameters(), strict=True) if list(position.parameters()) else ((), ())
    wanted = [q, k, v, *learnt]
    results = {"by hand": with_gradients(by_hand(position, q, k, v, p, 0.7, 1.3), wanted)}
    for backend in ("reference", "blockwise"):
        out = attend(
            q, k, v, position=position, causal=True, q_positions=p, k_positions=p, scale=0.7, temperature=1.3, backend=backend
        )  # fmt: skip
        results[backend] = with_gradients(out, wanted)
    assert_same(results, ["output", "q", "k", "v", *names])


@pytest.mark.parametrize("composition", AT_INPUT)
def test_embeddings_compose_with_score_effects_in_a_layer(composition):
    position = build(AT_INPUT[composition])
    layer = Attention(WIDTH, HEADS, position, num_kv_heads=GROUPS, causal=True).double()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    p = torch.arange(TOKENS, dtype=torch.float64)
    named = dict(layer.named_parameters())
    wanted = [x, *named.values()]

    embedded = x + sum(EMBED[type(part)](part, p) for part in position.parts if type(part) in EMBED)
    q, k, v = (
        (embedded @ linear.weight.T).view(2, TOKENS, -1, HEAD_WIDTH).transpose(1, 2)
        for linear in (layer.queries, layer.keys, layer.values)
    )
    mixed = by_hand(position, q, k, v, p, HEAD_WIDTH**-0.5, 1.0)
    hand = mixed.transpose(1, 2).reshape(2, TOKENS, -1) @ layer.out.weight.T
    results = {"by hand": with_gradients(hand, wanted)}
    for backend in ("reference", "blockwise"):
        layer.backend = backend
        results[backend] = with_gradients(layer(x), wanted)
    assert_same(results, ["output", "x", *named])


def test_a_model_that_embeds_once_gives_its_layers_the_rest():
    position = build(AT_INPUT["Learned + Epar + Sink"])
    learned, epar, sink = position.parts
    assert without_embedding(position).parts == (epar, sink) and position.at_input() == (learned,)
    layer = Attention(WIDTH, HEADS, position, causal=True).double()
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    whole = layer(x)
    layer.position = without_embedding(position)
    torch.testing.assert_close(layer(learned.embed(x, torch.arange(TOKENS)[None])), whole, rtol=0, atol=1e-12)
    assert without_embedding(learned + Sinusoidal(WIDTH)).effects == frozenset()
    assert without_embedding(learned + epar) is epar


def test_one_part_is_the_same_alone_and_with_parts_that_do_nothing():
    q = torch.randn(1, HEADS, TOKENS, HEAD_WIDTH, dtype=torch.float64)
    epar = build(lambda: Epar(HEADS, learnable=True, context=CONTEXT))
    neutral = Epar(HEADS, form="basic", beta=0.0, context=9) + Alibi(HEADS, slope=[0.0] * HEADS)
    for backend in ("reference", "blockwise"):
        alone = attend(q, q, q, position=epar, causal=True, backend=backend)
        together = attend(q, q, q, position=epar + neutral.double(), causal=True, backend=backend)
        torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


CHECKED = [
    "Rotary + Alibi + Sink",
    "Shaw + Alibi",
    "T5Bias + Rotary + StableMask",
    "Cope + Epar",
]


@pytest.mark.parametrize("composition", [*CHECKED, "Learned + Epar + Sink"])
def test_compositions_pass_the_checks_of_every_mechanism(composition, monkeypatch):
    monkeypatch.delitem(CHECKS, "compiled decoding step")  # slow, and tests/checks traces each part and some sums
    report = whence.check((COMPOSITIONS | AT_INPUT)[composition]())
    assert not report.failed and len(report.passed) >= 11


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Shaw(8) + TransformerXL(2, 4), r"8.*4.*head_dim"),
        (lambda: Epar(2) + Alibi(3) + Sink(4), "Epar for 2 heads and Alibi for 3 heads"),
        (lambda: Rotary() + torch.nn.Identity(), "only a Position can be added"),
    ],
    ids=["two widths", "two head counts", "no position"],
)
def test_compositions_that_cannot_be(make, text):
    with pytest.raises(whence.WhenceError, match=text):
        make()


def test_a_part_is_refused_in_attention_by_its_own_name():
    # the sum of a good and a bad part must say which of them does not fit the call
    q = torch.zeros(1, HEADS, TOKENS, HEAD_WIDTH)
    for position, name in (
        (Rotary() + Alibi(HEADS), "Alibi"),
        (Rotary() + Sinusoidal(WIDTH), "Sinusoidal"),
        (Epar(HEADS) + Shaw(HEAD_WIDTH + 1), "Shaw"),
    ):
        with pytest.raises(whence.WhenceError, match=rf"attend\(position={name}\)"):
            attend(q, q, q, position=position)

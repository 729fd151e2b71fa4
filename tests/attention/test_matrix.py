"""Backend x mechanism x mask x dtype x awkward shape, against the float64 reference on the same quantised inputs.

The error allowed is derived from data: twice what a plain eager computation in the same precision loses, plus rounding.
Gradients of q, k, v and of every parameter of the mechanism are held to the same budget.

Each mechanism that acts on scores or values meets each mask in each shape. In the smallest shape that shows everything each of these cases is met by all
four dtypes, in the others by one of them, chosen as in a Latin square: any three of mechanism, mask, shape and dtype still
meet in every way (a test below counts them), at a third of the price.
"""

import copy
import itertools

import pytest
import torch

from whence import Shaw, WhenceError, attend
from whence.attention.arguments import Arguments
from whence.attention.layout import resolve_layout
from whence.position.catalogue import CATALOGUE
from whence.position.evaluate import evaluate

# batch, heads, key heads, queries, keys, key width, value width
SHAPES = [(2, 4, 2, 1, 1, 8, 8), (1, 4, 4, 63, 63, 60, 16), (2, 6, 2, 47, 47, 16, 16), (2, 2, 1, 7, 40, 12, 5)]
MASKS = [
    "causal",
    "bidirectional",
    "window",
    "left padding",
    "lengths",
    "segment_ids",
    "scattered positions",
    "temperature",
]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
# a mechanism that only rotates reaches a backend as other queries and keys, so Rotary stands for all of them here
# test_clock.py has the mechanisms that need the layer input
ENTRIES = [e for e in CATALOGUE if not e.make(2, 8).effects & {"embed", "clock"}]
ENTRIES = [e for e in ENTRIES if e.name == "Rotary" or e.make(2, 8).effects != {"rotate"}]


def build(entry, heads, width, value_dim):
    torch.manual_seed(1)
    position = Shaw(width, value_dim=value_dim) if entry.name == "Shaw" else entry.make(heads, width)
    with torch.no_grad():  # a mechanism at its start may be flat: give every parameter something to show
        for p in position.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return position


def arguments(mask, shape):
    batch, _, _, queries, keys, _, _ = shape
    given = {"causal": mask != "bidirectional"}
    if queries != keys:
        given |= {"q_positions": torch.arange(keys - queries, keys), "k_positions": torch.arange(keys)}
    if mask == "window":
        given["window"] = 5
    if mask == "temperature":
        given |= {"temperature": 1.7, "scale": 0.4}
    if mask == "left padding":
        given["key_mask"] = torch.arange(keys) >= torch.arange(batch)[:, None] * 2
    if mask == "lengths":
        given["lengths"] = (keys - 3 * torch.arange(batch)).clamp(min=0)
    if mask == "segment_ids":
        runs = (torch.arange(keys) // 9).expand(batch, -1)
        given["segment_ids"] = runs if queries == keys else (runs[:, -queries:], runs)
    if mask == "scattered positions":
        where = (torch.arange(keys) * 3 + torch.arange(keys) % 2).expand(batch, -1)
        given |= {"q_positions": where[:, keys - queries :], "k_positions": where}
    return given


def run(position, tensors, upstream, given, **more):
    """The output and all gradients, in the dtype of the tensors."""
    leaves = [x.clone().requires_grad_(True) for x in tensors]
    out = attend(*leaves, position=position, **given, **more)
    return [out.detach(), *gradients(out, leaves, position, upstream)]


def gradients(out, leaves, position, upstream):
    wanted = [*leaves, *(p for p in position.parameters() if p.requires_grad)]
    result = torch.autograd.grad(out, wanted, upstream.to(out.dtype), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, result, strict=True)]


def eager(position, tensors, upstream, given):
    """What a user would write without whence, every intermediate in the dtype of the inputs (distance effects only)."""
    leaves = [x.clone().requires_grad_(True) for x in tensors]
    names = ("q_positions", "k_positions", "lengths", "key_mask", "segment_ids", "window")
    layout = resolve_layout(Arguments(*leaves, causal=given["causal"], **{n: given.get(n) for n in names}))
    q, k, v = leaves
    q, k = position.rotate(q, k, layout.q_positions, layout.k_positions)
    share, heads, dtype = q.shape[1] // k.shape[1], q.shape[1], q.dtype
    k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    scores = (q @ k.transpose(-1, -2)) * given.get("scale", q.shape[3] ** -0.5)
    for hook in ("score_scale", "bias"):
        effect = evaluate(position, hook, layout.distance().float(), heads, layout.length_of)
        if effect is not None:
            effect = effect.transpose(0, 1).to(dtype)
            scores = scores * effect if hook == "score_scale" else scores + effect
    visible = layout.visible()
    alone = ~visible.any(-1, keepdim=True)
    weights = torch.softmax((scores / given.get("temperature", 1.0)).masked_fill(~visible & ~alone, -torch.inf), -1)
    out = (weights.masked_fill(alone, 0.0)) @ v
    return [out.detach(), *gradients(out, leaves, position, upstream)]


def error(result, exact, floor):
    """Root mean square of the difference, relative to that of the exact result or to a floor.

    Inputs have unit size, so terms of size 1 cancel in a gradient that comes out smaller than the floor.
    """
    assert torch.isfinite(result).all()
    size = exact.square().mean().sqrt().clamp(min=floor)
    return float((result.double() - exact).square().mean().sqrt() / size)


def rounding(dtype):
    """What rounding alone may cost: wide types also accumulate in that type, over a hundred keys or so."""
    return torch.finfo(dtype).eps * (16 if dtype in (torch.float64, torch.float32) else 2)


def dtypes_of(entry, mask, shape):
    if shape == SHAPES[-1]:
        return DTYPES
    return [DTYPES[(ENTRIES.index(entry) + MASKS.index(mask) + SHAPES.index(shape)) % len(DTYPES)]]


def test_any_three_of_mechanism_mask_shape_and_dtype_meet():
    sides = ENTRIES, MASKS, SHAPES, DTYPES
    cases = [(*case, dtype) for case in itertools.product(ENTRIES, MASKS, SHAPES) for dtype in dtypes_of(*case)]
    for three in itertools.combinations(range(4), 3):
        met = {tuple(case[i] for i in three) for case in cases}
        assert len(met) == len(sides[three[0]]) * len(sides[three[1]]) * len(sides[three[2]])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_every_backend_is_the_reference(entry, mask):
    for shape in SHAPES:
        batch, heads, groups, queries, keys, width, value_dim = shape
        position = build(entry, heads, width, value_dim)
        if position.causal_only and mask == "bidirectional":
            continue  # defined for keys at or before the query only
        given = arguments(mask, shape)
        generator = torch.Generator().manual_seed(2)
        sizes = ((heads, queries, width), (groups, keys, width), (groups, keys, value_dim), (heads, queries, value_dim))
        inputs = [torch.randn(batch, *size, generator=generator) for size in sizes]
        for dtype in dtypes_of(entry, mask, shape):
            hold_against_the_reference(position, [x.to(dtype) for x in inputs], given, dtype)


def hold_against_the_reference(position, inputs, given, dtype):
    *quantised, upstream = inputs
    wide = copy.deepcopy(position).double()
    exact = run(wide, [x.double() for x in quantised], upstream.double(), given, backend="reference")
    own = wide if dtype == torch.float64 else position
    own_reference = run(own, quantised, upstream, given, backend="reference")
    plain_effects = position.effects <= {"score_scale", "bias", "rotate"}
    baseline = eager(own, quantised, upstream, given) if plain_effects else own_reference
    for backend in ("reference", "blockwise", "sdpa"):
        if backend == "sdpa" and position.effects - {"bias", "rotate"}:
            with pytest.raises(WhenceError, match=r"backend='sdpa'.*backend='"):
                run(own, quantised, upstream, given, backend=backend)
            continue
        result = own_reference if backend == "reference" else run(own, quantised, upstream, given, backend=backend)
        for i, (f, x, b) in enumerate(zip(result, exact, baseline, strict=True)):
            # torch's kernels keep the gradient of a mask in the dtype of q; ours keep a parameter's own
            kept_in = dtype if i < 4 or backend == "sdpa" else own_dtype(own, dtype)
            floor = 0.1 if i < 4 else 1.0  # a parameter sums thousands of such terms
            budget = 2 * (error(b, x, floor) + rounding(kept_in))
            lost = error(f, x, floor)
            assert lost <= budget, f"{backend} {dtype} {list(result[0].shape)} result {i}: {lost:.2e} over {budget:.2e}"


def own_dtype(position, dtype):
    """The precision that parameter gradients are kept in."""
    return next((p.dtype for p in position.parameters()), dtype)

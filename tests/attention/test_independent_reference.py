"""Random calls of every backend against the independent reference: the output and every gradient.

``pytest tests/attention/test_independent_reference.py --cases 5000`` runs more of them than the suite does. A case is its
number: ``-k '[417]'`` runs one again.
"""

import ast
import random
from dataclasses import dataclass, field
from pathlib import Path

import independent_reference as plain
import pytest
import torch
from random_mechanisms import EFFECTS, FORMULAS, MAKERS, RandomPosition, draw_names, draw_position, fit_dims

import whence
from whence import Attention, attend
from whence.position.catalogue import CATALOGUE

FUSED = [name for name in MAKERS if EFFECTS[name] <= {"rotate", "score_scale", "bias", "sink"}]
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}


@dataclass
class Call:
    """One call of ``attend``, or of a layer around it, and which queries its answer means something for."""

    names: list[str]
    mechanism: RandomPosition
    tensors: dict[str, torch.Tensor]  # q, k and v, or x; attn_mask where it is additive
    arguments: dict  # the arguments of attend, without backend
    layer: Attention | None
    counts: torch.Tensor  # [B, T]: not padding whose position nobody gave
    upstream: torch.Tensor = field(repr=False)
    dtype: torch.dtype

    def __str__(self):
        shapes = {name: list(t.shape) for name, t in self.tensors.items()}
        return f"{self.mechanism.position!r}\n{shapes} {self.dtype} layer={self.layer is not None}\n{self.arguments}"


# --- drawing a call ----------------------------------------------------------------------------------------------------


def draw_call(case, dtype=torch.float64, *, fused=False, names=None):
    rng = random.Random(case)
    torch.manual_seed(case)
    makers = [name for name in MAKERS if not fused or name in FUSED]
    names = names or draw_names(rng, makers[case % len(makers)], fit=lambda name: name in makers)
    layered = any(EFFECTS[name] & {"embed", "clock"} for name in names) or rng.random() < 0.1
    batch, groups, share = rng.randint(1, 3), rng.randint(1, 3), rng.randint(1, 3)
    heads, rows = groups * share, rng.choice([1, 2, 3, 5, 8, 13])
    keys = rows if layered or rng.random() < 0.6 else rng.choice([1, 2, 4, 7, 11, 16])
    dim, value_dim = rng.choice([1, 2, 3, 4, 6, 7, 8]), rng.choice([1, 2, 5, 8])
    dim = dim + 1 if dim == 1 and "Rotary" in names else dim
    dim, value_dim = fit_dims(names, dim, value_dim)
    mechanism = draw_position(rng, names, heads, dim, value_dim, dtype)
    arguments = {"causal": mechanism.any("causal") or rng.random() < 0.6}
    if rng.random() < 0.3:
        arguments["window"] = rng.choice([1, 2, 4, 9, 100])
    arguments |= draw_masks(rng, batch, rows, keys, mechanism)
    arguments |= draw_positions(rng, batch, rows, keys, mechanism, arguments, far=dtype == torch.float64, fused=fused)
    if layered and len({"q_positions", "k_positions"} & arguments.keys()) == 2:
        del arguments["k_positions"]  # a layer's queries and keys are the same tokens
    if rng.random() < 0.4:
        # a logit of some hundred has few digits behind the point in float32: such calls are for float64
        arguments["scale"] = rng.choice([0.0, -0.7, 1.0, 0.01, 12.0 if dtype == torch.float64 else 2.0])
    if rng.random() < 0.3:
        arguments["temperature"] = rng.choice([0.05 if dtype == torch.float64 else 0.5, 3.0, 1e6])

    counts = torch.ones(batch, rows, dtype=torch.bool)
    if not {"q_positions", "k_positions"} & arguments.keys() and rows == keys:
        counts = real_keys(arguments, batch, keys)
    shapes = {"q": (batch, heads, rows, dim), "k": (batch, groups, keys, dim), "v": (batch, groups, keys, value_dim)}
    layer, wide = None, (batch, heads, rows, value_dim)
    if layered:
        settings = {name: arguments[name] for name in ("causal", "window", "scale", "temperature") if name in arguments}
        layer = Attention(
            heads * dim, heads, mechanism.position, num_kv_heads=groups, head_dim=dim, value_dim=value_dim,
            bias=rng.random() < 0.5, **settings,
        ).to(dtype)  # fmt: skip
        shapes, wide = {"x": (batch, rows, heads * dim)}, (batch, rows, heads * dim)
    upstream = torch.randn(wide, dtype=dtype) * counts.reshape(batch, *([rows, 1] if layered else [1, rows, 1]))
    tensors = {name: torch.randn(shape, dtype=dtype) for name, shape in shapes.items()}
    if not fused:
        draw_pair_mask(random.Random(f"mask {case}"), (batch, heads, rows, keys), tensors, arguments, dtype)
    return Call(names, mechanism, tensors, arguments, layer, counts, upstream, dtype)


#: (batch, head, query position, key position) -> bool, for numbers and for tensors that broadcast
MASK_FUNCTIONS = {
    "strided": lambda b, h, q, k: (q - k) % 3 != 1,
    "by head": lambda b, h, q, k: (k <= q + h) | (k % 2 == 0),
    "by row": lambda b, h, q, k: (k + b) % 2 == 0,
    "nothing": lambda b, h, q, k: (q < 0) & (k < 0),
}


def draw_pair_mask(rng, full, tensors, arguments, dtype):
    """In some calls a boolean mask, an additive one (which gets a gradient), a mask function, or two of them."""
    if rng.random() < 0.7:
        return
    kind = rng.choice(["bool", "additive", "function", "both"])
    shape = tuple(n if rng.random() < 0.7 else 1 for n in full)
    shape = shape[2:] if rng.random() < 0.3 else shape
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    hidden = torch.rand(shape, generator=generator) < rng.choice([0.1, 0.5, 0.9])
    if kind == "bool":
        arguments["attn_mask"] = ~hidden
    elif kind != "function":
        numbers = 2 * torch.randn(shape, generator=generator, dtype=dtype)
        tensors["attn_mask"] = numbers.masked_fill(hidden, -torch.inf) if rng.random() < 0.7 else numbers
    countable = full[2] == full[3] and not isinstance(arguments.get("segment_ids"), tuple)
    if kind in ("function", "both") and (countable or {"q_positions", "k_positions"} & arguments.keys()):
        arguments["mask_fn"] = rng.choice(list(MASK_FUNCTIONS.values()))


def reference_mask(arguments, mask, row, heads, q_positions, k_positions):
    """What ``attn_mask`` and ``mask_fn`` say about one sequence, pair by pair: ``[H, T, S]``, or None."""
    rows, keys = len(q_positions), len(k_positions)
    if mask is not None:
        mask = mask if mask.ndim == 4 else mask[None, None]
        mask = mask[row if mask.shape[0] > 1 else 0].expand(heads, rows, keys)
    if "mask_fn" in arguments:
        allowed = torch.tensor([
            [[bool(arguments["mask_fn"](row, h, q, k)) for k in k_positions.tolist()] for q in q_positions.tolist()]
            for h in range(heads)
        ])  # fmt: skip
        both = mask is not None and mask.dtype != torch.bool
        mask = mask.masked_fill(~allowed, -torch.inf) if both else allowed if mask is None else mask & allowed
    return mask


def draw_masks(rng, batch, rows, keys, mechanism):
    """Padding on any side and packed documents."""
    arguments = {}
    if mechanism.any("alone"):
        return arguments
    kind = rng.choice(["none", "none", "none", "lengths", "left", "right", "holes"])
    counts = torch.tensor([rng.randint(0, keys) for _ in range(batch)])
    if kind == "lengths":
        arguments["lengths"] = counts
    elif kind != "none":
        place = torch.arange(keys)
        left, right = place >= keys - counts[:, None], place < counts[:, None]
        arguments["key_mask"] = {"left": left, "right": right, "holes": torch.rand(batch, keys) < 0.6}[kind]
    if rng.random() < 0.25:
        shapes = [rng.choice([(batch, n), (n,)]) for n in (rows, keys)]
        numbers = [torch.randint(0, 2, shape).cumsum(-1) for shape in shapes]
        arguments["segment_ids"] = numbers[1] if rows == keys and rng.random() < 0.7 else tuple(numbers)
    return arguments


def draw_positions(rng, batch, rows, keys, mechanism, arguments, *, far, fused):
    """None where tokens are counted, one argument for both, or two: runs, any order, repeated, fractional.

    A long distance multiplies the rounding of a weight in the gradient of an exponent: ``far`` ones are for float64.
    """
    pair = isinstance(arguments.get("segment_ids"), tuple)
    free = mechanism.position.effects or arguments["causal"] or "window" in arguments
    if rows == keys and not pair and rng.random() < 0.5:
        return {}
    if not free and rng.random() < 0.5:
        return {}
    starts = [0, 0, 3, 200] if any(one.mechanism.at_input() for one in mechanism.pairs) else [0, 3, 200, 5000]
    if not far and any(type(one.mechanism).__name__ == "LearnedRotary" for one in mechanism.pairs):
        starts = [0, 0, 3, 20]  # the gradient of a frequency is a difference of terms as large as the positions
    start = rng.choice(starts)
    dtype = rng.choice([torch.int64, torch.int64, torch.int32, torch.int16])
    kind = "run" if fused else rng.choice(["run", "run by row", "any", "any", "any by row", "any by row", "fractional"])
    if kind == "fractional" and mechanism.any("whole"):
        kind = "any"
    if kind == "any by row" and rng.random() < 0.2:
        start, dtype = 0, rng.choice([torch.uint8, torch.int8])

    def places(count, first):
        by_row = "by row" in kind and rng.random() < 0.7
        if kind in ("run", "run by row"):
            begins = torch.randint(0, 4, (batch, 1)) if by_row else 0
            return (begins + torch.arange(first, first + count)).to(dtype)
        result = start + torch.randint(0, 2 + (2 if far else 1) * keys, (batch, count) if by_row else (count,))
        if kind == "fractional":  # differences never lie half way between whole numbers
            floats = [torch.float64, torch.float32, *([torch.float16] if start < 100 else [])]
            return (result + torch.randint(0, 3, result.shape) / 8).to(rng.choice(floats))
        return result.to(dtype)

    if rows == keys and not pair and rng.random() < 0.4:
        return {rng.choice(["q_positions", "k_positions"]): places(rows, start)}
    return {
        "q_positions": places(rows, start + rng.choice([0, 1, max(0, keys - rows), 60 if far else 3])),
        "k_positions": places(keys, start),
    }


def real_keys(arguments, batch, keys):
    if "lengths" in arguments:
        return torch.arange(keys) < arguments["lengths"][:, None]
    return arguments.get("key_mask", torch.ones(batch, keys, dtype=torch.bool))


# --- both sides --------------------------------------------------------------------------------------------------------


def run_package(call, backend):
    """Output, weights where the backend gives them, and the gradients of all that learns, by name."""
    leaves = {name: t.clone().requires_grad_() for name, t in call.tensors.items()}
    weights = None
    if call.layer is not None:
        call.layer.backend = backend
        passed = ("lengths", "key_mask", "segment_ids", "attn_mask", "mask_fn")
        about = {n: v for n, v in call.arguments.items() if n in passed}
        if {"q_positions", "k_positions"} & call.arguments.keys():
            about["positions"] = call.arguments.get("q_positions", call.arguments.get("k_positions"))
        out = call.layer(**leaves, **about)
        learns = dict(call.layer.named_parameters())
    else:
        about = call.arguments | {"position": call.mechanism.position, "backend": backend}
        out = attend(**leaves, return_weights=backend == "reference", **about)
        out, weights = out if backend == "reference" else (out, None)
        learns = {f"position.{n}": p for n, p in call.mechanism.position.named_parameters()}
    return out.detach(), weights, gradients(out, leaves | learns, call.upstream)


def run_reference(call, dtype):
    leaves = {name: t.detach().to(dtype).requires_grad_() for name, t in call.tensors.items()}
    source = call.mechanism.position if call.layer is None else call.layer
    prefix = "position." if call.layer is None else ""
    state = {prefix + n: t.detach().to(dtype).requires_grad_() for n, t in source.named_parameters()}
    learns = dict(state)
    state |= {prefix + n: t.to(dtype) if t.is_floating_point() else t for n, t in source.named_buffers()}
    parts = call.mechanism.parts(
        {n.removeprefix("position."): t for n, t in state.items() if n.startswith("position.")}
    )
    outs, weights = [], []
    for row in range(call.upstream.shape[0]):
        mask = leaves.get("attn_mask", call.arguments.get("attn_mask"))
        tensors = {n: t[row] for n, t in leaves.items() if n != "attn_mask"}
        out, weight = reference_row(call, row, tensors, mask, parts, state, dtype)
        outs.append(out)
        weights.append(weight)
    out = torch.stack(outs)
    return out.detach(), torch.stack(weights), gradients(out, leaves | learns, call.upstream.to(dtype))


def reference_row(call, row, tensors, mask, parts, state, dtype):
    """One sequence of the batch by the independent reference."""
    arguments = call.arguments
    batch, rows = call.counts.shape
    keys = rows if call.layer is not None else tensors["k"].shape[1]
    padded = "lengths" in arguments or "key_mask" in arguments
    real = real_keys(arguments, batch, keys)[row] if padded else None
    segment_ids = arguments.get("segment_ids")
    q_segment_ids, k_segment_ids = (
        None if d is None else d if d.ndim == 1 else d[row]
        for d in (segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids))
    )
    places = [
        arguments.get(a, arguments.get(b)) for a, b in (("q_positions", "k_positions"), ("k_positions", "q_positions"))
    ]
    q_positions, k_positions = (None if p is None else (p if p.ndim == 1 else p[row]).double() for p in places)
    if k_positions is None:
        k_positions = plain.count_positions(torch.ones(keys) if real is None else real, k_segment_ids)
        q_positions = k_positions if rows == keys else torch.arange(rows)
    x = None
    if call.layer is not None:
        x = tensors["x"]
        for part in parts:
            x = x if part.embed is None else x + part.embed(q_positions.to(dtype))
        tensors = {short: linear(state, name, x).reshape(rows, heads, -1).transpose(0, 1) for short, name, heads in (
            ("q", "queries", call.layer.heads), ("k", "keys", call.layer.num_kv_heads), ("v", "values", call.layer.num_kv_heads)
        )}  # fmt: skip
    mask = reference_mask(arguments, mask, row, tensors["q"].shape[0], q_positions, k_positions)
    out, weights = plain.attention(
        tensors["q"], tensors["k"], tensors["v"], parts, q_positions, k_positions, real=real, q_segment_ids=q_segment_ids,
        k_segment_ids=k_segment_ids, mask=mask, x=x, **{n: arguments[n] for n in ("causal", "window", "scale", "temperature") if n in arguments},
    )  # fmt: skip
    return (out if call.layer is None else linear(state, "out", out.transpose(0, 1).flatten(1))), weights


def linear(state, name, x):
    out = x @ state[f"{name}.weight"].T
    return out + state[f"{name}.bias"] if f"{name}.bias" in state else out


def gradients(out, leaves, upstream):
    wanted = {name: t for name, t in leaves.items() if t.requires_grad}
    result = torch.autograd.grad(out, list(wanted.values()), upstream, allow_unused=True) if out.requires_grad else ()
    result = result or [None] * len(wanted)
    return {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(wanted.items(), result, strict=True)}


def backends_for(call):
    """All that can run the call: torch's own kernel knows a bias and nothing else."""
    effects = call.mechanism.position.effects - {"embed", "rotate"}
    return ["reference", "blockwise", "auto", *(["sdpa"] if effects <= {"bias"} else [])]


def assert_same(call, backend, result, exact, eager=None):
    """The float64 reference, within rounding; in lower precision also within what eager arithmetic loses."""
    __tracebackhide__ = True
    low = exact if eager is None else eager
    mask = call.counts[:, None, :, None]
    outs = {"output": [side[0] * (mask if call.layer is None else mask[:, 0]) for side in (result, exact, low)]}
    if result[1] is not None:
        outs["weights"] = [side[1] * mask for side in (result, exact, low)]
    assert result[2].keys() == exact[2].keys()
    grads = {f"gradient of {name}": [side[2][name] for side in (result, exact, low)] for name in exact[2]}
    for kind in (outs, grads):
        # one backward pass, one scale: a gradient that happens to cancel carries the rounding of those that do not
        size = max([1.0, *(wanted.abs().max().item() for _, wanted, _ in kind.values())])
        loss = max([0.0, *((eager.double() - wanted).abs().max().item() for _, wanted, eager in kind.values())])
        budget = ROUNDING[call.dtype] * size + 3 * loss
        for name, (got, wanted, _) in kind.items():
            assert got.isfinite().all(), f"{name} of {backend} is not finite\n{call}"
            error = (got.double() - wanted).abs().max().item()
            assert error <= budget, f"{name} of {backend} is off by {error:.3g}, allowed {budget:.3g}\n{call}"


# --- tests -------------------------------------------------------------------------------------------------------------


def test_a_call_in_float64(float64_case, request):
    if float64_case % 2:
        request.getfixturevalue("small_tiles")
    call = draw_call(float64_case)
    exact = run_reference(call, torch.float64)
    for backend in backends_for(call):
        assert_same(call, backend, run_package(call, backend), exact)


def test_a_call_in_float32(float32_case, request):
    if float32_case % 2:
        request.getfixturevalue("small_tiles")
    call = draw_call(100_000 + float32_case, torch.float32)
    exact, eager = run_reference(call, torch.float64), run_reference(call, torch.float32)
    for backend in backends_for(call):
        assert_same(call, backend, run_package(call, backend), exact, eager)


def has_holes(call):
    """Whether padding stands between real tokens that are counted: their positions are then no run of the tensor."""
    real = call.arguments.get("key_mask")
    counted = not {"q_positions", "k_positions"} & call.arguments.keys()
    return counted and real is not None and bool(((real[:, 1:] & ~real[:, :-1]).sum(1) + real[:, 0] > 1).any())


@pytest.mark.parametrize("number", range(16))
def test_a_call_of_the_fused_kernels(number, interpreted, poisoned):
    call = next(
        call
        for call in (draw_call(200_000 + number + 100 * n, torch.float32, fused=True) for n in range(100))
        if call.layer is None
        and not any(part.length in ("query", "sequence") for part in call.mechanism.position.parts)
        and not has_holes(call)
    )
    exact, eager = run_reference(call, torch.float64), run_reference(call, torch.float32)
    assert_same(call, "triton", run_package(call, "triton"), exact, eager)


@pytest.mark.parametrize("number", range(4))
def test_joined_sinks(number, interpreted):
    names = ["Sink", "StableMask", *(["Sink", "Alibi"] if number % 2 else [])]
    for dtype, backends in ((torch.float64, ("reference", "blockwise")), (torch.float32, ("triton",))):
        call = draw_call(300_000 + number, dtype, fused=True, names=names)
        call.arguments["temperature"] = (1.0, 0.5, 3.0)[number % 3]
        exact, eager = run_reference(call, torch.float64), run_reference(call, torch.float32)
        for backend in backends:
            assert_same(call, backend, run_package(call, backend), exact, None if dtype == torch.float64 else eager)


def test_every_mechanism_of_the_catalogue_is_drawn():
    catalogue = {type(entry.make(2, 4)).__name__ for entry in CATALOGUE}
    assert catalogue == set(MAKERS) and set(FORMULAS) <= catalogue
    public = (getattr(whence, name) for name in whence.__all__)
    kinds = {c.__name__ for c in public if isinstance(c, type) and issubclass(c, whence.Position)}
    assert kinds - {"Position", "Sum"} == set(MAKERS)


def test_the_reference_shares_no_code_with_the_package():
    tree = ast.parse(Path(plain.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."])
    }
    assert imported == {"collections", "dataclasses", "math", "torch"}

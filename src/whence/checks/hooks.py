"""Checks of single hooks: outputs in every precision, at small and large distances, and no in-place changes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from whence.attention import attend
from whence.attention.module import without_embedding
from whence.checks.fixture import (
    FLOATS,
    TOKENS,
    Failure,
    Fixture,
    SkipCheck,
    assert_close,
    call_hook,
    hook_length,
    hook_name,
)
from whence.derivatives import find_wrong_derivative
from whence.errors import WhenceError
from whence.position.base import Position
from whence.position.evaluate import evaluate_clock
from whence.position.hook_types import Rows
from whence.position.hooks import HOOKS
from whence.position.no_position import NoPosition

MAX_DISTANCE = 4096
DISTANCE_HOOKS = {"score_scale", "bias"}


def output_shapes(fixture: Fixture) -> None:
    for part in fixture.position.parts:
        if not part.effects and type(part) is not NoPosition:
            raise Failure(
                f"{type(part).__name__} overrides no hook, so it changes nothing",
                remedy=f"write one of {', '.join(HOOKS)}",
                stop=True,
            )
    for dtype in (torch.float32, torch.float64):
        position = copy.deepcopy(fixture.position).to(dtype)
        for part in position.parts:
            # a causal_only mechanism never receives negative distances
            far = torch.tensor([-5000.0, -3.0, -1.0, *range(TOKENS), 50.0, 5000.0])
            for distance in (torch.tensor([0.0]), far[3:] if fixture.position.causal_only else far):
                d = distance.to(dtype)
                for hook in sorted(part.effects & DISTANCE_HOOKS):
                    out = _evaluate_at(fixture, part, hook, d)
                    if out.dtype != dtype:
                        raise Failure(f"it returned {out.dtype} for distances of {dtype}", hook=hook_name(part, hook))
            if "sink" in part.effects:
                _evaluate_at(fixture, part, "sink", torch.arange(TOKENS, dtype=dtype))
    for part in fixture.position.parts:
        for hook in sorted(part.effects):
            call_hook(part, hook, **_arguments(fixture, part, hook))
    fixture.layer(fixture.x)  # raises for wrong shapes of the other hooks


def determinism(fixture: Fixture) -> None:
    """Two calls with the same arguments."""
    for part in fixture.position.parts:
        for hook in sorted(part.effects):
            first, second = (call_hook(part, hook, **_arguments(fixture, part, hook)) for _ in range(2))
            if not isinstance(first, tuple):
                first, second = (first,), (second,)
            for one, other in zip(first, second, strict=True):
                if not torch.equal(one, other):
                    raise Failure("two calls with the same arguments differ", hook=hook_name(part, hook), stop=True)


def _arguments(fixture: Fixture, part: Position, hook: str) -> dict[str, Any]:
    """Arguments of any hook, in float64."""
    positions = torch.arange(TOKENS)
    if hook not in ("score_scale", "bias", "sink"):
        return fixture.arguments(hook, positions.expand(2, -1), torch.float64)
    places = positions.double()
    return {"position" if hook == "sink" else "distance": places, "length": hook_length(part, places)}


def _evaluate_at(fixture: Fixture, part: Position, hook: str, places: Tensor) -> Tensor:
    """The output of score_scale, bias or sink at n distances or positions, if its shape is right and it is finite."""
    name, n, argument = hook_name(part, hook), len(places), "position" if hook == "sink" else "distance"
    out = call_hook(part, hook, **{argument: places, "length": hook_length(part, places)})
    if not isinstance(out, Tensor) or tuple(out.shape) not in ((n,), (fixture.heads, n)):
        got = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise Failure(
            f"for {n} {argument}s it returned {got}, not [{n}] or [{fixture.heads}, {n}]",
            hook=name,
            remedy=f"return one number per {argument}, or one row of them per head",
            stop=True,
        )
    finite = torch.isfinite(out) | (torch.isneginf(out) if hook == "sink" else False)  # a sink may be -inf
    finite = finite.reshape(-1, n).all(0)
    if not bool(finite.all()):
        where = ", ".join(f"{place:g}" for place in places[~finite][:5].tolist())
        remedy = "return finite numbers at every visible distance, padding included"
        if bool((places[~finite] < 0).all()):
            remedy += ", or set causal_only = True"
        elif bool(torch.isneginf(out).any()):
            remedy += "; hide keys with attend(window=...), or return a large negative number such as -1e4"
        # other checks would repeat it, without its remedy
        stop = bool((places[~finite].abs() < TOKENS).any())
        raise Failure(f"it is not finite at {where}", hook=name, remedy=remedy, stop=stop)
    return out


def half_precision(fixture: Fixture) -> None:
    """Every hook returns the dtype of its arguments, also if its parameters have another."""
    far = torch.arange(TOKENS).add(MAX_DISTANCE - 100).expand(2, -1)
    for dtype in FLOATS:
        for own in {
            dtype,
            torch.promote_types(dtype, torch.float32),
        }:  # a converted model, or float32 parameters under autocast
            position = copy.deepcopy(fixture.position).to(own)
            # attend computes scores in float32 or better and passes them to hooks in that dtype
            scores = torch.promote_types(dtype, torch.float32)
            for part in position.parts:
                for hook in sorted(part.effects & {"embed", "rotate", "clock"}):
                    _check_dtype(fixture, part, hook, dtype, own, far)
                for hook in sorted(part.effects & {"content_bias", "value_bias"}):
                    _check_dtype(fixture, part, hook, scores, own, far)
                for hook in sorted(part.effects & {"score_scale", "bias", "sink"}):
                    _evaluate_at(fixture, part, hook, torch.arange(TOKENS, dtype=scores))
    _check_layer_in_half(fixture)


def _check_dtype(
    fixture: Fixture, part: Position, hook: str, dtype: torch.dtype, own: torch.dtype, far: Tensor
) -> None:
    name = hook_name(part, hook)
    wanted_dtype = torch.promote_types(dtype, torch.float32) if hook == "clock" else dtype
    outputs = []
    for positions in (torch.arange(TOKENS).expand(2, -1), far):
        arguments = fixture.arguments(hook, positions, dtype)
        try:
            out = getattr(part, hook)(*fixture.arguments(hook, positions, dtype).values())
        except WhenceError:
            if positions is far:  # a table may be too short
                continue
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise Failure(
                f"with parameters of {own} and arguments of {dtype} it raised {type(error).__name__}: {text}", hook=name
            ) from error
        for tensor in out if isinstance(out, tuple) else (out,):
            if isinstance(tensor, Tensor) and tensor.dtype != wanted_dtype:
                remedy = f"return {wanted_dtype}: a clock needs at least float32" if hook == "clock" else None
                raise Failure(
                    f"with parameters of {own} it returned {tensor.dtype} for {dtype}", hook=name, remedy=remedy
                )
        outputs.append((positions, arguments, out))
    if hook in ("content_bias", "value_bias"):
        return
    exact = copy.deepcopy(part).double()
    for positions, arguments, out in outputs:
        double = {n: t.double() if t.is_floating_point() else t for n, t in arguments.items()}
        wanted = getattr(exact, hook)(*double.values())
        pairs = zip(out, wanted, strict=True) if isinstance(out, tuple) else ((out, wanted),)
        # angles are computed in float32, so their rounding error is allowed
        limit = 16 * (torch.finfo(dtype).eps + float(positions.max()) * torch.finfo(torch.float32).eps)
        for mine, theirs in pairs:
            assert_close(f"{dtype} and float64 at positions up to {int(positions.max())}", mine, theirs, limit, name)


def _check_layer_in_half(fixture: Fixture) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        layer = copy.deepcopy(fixture.layer).to(dtype)
        layer.backend = "auto"
        x = fixture.x.to(dtype)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "mkldnn_matmul failed", UserWarning)  # bfloat16 on a CPU without it
            out = layer(x)
            wanted = copy.deepcopy(layer).double()(x.double())
        if out.dtype != dtype:
            raise Failure(f"a layer in {dtype} returned {out.dtype}")
        assert_close(f"a layer in {dtype} and the same in float64", out, wanted, 32 * torch.finfo(dtype).eps)


def in_place(fixture: Fixture) -> None:
    """No hook changes its arguments in place: inputs, queries and keys belong to the caller, keys also to the cache."""
    for part in fixture.position.parts:
        for hook in sorted(part.effects):
            arguments = _arguments(fixture, part, hook)
            before = {name: tensor._version for name, tensor in _tensors(arguments)}
            with torch.no_grad():
                call_hook(part, hook, **arguments)
            for name, tensor in _tensors(arguments):
                if tensor._version != before[name]:
                    raise Failure(f"it changed its argument {name} in place", hook=hook_name(part, hook))


def _tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, Rows):
            for field in fields(value):
                if isinstance(inside := getattr(value, field.name), Tensor):
                    yield f"rows.{field.name}", inside


def far_distances(fixture: Fixture) -> None:
    """Finite outputs at large distances, each from its own distance alone, and equal results of both backends."""
    order = torch.randperm(MAX_DISTANCE, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.float64):
        position = copy.deepcopy(fixture.position).to(dtype)
        for part in position.parts:
            for hook in sorted(part.effects & {"score_scale", "bias", "sink"}):
                places = torch.arange(MAX_DISTANCE, dtype=dtype)
                whole = _evaluate_at(fixture, part, hook, places)
                if not fixture.position.causal_only and hook != "sink":
                    _evaluate_at(fixture, part, hook, -places)
                some = order[order < MAX_DISTANCE // 3]  # without the largest, on which outputs must not depend
                length = hook_length(part, places)
                subset = {"length": length[some] if isinstance(length, Tensor) else length}
                again = call_hook(part, hook, **{"position" if hook == "sink" else "distance": places[some], **subset})
                assert_close(
                    "the output for all distances and for some of them",
                    _replace_neg_inf(again),
                    _replace_neg_inf(whole[..., some]),
                    1e-5 if dtype == torch.float32 else 1e-9,
                    hook_name(part, hook),
                )
    if fixture.single_sequence_only:
        return
    generator = torch.Generator().manual_seed(0)
    sizes = (3, fixture.head_dim), (MAX_DISTANCE, fixture.head_dim), (MAX_DISTANCE, fixture.value_dim)
    q, k, v = (torch.randn(1, fixture.heads, *size, generator=generator, dtype=torch.float64) for size in sizes)
    x = torch.randn(1, MAX_DISTANCE, fixture.embed_dim, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        clock = evaluate_clock(fixture.position, x, fixture.heads)
        q_input = x[:, -3:] if fixture.position.reads_input else None
        outs = [
            attend(
                q.clone(), k.clone(), v.clone(), position=without_embedding(fixture.position), clock=clock, q_input=q_input, causal=True,
                backend=backend, q_positions=torch.arange(MAX_DISTANCE - 3, MAX_DISTANCE), k_positions=torch.arange(MAX_DISTANCE),
            )
            for backend in ("blockwise", "reference")
        ]  # fmt: skip
    assert_close(f"blockwise and reference over {MAX_DISTANCE} keys", outs[0], outs[1])


def clock_steps(fixture: Fixture) -> None:
    """The step of a token, in a sequence and alone."""
    clocks = [part for part in fixture.position.parts if "clock" in part.effects]
    if not clocks:
        raise SkipCheck("it has no clock")
    for part in clocks:
        x = fixture.arguments("clock", torch.arange(TOKENS).expand(2, -1), torch.float64)["x"]
        alone = torch.cat([call_hook(part, "clock", x=token) for token in x.split(1, 1)], 2)
        assert_close(
            "the steps of tokens together and alone",
            call_hook(part, "clock", x=x),
            alone,
            1e-12,
            hook_name(part, "clock"),
        )


def _replace_neg_inf(sink: Tensor) -> Tensor:
    """Replace -inf by a finite number far from all others."""
    return sink.masked_fill(torch.isneginf(sink), -1e3)


def parameter_gradients(fixture: Fixture) -> None:
    """The optional methods of a mechanism against the derivatives of its hooks."""
    for part in fixture.position.parts:
        distance = torch.arange(0 if part.causal_only else -40, 41, dtype=torch.float64)
        error = find_wrong_derivative(part, distance)
        if error is not None:
            raise Failure(f"{type(part).__name__}: {error}", hook=hook_name(part, "parameter_gradients"))

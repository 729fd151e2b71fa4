"""Checks of single hooks: what they return, in every precision, near and far, and that they change nothing in place."""

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
from whence.checks.bench import FLOATS, TOKENS, Bench, Wrong, call, close, length_for, named
from whence.derivatives import find_wrong_derivative
from whence.errors import WhenceError
from whence.position.base import Position, Rows

FAR = 4096
OF_DISTANCE = {"score_scale", "bias"}


def answers(bench: Bench) -> None:
    for dtype in (torch.float32, torch.float64):
        position = copy.deepcopy(bench.position).to(dtype)
        for part in position.parts:
            # only a mechanism for both sides is ever asked about later keys
            far = torch.tensor([-5000.0, -3.0, -1.0, 0.0, 1.0, 2.0, 50.0, 5000.0])
            for distance in (torch.tensor([0.0]), far[3:] if bench.position.causal_only else far):
                d = distance.to(dtype)
                for hook in sorted(part.effects & OF_DISTANCE):
                    out = _of_places(bench, part, hook, d)
                    if out.dtype != dtype:
                        raise Wrong(f"it gave {out.dtype} for distances of {dtype}", hook=named(part, hook))
            if "sink" in part.effects:
                _of_places(bench, part, "sink", torch.arange(TOKENS, dtype=dtype))


def determinism(bench: Bench) -> None:
    """Two calls with the same arguments."""
    for part in bench.position.parts:
        for hook in sorted(part.effects):
            first, second = (call(part, hook, **_arguments(bench, part, hook)) for _ in range(2))
            if not isinstance(first, tuple):
                first, second = (first,), (second,)
            for one, other in zip(first, second, strict=True):
                if not torch.equal(one, other):
                    raise Wrong("two calls with the same arguments differ", hook=named(part, hook), unusable=True)


def _arguments(bench: Bench, part: Position, hook: str) -> dict[str, Any]:
    """Arguments of any hook, in float64."""
    positions = torch.arange(TOKENS)
    if hook not in ("score_scale", "bias", "sink"):
        return bench.arguments(hook, positions.expand(2, -1), torch.float64)
    places = positions.double()
    return {"position" if hook == "sink" else "distance": places, "length": length_for(part, places)}


def _of_places(bench: Bench, part: Position, hook: str, places: Tensor) -> Tensor:
    """What factor, bias or sink return at n places: of the right shape, and finite."""
    name, n = named(part, hook), len(places)
    out = call(part, hook, **{"position" if hook == "sink" else "distance": places, "length": length_for(part, places)})
    if not isinstance(out, Tensor) or tuple(out.shape) not in ((n,), (bench.heads, n)):
        got = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise Wrong(
            f"{n} places gave {got}, not [{n}] or [{bench.heads}, {n}]",
            hook=name,
            remedy="return one number for each place, or a row of them for each head",
            unusable=True,
        )
    finite = torch.isfinite(out) | (torch.isneginf(out) if hook == "sink" else False)  # a sink may be closed
    finite = finite.reshape(-1, n).all(0)
    if not bool(finite.all()):
        where = ", ".join(f"{place:g}" for place in places[~finite][:5].tolist())
        remedy = "return finite numbers at every distance that a query can see, padding included"
        if bool((places[~finite] < 0).all()):
            remedy += ", or set causal_only = True"
        raise Wrong(f"it is not finite at {where}", hook=name, remedy=remedy)
    return out


def half_precision(bench: Bench) -> None:
    """Every hook keeps the dtype of its arguments, also where its parameters have another."""
    far = torch.arange(TOKENS).add(FAR - 100).expand(2, -1)
    for dtype in FLOATS:
        for own in {dtype, torch.promote_types(dtype, torch.float32)}:  # converted, or float32 inside autocast
            position = copy.deepcopy(bench.position).to(own)
            # attend computes scores in float32 or better, and hooks of scores see them so
            scores = torch.promote_types(dtype, torch.float32)
            for part in position.parts:
                for hook in sorted(part.effects & {"embed", "rotate"}):
                    _keeps_dtype(bench, part, hook, dtype, own, far)
                for hook in sorted(part.effects & {"content_bias", "value_bias"}):
                    _keeps_dtype(bench, part, hook, scores, own, far)
                for hook in sorted(part.effects & {"score_scale", "bias", "sink"}):
                    _of_places(bench, part, hook, torch.arange(TOKENS, dtype=scores))
    _layer_in_half(bench)


def _keeps_dtype(bench: Bench, part: Position, hook: str, dtype: torch.dtype, own: torch.dtype, far: Tensor) -> None:
    name = named(part, hook)
    found = []
    for positions in (torch.arange(TOKENS).expand(2, -1), far):
        arguments = bench.arguments(hook, positions, dtype)
        try:
            out = getattr(part, hook)(*bench.arguments(hook, positions, dtype).values())
        except WhenceError:
            if positions is far:  # a table that ends says so
                continue
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise Wrong(
                f"with parameters of {own} and arguments of {dtype} it raised {type(error).__name__}: {text}", hook=name
            ) from error
        for tensor in out if isinstance(out, tuple) else (out,):
            if isinstance(tensor, Tensor) and tensor.dtype != dtype:
                raise Wrong(f"with parameters of {own} it returned {tensor.dtype} for {dtype}", hook=name)
        found.append((positions, arguments, out))
    if hook in ("content_bias", "value_bias"):
        return
    exact = copy.deepcopy(part).double()
    for positions, arguments, out in found:
        double = {n: t.double() if t.is_floating_point() else t for n, t in arguments.items()}
        wanted = getattr(exact, hook)(*double.values())
        pairs = zip(out, wanted, strict=True) if isinstance(out, tuple) else ((out, wanted),)
        # angles of positions are computed in float32, so an error of their rounding is allowed
        limit = 16 * (torch.finfo(dtype).eps + float(positions.max()) * torch.finfo(torch.float32).eps)
        for mine, theirs in pairs:
            close(f"{dtype} and float64 at positions up to {int(positions.max())}", mine, theirs, limit, name)


def _layer_in_half(bench: Bench) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        layer = copy.deepcopy(bench.layer).to(dtype)
        layer.backend = "auto"
        x = bench.x.to(dtype)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "mkldnn_matmul failed", UserWarning)  # bfloat16 on a CPU without it
            out = layer(x)
            wanted = copy.deepcopy(layer).double()(x.double())
        if out.dtype != dtype:
            raise Wrong(f"a layer in {dtype} returned {out.dtype}")
        close(f"a layer in {dtype} and the same in float64", out, wanted, 32 * torch.finfo(dtype).eps)


def in_place(bench: Bench) -> None:
    """No hook writes into what it is given: queries, keys and inputs belong to the caller, keys to the cache too."""
    for part in bench.position.parts:
        for hook in sorted(part.effects):
            arguments = _arguments(bench, part, hook)
            before = {name: tensor._version for name, tensor in _tensors(arguments)}
            with torch.no_grad():
                call(part, hook, **arguments)
            for name, tensor in _tensors(arguments):
                if tensor._version != before[name]:
                    raise Wrong(f"it changed its argument {name} in place", hook=named(part, hook))


def _tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, Rows):
            for field in fields(value):
                if isinstance(inside := getattr(value, field.name), Tensor):
                    yield f"rows.{field.name}", inside


def far_distances(bench: Bench) -> None:
    """Finite answers up to some thousands, each of its own distance alone, and one result from a table and a grid."""
    order = torch.randperm(FAR, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.float64):
        position = copy.deepcopy(bench.position).to(dtype)
        for part in position.parts:
            for hook in sorted(part.effects & {"score_scale", "bias", "sink"}):
                places = torch.arange(FAR, dtype=dtype)
                whole = _of_places(bench, part, hook, places)
                if not bench.position.causal_only and hook != "sink":
                    _of_places(bench, part, hook, -places)
                some = order[order < FAR // 3]  # without the largest, which an answer must not look at
                length = length_for(part, places)
                asked = {"length": length[some] if isinstance(length, Tensor) else length}
                again = call(part, hook, **{"position" if hook == "sink" else "distance": places[some], **asked})
                close(
                    "a distance asked among others and among fewer",
                    _open(again),
                    _open(whole[..., some]),
                    1e-5 if dtype == torch.float32 else 1e-9,
                    named(part, hook),
                )
    if bench.one_text_only:
        return
    generator = torch.Generator().manual_seed(0)
    sizes = (3, bench.head_dim), (FAR, bench.head_dim), (FAR, bench.value_dim)
    q, k, v = (torch.randn(1, bench.heads, *size, generator=generator, dtype=torch.float64) for size in sizes)
    with torch.no_grad():
        outs = [
            attend(
                q.clone(), k.clone(), v.clone(), position=without_embedding(bench.position), causal=True, backend=backend,
                q_positions=torch.arange(FAR - 3, FAR), k_positions=torch.arange(FAR),
            )
            for backend in ("blockwise", "reference")
        ]  # fmt: skip
    close(f"blockwise and reference over {FAR} keys", outs[0], outs[1])


def _open(sink: Tensor) -> Tensor:
    """With another number, far from all others, where a sink is closed (-inf)."""
    return sink.masked_fill(torch.isneginf(sink), -1e3)


def supplied(bench: Bench) -> None:
    """The optional derivatives of a mechanism against those of its hooks."""
    for part in bench.position.parts:
        reach = torch.arange(0 if part.causal_only else -40, 41, dtype=torch.float64)
        found = find_wrong_derivative(part, reach)
        if found is not None:
            raise Wrong(f"{type(part).__name__}: {found}", hook=named(part, "parameter_gradients"))

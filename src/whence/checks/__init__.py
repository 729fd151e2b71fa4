"""``check``: the checks that every mechanism of whence passes, for yours too.

Each check is a small function that compares two computations that must agree, in float64. They are run on an
``Attention`` layer around the mechanism, so embeddings, rotations, score effects and sinks are all held to the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from whence.attention import KVCache
from whence.checks.bench import TOKENS, Bench, Skip, close
from whence.derivatives import disagreement
from whence.errors import WhenceError, refusal
from whence.position.base import Position


class CheckFailed(AssertionError):
    """At least one check did not hold; the text names each and what was found."""


@dataclass
class Report:
    """What was checked, line by line."""

    position: str
    passed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [self.position]
        lines += [f"  holds    {name}" for name in self.passed]
        lines += [f"  skipped  {name}: {why}" for name, why in self.skipped]
        lines += [f"  FAILS    {name}: {why}" for name, why in self.failed]
        return "\n".join(lines)


def answers(bench: Bench) -> None:
    for dtype in (torch.float32, torch.float64):
        position = copy.deepcopy(bench.position).to(dtype)
        for part in position.parts:
            # only a mechanism for both sides is ever asked about later keys
            far = torch.tensor([-5000.0, -3.0, -1.0, 0.0, 1.0, 2.0, 50.0, 5000.0])
            for distance in (torch.tensor([0.0]), far[3:] if bench.position.causal_only else far):
                n, d = len(distance), distance.to(dtype)
                length = {None: None, "context": part.context, "query": d.clamp(min=0) + 1, "sequence": n}[part.length]
                for hook in sorted(part.effects & {"factor", "bias"}):
                    out = getattr(part, hook)(d, length)
                    if not isinstance(out, Tensor) or tuple(out.shape) not in ((n,), (bench.heads, n)):
                        got = tuple(out.shape) if isinstance(out, Tensor) else out
                        raise AssertionError(f"{hook} of {n} distances gave {got}, not [{n}] or [{bench.heads}, {n}]")
                    if out.dtype != dtype:
                        raise AssertionError(f"{hook} gave {out.dtype} for distances of {dtype}")
                    if not bool(torch.isfinite(out).all()):
                        raise AssertionError(
                            f"{hook} is not finite at distances {d[~torch.isfinite(out).reshape(-1, n).all(0)].tolist()}"
                        )


def gradients(bench: Bench) -> None:
    learnt = [p for p in bench.position.parameters() if p.requires_grad]
    x = bench.x[:1, :4].clone().requires_grad_(True)

    def run(x: Tensor, *_: Tensor) -> Tensor:
        return bench.run(x)

    # a failure raises with the analytical and the numerical Jacobian
    try:
        large = sum(p.numel() for p in learnt) > 256  # then along random directions instead of one number at a time
        torch.autograd.gradcheck(run, (x, *learnt), atol=1e-6, rtol=1e-4, fast_mode=large)
    except RuntimeError as error:
        raise AssertionError(" ".join(str(error).split())[:300]) from None


def causality(bench: Bench) -> None:
    changed = bench.x.clone()
    changed[:, 5:] += 1
    close("rows before a changed token", bench.run(changed)[:, :5], bench.run(bench.x)[:, :5])


def shift(bench: Bench) -> None:
    if not bench.position.relative:
        raise Skip("the mechanism does not claim it (relative = False)")
    here = torch.arange(TOKENS)
    close("positions moved by 7", bench.run(bench.x, positions=here + 7), bench.run(bench.x, positions=here))


def token_by_token(bench: Bench) -> None:
    bench.require_cache()
    close("one pass and token by token", bench.decode(bench.x, KVCache(), [1] * TOKENS), bench.run(bench.x))


def chunks(bench: Bench) -> None:
    bench.require_cache()
    whole = bench.run(bench.x)
    close("one pass and chunks of a growing cache", bench.decode(bench.x, KVCache(), [3, 1, 5]), whole)
    close("one pass and chunks of a preallocated cache", bench.decode(bench.x, KVCache(capacity=TOKENS), [4, 5]), whole)
    bench.layer.window = 4
    try:
        sliding = bench.decode(bench.x, KVCache(window=4), [2, 4, 1, 2])
        close("one pass with a window and a sliding cache", sliding, bench.run(bench.x))
    finally:
        bench.layer.window = None


def rollback(bench: Bench) -> None:
    bench.require_cache()
    cache = KVCache()
    bench.decode(bench.x[:, :3] + 1, cache, [3])
    cache.crop(0)
    bench.decode(torch.cat([bench.x[:, :4], bench.x[:, 4:7] + 1], 1), cache, [4, 3])
    cache.crop(4)
    close("after a rollback", bench.decode(bench.x[:, 4:], cache, [TOKENS - 4]), bench.run(bench.x)[:, 4:])


def left_padding(bench: Bench) -> None:
    bench.require_one_text()
    padded = torch.cat([torch.ones(2, 3, bench.width, dtype=torch.float64), bench.x], 1)
    real = torch.arange(TOKENS + 3) >= 3
    out = bench.run(padded, padding=real.expand(2, -1))[:, 3:]
    close("left-padded and unpadded", out, bench.run(bench.x))


def right_padding(bench: Bench) -> None:
    bench.require_one_text()
    padded = torch.cat([bench.x, torch.ones(2, 2, bench.width, dtype=torch.float64)], 1)
    out = bench.run(padded, lengths=torch.tensor([TOKENS, TOKENS]))[:, :TOKENS]
    close("right-padded and unpadded", out, bench.run(bench.x))


def packing(bench: Bench) -> None:
    bench.require_one_text()
    documents = torch.tensor([0] * 4 + [1] * 5)
    separate = torch.cat([bench.run(bench.x[:, :4]), bench.run(bench.x[:, 4:])], 1)
    close("packed and separate", bench.run(bench.x, documents=documents), separate)


def both_sides(bench: Bench) -> None:
    if bench.position.causal_only:
        raise Skip("the mechanism is for keys at or before the query (causal_only = True)")
    bench.layer.causal = False
    backends(bench)


def backends(bench: Bench) -> None:
    learnt = [p for p in bench.position.parameters() if p.requires_grad]
    x = bench.x.clone().requires_grad_(True)
    results = {}
    for backend in ("reference", "blockwise", "sdpa"):
        bench.layer.backend = backend
        try:
            out = bench.run(x)
        except WhenceError:
            if backend != "sdpa":
                raise
            continue
        finally:
            bench.layer.backend = "reference"
        grads = torch.autograd.grad(out.square().sum(), [x, *learnt], allow_unused=True)
        results[backend] = [
            out,
            *(torch.zeros_like(p) if g is None else g for p, g in zip([x, *learnt], grads, strict=True)),
        ]
    names = ["outputs", "gradients of x", *(f"gradients of parameter {i}" for i in range(len(learnt)))]
    for backend, values in results.items():
        for name, expected, found in zip(names, results["reference"], values, strict=True):
            close(f"{name} of {backend} and reference", found, expected)


def state(bench: Bench) -> None:
    text = repr(bench.position)
    if not all(type(part).__name__ in text for part in bench.position.parts):
        raise AssertionError(f"repr does not name the mechanism: {text}")
    other = copy.deepcopy(bench.position)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.add_(1)
    other.load_state_dict(bench.position.state_dict())
    before = bench.run(bench.x)
    bench.layer.position = other
    close("after a state_dict round trip", bench.run(bench.x), before, 0.0)
    if repr(other) != text:
        raise AssertionError("repr changed in a state_dict round trip")


def supplied(bench: Bench) -> None:
    """The optional derivatives of a mechanism against those of its hooks."""
    for part in bench.position.parts:
        reach = torch.arange(0 if part.causal_only else -40, 41, dtype=torch.float64)
        found = disagreement(part, reach)
        if found is not None:
            raise AssertionError(f"{type(part).__name__}: {found}")


CHECKS: dict[str, Callable[[Bench], None]] = {
    "shapes and dtypes of the answers": answers,
    "gradients against finite differences": gradients,
    "supplied derivatives": supplied,
    "no look at later tokens": causality,
    "shift invariance": shift,
    "one pass = token by token": token_by_token,
    "one pass = chunks, in every kind of cache": chunks,
    "rollback": rollback,
    "left-padded = unpadded": left_padding,
    "right-padded = unpadded": right_padding,
    "packed = separate": packing,
    "backends agree, with gradients": backends,
    "backends agree without causality": both_sides,
    "repr and state round trip": state,
}


def check(position: Position) -> Report:
    """Run every common check on a mechanism; raise ``CheckFailed`` if one does not hold.

    >>> from whence.position.alibi import Alibi
    >>> print(check(Alibi(4)))  # doctest: +ELLIPSIS
    Alibi(heads=4, form='causal', scale=1, slope=[0.25, 0.0625, 0.015625, 0.00390625])
      holds    shapes and dtypes of the answers
    ...
    """
    if not isinstance(position, Position):
        got = type(position).__name__
        raise refusal(
            "check(position)", got, "position is a whence.Position", "pass an instance, as in check(Alibi(4))"
        )
    report = Report(repr(position))
    for name, function in CHECKS.items():
        try:
            function(Bench(position))
            report.passed.append(name)
        except Skip as skip:
            report.skipped.append((name, str(skip)))
        except Exception as error:  # whatever a mechanism raises is the finding
            report.failed.append(
                (name, str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}")
            )
    if report.failed:
        raise CheckFailed(str(report))
    return report

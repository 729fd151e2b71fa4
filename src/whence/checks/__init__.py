"""``check``: the checks that every mechanism of whence passes, for yours too.

Each check is a small function that compares two computations that must agree, mostly in float64. Hooks are called
alone where that names the one at fault; the rest runs on an ``Attention`` layer around the mechanism, so embeddings,
rotations, score effects and sinks are all held to the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from whence.checks import caches, hooks, layers
from whence.checks.bench import TOKENS, Bench, Skip, Wrong
from whence.errors import WhenceError, usage_error
from whence.position.base import Position, require_initialized


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


@dataclass(frozen=True)
class Check:
    """What is compared, and what to do where it does not agree."""

    function: Callable[[Bench], None]
    remedy: str


CHECKS: dict[str, Check] = {
    "shapes and dtypes of the answers": Check(
        hooks.answers, "return [n] or [heads, n] in the dtype of the n distances"
    ),
    "same answers to the same arguments": Check(hooks.determinism, "keep nothing from one call to the next"),
    "half precision in every hook": Check(
        hooks.half_precision,
        "compute angles in float32 or better, convert parameters with .to(q.dtype), and return the dtype that came in",
    ),
    "no in-place changes of arguments": Check(
        hooks.in_place, "compute a new tensor, without methods that end in _ or assignments to slices"
    ),
    "distances up to 4096": Check(
        hooks.far_distances, "compute each answer from its own distance alone, without looking at the others"
    ),
    "gradients against finite differences": Check(
        layers.gradients, "compute with torch operations on the parameters, without .detach(), .data or .item()"
    ),
    "forward-mode derivatives": Check(
        layers.forward_mode, "use torch operations, or give your torch.autograd.Function a correct jvp"
    ),
    "supplied derivatives": Check(hooks.supplied, "correct the optional methods, or leave them out"),
    "no look at later tokens": Check(layers.causality, "use visible keys alone; rows.visible says which they are"),
    "shift invariance": Check(layers.shift, "depend on differences of positions, or set relative = False"),
    "one pass = token by token": Check(
        caches.token_by_token, "depend on positions and visible keys, never on how many rows or keys a call has"
    ),
    "one pass = chunks, in every kind of cache": Check(
        caches.chunks, "depend on positions and visible keys, never on how many rows or keys a call has"
    ),
    "rollback": Check(caches.rollback, "keep nothing from one call to the next"),
    "compiled step = eager step, from a cache": Check(
        caches.compiled_step, "compute the same while torch.compile traces, and keep nothing from one call to the next"
    ),
    "left-padded = unpadded": Check(layers.left_padding, "use the positions that the hook receives"),
    "right-padded = unpadded": Check(layers.right_padding, "use the positions that the hook receives"),
    "packed = separate": Check(layers.packing, "use the positions that the hook receives"),
    "rows of a batch at different positions": Check(
        layers.rows_of_a_batch, "use positions [batch or 1, tokens] row by row, never those of the first row for all"
    ),
    "grouped queries": Check(
        layers.grouped_queries, "treat every head of k alike: k has fewer heads than q, and each serves several"
    ),
    "backends agree, with gradients": Check(layers.backends, "return the same for the same arguments at every call"),
    "backends agree without causality": Check(
        layers.both_sides, "answer for negative distances too, or set causal_only = True"
    ),
    "repr and state round trip": Check(
        layers.state, "keep everything that learns in nn.Parameter and everything else in the constructor's arguments"
    ),
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
        raise usage_error(
            "check(position)", got, "position is a whence.Position", "pass an instance, as in check(Alibi(4))"
        )
    require_initialized(position)
    report = Report(repr(position))
    for number, (name, about) in enumerate(CHECKS.items(), 1):
        bench: Bench | None = None
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                bench = Bench(position)
                about.function(bench)
            report.passed.append(name)
        except Skip as skip:
            report.skipped.append((name, str(skip)))
        except Exception as error:  # whatever a mechanism raises is the finding
            report.failed.append((name, _sentence(error, bench, about)))
            if isinstance(error, Wrong) and error.unusable and number < len(CHECKS):
                report.skipped.append((f"the other {len(CHECKS) - number} checks", f"they need {name!r}"))
                break
    if report.failed:
        raise CheckFailed(str(report))
    return report


def _sentence(error: Exception, bench: Bench | None, about: Check) -> str:
    """What was found, as one sentence that names the hook and the remedy."""
    if isinstance(error, WhenceError):  # it has a remedy of its own
        return str(error)
    found = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    hook = (error.hook if isinstance(error, Wrong) else None) or (bench.hooks if bench is not None else "the mechanism")
    remedy = (error.remedy if isinstance(error, Wrong) else None) or about.remedy
    return f"{hook}: {' '.join(found.split())}; {remedy}."


__all__ = ["CHECKS", "TOKENS", "CheckFailed", "Report", "check"]

"""``check``: the common checks that every built-in mechanism passes, for user-defined mechanisms too.

Each check is a small function that compares two computations that must agree, mostly in float64. Some checks call
single hooks, so that an error names the hook. The others run an ``Attention`` layer with the mechanism, so they cover
embeddings, rotations, score effects and sinks alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from whence.checks import hooks, layers
from whence.checks.fixture import TOKENS, Failure, Fixture, SkipCheck
from whence.errors import WhenceError
from whence.position.base import Position, require_position
from whence.position.score_mod import ScoreModFunction, from_score_mod


class CheckFailed(AssertionError):
    """At least one check failed; the text names each failed check and the reason."""


@dataclass
class Report:
    """The outcome of each check."""

    position: str
    passed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [self.position]
        lines += [f"  passed   {name}" for name in self.passed]
        lines += [f"  skipped  {name}: {why}" for name, why in self.skipped]
        lines += [f"  FAILED   {name}: {why}" for name, why in self.failed]
        return "\n".join(lines)


@dataclass(frozen=True)
class Check:
    """A check function, and the remedy when it fails."""

    function: Callable[[Fixture], None]
    remedy: str


CHECKS: dict[str, Check] = {
    "shapes and dtypes of hook outputs": Check(
        hooks.output_shapes,
        "return [n] or [heads, n] in the dtype of the n distances, such as values.to(distance.dtype)",
    ),
    "deterministic hooks": Check(hooks.determinism, "keep no state between calls"),
    "half precision": Check(
        hooks.half_precision,
        "compute angles in torch.promote_types(q.dtype, torch.float32), convert parameters with .to(q.dtype), and return the dtype of the argument",
    ),
    "no in-place changes of arguments": Check(
        hooks.in_place, "compute a new tensor, without methods that end in _ or assignments to slices"
    ),
    "steps of a clock": Check(hooks.clock_steps, "compute the step of a token from that token of x alone"),
    "distances up to 4096": Check(hooks.far_distances, "compute each output from its own distance alone"),
    "gradients against finite differences": Check(
        layers.gradients,
        "compute with torch operations on the parameters, without .detach(), .data, .item() or .float(), which rounds float64",
    ),
    "forward-mode derivatives": Check(
        layers.forward_mode,
        "use torch operations without .float(), which rounds float64, or give your torch.autograd.Function a correct jvp",
    ),
    "parameter_gradients and other optional methods": Check(
        hooks.parameter_gradients, "correct the optional methods, or leave them out"
    ),
    "causality": Check(layers.causality, "use only the keys where rows.visible is True"),
    "shift invariance": Check(layers.shift, "depend on differences of positions, or set relative = False"),
    "token-by-token decoding": Check(
        layers.token_by_token, "depend on positions and visible keys, not on the number of rows or keys in a call"
    ),
    "decoding in chunks, with every kind of cache": Check(
        layers.chunks, "depend on positions and visible keys, not on the number of rows or keys in a call"
    ),
    "cache rollback": Check(layers.rollback, "keep no state between calls"),
    "compiled decoding step": Check(
        layers.compiled_step, "compute the same while torch.compile traces, and keep no state between calls"
    ),
    "left padding": Check(layers.left_padding, "use the positions that the hook receives"),
    "right padding": Check(layers.right_padding, "use the positions that the hook receives"),
    "packed sequences": Check(layers.packing, "use the positions that the hook receives"),
    "different positions within a batch": Check(
        layers.rows_of_a_batch, "use positions [batch or 1, tokens] row by row, not those of the first row for all"
    ),
    "grouped-query attention": Check(
        layers.grouped_queries, "treat every head of k alike: k has fewer heads than q, and each is used by several"
    ),
    "selected heads": Check(
        layers.head_slices, "list in head_axes every tensor of a content hook that has one entry for each head"
    ),
    "backends agree, gradients included": Check(layers.backends, "return the same output for the same arguments"),
    "backends agree without a causal mask": Check(
        layers.noncausal, "support negative distances, or set causal_only = True"
    ),
    "repr and state_dict round trip": Check(
        layers.state, "store learnable values in nn.Parameter and everything else in constructor arguments"
    ),
}


def check(position: Position | ScoreModFunction) -> Report:
    """Run every common check on a mechanism; raise ``CheckFailed`` if one fails.

    A FlexAttention ``score_mod`` is checked as ``from_score_mod(position)``.

    >>> from whence.position.alibi import Alibi
    >>> print(check(Alibi(4)))  # doctest: +ELLIPSIS
    Alibi(heads=4, form='causal', scale=1, slope=[0.25, 0.0625, 0.015625, 0.00390625])
      passed   shapes and dtypes of hook outputs
    ...
    """
    if not isinstance(position, Position | type) and callable(position):
        position = from_score_mod(position)
    position = require_position("check(position)", position)
    report = Report(repr(position))
    for number, (name, item) in enumerate(CHECKS.items(), 1):
        fixture: Fixture | None = None
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                fixture = Fixture(position)
                item.function(fixture)
            report.passed.append(name)
        except SkipCheck as skip:
            report.skipped.append((name, str(skip)))
        except Exception as error:  # an exception of the mechanism is a failed check
            report.failed.append((name, _describe_error(error, fixture, item.remedy)))
            # an error of whence in the first check would be one in all the others
            stops = error.stop if isinstance(error, Failure) else isinstance(error, WhenceError) and not report.passed
            if stops and number < len(CHECKS):
                report.skipped.append((f"the other {len(CHECKS) - number} checks", f"they require {name!r}"))
                break
    if report.failed:
        raise CheckFailed(str(report))
    return report


def _describe_error(error: Exception, fixture: Fixture | None, remedy: str) -> str:
    """One sentence with the hook, the error and the remedy."""
    if isinstance(error, WhenceError):  # it names a remedy itself
        return str(error)
    text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    hook = fixture.hooks if fixture is not None else "the mechanism"
    if isinstance(error, Failure):
        hook, remedy = error.hook or hook, error.remedy or remedy
    return f"{hook}: {' '.join(text.split())}; {remedy}."


__all__ = ["CHECKS", "TOKENS", "CheckFailed", "Report", "check"]

"""Simulated data sets of the paired comparison, shared by the parts of ``paired_comparison.py``.

A value is a seed effect, shared by all arms, plus an effect of its own, each normal or t with 3 degrees of freedom. The
total standard deviation of one arm is 1, and d is a difference in this unit. "shared" is the seed effect's part of the
variance. Unequal spreads differ by a factor of 4; "proportional" arms also scale the seed effect.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from whence.statistics.moderated_t import Layout, Reference, to_normal

FAMILIES = ("baseline", "pairs")
ALPHA, UNEQUAL_LIMIT = 0.05, 0.075
BLOCK = 1000  # data sets at once

Row = dict[str, Any]


def list_pairs(family: str, arms: int) -> list[tuple[int, int]]:
    return [(arm, 0) for arm in range(1, arms)] if family == "baseline" else list(combinations(range(arms), 2))


def draw(
    generator: Any, many: int, seeds: int, arms: int, *, tails: str = "normal", shared: float = 0.5,
    spread: str = "alike", proportional: bool = False,
) -> Any:  # fmt: skip
    """Data sets without differences between arms."""

    def noise(*shape: int) -> Any:
        if tails == "normal":
            return generator.standard_normal(shape)
        return generator.standard_t(3, shape) / 3**0.5

    scale = np.ones((many, 1, arms))
    count = {"one": 1, "two": 2, "half": arms // 2, "all but one": arms - 1}.get(spread)
    if count is not None:
        scale[generator.random((many, 1, arms)).argsort(axis=2) < count] = 4
    elif spread == "graded":
        scale *= 4 ** (generator.random((many, 1, arms)).argsort(axis=2) / (arms - 1))
    elif spread == "random":
        scale = 4 ** generator.random((many, 1, arms))
    elif spread == "baseline":
        scale[:, :, 0] = 4
    own, common = (1 - shared) ** 0.5 * noise(many, seeds, arms), shared**0.5 * noise(many, seeds, 1)
    return scale * (own + common) if proportional else scale * own + common


def find_claims(layout: Layout, reference: Reference, values: Any, alpha: float = ALPHA) -> Any:
    """Which testable contrasts are claimed: data sets by contrasts."""
    estimates, errors, freedom = layout.statistics(values)
    return to_normal(estimates / errors, freedom, np) > reference.critical_z(alpha)


def blocks(repetitions: int) -> list[int]:
    return [min(BLOCK, repetitions - start) for start in range(0, repetitions, BLOCK)]

"""The error of comparisons with more seeds than a reference distribution simulates (``moderated_t.MOST_SIMULATED``)."""

from __future__ import annotations

from itertools import product

import numpy as np

from comparison_data import FAMILIES, Row, blocks, draw, find_claims, list_pairs
from whence.statistics.moderated_t import Layout, Reference, reference_scenarios

ARMS, SEEDS, FAILED = (8, 4), (200, 100), 0.15
PATTERNS = 10  # of failed runs; each has a reference of its own
ALIKE: tuple[Row, ...] = ({"tails": "normal", "shared": 0.5}, {"tails": "t3", "shared": 0.5})


def list_unequal(family: str) -> list[Row]:
    """Spreads that differ by a factor of 4."""
    wide = ("one", "half", "all but one", "graded") + (("baseline",) if family == "baseline" else ())
    return [
        {"spread": spread, "shared": 0.5, "proportional": proportional}
        for spread, proportional in product(wide, (False, True))
    ]


def measure_many_seeds(family: str, arms: int, seeds: int, repetitions: int, draws: int) -> list[Row]:
    """Family-wise errors with complete runs and with failed ones."""
    generator = np.random.default_rng([9, arms, seeds, FAMILIES.index(family)])
    complete = np.ones((seeds, arms), bool)
    rows = count_false(family, [complete], repetitions, draws, [*ALIKE, *list_unequal(family)], generator)
    masks = [generator.random((seeds, arms)) >= FAILED for _ in range(PATTERNS)]
    failed = count_false(family, masks, -(-repetitions // PATTERNS), draws, list(ALIKE), generator)
    base = {"kind": "many seeds", "family": family, "arms": arms, "seeds": seeds}
    return [base | row | {"failed": 0.0} for row in rows] + [base | row | {"failed": FAILED} for row in failed]


def count_false(
    family: str, masks: list[np.ndarray], each: int, draws: int, scenarios: list[Row], generator: np.random.Generator
) -> list[Row]:
    """Data sets with a false claim in each scenario, summed over the masks."""
    events = [0] * len(scenarios)
    for mask in masks:
        layout = Layout(mask, list_pairs(family, mask.shape[1]))
        reference = Reference(layout, reference_scenarios(family), draws=draws)
        for number, scenario in enumerate(scenarios):
            for many in blocks(each):
                values = draw(generator, many, *mask.shape, **scenario)
                events[number] += int(find_claims(layout, reference, values).any(axis=1).sum())
    return [
        scenario | {"events": count, "repetitions": each * len(masks)}
        for scenario, count in zip(scenarios, events, strict=True)
    ]

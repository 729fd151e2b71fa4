"""Rounds of seeds: the error over all looks, by the test alone while decided arms are dropped and by ``compare_paired``
itself, and whether the further seeds named decide."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from comparison_data import ALPHA, FAMILIES, Row, draw, find_claims, list_pairs
from whence.statistics import look as look_module
from whence.statistics.analysis_plan import AnalysisPlan
from whence.statistics.further_seeds import MOST_SEEDS, count_further_seeds
from whence.statistics.moderated_t import Layout, Reference, reference_scenarios, to_normal
from whence.statistics.paired_comparison import compare_paired

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOKS = (3, 5, 8, 12)
MOST_FURTHER = 40  # data sets that need more are counted and not continued


def measure_looks(family: str, arms: int, repetitions: int, draws: int, scenario: Row) -> list[Row]:
    """Looks after rounds of seeds. Arms without an open contrast get no more seeds.

    ``worse`` arms are truly worse by d; the error counts false claims about the others, and the power claims that a
    truly worse arm differs from arm 0.
    """
    plan = AnalysisPlan(family, "a" if family == "baseline" else None, alpha=ALPHA, looks=LOOKS)
    generator = np.random.default_rng([5, arms, FAMILIES.index(family), *map(ord, str(scenario))])
    worse, d = scenario.get("worse", 0), scenario.get("d", 0.0)
    terms = {name: value for name, value in scenario.items() if name not in ("worse", "d")}
    pairs = list_pairs(family, arms)
    first, second = np.array(pairs).T
    values = draw(generator, repetitions, LOOKS[-1], arms, **terms)
    values[:, :, arms - worse :] -= d
    differs = (first >= arms - worse) != (second >= arms - worse)
    mask = np.ones(values.shape, bool)
    claimed = np.zeros((repetitions, len(pairs)), int)  # the look of the claim
    for look, (count, level) in enumerate(zip(LOOKS, plan.look_levels(), strict=True), start=1):
        patterns, which = np.unique(mask[:, :count].reshape(repetitions, -1), axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            rows = np.nonzero(which.ravel() == number)[0]
            layout = Layout(pattern.reshape(count, arms), pairs)
            enough = draws if len(rows) > repetitions / 50 else 1000  # rare patterns weigh little
            reference = Reference(layout, reference_scenarios(family), draws=enough)
            estimates, errors, freedom = layout.statistics(values[rows, :count])
            claims = to_normal(estimates / errors, freedom, np) > reference.critical_z(level)
            fresh = claims & (claimed[rows] == 0)
            claimed[rows] += look * fresh
            losers = np.where(estimates < 0, first, second)
            for place, row in enumerate(rows):
                drop_decided(mask[row], claimed[row], pairs, losers[place][fresh[place]], count, family)
    used = mask.sum() / mask.size
    false = (claimed > 0) & ~differs
    base = {"kind": "looks", "family": family, "arms": arms, **scenario, "repetitions": repetitions}
    result = base | {"events": int(false.any(axis=1).sum()), "runs_used": float(used)}
    if worse:
        chosen = claimed[:, pairs.index((arms - 1, 0)) if family == "baseline" else pairs.index((0, arms - 1))]
        result |= {"claims_by_look": [int((chosen == look).sum()) for look in range(1, len(LOOKS) + 1)]}
    return [result]


def drop_decided(mask: Any, claimed: Any, pairs: list[tuple[int, int]], losers: Any, count: int, family: str) -> None:
    """Arms that are decided (baseline) or clearly worse than another arm (pairs) get no further seeds."""
    if family == "pairs":
        mask[count:, losers] = False
        if count < len(mask) and mask[count].sum() == 1:
            mask[count:] = False
        return
    for (arm, _), look in zip(pairs, claimed, strict=True):
        if look:
            mask[count:, arm] = False
    if claimed.all():
        mask[count:] = False


SCENARIOS: tuple[Row, ...] = (
    {}, {"tails": "t3"}, {"spread": "half"}, {"spread": "baseline"}, {"spread": "half", "proportional": True, "shared": 0.9},
    {"worse": 2, "d": 2.0}, {"worse": 2, "d": 4.0}, {"worse": 2, "d": 4.0, "tails": "t3"},
    {"worse": 2, "d": 4.0, "spread": "half"}, {"worse": 1, "d": 10.0},
)  # fmt: skip


# the comparison itself


@contextmanager
def shared_references() -> Iterator[None]:
    """Within it, looks of the same layout share their reference distribution, which does not depend on the values.

    Further seeds are not counted: that takes most of the time, and no verdict depends on it.
    """

    @cache
    def find_layout(mask: bytes, seeds: int, pairs: tuple[tuple[int, int], ...]) -> Layout:
        return Layout(np.frombuffer(mask, bool).reshape(seeds, -1), list(pairs))

    @cache
    def find_reference(layout: Layout, scenarios: tuple[Any, ...], draws: int, seed: int) -> Reference:
        return Reference(layout, list(scenarios), draws=draws, seed=seed)

    def share_layout(mask: Any, pairs: list[tuple[int, int]]) -> Layout:
        return find_layout(mask.tobytes(), len(mask), tuple(pairs))

    def share_reference(layout: Layout, scenarios: list[Any], *, draws: int, seed: int) -> Reference:
        return find_reference(layout, tuple(scenarios), draws, seed)

    with (
        mock.patch.object(look_module, "Layout", share_layout),
        mock.patch.object(look_module, "Reference", share_reference),
        mock.patch.object(look_module, "count_further_seeds", return_value=None),
    ):
        yield


def measure_comparison(family: str, arms: int, repetitions: int, draws: int, scenario: Row) -> list[Row]:
    """False claims of ``compare_paired`` over all looks, as a user gets them: intersected intervals and claims that stand.

    Every arm gets all seeds. With a margin, half of the arms differ from the others by exactly the margin. A false claim is
    an equivalence of two arms that differ, or a difference in the wrong direction or between equal arms.
    """
    generator = np.random.default_rng([8, arms, FAMILIES.index(family), *map(ord, str(scenario))])
    margin = scenario.get("margin")
    names = [f"arm {arm}" for arm in range(arms)]
    far = {name: arm >= arms // 2 for arm, name in enumerate(names)}
    baseline = names[0] if family == "baseline" else None
    plan = AnalysisPlan(family, baseline, alpha=ALPHA, margin=margin, looks=LOOKS)
    values = draw(generator, repetitions, LOOKS[-1], arms)
    values[:, :, arms // 2 :] += margin or 0.0
    events = 0
    with shared_references():
        for table in values:
            data = {name: dict(enumerate(table[:, arm].tolist())) for arm, name in enumerate(names)}
            events += any(
                one.verdict not in ("undecided", true_verdict(margin, far[one.first], far[one.second]))
                for one in compare_paired(data, plan, draws=draws).contrasts
            )
    base = {"kind": "comparison", "family": family, "arms": arms, **scenario}
    return [base | {"events": events, "repetitions": repetitions}]


def true_verdict(margin: float | None, first_is_far: bool, second_is_far: bool) -> str | None:
    """The claim that is true of two arms; None if no claim is."""
    if margin is None:
        return None
    if first_is_far == second_is_far:
        return "equivalent"
    return "better" if first_is_far else "worse"


COMPARISON_SCENARIOS: tuple[Row, ...] = ({}, {"margin": 4.0})


# the number of further seeds


def measure_further(family: str, arms: int, repetitions: int, draws: int) -> list[Row]:
    """Whether undecided data sets are decided after the number of further seeds that the comparison names.

    Arm 1 differs from the others by d. The further seeds follow the true difference ("decided") or the one that was
    estimated ("decided_as_estimated"), which is what the number is computed for.
    """
    pairs = list_pairs(family, arms)
    sign = 1 if pairs[0][0] == 1 else -1  # the first contrast is arm 1 minus arm 0, or arm 0 minus arm 1
    references: dict[int, tuple[Layout, Reference]] = {}

    def refer(seeds: int) -> tuple[Layout, Reference]:
        if seeds not in references:
            layout = Layout(np.ones((seeds, arms), bool), pairs)
            enough = draws if seeds in (3, 5) else min(draws, 2000)
            references[seeds] = layout, Reference(layout, reference_scenarios(family), draws=enough)
        return references[seeds]

    rows = []
    for seeds, d in product((3, 5), (0.5, 1.0, 2.0)):
        generator = np.random.default_rng([7, arms, seeds, FAMILIES.index(family), int(10 * d)])
        layout, reference = refer(seeds)
        values = draw(generator, repetitions, seeds, arms)
        values[:, :, 1] += d
        estimates, errors, freedom = layout.statistics(values)
        undecided = to_normal(estimates / errors, freedom, np)[:, 0] <= reference.critical_z(ALPHA)
        sizes = abs(estimates[:, 0]) / errors[:, 0] / seeds**0.5
        named = np.zeros(repetitions, int)
        for row in np.nonzero(undecided)[0]:
            further = count_further_seeds(sizes[row], seeds, freedom[row, 0], ALPHA, len(pairs), reference)
            named[row] = MOST_SEEDS if further is None else further
        decided, as_estimated = 0, 0
        for further in np.unique(named[undecided & (named <= MOST_FURTHER)]):
            chosen = np.nonzero(undecided & (named == further))[0]
            more = draw(generator, len(chosen), int(further), arms)
            later = refer(seeds + int(further))
            claims = []
            for shift in (np.full(len(chosen), d), sign * estimates[chosen, 0]):
                moved = more.copy()
                moved[:, :, 1] += shift[:, None]
                claims.append(int(find_claims(*later, np.concatenate([values[chosen], moved], axis=1))[:, 0].sum()))
            decided += claims[0]
            as_estimated += claims[1]
        continued = undecided & (named <= MOST_FURTHER)
        rows.append(
            {"kind": "further", "family": family, "arms": arms, "seeds": seeds, "d": d, "shared": 0.5}
            | {"repetitions": repetitions, "undecided": int(undecided.sum()), "continued": int(continued.sum())}
            | {"decided": decided, "decided_as_estimated": as_estimated, "median": float(np.median(named[undecided]))}
        )
    return rows

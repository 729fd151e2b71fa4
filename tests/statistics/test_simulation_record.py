"""The committed simulation meets every requirement: error rates, power, looks, equivalence, the choice of the test."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import simulation_tables
from whence import records
from whence.lab.default_studies import DEFAULT_LOOKS
from whence.statistics import moderated_t

RECORD = records.read(Path(__file__).resolve().parents[2] / "benchmarks" / "records" / "statistics.json")
CELLS = list(product(("baseline", "pairs"), (4, 6, 8, 16), (3, 5, 8)))
ALPHA, UNEQUAL = 0.05, 0.075


def rows(kind, **terms):
    return [
        row for row in RECORD["rows"] if row["kind"] == kind and all(row.get(name) == v for name, v in terms.items())
    ]


def rate(row):
    return row["events"] / row["repetitions"]


def keeps(row, level=None):
    """Whether an error rate is at most its level, up to two standard errors of the rate and of the simulated critical value."""
    level = level or (UNEQUAL if row.get("spread") else ALPHA)
    return rate(row) <= level + 2 * (level * (1 - level) * (1 / row["repetitions"] + 1 / RECORD["draws"])) ** 0.5


def test_every_cell_has_enough_repetitions():
    assert RECORD["draws"] >= 10_000 and RECORD["alpha"] == ALPHA
    assert min(row["repetitions"] for row in RECORD["rows"]) >= 5000


@pytest.mark.parametrize("family, arms, seeds", CELLS)
def test_the_family_wise_error_is_kept(family, arms, seeds):
    found = rows("error", family=family, arms=arms, seeds=seeds)
    for tails, shared, failed in product(("normal", "t3"), (0.0, 0.5, 0.9), (0.0, 0.15)):
        (row,) = [r for r in found if (r.get("tails"), r["shared"], r["failed"]) == (tails, shared, failed)]
        assert keeps(row), row
    unequal = [row for row in found if row.get("spread")]
    patterns = {"one", "two", "half", "all but one", "graded", "random"} | ({"baseline"} & {family})
    assert {(row["spread"], row["proportional"]) for row in unequal} == set(product(patterns, (False, True)))
    assert all(map(keeps, unequal)), [row for row in unequal if not keeps(row)]


@pytest.mark.parametrize("family, arms, seeds", list(product(("baseline", "pairs"), (4, 8), (100, 200))))
def test_the_family_wise_error_is_kept_with_more_seeds_than_a_reference_simulates(family, arms, seeds):
    assert seeds > moderated_t.MOST_SIMULATED
    found = rows("many seeds", family=family, arms=arms, seeds=seeds)
    alike = {(row["tails"], row["failed"]) for row in found if not row.get("spread")}
    assert alike == set(product(("normal", "t3"), (0.0, 0.15))) and {row["shared"] for row in found} == {0.5}
    patterns = {"one", "half", "all but one", "graded"} | ({"baseline"} & {family})
    unequal = {(row["spread"], row["proportional"]) for row in found if row.get("spread")}
    assert unequal == set(product(patterns, (False, True))) and len(found) == len(alike) + len(unequal)
    assert all(map(keeps, found)), [row for row in found if not keeps(row)]


@pytest.mark.parametrize("family", ["baseline", "pairs"])
def test_power(family):
    def power(arms, seeds, d, shared=0.5):
        (row,) = rows("power", family=family, arms=arms, seeds=seeds, d=d, shared=shared)
        return rate(row)

    assert power(8, 5, 2.0) >= (0.8 if family == "baseline" else 0.7)
    for arms in (4, 6, 8, 16):
        assert power(arms, 3, 10.0) >= 0.95  # ten spreads are claimed with three seeds
        curve = [power(arms, seeds, 2.0) for seeds in (3, 4, 5, 6, 8, 10, 12)]
        assert curve == sorted(curve) and curve[-1] > 0.99


def test_the_error_over_all_looks_is_kept_while_arms_are_dropped():
    assert tuple(RECORD["looks"]) == DEFAULT_LOOKS
    for family, arms in product(("baseline", "pairs"), (4, 8)):
        found = rows("looks", family=family, arms=arms)
        assert len(found) >= 9 and all(map(keeps, found)), [row for row in found if not keeps(row)]
        assert {row.get("worse", 0) for row in found} == {0, 1, 2} and min(row["runs_used"] for row in found) < 0.95


def test_the_whole_comparison_keeps_the_error_over_all_looks_with_and_without_a_margin():
    found = {(row["family"], row["arms"], row.get("margin")): row for row in rows("comparison")}
    assert set(found) == set(product(("baseline", "pairs"), (4, 8), (None, 4.0)))
    assert all(map(keeps, found.values())), [row for row in found.values() if not keeps(row)]


@pytest.mark.parametrize("family, arms, seeds", list(product(("baseline", "pairs"), (4, 8), (3, 5, 8))))
def test_perplexities_by_ratios_keep_the_error_and_gain_power_beside_an_arm_that_diverges(family, arms, seeds):
    found = rows("scale error", family=family, arms=arms, seeds=seeds)
    cells = {(row["scale"], row["sigma"], row["tails"], "spread" in row) for row in found}
    assert cells == set(product(("value", "log"), (0.05, 0.3), ("normal", "t3"), (False, True)))
    assert all(map(keeps, found)), [row for row in found if not keeps(row)]
    for sigma, tails, diverging in product((0.05, 0.3), ("normal", "t3"), (False, True)):
        terms = {"family": family, "arms": arms, "seeds": seeds, "sigma": sigma, "tails": tails}
        power = {row["scale"]: rate(row) for row in rows("scale power", **terms) if ("spread" in row) == diverging}
        assert power["log"] >= power["value"] - 0.02
        if diverging:
            assert power["value"] < 0.01
            assert seeds < 8 or power["log"] > 0.6


@pytest.mark.parametrize("kind", ["comparison", "many seeds", "scale error"])
def test_rows_that_were_added_later_name_the_code_that_made_them(kind):
    (origin,) = [one for one in RECORD["additions"] if kind in one["kinds"]]
    assert not origin["environment"]["uncommitted_changes"]


@pytest.mark.parametrize("family, arms, seeds", list(product(("baseline", "pairs"), (4, 8, 16), (3, 5, 8, 12))))
def test_equivalence_is_not_claimed_of_arms_that_differ_by_the_margin(family, arms, seeds):
    found = rows("equivalence error", family=family, arms=arms, seeds=seeds)
    assert len(found) == 3 and all(map(keeps, found)), found
    power = {row["margin"]: rate(row) for row in rows("equivalence power", family=family, arms=arms, seeds=seeds)}
    assert power[1.0] <= power[2.0] <= power[3.0] and (seeds < 8 or power[2.0] > 0.8)


def test_the_number_of_further_seeds_decides_as_often_as_it_says():
    """If the estimate is true. A small true difference is decided less often, since its estimate was a large one by chance."""
    found = rows("further")
    assert {(row["family"], row["seeds"], row["d"]) for row in found} == set(
        product(("baseline", "pairs"), (3, 5), (0.5, 1.0, 2.0))
    )
    for row in found:
        assert row["decided_as_estimated"] / row["continued"] >= 0.75, row
        assert row["d"] < 1 or row["decided"] / row["continued"] >= 0.7, row


def test_the_chosen_test_is_the_most_powerful_of_those_that_keep_the_error():
    """8 arms against a baseline, 5 seeds: whatever has more power claims too much where spreads differ."""
    errors, power = {}, {}
    for row in rows("candidate", family="baseline", seeds=5):
        name = row["candidate"]
        if "d" not in row:
            errors[name] = errors.get(name, True) and keeps(row)
        elif (row["d"], row["shared"]) == (2.0, 0.5):
            power[name] = rate(row)
    chosen = "moderated, least favorable reference"
    assert len(power) == 8 and errors[chosen] and power[chosen] >= 0.8
    assert max((name for name in power if errors[name]), key=lambda name: power[name]) == chosen


def test_the_table_of_limits_says_whether_simulation_error_explains_the_largest_rate():
    """Of 288 rates with a true value of 0.05, the largest exceeds the bound in 5 % of the simulations."""
    head, found = simulation_tables.limit_rows(RECORD)
    table = {row[0]: dict(zip(head, row, strict=True)) for row in found}
    alike = table["one look"]
    errors = [row for row in rows("error") if not row.get("spread")]
    assert float(alike["largest"]) == round(max(map(rate, errors)), 3) and int(alike["rates"]) == len(errors)
    assert f"within 0.05 plus simulation error of the maximum over {len(errors)} rates" in alike["reading"]
    spread = float(alike["standard error of one rate"])
    drawn = np.random.default_rng(0).normal(0.05, spread, (4000, len(errors))).max(axis=1)
    assert (drawn > float(alike["bound on the largest"])).mean() == pytest.approx(0.05, abs=0.015)
    assert table["rounds of seeds"]["reading"] == "below 0.05"
    one = {"kind": "error", "events": 400, "repetitions": 5000}
    worse = RECORD | {"rows": [*RECORD["rows"], one]}
    assert "not by simulation error" in simulation_tables.limit_rows(worse)[1][0][-1]

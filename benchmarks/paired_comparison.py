"""Error rates and power of the paired comparison, by simulation.

    python benchmarks/paired_comparison.py                      # writes benchmarks/records/statistics.json
    python benchmarks/paired_comparison.py --repetitions 500 --draws 2000 --out build/statistics.json
    python benchmarks/paired_comparison.py --only measure_looks # replaces the rows of one kind in the record
    python benchmarks/paired_comparison.py --show               # prints the tables of the record

``comparison_data.py`` says how data sets are drawn. Failed runs are 15 % of all, at random. The family-wise error is the
share of data sets with at least one false claim, at alpha = 0.05. Power is the probability to claim one given contrast,
where one arm differs from all others. Half of the variance is shared where nothing else is said. (The file is not named statistics.py, which would hide
the standard library's module from every script in this folder.)
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

import comparison_candidates
import comparison_many_seeds
import comparison_rounds
import comparison_scales
from comparison_data import ALPHA, FAMILIES, Row, blocks, draw, find_claims, list_pairs
from comparison_tables import show
from whence import records
from whence.statistics import moderated_t
from whence.statistics.moderated_t import Layout, Reference, from_normal, reference_scenarios

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "records" / "statistics.json"
ARMS, SEEDS, SHARES, FAILED = (4, 6, 8, 16), (3, 5, 8), (0.0, 0.5, 0.9), 0.15
SPREADS = ("one", "two", "half", "all but one", "graded", "random", "baseline")
EQUIVALENCE_SCENARIOS: tuple[Row, ...] = (
    {"tails": "normal", "margin": 4.0},
    {"tails": "t3", "margin": 4.0},
    {"spread": "half", "margin": 16.0},
)


def null_scenarios(family: str) -> list[dict[str, Any]]:
    alike = [{"tails": tails, "shared": shared} for tails in ("normal", "t3") for shared in SHARES]
    unequal = [
        {"spread": spread, "shared": shared, "proportional": proportional}
        for spread in SPREADS
        for shared, proportional in ((0.5, False), (0.5, True), (0.9, True))
        if family == "baseline" or spread != "baseline"
    ]
    return alike + unequal


def measure_errors(family: str, arms: int, seeds: int, repetitions: int, draws: int) -> list[Row]:
    """Family-wise errors of all complete cells of a size, with the reference that a user gets."""
    layout = Layout(np.ones((seeds, arms), bool), list_pairs(family, arms))
    reference = Reference(layout, reference_scenarios(family), draws=draws)
    rows = []
    for number, scenario in enumerate(null_scenarios(family)):
        generator = np.random.default_rng([1, arms, seeds, FAMILIES.index(family), number])
        false = sum(
            int(find_claims(layout, reference, draw(generator, many, seeds, arms, **scenario)).any(axis=1).sum())
            for many in blocks(repetitions)
        )
        rows.append(
            {"kind": "error", "family": family, "arms": arms, "seeds": seeds, **scenario, "failed": 0.0}
            | {"events": false, "repetitions": repetitions}
        )
    return rows


def measure_failed(family: str, arms: int, seeds: int, layouts: int, each: int, draws: int, part: int) -> list[Row]:
    """Family-wise errors with failed runs. Each pattern of failures has a reference of its own."""
    generator = np.random.default_rng([2, arms, seeds, FAMILIES.index(family), part])
    scenarios = [{"tails": tails, "shared": shared} for tails in ("normal", "t3") for shared in SHARES]
    false = [0] * len(scenarios)
    for _ in range(layouts):
        layout = Layout(generator.random((seeds, arms)) >= FAILED, list_pairs(family, arms))
        if not layout.testable.any():
            continue
        reference = Reference(layout, reference_scenarios(family), draws=draws)
        for number, scenario in enumerate(scenarios):
            values = draw(generator, each, seeds, arms, **scenario)
            if reference.exact:
                estimates, errors, freedom = layout.statistics(values)
                claims = 2 * special.stdtr(freedom, -abs(estimates / errors)) <= ALPHA
            else:
                claims = find_claims(layout, reference, values)
            false[number] += int(claims.any(axis=1).sum())
    return [
        {"kind": "error", "family": family, "arms": arms, "seeds": seeds, **scenario, "failed": FAILED}
        | {"events": events, "repetitions": layouts * each}
        for scenario, events in zip(scenarios, false, strict=True)
    ]


def measure_power(family: str, arms: int, seeds: int, repetitions: int, draws: int) -> list[Row]:
    """The probability to claim that arm 1 differs from arm 0, where arm 1 differs from all others by d."""
    layout = Layout(np.ones((seeds, arms), bool), list_pairs(family, arms))
    reference = Reference(layout, reference_scenarios(family), draws=draws)
    rows = []
    for d, shared in product((1.0, 2.0, 3.0, 10.0), SHARES):
        generator = np.random.default_rng([3, arms, seeds, FAMILIES.index(family), int(d), int(10 * shared)])
        events = 0
        for many in blocks(repetitions):
            values = draw(generator, many, seeds, arms, shared=shared)
            values[:, :, 1] += d
            events += int(find_claims(layout, reference, values)[:, 0].sum())
        rows.append(
            {"kind": "power", "family": family, "arms": arms, "seeds": seeds, "d": d, "shared": shared}
            | {"events": events, "repetitions": repetitions}
        )
    return rows


def measure_equivalence(family: str, arms: int, seeds: int, repetitions: int, draws: int) -> list[Row]:
    """Claims of equivalence within a margin.

    Errors: half of the arms differ from the others by exactly the margin. A false claim is an equivalence of two arms that
    differ, or a difference in the wrong direction or between equal arms. Power: no arm differs.
    """
    layout = Layout(np.ones((seeds, arms), bool), list_pairs(family, arms))
    reference = Reference(layout, reference_scenarios(family), draws=draws)
    far = np.arange(arms) >= arms // 2
    truth = far[layout.first].astype(int) - far[layout.second]
    critical_t = np.frompyfunc(lambda freedom: from_normal(reference.critical_z(ALPHA), freedom), 1, 1)
    powers: tuple[Row, ...] = tuple({"margin": margin} for margin in (1.0, 2.0, 3.0))
    rows = []
    for number, scenario in enumerate((*EQUIVALENCE_SCENARIOS, *powers)):
        generator = np.random.default_rng([6, arms, seeds, FAMILIES.index(family), number])
        margin = scenario["margin"]
        terms = {name: value for name, value in scenario.items() if name != "margin"}
        events = 0
        for many in blocks(repetitions):
            values = draw(generator, many, seeds, arms, **terms)
            values[:, :, far] += margin if terms else 0.0
            estimates, errors, freedom = layout.statistics(values)
            reach = errors * critical_t(freedom).astype(float)
            equivalent = abs(estimates) + reach < margin
            differs = (abs(estimates) > reach) & ~equivalent
            false = (equivalent & (truth != 0)) | (differs & (np.sign(estimates) != truth))
            events += int((false.any(axis=1) if terms else equivalent[:, 0]).sum())
        kind = "equivalence error" if terms else "equivalence power"
        rows.append(
            {"kind": kind, "family": family, "arms": arms, "seeds": seeds, **scenario}
            | {"events": events, "repetitions": repetitions}
        )
    return rows


def plan_tasks(repetitions: int, draws: int, patterns: int) -> list[tuple[Any, ...]]:
    """All tasks, the longest first."""
    tasks: list[tuple[Any, ...]] = []
    each = max(1, repetitions // patterns)
    layouts = -(-repetitions // each)
    for family, arms, seeds in product(FAMILIES, reversed(ARMS), reversed(SEEDS)):
        parts = 4 if arms == 16 else 2
        for part in range(parts):
            share = layouts // parts + (part < layouts % parts)
            tasks.append((measure_failed, family, arms, seeds, share, each, min(draws, 2000), part))
    for family in FAMILIES:
        tasks.append((comparison_rounds.measure_further, family, 8, repetitions, draws))
    for family, arms, scenario in product(FAMILIES, (8, 4), comparison_rounds.SCENARIOS):
        if family == "baseline" or scenario.get("spread") != "baseline":
            tasks.append((comparison_rounds.measure_looks, family, arms, repetitions, draws, scenario))
    for family, arms, scenario in product(FAMILIES, (8, 4), comparison_rounds.COMPARISON_SCENARIOS):
        tasks.append((comparison_rounds.measure_comparison, family, arms, repetitions, draws, scenario))
    for family, arms, seeds in product(FAMILIES, comparison_many_seeds.ARMS, comparison_many_seeds.SEEDS):
        tasks.append((comparison_many_seeds.measure_many_seeds, family, arms, seeds, repetitions, draws))
    for family, arms, seeds in product(FAMILIES, reversed(comparison_scales.ARMS), comparison_scales.SEEDS):
        tasks.append((comparison_scales.measure_scales, family, arms, seeds, repetitions, draws))
    for family, seeds, scenario in product(FAMILIES, (5, 3), comparison_candidates.SCENARIOS):
        if family == "baseline" or scenario.get("spread") != "baseline":
            tasks.append((comparison_candidates.measure_candidates, family, 8, seeds, repetitions, draws, scenario))
    for family, arms, seeds in product(FAMILIES, (16, 8, 4), (12, 8, 5, 3)):
        tasks.append((measure_equivalence, family, arms, seeds, repetitions, draws))
    for family, arms, seeds in product(FAMILIES, reversed(ARMS), reversed(SEEDS)):
        tasks.append((measure_errors, family, arms, seeds, repetitions, draws))
    for family, arms, seeds in product(FAMILIES, reversed(ARMS), (3, 4, 5, 6, 8, 10, 12)):
        tasks.append((measure_power, family, arms, seeds, repetitions, draws))
    return tasks


def run_task(task: tuple[Any, ...]) -> tuple[list[Row], float]:
    start = time.process_time()
    return task[0](*task[1:]), time.process_time() - start


def merge_parts(rows: list[Row]) -> list[Row]:
    """Sum the parts of a cell."""
    merged: dict[str, Row] = {}
    for row in rows:
        key = repr(sorted((name, value) for name, value in row.items() if name not in ("events", "repetitions")))
        if key in merged and row["kind"] == "error":
            merged[key]["events"] += row["events"]
            merged[key]["repetitions"] += row["repetitions"]
        else:
            merged[key] = dict(row)
    return sorted(
        merged.values(), key=lambda row: (row["kind"], row["family"], row["arms"], row.get("seeds", 0), repr(row))
    )


def add_rows(record: Row, rows: list[Row], origin: Row) -> Row:
    """The record with these rows in place of its rows of the same kinds. ``additions`` says which code made them."""
    kinds = sorted({row["kind"] for row in rows})
    earlier = [one for one in record.get("additions", []) if not set(one["kinds"]) <= set(kinds)]
    others = [row for row in record["rows"] if row["kind"] not in kinds]
    return record | {"additions": [*earlier, {"kinds": kinds, **origin}], "rows": merge_parts(others + rows)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5000, help="Data sets per cell.")
    parser.add_argument("--draws", type=int, default=moderated_t.DRAWS, help="Data sets of a reference distribution.")
    parser.add_argument("--patterns", type=int, default=100, help="Patterns of failed runs per cell.")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="Processes.")
    parser.add_argument(
        "--only", help="Run the tasks of this name, such as measure_looks; the record keeps its other rows."
    )
    parser.add_argument("--show", action="store_true", help="Print the tables of the record and run nothing.")
    parser.add_argument("--out", type=Path, default=RECORD)
    args = parser.parse_args()
    if args.show:
        return 0 if show(records.read(args.out)) else 1
    tasks = [
        task
        for task in plan_tasks(args.repetitions, args.draws, args.patterns)
        if args.only in (None, task[0].__name__)
    ]
    environment = records.describe_environment(("numpy", "scipy"))  # of the code that runs, not of later edits
    rows, start, spent = [], time.time(), defaultdict(float)
    with ProcessPoolExecutor(args.jobs) as pool:
        waiting = {pool.submit(run_task, task): task for task in tasks}
        for done, future in enumerate(as_completed(waiting), start=1):
            own, seconds = future.result()
            rows += own
            spent[waiting[future][0].__name__] += seconds
            if done % 20 == 0 or done == len(tasks):
                print(f"{done} of {len(tasks)} tasks, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print({name: round(seconds) for name, seconds in spent.items()}, "processor seconds", file=sys.stderr)
    command = f"python benchmarks/paired_comparison.py --repetitions {args.repetitions} --draws {args.draws}"
    record = {
        "command": command, "environment": environment, "alpha": ALPHA, "looks": list(comparison_rounds.LOOKS),
        "repetitions": args.repetitions, "draws": args.draws, "rows": merge_parts(rows),
    }  # fmt: skip
    if args.only and args.out.exists():
        origin = {"command": f"{command} --only {args.only}", "environment": environment}
        record = add_rows(records.read(args.out), rows, origin)
    records.write(args.out, record)
    return 0 if show(record) else 1


if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # one thread a process
    sys.exit(main())

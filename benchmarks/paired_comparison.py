"""Error rates and power of the paired comparison, by simulation.

    python benchmarks/paired_comparison.py                      # writes benchmarks/records/statistics.json
    python benchmarks/paired_comparison.py --repetitions 500 --draws 2000 --out build/statistics.json
    python benchmarks/paired_comparison.py --show               # prints the tables of the record

A value is a seed effect, shared by all arms, plus an effect of its own, each normal or t with 3 degrees of freedom. The
total standard deviation of one arm is 1, and d is a difference in this unit. "shared" is the seed effect's part of the
variance. Unequal spreads differ by a factor of 4; "proportional" arms also scale the seed effect. Failed runs are 15 % of
all, at random.

The family-wise error is the share of data sets with at least one false claim, at alpha = 0.05. Power is the probability to
claim one given contrast, where one arm differs from all others. (The file is not named statistics.py, which would hide
the standard library's module from every script in this folder.)
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

from whence import records
from whence.statistics import moderated_t
from whence.statistics.moderated_t import Layout, Reference, reference_scenarios, to_normal
from whence.statistics.paired_comparison import AnalysisPlan

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "records" / "statistics.json"
ARMS, SEEDS, FAMILIES, SHARES = (4, 6, 8, 16), (3, 5, 8), ("baseline", "pairs"), (0.0, 0.5, 0.9)
ALPHA, UNEQUAL_LIMIT, FAILED = 0.05, 0.075, 0.15
SPREADS = ("one", "two", "half", "all but one", "graded", "random", "baseline")
LOOKS = (3, 5, 8)
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


# the candidates that were considered, on one size


def score_candidates(values: Any, family: str, generator: Any, layout: Layout, reference: Reference) -> dict[str, Any]:
    """For each candidate, which contrasts it claims."""
    many, seeds, arms = values.shape
    first, second = layout.first, layout.second
    m = len(first)
    differences = values[:, :, first] - values[:, :, second]
    estimates, own = differences.mean(axis=1), differences.var(axis=1, ddof=1)
    residuals = values - values.mean(axis=1, keepdims=True) - values.mean(axis=2, keepdims=True)
    residuals += values.mean(axis=(1, 2), keepdims=True)
    freedom = (seeds - 1) * (arms - 1)
    pooled = 2 * (residuals**2).sum(axis=(1, 2)) / freedom
    t_pooled = abs(estimates) / np.sqrt(pooled / seeds)[:, None]
    claims: dict[str, Any] = {"moderated, least favorable reference": find_claims(layout, reference, values)}
    claims["pooled residual, Dunnett or Tukey"] = t_pooled > pooled_critical_t(family, arms, freedom)
    p = np.sort(2 * special.stdtr(seeds - 1, -abs(estimates) / np.sqrt(own / seeds)), axis=1)
    ranks = (2 * special.stdtr(seeds - 1, -abs(estimates) / np.sqrt(own / seeds))).argsort(axis=1).argsort(axis=1)
    steps = (p <= ALPHA / (m - np.arange(m))).cumprod(axis=1).astype(bool)
    claims["paired t, Holm"] = np.take_along_axis(steps, ranks, axis=1)
    variances = values.var(axis=1, ddof=1)
    total = variances[:, first] + variances[:, second]
    welch = total**2 / ((variances[:, first] ** 2 + variances[:, second] ** 2) / (seeds - 1))
    p = 2 * special.stdtr(welch, -abs(estimates) / np.sqrt(total / seeds))
    claims["Welch, Bonferroni (unpaired)"] = p <= ALPHA / m
    floor = 2 / special.comb(2 * seeds, seeds)
    claims["Welch with permutation veto (before)"] = (p <= ALPHA / m) & (floor * m <= ALPHA)
    prior = 2 * layout.prior_freedom(residuals.reshape(many, -1))[:, None]  # about Smyth's estimate
    t = abs(estimates) / np.sqrt((prior * pooled[:, None] + (seeds - 1) * own) / (prior + seeds - 1) / seeds)
    claims["moderated, Bonferroni"] = 2 * special.stdtr(prior + seeds - 1, -t) <= ALPHA / m
    largest, permutations = np.zeros((many, 199)), 199
    for number in range(permutations):
        order = generator.random(values.shape).argsort(axis=2)
        means = np.take_along_axis(values, order, axis=2).mean(axis=1)
        # a permutation within seeds keeps the sum of squares, so the largest difference orders as the largest t does
        spread = abs(means[:, first] - means[:, second]).max(axis=1)
        total_squares = ((values - values.mean(axis=2, keepdims=True)) ** 2).sum(axis=(1, 2))
        between = seeds * ((means - means.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        largest[:, number] = spread / np.sqrt(2 * (total_squares - between) / freedom / seeds)
    beaten = (largest[:, :, None] >= t_pooled[:, None, :]).sum(axis=1)
    claims["max-T permutation within seeds"] = (1 + beaten) / (1 + permutations) <= ALPHA
    return claims


def pooled_critical_t(family: str, arms: int, freedom: int) -> float:
    """Tukey's critical value, or Dunnett's for equal numbers, by integration over the shared terms."""
    if family == "pairs":
        return float(stats.studentized_range.ppf(1 - ALPHA, arms, freedom) / 2**0.5)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    quantiles = (np.arange(400) + 0.5) / 400
    scales = np.sqrt(special.chdtri(freedom, 1 - quantiles) / freedom)

    def coverage(t: float) -> float:
        bound = 2**0.5 * t * scales[:, None]
        inside = special.ndtr(nodes + bound) - special.ndtr(nodes - bound)
        return float(((inside ** (arms - 1)) @ weights).mean())

    low, high = 0.5, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if coverage(middle) < 1 - ALPHA else (low, middle)
    return high


def measure_candidates(family: str, arms: int, seeds: int, repetitions: int, draws: int, scenario: Row) -> list[Row]:
    layout = Layout(np.ones((seeds, arms), bool), list_pairs(family, arms))
    reference = Reference(layout, reference_scenarios(family), draws=draws)
    generator = np.random.default_rng([4, arms, seeds, FAMILIES.index(family), *map(ord, str(scenario))])
    d = scenario.get("d", 0.0)
    terms = {name: value for name, value in scenario.items() if name != "d"}
    events: dict[str, int] = defaultdict(int)
    for many in blocks(repetitions):
        values = draw(generator, many, seeds, arms, **terms)
        values[:, :, 1] += d
        for name, claims in score_candidates(values, family, generator, layout, reference).items():
            events[name] += int((claims[:, 0] if d else claims.any(axis=1)).sum())
    return [
        {"kind": "candidate", "candidate": name, "family": family, "arms": arms, "seeds": seeds, **scenario}
        | {"events": count, "repetitions": repetitions}
        for name, count in events.items()
    ]


CANDIDATE_SCENARIOS: tuple[Row, ...] = (
    {"shared": 0.5}, {"tails": "t3", "shared": 0.5}, {"spread": "one"}, {"spread": "half"},
    {"spread": "baseline"}, {"spread": "half", "proportional": True, "shared": 0.9},
    {"d": 2.0, "shared": 0.5}, {"d": 2.0, "shared": 0.9}, {"d": 10.0, "shared": 0.5},
)  # fmt: skip


# looks and dropped arms


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


LOOK_SCENARIOS: tuple[Row, ...] = (
    {}, {"tails": "t3"}, {"spread": "half"}, {"spread": "baseline"}, {"spread": "half", "proportional": True, "shared": 0.9},
    {"worse": 2, "d": 2.0}, {"worse": 2, "d": 4.0}, {"worse": 2, "d": 4.0, "tails": "t3"},
    {"worse": 2, "d": 4.0, "spread": "half"}, {"worse": 1, "d": 10.0},
)  # fmt: skip


# the whole


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
    for family, arms, scenario in product(FAMILIES, (8, 4), LOOK_SCENARIOS):
        if family == "baseline" or scenario.get("spread") != "baseline":
            tasks.append((measure_looks, family, arms, repetitions, draws, scenario))
    for family, seeds, scenario in product(FAMILIES, (5, 3), CANDIDATE_SCENARIOS):
        if family == "baseline" or scenario.get("spread") != "baseline":
            tasks.append((measure_candidates, family, 8, seeds, repetitions, draws, scenario))
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


def find_limit(row: Row, draws: int) -> float:
    """The largest share of false claims that meets the requirement: the level and two standard errors.

    The simulated critical value has an error too, as large as that of ``draws`` data sets.
    """
    level = ALPHA if row.get("spread", "alike") == "alike" else UNEQUAL_LIMIT
    return level + 2 * (level * (1 - level) * (1 / row["repetitions"] + 1 / draws)) ** 0.5


def rate(row: Row) -> float:
    return row["events"] / row["repetitions"]


def show(record: Row) -> bool:
    """Print the tables; whether every requirement is met."""
    rows, draws = record["rows"], record["draws"]
    fine = True
    print(f"family-wise error at 0.05, {record['repetitions']} repetitions: worst over the scenarios of a column")
    columns = {
        "normal": lambda r: not r["failed"] and r.get("tails") == "normal",
        "t(3)": lambda r: not r["failed"] and r.get("tails") == "t3",
        "failed": lambda r: r["failed"] and r.get("tails") == "normal",
        "failed t(3)": lambda r: r["failed"] and r.get("tails") == "t3",
        "unequal": lambda r: r.get("spread") and not r["proportional"],
        "proportional": lambda r: r.get("spread") and r["proportional"],
    }
    print(f"{'family':10}{'arms':>5}{'seeds':>6}" + "".join(f"{name:>14}" for name in columns))
    errors = [row for row in rows if row["kind"] == "error"]
    for family, arms, seeds in sorted({(r["family"], r["arms"], r["seeds"]) for r in errors}):
        own = [r for r in errors if (r["family"], r["arms"], r["seeds"]) == (family, arms, seeds)]
        text = f"{family:10}{arms:>5}{seeds:>6}"
        for test in columns.values():
            worst = max((row for row in own if test(row)), key=rate, default=None)
            mark = "!" if worst and rate(worst) > find_limit(worst, draws) else ""
            fine &= not mark
            text += (f"{mark}{rate(worst):.4f}" if worst else "-").rjust(14)
        print(text)
    print("\npower: one arm differs by d total standard deviations; half of the variance is shared")
    power = [row for row in rows if row["kind"] == "power"]
    found = {(r["family"], r["arms"], r["seeds"], r["d"], r["shared"]): rate(r) for r in power}
    many = sorted({r["seeds"] for r in power})
    print(f"{'family':10}{'arms':>5}{'d':>5}" + "".join(f"{n:>7} s" for n in many))
    for family, arms, d in sorted({(r["family"], r["arms"], r["d"]) for r in power}):
        print(f"{family:10}{arms:>5}{d:>5g}" + "".join(f"{found[family, arms, n, d, 0.5]:>9.3f}" for n in many))
    if (("baseline", 8, 5, 2.0, 0.5)) in found:
        fine &= found["baseline", 8, 5, 2.0, 0.5] >= 0.8 and found["baseline", 8, 3, 10.0, 0.5] >= 0.95
    names = ("tails", "spread", "proportional", "shared", "d", "worse")
    print("\ncandidates, 8 arms")
    table: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for row in (row for row in rows if row["kind"] == "candidate"):
        label = " ".join(f"{name}={row[name]}" for name in names if name in row)
        table[row["family"], row["seeds"], label][row["candidate"]] = rate(row)
    order = list(dict.fromkeys(name for cells in table.values() for name in cells))
    print("\n".join(f"  {letter}: {name}" for letter, name in zip("ABCDEFGH", order, strict=False)))
    print(
        f"{'family':10}{'seeds':>6}  {'scenario':45}" + "".join(f"{letter:>7}" for letter in "ABCDEFGH"[: len(order)])
    )
    for (family, seeds, label), cells in sorted(table.items()):
        print(f"{family:10}{seeds:>6}  {label:45}" + "".join(f"{cells[name]:7.3f}" for name in order))
    print(
        f"\nlooks after {LOOKS} seeds, decided arms dropped: error of false claims, share of runs trained, claims by look"
    )
    for row in (row for row in rows if row["kind"] == "looks"):
        label = " ".join(f"{name}={row[name]}" for name in names if name in row) or "alike"
        limit = "" if rate(row) <= find_limit(row, draws) else "!"
        fine &= not limit
        claims = [f"{count / row['repetitions']:.3f}" for count in row.get("claims_by_look", [])]
        print(
            f"{row['family']:10}{row['arms']:>5}  {label:45}{limit}{rate(row):.4f}  {row['runs_used']:.3f}  {' '.join(claims)}"
        )
    print("\nevery requirement is met" if fine else "\na requirement is not met (marked !)")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5000, help="Data sets per cell.")
    parser.add_argument("--draws", type=int, default=moderated_t.DRAWS, help="Data sets of a reference distribution.")
    parser.add_argument("--patterns", type=int, default=100, help="Patterns of failed runs per cell.")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="Processes.")
    parser.add_argument("--only", help="Run the tasks of this name only, such as measure_looks.")
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
    record = {
        "command": f"python benchmarks/paired_comparison.py --repetitions {args.repetitions} --draws {args.draws}",
        "environment": records.describe_environment(("numpy", "scipy")), "alpha": ALPHA, "looks": list(LOOKS),
        "repetitions": args.repetitions, "draws": args.draws, "rows": merge_parts(rows),
    }  # fmt: skip
    records.write(args.out, record)
    return 0 if show(record) else 1


if __name__ == "__main__":
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # one thread a process
    sys.exit(main())

"""Planted check of ``whence.discover``: curves made from a known formula with noise over seeds must be named.

    python benchmarks/discovery.py                  # minutes on one core; writes benchmarks/records/discovery_planted.json
    python benchmarks/discovery.py --protocol benchmarks/discovery_protocol_2.toml
    python benchmarks/discovery.py --runs 2 --curves bump --out build/discovery_planted.json

``discovery_protocol.toml`` fixes noise levels, draws and criterion. ``discovery_protocol_2.toml`` does the same with as much data as
the criterion needs; its record is ``discovery_planted_2.json``. A run draws the seeds of one table over the knots of a
``FreeTable``. It recovers its curve if the family is named and every parameter is within 10 %. Without an effect, the name
must be ``no effect``.

Beside the count stands how often the parameters could be recovered at all: ``attainable`` is the share of Gaussian errors with
the covariance of the Cramer-Rao bound, for the known family, that are all within 10 %.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whence import records
from whence.discover import Curves, name_formula
from whence.discover.curves import SHARED
from whence.discover.fitting import Problem, list_candidates
from whence.position.free_table import table_knots

ROOT = Path(__file__).resolve().parent.parent
PROTOCOL = ROOT / "benchmarks" / "discovery_protocol.toml"
CONTEXT = 512
TRIALS = 20_000  # of the attainable share


@dataclass(frozen=True)
class Case:
    """A known curve, its family and its parameters as ``Fit.values`` has them."""

    name: str
    hook: str
    evaluate: Callable[[np.ndarray, Sequence[float]], np.ndarray]
    family: str
    parameters: dict[str, float]

    def curve(self, d: np.ndarray) -> np.ndarray:
        return self.evaluate(d, list(self.parameters.values()))


CASES = {
    # alpha (1 + gamma exp(-beta d / L)) / (1 + gamma) with beta 4, gamma 1.5
    "EPAR": Case(
        "EPAR",
        "scale",
        lambda d, v: (1 + v[0] * np.exp(-d / v[1])) / (1 + v[0]),
        "exponential with floor",
        {"strength": 1.5, "s": CONTEXT / 4},
    ),
    "power prior": Case(
        "power prior", "bias", lambda d, v: v[0] * d ** v[1], "power", {"amplitude": -(0.5**0.5), "p": 0.5}
    ),
    "bump": Case(
        "bump",
        "bias",
        lambda d, v: v[0] * np.exp(-(((d - v[1]) / v[2]) ** 2)),
        "bump",
        {"amplitude": 2.0, "centre": 12.0, "width": 4.0},
    ),
    "no effect, bias": Case("no effect, bias", "bias", lambda d, v: 0 * d, "no effect", {}),
    "no effect, scale": Case("no effect, scale", "scale", lambda d, v: 1 + 0 * d, "no effect", {}),
}


def read_protocol(path: Path = PROTOCOL) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def seeds_of(case: Case, protocol: dict[str, Any], name: str) -> int:
    """The number of curves in a run."""
    seeds = protocol["levels"][name].get("seeds") or protocol["seeds"]
    return int(seeds[case.name] if isinstance(seeds, dict) else seeds)


def noise_of(case: Case, level: dict[str, Any], d: np.ndarray) -> float:
    """The standard deviation of a seed."""
    if "relative" not in level:
        return float(level[case.hook])
    less = (
        math.sqrt(level["seeds"] / level["information"][case.name])
        if case.name in level.get("information", {})
        else 1.0
    )
    return float(less * level["relative"] * np.ptp(case.curve(d)) or level["null"])


def draw_curves(case: Case, protocol: dict[str, Any], name: str, run: int) -> Curves:
    """The curves of some seeds: the known one with noise."""
    level = protocol["levels"][name]
    rng = np.random.default_rng([protocol["draws"], run, *name.encode(), *case.family.encode(), *case.hook.encode()])
    d, correlation = np.array(table_knots(**protocol["knots"]), float), level["correlation"]
    steps = rng.normal(size=(seeds_of(case, protocol, name), len(d)))
    for knot in range(1, len(d)):
        steps[:, knot] = correlation * steps[:, knot - 1] + math.sqrt(1 - correlation**2) * steps[:, knot]
    return Curves(d, case.curve(d) + noise_of(case, level, d) * steps, case.hook)


def run_case(case: Case, protocol: dict[str, Any], level: str, run: int, pairs: bool = True) -> dict[str, Any]:
    """One run: what was named, and whether the formula was recovered."""
    return describe_run(case, draw_curves(case, protocol, level, run), protocol["largest_error"], run, pairs)


def describe_run(case: Case, curves: Curves, largest_error: float, run: int, pairs: bool = True) -> dict[str, Any]:
    """The name of curves, and whether it is the planted one with every parameter within an error."""
    named = name_formula(curves, pairs=pairs)
    found = named.fit.values
    errors = {
        name: abs(found[name] / value - 1) for name, value in case.parameters.items() if named.name == case.family
    }
    recovered = named.name == case.family and all(error <= largest_error for error in errors.values())
    ranking = [
        {"name": one.fit.name, "bits": round(one.bits, 2), "held_out": round(one.held_out, 4)}
        for one in named.ranking[:3]
    ]
    return {
        "run": run, "named": named.name, "formula": named.fit.describe(), "errors": errors, "recovered": recovered,
        "ranking": ranking,
    }  # fmt: skip


def attainable_share(case: Case, protocol: dict[str, Any], name: str, seeds: int) -> float | None:
    """How often all parameters of the known family can be within the allowed error; None for no effect.

    The parameters are estimated with the smallest variance that is possible without bias, and their errors are Gaussian.
    """
    if not case.parameters:
        return None
    level, d = protocol["levels"][name], np.array(table_knots(**protocol["knots"]), float)
    steps = np.abs(np.subtract.outer(np.arange(len(d)), np.arange(len(d))))
    noise = noise_of(case, level, d)
    covariance = noise**2 / seeds * level["correlation"] ** steps
    values = list(case.parameters.values())
    columns = [np.ones_like(d)]
    if case.hook == "scale":  # the level of a scale is a factor
        columns = [case.evaluate(d, values)]
    for number, value in enumerate(values):
        step = 1e-4 * abs(value)
        up, down = ([*values[:number], value + sign * step, *values[number + 1 :]] for sign in (1, -1))
        columns.append((case.evaluate(d, up) - case.evaluate(d, down)) / (2 * step))
    design = np.stack(columns, 1)
    information = design.T @ np.linalg.solve(covariance, design)
    own = np.linalg.inv(information)[1:, 1:]
    errors = np.random.default_rng(0).multivariate_normal(np.zeros(len(values)), own, TRIALS)
    return float((np.abs(errors) <= protocol["largest_error"] * np.abs(values)).all(1).mean())


def separation(case: Case, protocol: dict[str, Any], name: str, seeds: int) -> float | None:
    """By how many bits the nearest other family of one shape with no more numbers is worse, in expectation; None for no effect."""
    if not case.parameters:
        return None
    level, d = protocol["levels"][name], np.array(table_knots(**protocol["knots"]), float)
    # three seeds around the exact curve: their mean is the curve, and their spread and correlation are replaced by the known ones
    curves = Curves(d, case.curve(d) + np.array([-1e-3, 0.0, 1e-3])[:, None] * np.cos(d), case.hook)
    unit = 1.0 if case.hook == "bias" else float(case.curve(d).mean())
    noise = (noise_of(case, level, d) / unit) ** 2 / seeds
    # the error that seeds share is no noise: it is taken out of the standard error again
    shared = (SHARED * np.ptp(curves.mean)) ** 2
    variance = np.full((1, len(d)), curves.seeds * (noise - shared))
    for field, value in (("variance", variance), ("correlation", level["correlation"])):
        object.__setattr__(curves, field, value)
    problem = Problem(curves, [0])
    rivals = [
        problem.fit(candidate)
        for candidate in list_candidates(case.hook)
        if len(candidate.shapes) == 1 and problem.count(candidate) <= len(case.parameters)
    ]
    return min(fit.chi_square for fit in rivals if fit.name != case.family) / (2 * math.log(2))


def seeds_needed(case: Case, protocol: dict[str, Any], name: str) -> int | None:
    """The smallest power of two of seeds that the criterion needs; None for no effect.

    A protocol states the share of runs whose parameters are attainable, 95 % without a statement, and the least separation from
    other families.
    """
    if not case.parameters:
        return None
    share, bits = protocol.get("attainable", 0.95), protocol.get("separation")
    for n in (2**power for power in range(1, 20)):
        near = bits is not None and (separation(case, protocol, name, n) or 0) < bits
        if (attainable_share(case, protocol, name, n) or 0) >= share and not near:
            return n
    raise SystemExit(f"{case.name}: no number of seeds is enough")


def require_chosen_seeds(protocol: dict[str, Any], needed: dict[tuple[str, str], int | None]) -> None:
    """Refuse a protocol with a rule for its seeds whose seeds do not follow it."""
    for (level, name), seeds in needed.items():
        own, exact = seeds_of(CASES[name], protocol, level), "information" not in protocol["levels"][level]
        if "separation" in protocol and seeds is not None and (own < seeds or (exact and own != seeds)):
            raise SystemExit(f"{level}, {name}: the protocol has {own} seeds, and its rule needs {seeds}")


def judge(protocol: dict[str, Any], results: dict[str, Any]) -> dict[str, bool]:
    """Whether each level meets the criterion, from the counts alone."""
    verdicts = {}
    for level, rows in results.items():
        counts = {name: row["recovered"] for name, row in rows.items()}
        met = all(counts.get(name, 0) >= protocol["required"] for name in protocol["required_curves"])
        null = all(count >= protocol["required_null"] for name, count in counts.items() if name.startswith("no effect"))
        verdicts[level] = met and null
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="runs of each curve (default: those of the protocol)")
    parser.add_argument("--curves", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--protocol", type=Path, default=PROTOCOL)
    parser.add_argument("--out", type=Path, help="default: the record of the protocol")
    arguments = parser.parse_args()
    protocol, results = read_protocol(arguments.protocol), {}
    name = arguments.protocol.stem.replace("_protocol", "_planted")
    out = arguments.out or ROOT / "benchmarks" / "records" / f"{name}.json"
    needed = {
        (level, name): seeds_needed(CASES[name], protocol, level)
        for level in protocol["levels"]
        for name in arguments.curves
    }
    require_chosen_seeds(protocol, needed)
    for level in protocol["levels"]:
        results[level] = {}
        for name in arguments.curves:
            case = CASES[name]
            runs = [run_case(case, protocol, level, run) for run in range(arguments.runs or protocol["runs"])]
            recovered = sum(run["recovered"] for run in runs)
            seeds = seeds_of(case, protocol, level)
            results[level][name] = {
                "family": case.family, "parameters": case.parameters, "recovered": recovered, "seeds": seeds,
                "attainable": attainable_share(case, protocol, level, seeds),
                "seeds_needed": needed[level, name], "runs": runs,
            }  # fmt: skip
            print(f"{level}, {name}: {recovered} of {len(runs)} recovered", flush=True)
    verdicts = judge(protocol, results)
    options = "" if arguments.protocol == PROTOCOL else f" --protocol benchmarks/{arguments.protocol.name}"
    record = {
        "command": records.rerun_command(f"python benchmarks/discovery.py{options}"),
        "environment": records.describe_environment(("numpy", "scipy")),
        "protocol": protocol,
        "protocol_sha256": hashlib.sha256(arguments.protocol.read_bytes()).hexdigest(),
        "results": results,
        "met": verdicts,
    }
    records.write(out, record)
    for level, met in verdicts.items():
        print(f"{level}: {'met' if met else 'not met'}")


if __name__ == "__main__":
    main()

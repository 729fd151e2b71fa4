"""Planted check of ``whence.discover``: curves made from a known formula with noise over seeds must be named.

    python benchmarks/discovery.py                  # minutes on one core; writes benchmarks/records/discovery.json
    python benchmarks/discovery.py --runs 2 --curves bump --out build/discovery.json

``discovery_protocol.toml`` fixes noise levels, draws and criterion. A run draws the seeds of one table over the knots of a
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
from whence.position.free_table import table_knots

ROOT = Path(__file__).resolve().parent.parent
PROTOCOL = ROOT / "benchmarks" / "discovery_protocol.toml"
CONTEXT = 512
TRIALS = 20_000  # of the attainable share


@dataclass(frozen=True)
class Case:
    """A known curve, its family and its parameters as ``Fit.values`` has them."""

    hook: str
    evaluate: Callable[[np.ndarray, Sequence[float]], np.ndarray]
    family: str
    parameters: dict[str, float]

    def curve(self, d: np.ndarray) -> np.ndarray:
        return self.evaluate(d, list(self.parameters.values()))


CASES = {
    # alpha (1 + gamma exp(-beta d / L)) / (1 + gamma) with beta 4, gamma 1.5
    "EPAR": Case(
        "scale",
        lambda d, v: (1 + v[0] * np.exp(-d / v[1])) / (1 + v[0]),
        "exponential with floor",
        {"strength": 1.5, "s": CONTEXT / 4},
    ),
    "power prior": Case("bias", lambda d, v: v[0] * d ** v[1], "power", {"amplitude": -(0.5**0.5), "p": 0.5}),
    "bump": Case(
        "bias",
        lambda d, v: v[0] * np.exp(-(((d - v[1]) / v[2]) ** 2)),
        "bump",
        {"amplitude": 2.0, "centre": 12.0, "width": 4.0},
    ),
    "no effect, bias": Case("bias", lambda d, v: 0 * d, "no effect", {}),
    "no effect, scale": Case("scale", lambda d, v: 1 + 0 * d, "no effect", {}),
}


def read_protocol() -> dict[str, Any]:
    with PROTOCOL.open("rb") as file:
        return tomllib.load(file)


def noise_of(case: Case, level: dict[str, Any], d: np.ndarray) -> float:
    """The standard deviation of a seed."""
    if "relative" not in level:
        return float(level[case.hook])
    return float(level["relative"] * np.ptp(case.curve(d)) or level["null"])


def draw_curves(case: Case, protocol: dict[str, Any], name: str, run: int) -> Curves:
    """The curves of some seeds: the known one with noise."""
    level = protocol["levels"][name]
    rng = np.random.default_rng([protocol["draws"], run, *name.encode(), *case.family.encode(), *case.hook.encode()])
    d, correlation = np.array(table_knots(**protocol["knots"]), float), level["correlation"]
    steps = rng.normal(size=(protocol["seeds"], len(d)))
    for knot in range(1, len(d)):
        steps[:, knot] = correlation * steps[:, knot - 1] + math.sqrt(1 - correlation**2) * steps[:, knot]
    return Curves(d, case.curve(d) + noise_of(case, level, d) * steps, case.hook)


def run_case(case: Case, protocol: dict[str, Any], level: str, run: int, pairs: bool = True) -> dict[str, Any]:
    """One run: what was named, and whether the formula was recovered."""
    named = name_formula(draw_curves(case, protocol, level, run), pairs=pairs)
    found = named.fit.values
    errors = {
        name: abs(found[name] / value - 1) for name, value in case.parameters.items() if named.name == case.family
    }
    recovered = named.name == case.family and all(error <= protocol["largest_error"] for error in errors.values())
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


def seeds_needed(case: Case, protocol: dict[str, Any], name: str) -> int | None:
    """The smallest power of two of seeds with which at least 95 % are attainable; None for no effect."""
    if not case.parameters:
        return None
    return next(
        n for n in (2**power for power in range(1, 20)) if (attainable_share(case, protocol, name, n) or 0) >= 0.95
    )


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
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "discovery.json")
    arguments = parser.parse_args()
    protocol, results = read_protocol(), {}
    for level in protocol["levels"]:
        results[level] = {}
        for name in arguments.curves:
            case = CASES[name]
            runs = [run_case(case, protocol, level, run) for run in range(arguments.runs or protocol["runs"])]
            recovered = sum(run["recovered"] for run in runs)
            results[level][name] = {
                "family": case.family, "parameters": case.parameters, "recovered": recovered,
                "attainable": attainable_share(case, protocol, level, protocol["seeds"]),
                "seeds_needed": seeds_needed(case, protocol, level), "runs": runs,
            }  # fmt: skip
            print(f"{level}, {name}: {recovered} of {len(runs)} recovered", flush=True)
    verdicts = judge(protocol, results)
    record = {
        "command": records.rerun_command("python benchmarks/discovery.py"),
        "environment": records.describe_environment(("numpy", "scipy")),
        "protocol": protocol,
        "protocol_sha256": hashlib.sha256(PROTOCOL.read_bytes()).hexdigest(),
        "results": results,
        "met": verdicts,
    }
    records.write(arguments.out, record)
    for level, met in verdicts.items():
        print(f"{level}: {'met' if met else 'not met'}")


if __name__ == "__main__":
    main()

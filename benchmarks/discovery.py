"""Planted check of ``whence.discover``: curves made from a known formula with noise over seeds must be named.

    python benchmarks/discovery.py                  # minutes on one core; writes benchmarks/records/discovery.json
    python benchmarks/discovery.py --runs 2 --cases bump --out build/discovery.json

Each run draws five seeds of one table over the knots of a ``FreeTable``. The noise of a seed has the standard deviation 0.15
for a bias and 0.03 for a scale, and neighbouring knots have the correlation 0.3. Trained tables give the order of these
numbers: ``whence compare --task topics`` with ``FreeTable(max_distance=31, smoothness=0.001)``, 250 steps, heads matched over
four seeds, has biases with a spread of 0.09 and 0.11 in the two layers, correlations of 0.26 and 0.17 and ranges of 1.2 to
1.6. A scale beside ALiBi, three seeds, has a spread of 0.09 and 0.13 at ranges of 0.7 to 1.5, so five seeds of such a scale are
noisier than the planted ones. A run recovers its formula if the family is named and every parameter is within 10 %. Without
an effect, the name must be ``no effect``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whence import records
from whence.discover import Curves, name_formula
from whence.position.free_table import table_knots

ROOT = Path(__file__).resolve().parent.parent
KNOTS = {"exact": 16, "per_octave": 4, "max_distance": 512}
SEEDS, RUNS = 5, 10
NOISE, CORRELATION = {"bias": 0.15, "scale": 0.03}, 0.3  # standard deviation of a seed
LARGEST_ERROR = 0.1
REQUIRED = 0.9
CONTEXT = 512


@dataclass(frozen=True)
class Case:
    """A known curve, its family and its parameters as ``Fit.values`` has them."""

    hook: str
    curve: Callable[[np.ndarray], np.ndarray]
    family: str
    parameters: dict[str, float]
    required: bool = True  # recovered in at least 9 of 10 runs


CASES = {
    # alpha (1 + gamma exp(-beta d / L)) / (1 + gamma) with beta 4, gamma 1.5
    "EPAR": Case(
        "scale",
        lambda d: (1 + 1.5 * np.exp(-4 * d / CONTEXT)) / 2.5,
        "exponential with floor",
        {"strength": 1.5, "s": CONTEXT / 4},
    ),
    "power prior": Case("bias", lambda d: -((0.5 * d) ** 0.5), "power", {"amplitude": -(0.5**0.5), "p": 0.5}),
    "bump": Case("bias", lambda d: 2 * np.exp(-(((d - 12) / 4) ** 2)), "bump", {"amplitude": 2.0, "centre": 12.0, "width": 4.0}),
    "exponential": Case("bias", lambda d: 3 * np.exp(-d / 40), "exponential", {"amplitude": 3.0, "s": 40.0}),
    # five seeds of a curve half as strong do not determine s within 10 %
    "exponential, weak": Case("bias", lambda d: 1.5 * np.exp(-d / 40), "exponential", {"amplitude": 1.5, "s": 40.0}, False),
    "ALiBi": Case("bias", lambda d: -d / 64, "linear", {"amplitude": -1 / 64}),
    "no effect, bias": Case("bias", lambda d: 0 * d, "no effect", {}),
    "no effect, scale": Case("scale", lambda d: 1 + 0 * d, "no effect", {}),
}  # fmt: skip


def draw_curves(case: Case, run: int) -> Curves:
    """The curves of some seeds: the known one with noise."""
    rng = np.random.default_rng([run, *case.family.encode(), *case.hook.encode()])
    d = np.array(table_knots(**KNOTS), float)
    steps = rng.normal(size=(SEEDS, len(d)))
    for knot in range(1, len(d)):
        steps[:, knot] = CORRELATION * steps[:, knot - 1] + math.sqrt(1 - CORRELATION**2) * steps[:, knot]
    return Curves(d, case.curve(d) + NOISE[case.hook] * steps, case.hook)


def run_case(case: Case, run: int, pairs: bool = True) -> dict[str, Any]:
    """One run: what was named, and whether the formula was recovered."""
    named = name_formula(draw_curves(case, run), pairs=pairs)
    found = named.fit.values
    errors = {
        name: abs(found[name] / value - 1) for name, value in case.parameters.items() if named.name == case.family
    }
    recovered = named.name == case.family and all(error <= LARGEST_ERROR for error in errors.values())
    ranking = [
        {"name": one.fit.name, "bits": round(one.bits, 2), "held_out": round(one.held_out, 4)}
        for one in named.ranking[:3]
    ]
    return {
        "run": run, "named": named.name, "formula": named.fit.describe(), "errors": errors, "recovered": recovered,
        "ranking": ranking,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "discovery.json")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.cases:
        runs = [run_case(CASES[name], run) for run in range(arguments.runs)]
        recovered = sum(run["recovered"] for run in runs)
        results[name] = {
            "family": CASES[name].family,
            "parameters": CASES[name].parameters,
            "required": CASES[name].required,
            "recovered": recovered,
            "runs": runs,
        }
        print(f"{name}: {recovered} of {len(runs)} recovered", flush=True)
    spec = {"knots": KNOTS, "seeds": SEEDS, "noise": NOISE, "correlation": CORRELATION}
    spec |= {"largest_error": LARGEST_ERROR, "runs": arguments.runs}
    record = {
        "command": records.rerun_command("python benchmarks/discovery.py"),
        "environment": records.describe_environment(("numpy", "scipy")),
        "spec": spec,
        "results": results,
    }
    records.write(arguments.out, record)
    missed = [name for name, row in results.items() if row["required"] and row["recovered"] < REQUIRED * arguments.runs]
    if missed:
        raise SystemExit(f"recovered in fewer than {REQUIRED:.0%} of the runs: {', '.join(missed)}")


if __name__ == "__main__":
    main()

"""An experiment: a frozen spec, a function that computes results, and a function that draws them from their record alone.

The record is ``OUT/GROUP/NAME.json`` (``OUT/GROUP/quick/NAME.json`` for the quick spec). It holds the spec, the raw values, the
environment and fingerprints of the results it depends on. It is written once, atomically; later runs read it. Figures and
tables are written to ``OUT/output/FOLDER/``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from whence import records
from whence.errors import usage_error

PARTS = ("experiment", "quick", "spec", "inputs", "environment", "seconds", "results")  # older records have no command

ProgressCallback = Callable[[str], None]
Results = dict[str, Any]  # plain JSON


@dataclass(frozen=True)
class Experiment:
    """The description of an experiment. ``run_experiment`` computes and draws it.

    Args:
        name: name of the record.
        group: folder of the records, shared by related experiments.
        folder: folder of the figures and tables, below ``output``.
        question: the question it answers, in one sentence.
        spec: a frozen dataclass with everything that determines the results.
        quick: the same with small sizes, for a smoke test that takes seconds.
        compute: takes a spec, the results of the experiments in ``needs`` by name, and a progress callback that takes a line of
            text; returns the results as JSON values.
        draw: takes the record and the folder to write to.
        needs: experiments whose results this one uses.
    """

    name: str
    group: str
    folder: str
    question: str
    spec: Any
    quick: Any
    compute: Callable[[Any, Mapping[str, Results], ProgressCallback], Results]
    draw: Callable[[Results, Path], None]
    needs: tuple[Experiment, ...] = ()

    def record_path(self, out: Path, quick: bool = False) -> Path:
        return out / self.group / ("quick" if quick else "") / f"{self.name}.json"


def run_experiment(
    experiment: Experiment, out: Path, *, quick: bool = False, progress: ProgressCallback = lambda line: None
) -> Path:
    """Compute the record unless it exists, draw it, and return the folder with the figures."""
    record = load_or_compute(experiment, out, quick, progress)
    folder = out / "output" / experiment.folder
    records.make_folder(folder)
    experiment.draw(record, folder)
    return folder


def load_or_compute(
    experiment: Experiment, out: Path, quick: bool = False, progress: ProgressCallback = lambda line: None
) -> Results:
    """Load the record, after computing it if it does not exist. A record that does not match raises and is not overwritten."""
    inputs = {need.name: load_or_compute(need, out, quick, progress)["results"] for need in experiment.needs}
    fingerprints = {name: fingerprint(results) for name, results in inputs.items()}
    spec = to_json_types(asdict(experiment.quick if quick else experiment.spec))
    path = experiment.record_path(out, quick)
    if not records.exists(path):
        progress(f"{experiment.name}: computing")
        torch.set_num_threads(1)  # the number of threads changes the order of summation
        started = time.monotonic()
        results = experiment.compute(experiment.quick if quick else experiment.spec, inputs, progress)
        records.write(
            path,
            {
                "experiment": experiment.name, "quick": quick, "spec": spec, "inputs": fingerprints,
                "command": records.rerun_command(), "seconds": round(time.monotonic() - started, 1),
                "environment": records.describe_environment(sources=[experiment.compute.__module__]),
                "results": results,
            },
        )  # fmt: skip
        progress(f"{experiment.name}: {time.monotonic() - started:.0f} s")
    record = records.read(path)  # draw what was stored
    check_record(record, path, spec, fingerprints)
    return record


def check_record(record: Results, path: Path, spec: dict[str, Any], fingerprints: dict[str, str]) -> None:
    """Raise unless a record is complete, has this spec, and was computed from the current results of its dependencies."""
    missing = [part for part in PARTS if part not in record]
    if missing:
        got, rule = f"{path} without {', '.join(missing)}", "a record needs all of them"
    elif record["spec"] != spec:
        got, rule = f"{path} of another spec", "a record belongs to one spec"
    elif record["inputs"] != fingerprints:
        got, rule = (
            f"{path}, computed from other {', '.join(fingerprints)}",
            "results must be computed from the record beside them",
        )
    else:
        return
    raise usage_error("whence run", got, rule, "move the file away or choose another --out to compute it again")


def fingerprint(results: Results) -> str:
    """A hash of results, which identifies them as the input of another experiment."""
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()[:16]


def to_json_types(value: Any) -> Any:
    """A spec as JSON returns it: tuples become lists."""
    return json.loads(json.dumps(value))

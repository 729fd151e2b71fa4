"""An experiment: a frozen spec, a function that computes numbers, and one that draws them from their record alone.

The record is ``OUT/GROUP/NAME.json`` (``OUT/GROUP/quick/NAME.json`` for the quick spec) and holds the spec, the raw values,
the environment and a fingerprint of what it was computed from. It is written once, whole, and read again ever after; the
files that are drawn lie in ``OUT/output/FOLDER/``.
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

PARTS = ("experiment", "quick", "spec", "given", "environment", "seconds", "results")  # older records have no command

Tell = Callable[[str], None]
Results = dict[str, Any]  # plain JSON


@dataclass(frozen=True)
class Experiment:
    """One experiment, with nothing done yet.

    Args:
        name: of the record's file.
        group: of experiments that share a folder of records.
        folder: where its drawings lie below ``output``.
        question: what it asks, in a sentence.
        spec: a frozen dataclass; everything that decides the numbers.
        quick: the same, of a size that takes seconds and says little.
        compute: gets a spec, the results of ``needs`` by name, and a function to call with a line of progress.
        draw: gets the record and a folder to write to.
        needs: experiments whose results this one starts from.
    """

    name: str
    group: str
    folder: str
    question: str
    spec: Any
    quick: Any
    compute: Callable[[Any, Mapping[str, Results], Tell], Results]
    draw: Callable[[Results, Path], None]
    needs: tuple[Experiment, ...] = ()

    def record_path(self, out: Path, quick: bool = False) -> Path:
        return out / self.group / ("quick" if quick else "") / f"{self.name}.json"


def perform(experiment: Experiment, out: Path, *, quick: bool = False, tell: Tell = lambda line: None) -> Path:
    """Compute the record unless there is one, then draw from it; the answer is the folder of drawings."""
    record = record_of(experiment, out, quick, tell)
    folder = out / "output" / experiment.folder
    folder.mkdir(parents=True, exist_ok=True)
    experiment.draw(record, folder)
    return folder


def record_of(experiment: Experiment, out: Path, quick: bool = False, tell: Tell = lambda line: None) -> Results:
    """The record from disk, computed first where there is none. A record that does not fit is named, and left alone."""
    given = {need.name: record_of(need, out, quick, tell)["results"] for need in experiment.needs}
    marks = {name: fingerprint(results) for name, results in given.items()}
    spec = plain(asdict(experiment.quick if quick else experiment.spec))
    path = experiment.record_path(out, quick)
    if not records.exists(path):
        tell(f"{experiment.name}: computing")
        torch.set_num_threads(1)  # sums are added in another order by more threads
        began = time.monotonic()
        results = experiment.compute(experiment.quick if quick else experiment.spec, given, tell)
        records.write(
            path,
            {
                "experiment": experiment.name, "quick": quick, "spec": spec, "given": marks,
                "command": records.rerun_command(), "seconds": round(time.monotonic() - began, 1),
                "environment": records.describe_environment(sources=[experiment.compute.__module__]),
                "results": results,
            },
        )  # fmt: skip
        tell(f"{experiment.name}: {time.monotonic() - began:.0f} s")
    record = records.read(path)  # what is drawn is what the file says
    refuse_misfit(record, path, spec, marks)
    return record


def refuse_misfit(record: Results, path: Path, spec: dict[str, Any], marks: dict[str, str]) -> None:
    """A record is read only if it is whole, of this spec, and computed from what is there now."""
    missing = [part for part in PARTS if part not in record]
    if missing:
        got, rule = f"{path} without {', '.join(missing)}", "a record has all its parts"
    elif record["spec"] != spec:
        got, rule = f"{path} of another spec", "a record is read for its own spec only"
    elif record["given"] != marks:
        got, rule = f"{path}, computed from other {', '.join(marks)}", "its numbers come from the record beside it"
    else:
        return
    raise usage_error(
        "run", got, rule, "move the file away or choose another --out, and its numbers are computed again"
    )


def fingerprint(results: Results) -> str:
    """A hash of results by which to tell whether others were computed from them."""
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """A spec as JSON gives it back: tuples become lists."""
    return json.loads(json.dumps(value))

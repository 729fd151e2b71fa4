"""What records beside those of studies say of a claim: of an experiment, and of measured times."""

from __future__ import annotations

from statistics import median
from typing import Any

from whence import records
from whence_papers.ledger.places import Places, Waiting
from whence_papers.ledger.studies import METRICS, Reading, judged


def experiment_differs(
    places: Places, record: str, command: str, arm: str, baseline: str, measure: str, metric: str
) -> tuple[dict[str, Any], str]:
    """One arm of an experiment against another: 1 where it can be called better, -1 where worse, 0 where neither."""
    path = places.results / record
    if not records.exists(path):
        raise Waiting(f"the record {path} (`{command}`)")
    arms = records.read(path)["results"]["arms"]
    sides = {name: [METRICS[metric][0] * value for value in arms[name][measure]] for name in (baseline, arm)}
    return judged(sides, baseline, metric, 1)[arm], path.as_posix()


def pointer_time(places: Places, way: str, baseline: str) -> tuple[dict[str, Any], str]:
    """The time of one way to point over that of another, measured in turns: forward and backward, by medians."""
    path = places.benchmarks / "pointers.json"
    if not records.exists(path):
        raise Waiting(f"measured times of pointers ({path}, made by benchmarks/pointers.py)")
    kept = records.read(path)
    times = {name: median(row["milliseconds"]) for name, row in kept["results"].items()}
    about, machine = kept["about"], kept["environment"]["machine"]
    words = (
        f"{way} {times[way]:.2f} ms, {baseline} {times[baseline]:.2f} ms, median of {about['turns']} turns on one thread of "
        f"{machine['processor']}: {about['batch']} histories of {about['visits']} visits, width {about['width']}."
    )
    return {"times_as_long": times[way] / times[baseline], "words": words}, path.as_posix()


MEASURED: dict[str, Reading] = {function.__name__: function for function in (experiment_differs, pointer_time)}

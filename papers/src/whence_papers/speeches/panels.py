"""Panels of the speeches studies: the training score over time in both ways, beside the test score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from whence.statistics import summary

FACTORS = {"accuracy": 100.0, "perplexity": 1.0}
NOTE = (
    "Running mean: over the training batches since the last evaluation, with dropout, while the weights change. "
    "Evaluation mode: the weights of that step, without dropout."
)


def training_panels(runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> list[dict[str, Any]]:
    """Two charts over steps and a table of the last evaluation; empty for records without training scores."""
    done = {arm: [one for one in own if one["result"]["status"] == "done"] for arm, own in runs.items()}
    done = {
        arm: own
        for arm, own in done.items()
        if own and all("training" in row for one in own for row in one["result"]["evaluations"])
    }
    if not done:
        return []
    unit = f"{metric} (%)" if metric == "accuracy" else metric
    charts = [
        {
            "kind": "lines", "title": f"Training {metric}, {title}", "x": "steps", "y": unit, "note": NOTE,
            "lines": {
                arm: {str(one["seed"]): [[row["step"], FACTORS[metric] * read(row)] for row in one["result"]["evaluations"]]
                      for one in own}
                for arm, own in done.items()
            },
        }
        for title, read in (("running mean with dropout", read_running), ("in evaluation mode", read_train))
    ]  # fmt: skip
    return [*charts, _table(done, metric, unit)]


def read_running(row: Mapping[str, Any]) -> float:
    """The running score of an evaluation."""
    return row["training"]["value"]


def read_train(row: Mapping[str, Any]) -> float:
    """The score of an evaluation on the split train."""
    return row["splits"]["train"]["value"]


def _table(runs: Mapping[str, Sequence[Mapping[str, Any]]], metric: str, unit: str) -> dict[str, Any]:
    others = [name for name in next(iter(runs.values()))[0]["result"]["evaluations"][-1]["splits"] if name != "train"]
    rows = []
    for arm, own in runs.items():
        last = [one["result"]["evaluations"][-1] for one in own]
        columns = [[read_running(row) for row in last], [read_train(row) for row in last]]
        columns += [[row["splits"][split]["value"] for row in last] for split in others]
        rows.append([arm, *(f"{FACTORS[metric] * summary(column).mean:.2f}" for column in columns)])
    return {
        "kind": "table", "title": f"Training and test {metric} at the end", "rows": rows,
        "head": ["", "training, running mean", "training, evaluation mode", *others],
        "note": f"{unit[0].upper()}{unit[1:]}, mean over seeds. {NOTE}",
    }  # fmt: skip

"""Words and looks of experiment 4."""

from __future__ import annotations

from typing import Any

from whence_papers.figure_style import Look

ADAPTERS = {
    "none": "no adapter",
    "row": "per row (the source's)",
    "task": "task, on keys",
    "content": "content, on keys",
    "fused": "fusion, on keys",
}
LOOKS = {
    "none": Look("0.55", "o", (0, (1, 1))),
    "row": Look("black", "X", (0, (5, 1, 1, 1)), filled=False),
    "task": Look("#08519c", "s", (0, (5, 2))),
    "content": Look("#7fb9da", "D", (0, (3, 1))),
    "fused": Look("#e07b1a", "^", "-"),
}
KIND_LOOKS = {
    "near": Look("#08519c", "s", (0, (5, 2))),
    "anywhere": Look("#e07b1a", "^", "-"),
    "far": Look("0.45", "o", (0, (1, 1))),
}


def asked(record: dict[str, Any]) -> str:
    spec = record["spec"]
    return (
        f"The row of the question, {spec['inputs']} test inputs of {spec['symbols_shown']} symbols; learned EPAR; "
        "the answer is the nearest, the marked (anywhere) or the farthest symbol."
    )


def over_models(record: dict[str, Any]) -> str:
    return f"95 % t-intervals over {len(record['spec']['seeds'])} models (seeds), within the range of the measure."

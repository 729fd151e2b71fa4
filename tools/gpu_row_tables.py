"""Tables of the rows of benchmarks/gpu.py: other head dimensions, lengths, rotation, query lengths, and models."""

from __future__ import annotations

import statistics
from typing import Any

from gpu_figures import shape_text

Table = tuple[list[str], list[list[str]]]
#: what was timed of a model
MEASUREMENTS = {
    "model training": "a training step of 2 x 4096 tokens",
    "model training compiled": "the same, compiled as one graph",
    "model prefill": "a prompt of 16384 tokens",
    "model decoding compiled": "64 decoding steps with a static cache, compiled as one graph",
}
#: what is timed inside torch.compile, by the key of a result
COMPILED = {"compiled": "compiled", "graphs": 'mode="reduce-overhead"'}


def row_tables(record: dict[str, Any]) -> list[Table]:
    """One table for each shape, and one for the models; a variant without times has the reason instead."""
    shapes = {name: row for name, row in record["rows"].items() if row["shape"]}
    models = {name: row for name, row in record["rows"].items() if not row["shape"]}
    tables = [_shape_table(row, record["spec"]["variants"]) for row in shapes.values()]
    return [*tables, _model_table(models, record["spec"]["models"])] if models else tables


def _shape_table(row: dict[str, Any], labels: dict[str, str]) -> Table:
    compiled = [key for key in COMPILED if any(result.get(key) for result in row["variants"])]
    head = [shape_text(row["shape"]), "device time", "eager", *(COMPILED[key] for key in compiled), "backend"]
    first: dict[str, float] = {}
    rows = []
    for result in row["variants"]:
        label = labels[result["variant"]]
        if "both" not in result.get("milliseconds", {}):
            rows.append([label, result.get("left_out", "not measured"), *[""] * (len(head) - 2)])
            continue
        both = result["milliseconds"]["both"]
        times = {"device": both["device"], "eager": both["eager"], **{key: result.get(key) for key in compiled}}
        cells = [_ratio(first, column, values) for column, values in times.items()]
        own = result["variant"] not in ("flash", "cudnn") and not result["variant"].startswith("flex")
        rows.append([label, *cells, result.get("backend", "triton" if own else "")])
    return head, rows


def _model_table(models: dict[str, dict[str, Any]], labels: dict[str, str]) -> Table:
    head = ["a Llama of 135M parameters, bfloat16", *(MEASUREMENTS[name] for name in models)]
    rows = []
    first: dict[str, float] = {}
    for variant, label in labels.items():
        cells = []
        for name, row in models.items():
            result: dict[str, Any] = next((one for one in row["variants"] if one["variant"] == variant), {})
            times = result.get("milliseconds", {}).get("eager")
            cells.append(_ratio(first, name, times) if times else result.get("left_out", "-"))
        rows.append([label, *cells])
    return head, rows


def _ratio(first: dict[str, float], column: str, times: list[float] | None) -> str:
    """Milliseconds in the first row of a column, multiples of it below."""
    if not times:
        return "-"
    took = statistics.median(times)
    if column not in first:
        first[column] = took
        return f"{took:.2f} ms"
    ratio = took / first[column]
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


def _source_commit(row: dict[str, Any]) -> str:
    """The commit with the sources that ran; a copy on another machine may not have known it."""
    known = row.get("provenance", {}).get("sources", row["environment"])
    return str(known["commit"])


def describe_rows(record: dict[str, Any]) -> str:
    """What was timed, and by which commits."""
    commits = sorted({_source_commit(row)[:9] for row in record["rows"].values()})
    return (
        "Forward and backward pass, causal, bfloat16: milliseconds of the first line, multiples of it below. Device time is that of a CUDA graph; "
        "eager and compiled calls are launched from Python. Each variant was timed only after its output and all gradients agreed with "
        "float64 in the same run; models after their loss and gradients did. The ratios of one table come from one process. "
        f"Record: `benchmarks/records/gpu_rows.json` (commit{'s' * (len(commits) > 1)} {', '.join(commits)}); run `{record['command']}` to repeat."
    )

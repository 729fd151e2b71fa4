"""The text report of experiment 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.statistics import compare
from whence_papers.epar.experiments.tables.writing import paragraph, said, section, table, write_report

Record = dict[str, Any]


def write(record: Record, folder: Path) -> None:
    parts = [accuracy(record), rows_and_keys(record), meaning(record), causes(record)]
    write_report(folder / "adaptive_attention_report.txt", record, "Experiment 4: adaptive attention", parts)


def accuracy(record: Record) -> str:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    lines = [["adapter", *kinds, "all"]]
    for adapter, ones in models.items():
        cells = [said([one["by_kind"][kind]["accuracy"] for one in ones]) for kind in kinds]
        lines.append([adapter, *cells, said([one["splits"]["test"] for one in ones])])
    arms = {adapter: [one["splits"]["test"] for one in ones] for adapter, ones in models.items()}
    found = compare(arms, "none", len(arms) - 1, higher_is_better=True)
    return section("Accuracy by where the answer is", table(lines), "", "Against no adapter:", found.text())


def rows_and_keys(record: Record) -> str:
    models = record["results"]["models"]
    lines = [
        ["adapter", "rows whose first key it changes", *(f"entropy, {kind}" for kind in record["results"]["kinds"])]
    ]
    for adapter, ones in models.items():
        cells = []
        for kind in record["results"]["kinds"]:
            cells.append(said([sum(one["entropy"][kind]) / len(one["entropy"][kind]) for one in ones]))
        lines.append([adapter, said([one["first_key_moved"] for one in ones]), *cells])
    text = "'row' is the source's form: it multiplies all logits of a row by one number, as a temperature does."
    return section("On keys or per row; entropy in nats", table(lines), paragraph(text))


def meaning(record: Record) -> str:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    lines = [["answer is", *(f"{adapter}: {kind}" for adapter in ("row", "task", "fused") for kind in kinds)]]
    for kind in kinds:
        cells = []
        for adapter in ("row", "task", "fused"):
            for place in range(len(kinds)):
                means = [
                    sum(row[place] for row in one["task_weights"][kind]) / len(one["task_weights"][kind])
                    for one in models[adapter]
                ]
                cells.append(said(means, 2))
        lines.append([kind, *cells])
    shares = [
        ["fusion: share of task", said([one["by_kind"][kind]["task_share"] for one in models["fused"]])]
        for kind in kinds
    ]
    named = [[f"{name}, answer {kind}", value] for (name, value), kind in zip(shares, kinds, strict=True)]
    return section("Task weights that were learned", table(lines), "", table(named))


def causes(record: Record) -> str:
    models, kinds = record["results"]["models"], record["results"]["kinds"]
    parts = []
    for adapter in ("task", "fused"):
        lines = [[adapter, *(f"answers from {kind}" for kind in kinds)]]
        for how in models[adapter][0]["answered_from"]:
            cells = [said([one["answered_from"][how][kind] for one in models[adapter]]) for kind in kinds]
            lines.append([how, *cells])
        parts += [table(lines), ""]
    return section("A task type set by hand, and where answers then come from", *parts)

"""What the data are, at the top of a study: parts, classes, lengths, duplicates, label noise and rows that were left out.

Below the results, every metric of every arm beside the baselines.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from whence.report.comparison.arm_style import ArmStyle
from whence.report.comparison.tables import panel_table
from whence.report.comparison.units import PERCENT_METRICS, name_metric, sort_best_first
from whence.report.formatting import NO_VALUE, format_count, format_number, is_finite_number
from whence.report.html_page import scrollable

MAX_CLASSES = 20  # further ones are summed up
METRIC_ORDER = (
    "token_f1", "exact_match", "pearson", "spearman", "accuracy", "balanced_accuracy", "macro_f1", "binary_f1", "mcc", "rougeL",
    "rouge1", "rouge2", "bleu", "chrf", "perplexity",
)  # fmt: skip


def data_section(data: Mapping[str, Any]) -> str:
    """The facts as sentences, with a table of the classes; empty if nothing is known."""
    sentences = data_sentences(data)
    if not sentences:
        return ""
    listed = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<h3>Data</h3><ul class="facts">{listed}</ul>{_classes_table(data.get("classes") or {})}'


def data_sentences(data: Mapping[str, Any]) -> list[str]:
    """The facts, one sentence each; problems of the data first."""
    return [*_problems(data), *_description(data)]


def _problems(data: Mapping[str, Any]) -> list[str]:
    sentences = []
    bad = data.get("bad_rows") or {}
    if bad.get("count"):
        first = "; ".join(bad["first"])
        sentences.append(
            f"{_count(bad['count'], 'row')} left out: {first}{'; …' if bad['count'] > len(bad['first']) else ''}."
        )
    if data.get("ignored_files"):
        names = data["ignored_files"]
        more = "" if len(names) <= 3 else f" and {len(names) - 3} more"
        sentences.append(f"{_count(len(names), 'file')} of the folder not read: {', '.join(names[:3])}{more}.")
    sentences += data.get("notes") or []
    duplicates = data.get("duplicates") or {}
    if duplicates.get("conflicting_texts"):
        sentences.append(
            f"Label noise: {_count(duplicates['conflicting_texts'], 'text')} with different labels "
            f"({_count(duplicates['conflicting_rows'], 'row')}), after removing case and punctuation."
        )
    items = data.get("items") or {}
    for part, count in (duplicates.get("across_parts") or {}).items():
        share = f" ({_percent(count / items[part])})" if items.get(part) else ""
        sentences.append(
            f"{_count(count, 'row')} of {part}{share} also in the training part, up to case and punctuation."
        )
    for part, share in (data.get("repeated_lines") or {}).items():
        if share > 0:
            sentences.append(f"{_percent(share)} of the long lines of {part} also in the training part.")
    lengths = data.get("lengths") or {}
    if lengths.get("truncated"):
        sentences.append(
            f"{_percent(lengths['truncated'])} of the inputs are longer than the context of {lengths['limit']} and are cut."
        )
    return sentences


def _description(data: Mapping[str, Any]) -> list[str]:
    sentences = []
    items, lengths = data.get("items") or {}, data.get("lengths") or {}
    if items:
        what = data.get("counted", "items")
        sizes = ", ".join(f"{format_count(count)} {part}" for part, count in items.items())
        sentences.append(
            f"{what[0].upper()}{what[1:]}: {sizes}" + (f". Parts: {data['split']}." if data.get("split") else ".")
        )
    classes = data.get("classes") or {}
    if classes:
        train = {label: row.get("train", 0) for label, row in classes.items()}
        largest = max(train, key=lambda label: train[label])
        share = train[largest] / max(1, sum(train.values()))
        sentences.append(
            f"{len(classes)} classes; the largest, {largest}, has {_percent(share)} of the training items."
        )
    if lengths:
        sentences.append(
            f"Length in {lengths['unit']}: median {lengths['median']}, 90 % at most {lengths['p90']}, longest {lengths['max']}."
        )
    duplicates = data.get("duplicates") or {}
    if duplicates.get("repeated_rows"):
        sentences.append(
            f"{_count(duplicates['repeated_rows'], 'row')} with the text of another row, up to case and punctuation."
        )
    if data.get("tokens"):
        unknown = data.get("unknown") or {}
        shares = ", ".join(f"{_percent(share)} of {part}" for part, share in unknown.items() if share)
        sentences.append(f"Tokens: {data['tokens']}{f'; unknown: {shares}' if shares else ''}.")
    return sentences


def _classes_table(classes: Mapping[str, Mapping[str, int]]) -> str:
    if not classes:
        return ""
    parts = list(next(iter(classes.values())))
    totals = {part: sum(row.get(part, 0) for row in classes.values()) for part in parts}
    ordered = (
        sorted(classes.items(), key=lambda item: -item[1].get(parts[0], 0))
        if len(classes) > MAX_CLASSES
        else [*classes.items()]
    )
    rest = ordered[MAX_CLASSES:]
    ordered = ordered[:MAX_CLASSES]
    if rest:
        ordered.append((f"{len(rest)} more", {part: sum(row.get(part, 0) for _, row in rest) for part in parts}))
    rows = "".join(
        f'<tr><th scope="row" class="text">{html.escape(label)}</th>'
        + "".join(
            f'<td class="n">{format_count(row.get(part, 0))} ({_percent(row.get(part, 0) / max(1, totals[part]))})</td>'
            for part in parts
        )
        + "</tr>"
        for label, row in ordered
    )
    head = "".join(f'<th scope="col">{html.escape(part)}</th>' for part in parts)
    table = f'<table><thead><tr><th scope="col" class="text">class</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f"<details><summary>Classes</summary>{scrollable(table, 'Classes')}</details>"


def scores_table(study: dict[str, Any], styles: Mapping[str, ArmStyle]) -> str:
    """Every metric of every arm on the deciding split, and of the baselines; empty without baselines."""
    baselines, scores, split = study.get("baselines") or [], study.get("scores") or {}, study["split"]
    levels = {one["name"]: one["splits"].get(split, {}) for one in baselines}
    if not baselines or not scores:
        return ""
    present = {metric for row in (*scores.values(), *levels.values()) for metric in row}
    metrics = [metric for metric in METRIC_ORDER if metric in present]
    head = ["", *(f"{name_metric(metric)}{' (%)' if metric in PERCENT_METRICS else ''}" for metric in metrics)]
    rows = [
        [arm["name"], *_cells(scores[arm["name"]], metrics)] for arm in sort_best_first(study) if arm["name"] in scores
    ]
    rows += [[name, *_cells(row, metrics)] for name, row in levels.items()]
    note = " ".join(
        [
            f"Mean of the seeds on {split}. Untrained baselines:",
            *(f"{one['name']}: {one['about']}" for one in baselines),
        ]
    )
    return panel_table({"title": "All metrics and baselines", "head": head, "rows": rows, "note": note}, styles)


def _cells(row: Mapping[str, float], metrics: list[str]) -> list[str]:
    return [_format(metric, row[metric]) if is_finite_number(row.get(metric)) else NO_VALUE for metric in metrics]


def _format(metric: str, value: float) -> str:
    if metric in PERCENT_METRICS:
        return format_number(100 * value, 1)
    return format_number(value, 3 if metric in ("mcc", "pearson", "spearman") else 2)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

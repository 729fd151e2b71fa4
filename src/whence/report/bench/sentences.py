"""The answers of the pages as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from whence.probe.curves import FEW
from whence.report.formatting import NO_VALUE, format_interval, format_number, format_p, format_signed
from whence.report.item_verdicts import describe_equivalence

#: what a metric is called in tables; others keep the name that the harness gives them
METRICS = {
    "score": "LongBench score", "f1": "F1", "exact": "exact match", "acc": "accuracy", "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "bleu": "BLEU", "chrf": "chrF", "ter": "TER", "token_bleu": "BLEU, tokens",
    "codebleu": "CodeBLEU",
    "sentence_chrf": "sentence chrF", "mcc": "Matthews correlation", "HasAns_f1": "F1, answerable",
    "HasAns_exact": "exact match, answerable", "NoAns_f1": "F1, unanswerable", "NoAns_exact": "exact match, unanswerable",
}  # fmt: skip
ORDER = ("better", "worse", "equivalent", "undecided")


def name_metric(name: str) -> str:
    """
    >>> name_metric("rougeL"), name_metric("qa_f1_score")
    ('ROUGE-L', 'qa_f1_score')
    """
    return METRICS.get(name, name)


def name_task(task: Mapping[str, Any]) -> str:
    return str(task["task"]) if task["benchmark"] == "task" else f"{task['benchmark']}: {task['task']}"


def format_score(metric: Mapping[str, Any]) -> str:
    """A score with its interval."""
    unit = metric["unit"]
    text = f"{format_number(metric['score'], 1)}{unit}"
    if metric["interval"] is None:
        return text
    low, high = metric["interval"]
    return f"{text} ({format_interval({'low': low, 'high': high}, 1)})"


def summarize(findings: Mapping[str, Any]) -> str:
    """One sentence about the tasks of a model."""
    tasks = findings["tasks"]
    items = sum(task["items"] for task in tasks)
    few = [name_task(task) for task in tasks if task["items"] < FEW]
    text = f"{len(tasks)} task{'s' if len(tasks) > 1 else ''} with {items:,} item{'s' if items > 1 else ''}."
    return text + (f" {len(few)} of them with fewer than {FEW} items: their intervals are wide." if few else "")


def describe_difference(task: Mapping[str, Any]) -> str:
    """The difference with its interval and p."""
    contrast = task["contrast"]
    if contrast["estimate"] is None:
        return NO_VALUE
    interval = contrast["interval"]
    ends = "" if interval is None else f" ({format_signed(interval['low'], 1)} to {format_signed(interval['high'], 1)})"
    return format_signed(contrast["estimate"], 1) + ends


def compare_answer(findings: Mapping[str, Any]) -> str:
    """Which model is better? One sentence from the verdicts of all tasks."""
    before, after = findings["names"]
    counts = Counter(task["verdict"] for task in findings["tasks"])
    total = len(findings["tasks"])
    words = ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name])
    return f"{after} compared with {before} on {total} task{'s' if total > 1 else ''}: {words}."


def describe_rule(findings: Mapping[str, Any]) -> str:
    """How the verdicts are decided."""
    number = len(findings["tasks"])
    return (
        f"How it is decided. Both models answer the same items, and the difference is tested item by item. Intervals and p "
        f"are corrected for {number} task{'s' if number > 1 else ''} at alpha = 0.05. Better or worse: the interval excludes zero. "
        f"{describe_equivalence(findings['margin'])} Translations and "
        "programs are judged by the mean chrF of their sentences, because BLEU has no value for one item."
    )


def describe_p(task: Mapping[str, Any]) -> str:
    return format_p(task["contrast"]["p"])

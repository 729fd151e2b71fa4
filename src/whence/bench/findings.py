"""The findings of a benchmarked model, and of two, as plain JSON from records alone.

A mean over items has Wilson's interval if every item is right or wrong, and a bootstrap interval otherwise. Corpus metrics
have sacrebleu's bootstrap interval. Two models are compared item by item on the deciding metric of each task
(``compare_items``); the error rate covers all tasks together.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence import records
from whence.bench.bench_folder import load_plan, read_records
from whence.bench.corpus_counts import WITHOUT_COUNTS, bootstrap_corpus
from whence.errors import MissingExtra, usage_error
from whence.lab.results import group_environments
from whence.probe.curves import LEVEL, bootstrap_means
from whence.probe.identity import describe_intervention
from whence.probe.probed_model import QUICK
from whence.statistics import AnalysisPlan, compare_items, proportion

Record = dict[str, Any]
MARGIN = 2.0  # points
SCALE = 100.0  # points from the worst to the best value of a metric in percent
OF_A_HUNDRED = ("sentence_chrf",)  # metrics that are points already


def collect_findings(folder: Path, command: str = "") -> Record:
    """The findings of one folder."""
    content = load_plan(folder)
    every, older = latest_records(read_records(folder, content["hash"]))
    if not every:
        raise usage_error(
            "whence report", f"{folder}, which has no finished task", "a report needs one", "run whence bench again"
        )
    return {
        "title": f"Benchmarks of {name_model(content)}",
        "name": name_model(content),
        "command": command or content.get("command") or f"whence report {folder}",
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "environment": records.describe_environment(("torch",)),
        "ran": group_environments(every),
        "model": content["model"],
        "plan": content["plan"],
        "hash": content["hash"],
        "tasks": [summarize_task(record) for record in every],
        "older": [f"{one['benchmark']} {one['task']} of {one['started']}" for one in older],
    }


def latest_records(every: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The last record of each task, and the records of its earlier versions: other files, settings or code of the task."""
    latest = {(one["benchmark"], one["task"]): one for one in every}
    return list(latest.values()), [one for one in every if one is not latest[one["benchmark"], one["task"]]]


def choose_records(every: Sequence[Record], hashes: Mapping[tuple[str, str], str] | None) -> list[Record]:
    """The records of the tasks that ``hashes`` names, those of this version last; all records without it."""
    if hashes is None:
        return list(every)
    own = {key: [one for one in every if (one["benchmark"], one["task"]) == key] for key in hashes}
    return [one for key, several in own.items() for one in sorted(several, key=lambda one: one["hash"] == hashes[key])]


def name_model(content: Mapping[str, Any]) -> str:
    """The model with what is attached or applied, in a few words."""
    plan = content["plan"]
    name = "a tiny random model" if plan["model"] == QUICK else Path(plan["model"]).name
    parts = [one["position"] for one in plan["identity"]["attached"]]
    if plan["identity"].get("intervention"):
        parts.append(describe_intervention(plan["identity"]["intervention"]))
    return " with ".join([name, " and ".join(parts)]) if parts else name


def summarize_task(record: Record) -> Record:
    """Every metric of a task with its interval."""
    metrics = []
    for name, score in record["scores"].items():
        values = [row["values"][name] for row in record["rows"] if name in row["values"]]
        percent = bool(values) and is_share(name, values)
        interval = mean_interval(values) if values else corpus_interval(record, name)
        factor = 100.0 if percent else 1.0
        metrics.append(
            {
                "metric": name,
                "score": factor * score,
                "interval": None if interval is None else [factor * end for end in interval],
                "unit": "%" if percent else "",
                "items": len(values) or record["items"],
                "decides": name == record["metric"],
            }
        )
    metrics.sort(key=lambda one: not one["decides"])
    keep = ("benchmark", "task", "hash", "items", "files", "seconds", "metric")
    shortened = sum(row["shortened"] for row in record["rows"])
    return {**{name: record[name] for name in keep}, "metrics": metrics, "shortened": shortened}


def is_share(metric: str, values: Sequence[float]) -> bool:
    """Whether all values lie from 0 to 1, so that they are shown in percent. Poor chrF may, and is one of 100 points."""
    return metric not in OF_A_HUNDRED and all(0 <= value <= 1 for value in values)


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Wilson's interval for right and wrong items, a bootstrap interval for others; None without any variance."""
    if all(value in (0, 1) for value in values):
        interval = proportion(int(sum(values)), len(values), LEVEL).interval
        return [interval.low, interval.high]
    return quantile_interval(bootstrap_means(torch.tensor(values, dtype=torch.float64)[:, None], seed=0)[:, 0])


def corpus_interval(record: Record, name: str) -> list[float] | None:
    """A bootstrap interval of BLEU or TER over items; None for other metrics and for fewer than two items.

    Corpus chrF has none: sacrebleu does not publish its counts, and the mean of the sentences has an interval. codebleu does
    not publish those of CodeBLEU.
    """
    if name not in record["corpus"] or record["items"] < 2 or name in WITHOUT_COUNTS:
        return None
    try:
        draws = bootstrap_corpus(name, [row["counts"][name] for row in record["rows"]])
    except MissingExtra:  # a report needs no extra; the score stays without an interval
        return None
    return quantile_interval(torch.tensor(draws, dtype=torch.float64))


def quantile_interval(draws: Tensor) -> list[float] | None:
    """The percentile interval of bootstrap draws; None if they are all equal, because no width would claim certainty."""
    tail = (1 - LEVEL) / 2
    low, high = torch.quantile(draws, torch.tensor([tail, 1 - tail], dtype=draws.dtype)).tolist()
    return [low, high] if low < high else None


def compare_benchmarks(
    before: Path, after: Path, labels: Sequence[str] = (), margin: float = MARGIN, command: str = "",
    hashes: Mapping[tuple[str, str], str] | None = None,
) -> Record:  # fmt: skip
    """Two folders compared on the tasks that both have, item by item.

    ``hashes`` limits them to these tasks, each a benchmark and a name with the hash of the version that was asked for. The
    correction for several comparisons then does not depend on what else the folders hold.
    """
    plans = [load_plan(folder) for folder in (before, after)]
    latest = [
        {(one["benchmark"], one["task"]): one for one in latest_records(choose_records(own, hashes))[0]}
        for own in (read_records(folder, plan["hash"]) for folder, plan in zip((before, after), plans, strict=True))
    ]
    common = [key for key in latest[0] if key in latest[1]]
    if not common:
        raise usage_error(
            "whence report", f"{before} and {after} without a common task", "both must have run it", "run it on both"
        )
    names = list(labels) or [name_model(plan) for plan in plans]
    if names[0] == names[1]:
        names = [f"{name} ({plan['hash'][:6]})" for name, plan in zip(names, plans, strict=True)]
    tasks = [compare_task(latest[0][key], latest[1][key], names, margin, 1 / len(common)) for key in common]
    same = len({str(plan["plan"]["identity"].get("weights")) for plan in plans}) == 1
    return {
        "title": "Benchmarks before and after" if same else "Benchmarks of two models",
        "names": names,
        "margin": margin,
        "command": command or f"whence report {before} {after}",
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "environment": records.describe_environment(("torch",)),
        "sides": [
            {
                "model": plan["model"],
                "plan": plan["plan"],
                "hash": plan["hash"],
                "ran": group_environments([own[key] for key in common]),
            }
            for plan, own in zip(plans, latest, strict=True)
        ],
        "tasks": tasks,
        "only": sorted({key[1] for one in latest for key in one} - {key[1] for key in common}),
    }


def compare_task(before: Record, after: Record, names: Sequence[str], margin: float, share: float) -> Record:
    """One task of two models: a paired contrast over the common items, and the scores of both."""
    if before["hash"] != after["hash"]:
        raise usage_error(
            "whence report",
            f"two versions of {before['benchmark']} {before['task']} ({before['hash'][:8]}, {after['hash'][:8]})",
            "a comparison needs the same files, settings and code of a task",
            "run whence bench again on both models",
        )
    metric = before["metric"]
    if metric is None:
        raise usage_error(
            "whence report",
            f"{before['task']}, which has no metric with a value for each item",
            "a paired test compares items",
            "compare other tasks",
        )
    sides = [{row["item"]: row["values"][metric] for row in one["rows"]} for one in (before, after)]
    items = [item for item in sides[0] if item in sides[1]]
    if not items:
        raise usage_error(
            "whence report",
            f"{before['task']} without a common item",
            "both models must answer it",
            "pass equal --items",
        )
    values = [[side[item] for item in items] for side in sides]
    percent = is_share(metric, [*values[0], *values[1]])
    factor = SCALE if percent else 1.0
    largest = SCALE if percent or metric in OF_A_HUNDRED else None
    before_points, after_points = ([factor * value for value in own] for own in values)
    plan = AnalysisPlan(
        baseline=names[0],
        margin=margin,
        unit="points" if percent else "",
        share=share,
        higher_is_better=before["higher_is_better"].get(metric, True),
    )
    points = {name: dict(enumerate(own)) for name, own in zip(names, (before_points, after_points), strict=True)}
    (contrast,) = compare_items(points, plan, largest).contrasts
    prompts = [{row["item"]: row["prompt_hash"] for row in one["rows"]} for one in (before, after)]
    return {
        "benchmark": before["benchmark"],
        "task": before["task"],
        "metric": metric,
        "items": len(items),
        "means": [factor * sum(own) / len(own) for own in values],
        "unit": "%" if percent else "",
        "better_items": sum(b > a for a, b in zip(*values, strict=True)),
        "worse_items": sum(b < a for a, b in zip(*values, strict=True)),
        "other_prompts": sum(prompts[0][item] != prompts[1][item] for item in items),
        "contrast": contrast.to_json(),
        "verdict": contrast.verdict,
    }

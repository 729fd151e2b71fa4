"""The content of the report of a probe, as plain JSON, from the records in its folder alone.

Two probes of the same items are compared in pairs of the same item and slot.

Every difference is tested at once: by slot and on average over slots, for every measure and task. The test is the
max-T permutation test of Westfall and Young with sign flips: if the two models do the same, an item's differences are as
likely as their opposites. Each draw flips whole items and keeps the largest absolute t of all differences. The p of a
difference is the share of draws whose largest t reaches its own, so the probability of any false claim is at most alpha.
The intervals use the same distribution: all of them cover at once, and one excludes zero exactly where p is at most 0.05.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence import records
from whence.errors import usage_error
from whence.lab.results import group_environments
from whence.probe import analyses, run_folder
from whence.probe.curves import ALPHA, FEW, LEVEL, by_item, count_wrong_choices, curve, decide, measures
from whence.probe.plan import Plan
from whence.probe.probed_model import QUICK


def findings(folder: Path | str, command: str = "") -> dict[str, Any]:
    """The findings of one probe. A task that lacks a record is left out and listed under ``missing``."""
    folder = Path(folder)
    plan, about = run_folder.load_plan(folder)
    scores = measures(plan.scores)
    tasks, missing, all_records = [], [], []
    for task in about["tasks"]:
        task_records = read_task(plan, task, folder)
        if task_records is None:
            missing.append(task["name"])
            continue
        all_records += task_records
        wrong_choices = count_wrong_choices(task_records) if task["paired"] else {}
        tasks.append(
            {**task, "curves": [curve(task_records, score) for score in scores], "wrong_choices": wrong_choices}
        )
    if not tasks:
        raise usage_error(
            "whence report",
            f"{folder.name}, which has no complete task",
            "a curve needs the records of every slot",
            "run the same probe again to resume it",
        )
    tasks, decision = decide(tasks, tests=len(about["tasks"]) * len(scores))
    analysis_records = [
        part for name in analyses.ANALYSES if (part := read_part(plan, folder / analyses.file_name(name)))
    ]
    return {
        "title": f"What position does to {'a tiny random model' if plan.model == QUICK else Path(plan.model).name}",
        "command": command,
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "environment": records.describe_environment(("torch",)),
        "ran": group_environments([*all_records, *analysis_records]),
        "model": {"name": plan.model, **about["model"]},
        "plan": about["plan"],
        "hash": plan.hash,
        "seconds": sum(record["seconds"] for record in all_records),
        "identity": about["plan"].get("identity"),  # older records have none
        "tasks": tasks,
        "decision": decision,
        "missing": missing,
        "explanation": {
            "attention": analyses.summarize_attention(all_records),
            **{part["analysis"]: part["result"] for part in analysis_records},
        },
    }


def read_task(plan: Plan, task: dict[str, Any], folder: Path) -> list[dict[str, Any]] | None:
    """All records of a task; None if one does not exist yet."""
    paths = [folder / name for name in run_folder.record_names(plan, task)]
    if not all(records.exists(path) for path in paths):
        return None
    return [run_folder.require_plan_hash(records.read(path), plan, path) for path in paths]


def read_part(plan: Plan, path: Path) -> dict[str, Any] | None:
    """The record of one analysis; None if it does not exist yet."""
    return run_folder.require_plan_hash(records.read(path), plan, path) if records.exists(path) else None


DRAWS = 10_000
NOT_SETTINGS = ("model", "tasks", "identity", "scores")  # fields of a plan that the report shows elsewhere


def compare_probes(
    first: Path | str, second: Path | str, labels: Sequence[str] = (), command: str = ""
) -> dict[str, Any]:
    """The content of the page about two probes, as plain JSON, from their records alone. A difference is second minus first."""
    first, second = Path(first), Path(second)
    if first.resolve() == second.resolve():
        raise usage_error("whence report", f"{first} twice", "a comparison needs two probes", "name two folders")
    sides = [run_folder.load_plan(folder) for folder in (first, second)]
    require_same_items(first, second, *(about["tasks"] for _, about in sides))
    shared = [one for one in measures(sides[0][0].scores) if one in measures(sides[1][0].scores)]
    if not shared:
        raise usage_error(
            "whence report",
            f"{first.name} by {', '.join(sides[0][0].scores)} and {second.name} by {', '.join(sides[1][0].scores)}",
            "a comparison needs a score that both have",
            "probe both with the same --score",
        )
    tasks, record_pairs = [], []
    for task in sides[0][1]["tasks"]:
        pair = [read_task(plan, task, folder) for (plan, _), folder in zip(sides, (first, second), strict=True)]
        for folder, task_records in zip((first, second), pair, strict=True):
            if task_records is None:
                raise usage_error(
                    "whence report",
                    f"{folder.name}, which lacks records of {task['task']}",
                    "both probes are complete",
                    "run the probe again to resume it",
                )
        record_pairs.append(pair)
        tasks.append(task)
    tested = _test_differences(record_pairs, shared)
    return {
        "labels": list(labels) or default_labels([about for _, about in sides]),
        "command": command,
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "environment": records.describe_environment(("torch",)),
        "sides": [
            {
                "model": {"name": plan.model, **about["model"]},
                "identity": about["plan"].get("identity"),
                "plan": about["plan"],
                "hash": plan.hash,
                "ran": group_environments([record for pair in record_pairs for record in pair[number] or ()]),
            }
            for number, (plan, about) in enumerate(sides)
        ],
        "tasks": [
            {**task, "measures": measured, "lead": _leading_measure(measured)}
            for task, measured in zip(tasks, tested, strict=True)
        ],
        "left_out": sorted({one for plan, _ in sides for one in measures(plan.scores)} - {*shared}),
        "decision": {
            "alpha": ALPHA,
            "few": FEW,
            "tests": sum(1 + len(one["slots"]) for measured in tested for one in measured),
        },
    }


def require_same_items(
    first: Path, second: Path, one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]
) -> None:
    """Raise an error that names the differences unless both probes have the same items and gold slots."""
    a, b = ({task["task"]: task for task in tasks} for tasks in (one, other))
    wrong = [f"{name} only in {first.name}" for name in a if name not in b]
    wrong += [f"{name} only in {second.name}" for name in b if name not in a]
    for name in (name for name in a if name in b):
        for key, words in (("items", "numbers of items"), ("hash", "items"), ("gold_slots", "slots")):
            if a[name][key] != b[name][key]:
                detail = "" if key == "hash" else f" ({_format_slots(a[name][key])} and {_format_slots(b[name][key])})"
                wrong.append(f"{name} with different {words}{detail}")
                break
    if wrong:
        raise usage_error(
            "whence report",
            "; ".join(wrong),
            "two probes are compared on the same tasks, items and slots",
            "probe both models with the same options",
        )


def _format_slots(value: int | list[int]) -> str:
    """Slots counted from 1."""
    return ", ".join(str(place + 1) for place in value) if isinstance(value, list) else str(value)


def default_labels(sides: Sequence[dict[str, Any]]) -> list[str]:
    """Names that tell two probes apart: the models, what is attached to them, the hashes of their plans, or their order."""
    names = [Path(side["plan"]["model"]).name for side in sides]
    attached = [_attached_names((side["plan"].get("identity") or {}).get("attached") or ()) for side in sides]
    hashes = [side["hash"] for side in sides]
    choices = (names, attached, hashes, ["first", "second"])
    return next(labels for labels in choices if labels[0] != labels[1])


def _attached_names(attached: Sequence[dict[str, Any]]) -> str:
    """The classes of attached mechanisms, without their settings.

    >>> _attached_names([{"position": "Rotary() + Alibi(heads=4)", "layers": [0, 1]}]), _attached_names([])
    ('Rotary + Alibi', 'plain')
    """
    words = [re.sub(r"\(.*?\)(?= \+ |$)", "", str(one.get("position", "attached"))) for one in attached]
    return ", ".join(dict.fromkeys(words)) or "plain"


def max_t(groups: Sequence[Tensor], seed: int = 0, draws: int = DRAWS) -> list[list[dict[str, Any]]]:
    """Test the mean of every column of every group, ``[items, columns]``, against zero, all of them together.

    Rows are items; the columns of a group share its flips, and groups are flipped independently.
    """
    generator = torch.Generator().manual_seed(seed)
    largest = torch.zeros(draws, dtype=torch.float64)
    for group in groups:
        signs = 2.0 * torch.randint(2, (draws, len(group)), generator=generator, dtype=torch.float64) - 1
        largest = torch.maximum(largest, _t(signs, group).amax(1))
    rank = int((1 - LEVEL) * (1 + draws) + 1e-9)
    reach = float(largest.sort(descending=True).values[rank - 1])
    return [_cells(group, largest, reach, draws) for group in groups]


def _cells(group: Tensor, largest: Tensor, reach: float, draws: int) -> list[dict[str, Any]]:
    observed = _t(torch.ones(1, len(group), dtype=torch.float64), group)[0]
    result = []
    for column, t in zip(group.T, observed.tolist(), strict=True):
        mean = float(column.mean())
        deviation = float(column.std()) if len(column) > 1 else 0.0
        half = reach * deviation / len(column) ** 0.5 if reach < float("inf") else 0.0
        bounded = half > 0
        result.append({
            "difference": mean,
            "interval": {"low": max(-1.0, mean - half), "high": min(1.0, mean + half), "level": LEVEL} if bounded else None,
            "no_interval": None if bounded else "too few items" if reach == float("inf") else "no variance",
            "p": (1 + int((largest >= t * (1 - 1e-9)).sum())) / (1 + draws),
        })  # fmt: skip
    return result


def _t(signs: Tensor, values: Tensor) -> Tensor:
    """The absolute t of every column under every row of signs, ``[draws, columns]``; flips leave the squares as they are."""
    count = len(values)
    squares = count * values.square().sum(0)
    share = (signs @ values).square() / squares.clamp_min(1e-300)  # of t's largest value: 1 where all values are alike
    t = ((count - 1) * share / (1 - share).clamp_min(0)).sqrt()
    return torch.where(share > 1 - 1e-9, torch.inf, t.nan_to_num(posinf=torch.inf)).masked_fill(squares == 0, 0.0)


def _test_differences(record_pairs: Sequence[Sequence[Any]], shared: Sequence[str]) -> list[list[dict[str, Any]]]:
    """By task and measure: both curves, and every difference with its interval and p."""
    tables = [
        [[by_item(task_records, measure) for task_records in pair] for measure in shared] for pair in record_pairs
    ]
    groups = []
    for task in tables:
        columns = []
        for (_, one), (_, other) in task:
            differences = other - one
            columns.append(torch.cat([differences, differences.mean(1, keepdim=True)], 1))
        groups.append(torch.cat(columns, 1))
    result = []
    for pair, task, cells in zip(record_pairs, tables, max_t(groups), strict=True):
        cell = iter(cells)
        result.append([
            {
                "score": measure,
                "curves": [curve(task_records, measure) for task_records in pair],
                "slots": [{"slot": place, **next(cell)} for place in places],
                "mean": next(cell),
            }
            for measure, ((places, _), _) in zip(shared, task, strict=True)
        ])  # fmt: skip
    return result


def _leading_measure(candidates: Sequence[dict[str, Any]]) -> str:
    """The measure with the smallest p, then with the largest difference."""
    return str(min(candidates, key=_strongest)["score"])


def strongest(measure: dict[str, Any]) -> dict[str, Any]:
    """The difference of a measure with the smallest p, then the largest; that of a slot has the key ``slot``."""
    return min([*measure["slots"], measure["mean"]], key=lambda cell: (cell["p"], -abs(cell["difference"])))


def _strongest(measure: dict[str, Any]) -> tuple[float, float]:
    cell = strongest(measure)
    return cell["p"], -abs(cell["difference"])

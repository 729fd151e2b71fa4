"""The findings of a trial, as plain JSON, from the records in its folder alone.

Every cure is compared with the untouched model on the items of the judging half. The value of an item is its mean
accuracy over the gold slots, so an item is a block and every cure is an arm. ``compare_items`` corrects for the number
of cures tried and for the rounds.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence import records
from whence.errors import usage_error
from whence.lab.results import group_environments
from whence.mend.costs import ratio
from whence.mend.trial import ANSWERS, CURE, PLAN, TEXTS, UNTOUCHED, distinguish_names
from whence.mend.trial_plan import JUDGE, SEARCH, TrialPlan, read_trial_plan, split_items, split_rounds
from whence.probe.curves import bootstrap_means, by_item, curve
from whence.probe.probed_model import QUICK
from whence.statistics import AnalysisPlan, PairedComparison, compare_items

Record = dict[str, Any]
ByTask = dict[str, list[Record]]

ROUNDING = 1e-4  # a relative change of a log-likelihood below it is rounding
LARGEST = 100.0  # points by which the accuracy of an item can differ
TAIL = 0.025  # of an interval, on each side
RATIOS = ("tokens_read", "prompt_seconds", "token_seconds", "peak_bytes")
ORDER = ("better", "undecided", "equivalent", "worse")


def load_trial(folder: Path, reader: records.RecordReader | None = None) -> tuple[TrialPlan, Record]:
    """The plan of a trial and the content of its file."""
    content = (reader or records.RecordReader()).read(folder / PLAN)
    plan = read_trial_plan(content["plan"])
    if plan.hash != content["hash"]:
        raise usage_error(
            "whence report", f"{folder.name}/{PLAN} with another hash", "a plan never changes", "restore it"
        )
    return plan, content


def collect_trial(folder: Path, command: str = "", caller: str = "whence report") -> Record:
    """The findings of one trial. What is not measured yet is listed under ``missing``. ``caller`` is named in errors."""
    plan, content = load_trial(folder)
    every = read_records(folder, plan)
    about = {one["label"]: one for one in every if one["kind"] == CURE}
    texts = {one["label"]: one for one in every if one["kind"] == TEXTS}
    answers = [one for one in every if one["kind"] == ANSWERS]
    usable = [label for label, one in about.items() if "unavailable" not in one]
    judged, missing = select_rounds(plan, content["tasks"], answers, [UNTOUCHED, *usable])
    names = {UNTOUCHED: UNTOUCHED} | distinguish_names({label: one["cure"] for label, one in about.items()})
    if UNTOUCHED not in judged:
        raise usage_error(
            caller,
            f"{folder.name}, which has no complete round of the untouched model",
            "verdicts compare with the untouched model",
            "run whence mend again to resume it, with a larger --budget",
        )
    comparison = judge(plan, judged)
    contrasts = {} if comparison is None else {one.first: one for one in comparison.contrasts}
    best_slots, best_slot_items = find_best_slots(plan, answers)
    cures = [
        {
            "label": label,
            "name": about[label]["cure"]["name"],
            "display_name": names[label],
            "title": _distinguish_title(about[label], names[label]),
            "paper": about[label]["paper"],
            "chosen": about[label]["chosen"],
            "text": about[label]["text"],
            "search_seconds": about[label]["search_seconds"],
            "effect": about[label].get("effect"),
            "verdict": contrasts[label].verdict,
            "contrast": bound_interval(contrasts[label].to_json()),
            **summarize(plan, judged[label]),
            "costs": about[label]["costs"],
            "ratios": {name: ratio(about[label]["costs"], name) for name in RATIOS},
            "perplexity": compare_perplexity(texts.get(UNTOUCHED), texts.get(label)),
            "at_best": compare_at_best(plan, judged, label, best_slots),
            "changed": changes_scores(judged[UNTOUCHED], judged[label]),
        }
        for label in usable
        if label in judged
    ]
    cures.sort(key=lambda one: (ORDER.index(one["verdict"]), -(one["contrast"]["estimate"] or 0.0)))
    return {
        "title": f"Cures for positional bias in {'a tiny random model' if plan.model == QUICK else Path(plan.model).name}",
        "command": command or content.get("command") or f"whence report {folder}",
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "environment": records.describe_environment(("torch",)),
        "ran": group_environments([one for one in every if "started" in one]),
        "model": {"name": plan.model, **content["model"]},
        "plan": content["plan"],
        "hash": plan.hash,
        "identity": plan.identity,
        "tasks": content["tasks"],
        "score": plan.score,
        "analysis": None if comparison is None else comparison.plan.to_json(),
        "untouched": summarize(plan, judged[UNTOUCHED]),
        "best_slots": best_slots,
        "best_slot_items": best_slot_items,
        "cures": cures,
        "unavailable": [
            {
                "name": one["cure"]["name"],
                "display_name": names[label],
                "title": _distinguish_title(one, names[label]),
                "reason": one["unavailable"],
            }
            for label, one in about.items()
            if "unavailable" in one
        ],
        "missing": [
            f"{names[label]} ({f'{rounds} of {plan.rounds} rounds are' if rounds else 'nothing is'} complete)"
            for label, rounds in missing.items()
        ],
    }


def bound_interval(contrast: Record) -> Record:
    """The contrast with an interval of possible values: accuracies differ by at most 100 points.

    >>> bound_interval({"interval": {"low": -3.0, "high": 162.0}})
    {'interval': {'low': -3.0, 'high': 100.0}}
    """
    interval = contrast["interval"]
    if interval is None:
        return contrast
    low, high = max(-LARGEST, interval["low"]), min(LARGEST, interval["high"])
    return {**contrast, "interval": {**interval, "low": low, "high": high}}


def _distinguish_title(about: Record, display_name: str) -> str:
    """The title of a cure, with the settings of its display name."""
    settings = display_name.removeprefix(about["cure"]["name"])
    return str(about["title"]) if settings in ("", "()") else f"{about['title']} {settings}"


def read_records(folder: Path, plan: TrialPlan) -> list[Record]:
    """All records of a trial, which must be of its plan."""
    store = records.RecordFolder(folder)
    every = []
    for name in store.names():
        if name.startswith((f"{CURE}-", f"{TEXTS}-", f"{ANSWERS}-")):
            record = store.read(name)
            if record.get("plan") != plan.hash:
                raise usage_error(
                    "whence report", f"{name} of another plan", "a folder has one plan", "delete or restore it"
                )
            every.append(record)
    return every


def select_rounds(
    plan: TrialPlan, tasks: Sequence[Record], answers: Sequence[Record], labels: Sequence[str]
) -> tuple[dict[str, ByTask], dict[str, int]]:
    """The records of the complete rounds of every label, by task, and the number of complete rounds where some are missing.

    A round is complete if it has every slot of every task. A later round counts only after the earlier ones.
    """
    judged: dict[str, ByTask] = {}
    missing: dict[str, int] = {}
    items = {task["items"]: split_rounds(split_items(task["items"], plan.seed)[1], plan.rounds) for task in tasks}
    for label in labels:
        own = [one for one in answers if one["label"] == label and one["half"] == JUDGE]
        found = {(one["round"], one["task"], one["condition"]) for one in own}
        rounds = 0
        for number in range(plan.rounds):
            needed = [
                (number, task["task"], slot)
                for task in tasks
                for slot in task["gold_slots"]
                if items[task["items"]][number]
            ]
            if not all(key in found for key in needed):
                break
            rounds += 1
        if rounds:
            by_task: ByTask = {}
            for one in own:
                if one["round"] < rounds:
                    by_task.setdefault(one["task"], []).append(one)
            judged[label] = by_task
        if rounds < plan.rounds:
            missing[label] = rounds
    return judged, missing


def judge(plan: TrialPlan, judged: Mapping[str, ByTask]) -> PairedComparison | None:
    """Every cure against the untouched model; None without a cure."""
    if len(judged) < 2:
        return None
    values = {label: item_values(plan, by_task) for label, by_task in judged.items()}
    if not all(values.values()):  # a round without an item
        return None
    rounds = [split_rounds(split_items(spec.items, plan.seed)[1], plan.rounds) for spec in plan.tasks]
    counts = [sum(len(own[number]) for own in rounds) for number in range(plan.rounds)]
    looks = [sum(counts[: number + 1]) for number in range(plan.rounds) if counts[number]]
    analysis = AnalysisPlan(
        baseline=UNTOUCHED, margin=plan.margin, looks=tuple(looks) if looks[0] >= 2 else (), unit="points"
    )
    return compare_items(values, analysis, LARGEST)


def item_values(plan: TrialPlan, by_task: ByTask) -> dict[Any, float]:
    """The mean accuracy of each item over the slots in percent, by (round, task, item)."""
    values = {}
    for task, own in by_task.items():
        rounds = {row["item"]: one["round"] for one in own for row in one["rows"]}
        _, table = by_item(own, plan.score)
        items = sorted(rounds)
        for item, value in zip(items, (100 * table.mean(1)).tolist(), strict=True):
            values[rounds[item], task, item] = value
    return values


def summarize(plan: TrialPlan, by_task: ByTask) -> Record:
    """The curves of the tasks, and average, worst position and gap over all tasks with bootstrap intervals over items.

    Over several tasks, each of the three is the mean over the tasks.
    """
    curves = {task: curve(own, plan.score) for task, own in by_task.items()}
    attention = {
        task: [{"slot": slot, "share": share} for slot, share in attention_by_slot(own)]
        for task, own in by_task.items()
    }
    tables = [by_item(own, plan.score)[1] for own in by_task.values()]
    return {
        "curves": curves,
        "attention": attention,
        "average": interval_over_tasks(tables, lambda means: means.mean(-1)),
        "worst": interval_over_tasks(tables, lambda means: means.amin(-1)),
        "gap": interval_over_tasks(tables, lambda means: means.amax(-1) - means.amin(-1)),
    }


def attention_by_slot(own: Sequence[Record]) -> list[tuple[int, float]]:
    """The mean share of attention to the gold in each slot; empty if none was captured."""
    shares: dict[int, list[float]] = {}
    for one in own:
        if one["gold_attention"]:
            shares.setdefault(one["condition"], []).extend(one["gold_attention"])
    return [(slot, sum(values) / len(values)) for slot, values in sorted(shares.items())]


def interval_over_tasks(tables: Sequence[Tensor], statistic: Callable[[Tensor], Tensor]) -> Record:
    """The mean over tasks of a statistic of the means at the slots, with a bootstrap percentile interval over items."""
    estimate = float(torch.stack([statistic(table.mean(0)) for table in tables]).mean())
    draws = torch.stack([statistic(bootstrap_means(table, seed)) for seed, table in enumerate(tables)]).mean(0)
    low, high = torch.quantile(draws, torch.tensor([TAIL, 1 - TAIL], dtype=draws.dtype)).tolist()
    return {"mean": estimate, "low": low, "high": high}


def find_best_slots(plan: TrialPlan, answers: Sequence[Record]) -> tuple[dict[str, int], dict[str, int]]:
    """The best slot of the untouched model in each task, and the number of items that tell it.

    It is found on the search half, so that judging it is fair, on the items that were measured in every slot.
    """
    best, counts = {}, {}
    for spec in plan.tasks:
        own = [one for one in answers if one["half"] == SEARCH and one["task"] == spec.label]
        if len({one["condition"] for one in own}) >= 2:
            found = curve(own, plan.score)
            best[spec.label], counts[spec.label] = found["best"], found["items"]
    return best, counts


def compare_at_best(
    plan: TrialPlan, judged: Mapping[str, ByTask], label: str, best_slots: Mapping[str, int]
) -> Record | None:
    """The change of accuracy at the untouched model's best position, over the items that both have."""
    differences = []
    for task, slot in best_slots.items():
        sides = []
        for by_task in (judged[UNTOUCHED], judged[label]):
            own = [one for one in by_task.get(task, ()) if one["condition"] == slot]
            key = "correct" if plan.score == "likelihood" else "generated_correct"
            sides.append({row["item"]: float(row[key]) for one in own for row in one["rows"]})
        common = sorted(sides[0].keys() & sides[1].keys())
        if common:
            table = torch.tensor([[sides[1][item] - sides[0][item]] for item in common], dtype=torch.float64)
            differences.append(table)
    return interval_over_tasks(differences, lambda means: means[..., 0]) if differences else None


def changes_scores(untouched: ByTask, cured: ByTask) -> bool:
    """Whether a cure changed any answer's likelihood, or any generated text, of the items that both have."""
    before, after = (
        {
            (task, one["condition"], row["item"]): row.get("loglikelihood", row.get("output"))
            for task, own in by_task.items()
            for one in own
            for row in one["rows"]
        }
        for by_task in (untouched, cured)
    )
    return any(_differs(before[key], after[key]) for key in before.keys() & after.keys())


def _differs(before: Any, after: Any) -> bool:
    if isinstance(before, float) and isinstance(after, float):
        return abs(before - after) > ROUNDING * max(1.0, abs(before))
    return bool(before != after)


def compare_perplexity(untouched: Record | None, cured: Record | None) -> Record | None:
    """The perplexity of plain text without and with a cure, and their ratio; None before both are measured."""
    if untouched is None or cured is None or "losses" not in untouched:
        return None
    if "losses" not in cured:
        return {"unavailable": cured["unavailable"]}
    before, after = (sum(one["losses"]) / len(one["losses"]) for one in (untouched, cured))
    return {"untouched": math.exp(before), "cure": math.exp(after), "ratio": math.exp(after - before)}

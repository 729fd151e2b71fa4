"""Evidence from the records of trials of cures (``results/mend/``, written by ``whence mend``).

A figure compares a cure with the untouched model on the same items of the judging half. Intervals are 95% percentile
intervals of a bootstrap over items; a drawn item brings its values without and with the cure. Figures are means over the
tasks of a model. With several models a figure is that of the model that speaks most against the claim, so a claim must
hold in each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence.mend.catalogue import CURES
from whence.mend.judgement import ByTask, Record, load_trial, select_rounds
from whence.mend.published import STATISTICS
from whence.mend.trial import ANSWERS, CURE, PENDING, PLAN, UNTOUCHED
from whence.probe.curves import LEVEL, bootstrap_means, by_item
from whence_papers.ledger.claims import LedgerFolders, MissingEvidence
from whence_papers.ledger.study_records import Reader

FOLDER = "mend"
MIN_ITEMS = 50  # of a task; smaller trials leave a claim open

#: changes of which an increase helps the claim that a cure works; of the gap a decrease
HELPS = {name: -1 if name == "gap" else 1 for name in STATISTICS}


@dataclass(frozen=True)
class PairedAnswers:
    """Accuracy in percent of the same items without and with a cure, ``[items, slots]`` each, of one task."""

    task: str
    slots: tuple[int, ...]
    before: Tensor
    after: Tensor
    settings: str  # of the cure, as text
    folder: Path

    def draw(self, seed: int) -> tuple[Tensor, Tensor]:
        """Bootstrap means ``[draws, slots]`` of both sides, over the same drawn items."""
        draws = bootstrap_means(torch.cat((self.before, self.after), 1), seed)
        half = self.before.shape[1]
        return draws[:, :half], draws[:, half:]


class UnavailableCure(MissingEvidence):
    """A cure that cannot be applied to a model. The message says why."""


def find_trials(folders: LedgerFolders, model: str) -> Iterator[tuple[Path, Any, Record]]:
    """Folder, plan and plan file of every trial of a model, which is named by the beginning of its name or of its type."""
    base = folders.results / FOLDER
    for folder in folders.reader.find_folders(base, PLAN):
        plan, content = load_trial(folder, folders.reader)
        names = (Path(plan.model).name, content["model"].get("type", ""))
        if any(name.lower().startswith(model.lower()) for name in names):
            yield folder, plan, content


def load_pairs(
    folders: LedgerFolders, model: str, cure: str, tasks: Sequence[str] | None = None, min_items: int = MIN_ITEMS
) -> list[PairedAnswers]:
    """The answers of every task of a model that the cure was judged on.

    Args:
        tasks: beginnings of the labels of tasks, such as ``key-value``; all by default.
        min_items: tasks with fewer items are left out.
    """
    wanted = f"the trial of {cure} on {model}" + (f" ({', '.join(tasks)})" if tasks else "") + " (`whence mend`)"
    best: dict[str, PairedAnswers] = {}
    refused = ""
    for folder, plan, content in find_trials(folders, model):
        every = _read_records(folders, folder, cure)
        about = [one for one in every if one["kind"] == CURE and one["cure"]["name"] == cure]
        refused = next((one["unavailable"] for one in about if "unavailable" in one), refused)
        answers = [one for one in every if one["kind"] == ANSWERS]
        measured = [one for one in about if "unavailable" not in one and PENDING not in one]
        for one in _choose_settings(cure, measured):
            judged, _ = select_rounds(plan, content["tasks"], answers, [UNTOUCHED, one["label"]])
            if not {UNTOUCHED, one["label"]} <= judged.keys():
                continue
            for label in judged[one["label"]]:
                if tasks is not None and not label.startswith(tuple(tasks)):
                    continue
                pair = _pair(plan.score, label, judged[UNTOUCHED], judged[one["label"]], one["text"], folder)
                if len(pair.before) >= max(min_items, 1 + len(best[label].before) if label in best else 0):
                    best[label] = pair
    if not best:
        raise UnavailableCure(refused) if refused else MissingEvidence(wanted)
    return [best[label] for label in sorted(best)]


def _read_records(folders: LedgerFolders, folder: Path, cure: str) -> list[Record]:
    """The records of one cure, under all its settings, and the answers of the untouched model."""
    store = folders.reader.folder(folder)
    starts = (f"{CURE}-{cure}-", f"{ANSWERS}-{cure}-", f"{ANSWERS}-{UNTOUCHED}-")
    return [store.read(name) for name in store.names() if name.startswith(starts)]


def _choose_settings(cure: str, about: list[Record]) -> list[Record]:
    """The record of the cure's default settings; without one, the first. Choosing by the result would not be fair."""
    default = CURES[cure]().settings() if cure in CURES else None
    ordered = sorted(about, key=lambda one: (one["cure"]["settings"] != default, one["label"]))
    return ordered[:1]


def _pair(score: str, task: str, untouched: ByTask, cured: ByTask, settings: str, folder: Path) -> PairedAnswers:
    """Both sides over the items that both have."""
    items = [{row["item"] for one in side[task] for row in one["rows"]} for side in (untouched, cured)]
    common = items[0] & items[1]
    tables = []
    for side in (untouched, cured):
        rows = [{**one, "rows": [row for row in one["rows"] if row["item"] in common]} for one in side[task]]
        slots, table = by_item(rows, score)
        tables.append(100 * table)
    return PairedAnswers(task, tuple(slots), tables[0], tables[1], settings, folder)


def measure_change(pairs: Sequence[PairedAnswers]) -> dict[str, float]:
    """Every statistic before and after, and its change with an interval, as means over tasks, in points."""
    figures: dict[str, float] = {}
    draws = [pair.draw(seed) for seed, pair in enumerate(pairs)]
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    for name, statistic in STATISTICS.items():
        before, after = (
            torch.stack([statistic(side(pair).mean(0)) for pair in pairs]).mean()
            for side in (lambda pair: pair.before, lambda pair: pair.after)
        )
        change = torch.stack([statistic(one[1]) - statistic(one[0]) for one in draws]).mean(0)
        low, high = torch.quantile(change, tails).tolist()
        figures |= {
            f"{name}_before": float(before),
            f"{name}_after": float(after),
            f"{name}_change": float(after - before),
            f"{name}_change_low": low,
            f"{name}_change_high": high,
        }
    figures["gap_left"] = figures["gap_after"] / figures["gap_before"] if figures["gap_before"] else 1.0
    return figures


def cure_effect(
    folders: LedgerFolders,
    models: list[str],
    cure: str,
    tasks: list[str] | None = None,
    min_items: int = MIN_ITEMS,
) -> tuple[dict[str, Any], str]:
    """The change that a cure makes, in the model that speaks most against it, and in words for every model.

    A model that the cure cannot be applied to is left out and named. Without a trial of another model, or if no model can
    have the cure, the evidence is missing.
    """
    every: dict[str, list[PairedAnswers]] = {}
    refusals: list[str] = []
    for model in models:
        try:
            every[model] = load_pairs(folders, model, cure, tasks, min_items)
        except UnavailableCure as error:
            refusals.append(f"{model} cannot have it: {error}")
    if not every:
        raise MissingEvidence(f"a model that can have {cure}; {' '.join(refusals)}")
    changes = {model: measure_change(pairs) for model, pairs in every.items()}
    figures: dict[str, Any] = {}
    for name, sign in HELPS.items():
        for end in ("low", "high"):
            figures[f"{name}_change_{end}"] = min(
                (change[f"{name}_change_{end}"] for change in changes.values()), key=lambda value: sign * value
            )
    figures["gap_left"] = max(change["gap_left"] for change in changes.values())
    sentences = [describe_change(model, every[model], change) for model, change in changes.items()]
    return figures | {"words": " ".join(sentences + refusals)}, _name_folders(every.values())


def compare_models(
    folders: LedgerFolders, models: list[str], cure: str, tasks: list[str] | None = None, min_items: int = MIN_ITEMS
) -> tuple[dict[str, Any], str]:
    """How far the change of average accuracy differs between two models, over the tasks that both have.

    ``apart`` is the distance of the 95% interval of the difference from zero; it is negative if the interval includes zero.
    """
    every = [load_pairs(folders, model, cure, tasks, min_items) for model in models]
    common = set.intersection(*({pair.task for pair in pairs} for pairs in every))
    if not common:
        raise MissingEvidence(f"trials of {cure} on {' and '.join(models)} with a task in common")
    every = [[pair for pair in pairs if pair.task in common] for pairs in every]
    changes = [measure_change(pairs) for pairs in every]
    draws = [
        torch.stack([_draw_average(pair, seed + 1000 * number) for seed, pair in enumerate(pairs)]).mean(0)
        for number, pairs in enumerate(every)
    ]
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    low, high = torch.quantile(draws[0] - draws[1], tails).tolist()
    figures = {
        "difference": changes[0]["average_change"] - changes[1]["average_change"],
        "difference_low": low,
        "difference_high": high,
        "apart": max(low, -high),
        "apart_verdict": "undecided" if low <= 0 <= high else "decided",
    }
    words = " ".join(
        describe_change(model, pairs, change) for model, pairs, change in zip(models, every, changes, strict=True)
    )
    return figures | {"words": words}, _name_folders(every)


def _draw_average(pair: PairedAnswers, seed: int) -> Tensor:
    before, after = pair.draw(seed)
    return after.mean(-1) - before.mean(-1)


def describe_change(model: str, pairs: Sequence[PairedAnswers], change: dict[str, float]) -> str:
    """One sentence: items, tasks, and the three statistics before and after."""
    items = sorted({len(pair.before) for pair in pairs})
    count = f"{items[0]}" if len(items) == 1 else f"{items[0]} to {items[-1]}"
    parts = [
        f"{title} {change[f'{name}_before']:.1f} to {change[f'{name}_after']:.1f} "
        f"({change[f'{name}_change_low']:+.1f} to {change[f'{name}_change_high']:+.1f})"
        for name, title in (("average", "average"), ("worst", "worst position"), ("gap", "gap"))
    ]
    tasks = f"{len(pairs)} task{'s' if len(pairs) > 1 else ''} of {count} items"
    return f"{model}, {tasks}, {describe_settings(pairs)}: {', '.join(parts)}."


def describe_settings(pairs: Sequence[PairedAnswers]) -> str:
    """The settings of a cure, once if all tasks have the same, otherwise with the tasks that have them."""
    tasks: dict[str, list[str]] = {}
    for pair in pairs:
        tasks.setdefault(pair.settings, []).append(pair.task)
    return "; ".join(text if len(tasks) == 1 else f"{text} on {', '.join(own)}" for text, own in tasks.items())


def _name_folders(every: Any) -> str:
    return " and ".join(sorted({pair.folder.as_posix() for pairs in every for pair in pairs}))


READERS: dict[str, Reader] = {function.__name__: function for function in (cure_effect, compare_models)}

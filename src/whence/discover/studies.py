"""The studies of ``whence discover``, for the runner of the lab.

1. ``discover-smoothness-TASK``: free tables with several smoothness weights, on validation data alone.
2. ``discover-tables-TASK``: the free table with the chosen smoothness, several seeds. Its tables are named.
3. ``discover-TASK``: the named formula, trained from scratch, against the free table and known mechanisms, on the same seeds.
   ``discover-TASK-16x`` judges the same runs on the longest inputs.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab import tasks as lab_tasks
from whence.lab.arms import Arm
from whence.lab.default_studies import build_studies
from whence.lab.settings import parse_arm_text
from whence.lab.study import Run, Study, share_family
from whence.lab.study_labels import PREFIX
from whence.lab.study_task import load_task
from whence.lab.sweeps import build_validation_study, read_value
from whence.position.free_table import ACTS_ON

#: task of ``--task lm``: it needs no files
LANGUAGE_MODELLING = "topics"
SMOOTHNESS = (0.0, 0.003, 0.03)
LENGTHS = (1, 2, 4, 8, 16)
LEAST_CONTEXT = 10  # tokens of an input
#: mechanisms that the named formula is compared with, beside the free table
RIVALS = ("epar", "alibi", "power", "rotary")
DISCOVERED, TABLE = "discovered", "table"
#: settings of tasks that differ from those of ``whence compare``: inputs long enough for a curve, and 16 times as long
TASK_SETTINGS: dict[str, dict[str, Any]] = {
    "topics": {"context": 64, "blocks": 64},
    "retrieval": {"pairs": 12, "keys": 192, "values": 8, "items": 128},
}
QUICK_TASK_SETTINGS: dict[str, dict[str, Any]] = {
    "topics": {"context": 32, "blocks": 32},
    "retrieval": {"pairs": 8, "keys": 128, "values": 8, "items": 64},
    "text_file": {"context": 32, "blocks": 32},
}


@dataclass(frozen=True)
class Size:
    """How much a discovery trains."""

    seeds: int
    smoothness: tuple[float, ...]
    smoothness_seeds: int
    settings: Mapping[str, Any]


FULL = Size(5, SMOOTHNESS, 2, {})
QUICK = Size(4, (0.0, 0.01), 1, {"layers": 1, "steps": 120})  # with 3 seeds no difference could be claimed
QUICK_RETRIEVAL = Size(4, (0.0, 0.01), 1, {"layers": 2, "steps": 200})
#: the model of ``topics``: that of ``whence compare`` on a user's text takes four times as long
QUICK_TEXT = Size(
    4, (0.0, 0.01), 1, {**QUICK.settings, "embed_dim": 32, "ffn_dim": 64, "dropout": 0.0, "batch_size": 16, "lr": 3e-3}
)


def choose_size(task: str, quick: bool) -> Size:
    """The number of seeds and tries, and settings of the model; a retrieval needs two layers."""
    if not quick:
        return FULL
    return {"retrieval": QUICK_RETRIEVAL, "text_file": QUICK_TEXT}.get(task, QUICK)


def build_tables_study(
    task: str,
    acts_on: str,
    seeds: int,
    *,
    settings: Mapping[str, Any] | None = None,
    task_settings: Mapping[str, Any] | None = None,
    context: int | None = None,
    lengths: Sequence[int] | None = LENGTHS,
    quick: bool = False,
) -> Study:
    """The study of free tables on a task, with the smoothness 0.

    Args:
        task: name of a task.
        acts_on: ``"bias"``, ``"scale"`` or ``"bias and scale"``.
        seeds: number of seeds.
        settings: of the model and the budget, instead of the defaults of the task.
        task_settings: of the task; others have the defaults of a discovery.
        context: tokens of an input.
        lengths: of the evaluation, as multiples of the trained length; None for those of the task.
        quick: a small task.
    """
    if acts_on not in ACTS_ON:
        raise usage_error("--acts-on", repr(acts_on), f"it is one of {', '.join(ACTS_ON)}", "pass bias, for example")
    usual = QUICK_TASK_SETTINGS if quick else TASK_SETTINGS
    own = {**usual.get(task, {}), **(task_settings or {})}
    has_lengths = "lengths" in lab_tasks.find_task_class(task).evaluation_settings
    study = build_studies(
        (task,), (Arm(TABLE, "FreeTable()"),), (seeds,), settings=settings, context=context,
        task_settings={task: own} if own else {}, lengths=lengths if has_lengths else None,
    )[0]  # fmt: skip
    split = "test" if has_lengths else study.decision.split
    loaded = load_task(study)
    if loaded.context < LEAST_CONTEXT:
        raise usage_error(
            "whence discover",
            f"{task} with inputs of {loaded.context} tokens",
            f"a curve needs at least {LEAST_CONTEXT} distances",
            "pass a larger --context, or choose another task",
        )
    return replace(
        study,
        name=study.name.replace(PREFIX, "discover-tables-", 1),
        question="Which curve over distance does each head learn?",
        arms=(Arm(TABLE, format_table(acts_on, loaded.context - 1, 0.0)),),
        decision=replace(study.decision, split=split, baseline=TABLE),
    )


def format_table(acts_on: str, longest: int, smoothness: float) -> str:
    """The expression of a free table with a knot for the longest trained distance.

    >>> format_table("bias", 31, 0.01)
    "FreeTable(acts_on='bias', max_distance=31, smoothness=0.01)"
    """
    return f"FreeTable(acts_on={acts_on!r}, max_distance={longest}, smoothness={smoothness})"


def build_smoothness_study(tables: Study, values: Sequence[float], seeds: int) -> Study:
    """The study that chooses the smoothness of the free table on validation data."""
    name = tables.name.replace("tables", "smoothness", 1)
    arms = tuple(Arm(f"smoothness={value:g}", _set_smoothness(tables.arms[0].position, value)) for value in values)
    question = "Which smoothness of the free table is best on validation data?"
    return build_validation_study(tables, name, question, arms, seeds)


def _set_smoothness(position: str, value: float) -> str:
    return re.sub(r"smoothness=[^,)]+", f"smoothness={float(value)}", position)


def choose_smoothness(
    tables: Study, tuning: Study, folder: Path, values: Sequence[float]
) -> tuple[Study, dict[str, Any]]:
    """The study of tables with the smoothness that is best on validation data, and the record of the tries."""
    task = load_task(tuning)
    tries: list[dict[str, Any]] = []
    for value, arm in zip(values, tuning.arms, strict=True):
        found = [read_value(Run(tuning, arm, seed), folder) for seed in tuning.seeds]
        finite = [one for one in found if one is not None]
        tries.append(
            {"smoothness": value, "values": found, "mean": statistics.fmean(finite) if finite == found else None}
        )
    usable = [one for one in tries if one["mean"] is not None]
    if not usable:
        rule = "a run that fails or diverges has no value to choose by"
        raise usage_error("--smoothness", f"only tries that failed or diverged in {folder}", rule, "try other values")
    sign = -1.0 if task.higher_is_better else 1.0
    best = min(usable, key=lambda one: sign * one["mean"])
    record = {"metric": task.metric, "split": tuning.decision.split, "tries": tries, "chosen": best["smoothness"]}
    return set_smoothness(tables, best["smoothness"]), record


def set_smoothness(tables: Study, value: float) -> Study:
    """The study of tables with another smoothness."""
    return replace(tables, arms=(Arm(TABLE, _set_smoothness(tables.arms[0].position, value)),))


def build_comparison(tables: Study, mechanism: Path, rivals: Sequence[str] = RIVALS) -> list[Study]:
    """The studies that judge the named formula: on inputs of the trained length, and on the longest ones.

    All train the same runs, and the comparisons are one family.
    """
    arms = [Arm(DISCOVERED, f"{mechanism}:Discovered()"), tables.arms[0], *map(parse_arm_text, rivals)]
    name = tables.name.replace("tables-", "", 1)
    first = replace(
        tables,
        name=name,
        question="Is the named formula, trained from scratch, as good as the free table and known mechanisms?",
        arms=tuple(arms),
        decision=replace(tables.decision, baseline=DISCOVERED),
    )
    lengths = load_task(tables).splits()
    split = max(lengths, key=lambda name: lengths[name])  # the first of the longest
    if lengths[split] <= lengths[first.decision.split]:
        return [first]
    longest = replace(
        first,
        name=f"{name}-{split}",
        question=f"And on inputs {split.removesuffix('x')} times as long as in training?",
        decision=replace(first.decision, split=split),
    )
    return share_family([first, longest])

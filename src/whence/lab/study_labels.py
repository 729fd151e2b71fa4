"""How a study and its task are called in tables, sentences and the report: in the user's words, not by the name of a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whence.lab.data import hub
from whence.lab.study import Study
from whence.lab.tasks import FILE_TASKS, TASKS
from whence.plugins import split_file

#: the names of the studies of ``whence compare`` begin so
PREFIX = "compare-"
#: tasks on a user's data, in words
FILE_TASK_USES = {
    "labelled_file": "classification of texts",
    "text_file": "language modelling",
    "pairs_file": "pairs of texts",
    "packed_text": "language modelling of packed documents",
}
#: the task of a sweep
TUNING_TASK = "whence.lab.sweeps:TuningTask"
MAX_NAMED = 4  # arms or tasks in a title; more are counted


def label_study(study: Study) -> str:
    """The data file or the task of a study of ``whence compare``; the name of any other study."""
    if not study.name.startswith(PREFIX):
        return study.name
    return label_task(study.task, study.task_settings)


def label_task(task: str, settings: Mapping[str, Any]) -> str:
    """The name of the data file, or the task as the user wrote it, without folders. That of a sweep names the task it is for.

    >>> label_task("labelled_file", {"path": "data/film reviews.csv"}), label_task("/mine/parity.py:Parity(n=3)", {})
    ('film reviews.csv', 'parity.py:Parity(n=3)')
    >>> label_task("text_file", {"path": "hf:org/books"}), label_task("copy", {})
    ('hf:org/books', 'copy')
    """
    if task == TUNING_TASK:
        return f"{label_task(settings['task'], settings['settings'])} (sweep)"
    if task in FILE_TASKS:
        path = str(settings["path"])
        return path if hub.is_hub_name(path) else Path(path).resolve().name
    if settings.get("path"):  # a task with a format of its own, on a user's data
        return f"{task} on {Path(str(settings['path'])).name}"
    file = split_file(task)
    return task if file is None else f"{Path(file[0]).name}{file[1]}"


def describe_task(task: str, settings: Mapping[str, Any]) -> str:
    """The task in words.

    >>> describe_task("copy", {}), describe_task("pairs_file", {"path": "pairs.jsonl"}), describe_task("mine:Parity", {})
    ('copy a random string', 'pairs of texts', 'mine:Parity')
    """
    if task in FILE_TASKS:
        return FILE_TASK_USES[task]
    return TASKS[task].description if task in TASKS else label_task(task, settings)


def title_studies(studies: Sequence[Study]) -> str:
    """The title of a report: the arms and the data or tasks of a comparison; the question of another single study."""
    if not all(study.name.startswith(PREFIX) for study in studies):
        return studies[0].question if len(studies) == 1 else f"{len(studies)} studies of position"
    arms = list(dict.fromkeys(arm.name for study in studies for arm in study.arms))
    labels = list(dict.fromkeys(map(label_study, studies)))
    return f"{_join(arms, 'positions')} on {_join(labels, 'tasks')}"


def _join(names: Sequence[str], plural: str) -> str:
    if len(names) > MAX_NAMED:
        return f"{len(names)} {plural}"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last

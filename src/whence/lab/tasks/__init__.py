"""Lab tasks: what models are trained on and scored by. ``load`` builds one by name.

A task of your own is a subclass of ``Task``. Name it as ``my_module:MyTask``, as ``./file.py:MyTask(size=3)``, or by the
name under which a package registers it in the entry point group ``whence.tasks``.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from whence.errors import usage_error
from whence.lab.tasks.base import IGNORE_INDEX, Batch, MetricAccumulator, Task, select_row
from whence.lab.tasks.classification import LabelledFile, Sources, Sst2
from whence.lab.tasks.generated import Copying, Retrieval
from whence.lab.tasks.language_modelling import Books, TextFile, Topics, WikiText2, WikiText103
from whence.plugins import TASKS as GROUP
from whence.plugins import entry_points, is_reference, load_entry_point, load_reference, parse_reference

__all__ = [
    "IGNORE_INDEX", "TASKS", "Batch", "MetricAccumulator", "Task", "TaskInfo", "find_task_class", "load", "select_row",
]  # fmt: skip


@dataclass(frozen=True)
class TaskInfo:
    """A built-in task. ``is_bundled``: the task needs no files; the others read the folder named by WHENCE_DATA."""

    task_class: type[Task]
    is_bundled: bool
    description: str


TASKS: dict[str, TaskInfo] = {
    "retrieval": TaskInfo(Retrieval, True, "retrieve the value of a key"),
    "copy": TaskInfo(Copying, True, "copy a random string"),
    "topics": TaskInfo(Topics, True, "language modelling on Python's help topics"),
    "sources": TaskInfo(Sources, True, "classify snippets as prose, code or docstrings"),
    "wikitext2": TaskInfo(WikiText2, False, "language modelling on two million words of Wikipedia"),
    "wikitext103": TaskInfo(WikiText103, False, "language modelling on a hundred million words of Wikipedia"),
    "books": TaskInfo(Books, False, "language modelling on public-domain books"),
    "sst2": TaskInfo(Sst2, False, "sentiment of film reviews"),
}
#: tasks on a user's own file, built by ``whence compare --data``
FILE_TASKS: dict[str, type[Task]] = {LabelledFile.name: LabelledFile, TextFile.name: TextFile}


def load(name: str, **settings: Any) -> Task:
    """Build a task by name. The settings are arguments of its class; ``module:Class(size=3)`` may carry some itself.

    >>> load("retrieval", pairs=2).splits()
    {'test': 5, '2x': 9, '4x': 17, '8x': 33}
    """
    task_class = find_task_class(name)
    if is_reference(name):
        settings = parse_reference(name).arguments | settings
    known = list(inspect.signature(task_class).parameters)
    unknown = [setting for setting in settings if setting not in known]
    if unknown:
        rule = f"the settings are {', '.join(known)}" if known else "it has no settings"
        raise usage_error(f'load("{name}")', f"the setting {unknown[0]}", rule, "remove or rename it")
    return task_class(**settings)


def find_task_class(name: str) -> type[Task]:
    """The class of a task by name, without loading its data."""
    subject = f'load("{name}")'
    if is_reference(name):
        task_class = load_reference(parse_reference(name), subject)
    elif name in TASKS:
        return TASKS[name].task_class
    elif name in FILE_TASKS:
        return FILE_TASKS[name]
    elif name in (plugins := entry_points(GROUP)):
        task_class = load_entry_point(plugins[name], subject)
    else:
        known = ", ".join([*TASKS, *plugins])
        raise usage_error(
            subject, "an unknown task", f"the tasks are {known}", "choose one, or name your own as module:Class"
        )
    if not (inspect.isclass(task_class) and issubclass(task_class, Task) and not inspect.isabstract(task_class)):
        raise usage_error(
            subject, repr(task_class), "a task is a concrete subclass of whence.lab.tasks.Task", "name such a class"
        )
    return task_class

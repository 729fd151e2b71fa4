"""Lab tasks: what models are trained on and scored by. ``load`` builds one by name.

A task of your own is a subclass of ``Task``. Name it as ``my_module:MyTask``, as ``./file.py:MyTask(size=3)``, or by the
name under which a package registers it in the entry point group ``whence.tasks``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from whence.errors import usage_error
from whence.lab.tasks.base import IGNORE_INDEX, Batch, MetricAccumulator, Task, select_row
from whence.lab.tasks.classification import Sources, Sst2
from whence.lab.tasks.files import FILE_TASKS
from whence.lab.tasks.generated import Copying, Recall, Retrieval
from whence.lab.tasks.glue import Glue, Paraphrases
from whence.lab.tasks.language_modelling import Books, Topics, WikiText2, WikiText103
from whence.lab.tasks.squad import GeneratedQuestions, Squad
from whence.lab.tasks.summarization import Arxiv, GeneratedReports, Qmsum
from whence.lab.tasks.translation import Multi30k, Wmt14
from whence.plugins import TASKS as GROUP
from whence.plugins import (
    complete_reference,
    did_you_mean,
    entry_points,
    is_reference,
    load_reference,
    load_registered,
    parse_reference,
    require_known_settings,
)
from whence.validation import format_value

__all__ = [
    "FILE_TASKS", "IGNORE_INDEX", "TASKS", "Batch", "MetricAccumulator", "Task", "TaskInfo", "find_task_class", "load", "select_row",
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
    "recall": TaskInfo(Recall, True, "recall the latest marked symbol"),
    "topics": TaskInfo(Topics, True, "language modelling on Python's help topics"),
    "sources": TaskInfo(Sources, True, "classify snippets as prose, code or docstrings"),
    "questions": TaskInfo(GeneratedQuestions, True, "answer questions about generated passages"),
    "reports": TaskInfo(GeneratedReports, True, "summarize generated reports"),
    "paraphrases": TaskInfo(Paraphrases, True, "tell whether two generated sentences mean the same"),
    "wikitext2": TaskInfo(WikiText2, False, "language modelling on two million words of Wikipedia"),
    "wikitext103": TaskInfo(WikiText103, False, "language modelling on a hundred million words of Wikipedia"),
    "books": TaskInfo(Books, False, "language modelling on public-domain books"),
    "sst2": TaskInfo(Sst2, False, "sentiment of film reviews"),
    "squad": TaskInfo(Squad, False, "answer questions about the passages of SQuAD"),
    "qmsum": TaskInfo(Qmsum, False, "summarize meetings by a query"),
    "arxiv": TaskInfo(Arxiv, False, "summarize scientific papers"),
    "glue": TaskInfo(Glue, False, "classify sentences and pairs of sentences"),
    "multi30k": TaskInfo(Multi30k, False, "translation of image descriptions, English to German"),
    "wmt14": TaskInfo(Wmt14, False, "translation of news, English to German"),
}


def load(name: str, **settings: Any) -> Task:
    """Build a task by name. The settings are arguments of its class; ``module:Class(size=3)`` may carry some itself.

    >>> load("retrieval", pairs=2).splits()
    {'test': 5, '2x': 9, '4x': 17, '8x': 33}
    """
    task_class = find_task_class(name)
    if is_reference(name):
        name = _complete(name)
        settings = parse_reference(name).arguments | settings
    require_known_settings(f"task {name!r}", task_class, settings)
    task = task_class(**settings)
    _require_facts(f"task {name!r}", task)
    return task


def find_task_class(name: str, aliases: Sequence[str] = ()) -> type[Task]:
    """The class of a task by name, without loading its data. The error of an unknown name lists ``aliases`` of the caller too."""
    subject = f"task {name!r}"
    if is_reference(name):
        task_class = load_reference(parse_reference(_complete(name)), subject)
    elif name in TASKS:
        return TASKS[name].task_class
    elif name in FILE_TASKS:
        return FILE_TASKS[name]
    elif (task_class := load_registered(GROUP, name, subject)) is None:
        known = [*aliases, *TASKS, *entry_points(GROUP)]
        remedy = did_you_mean(name, known, "choose one, or name your own as module:Class or ./file.py:Class")
        raise usage_error(subject, "an unknown name", f"the tasks are {', '.join(known)}", remedy)
    if not (inspect.isclass(task_class) and issubclass(task_class, Task)):
        got = f"the class {task_class.__name__}" if inspect.isclass(task_class) else format_value(task_class)
        raise usage_error(subject, got, "a task is a subclass of whence.lab.tasks.Task", "name such a class")
    _require_complete(subject, task_class)
    return task_class


def _complete(name: str) -> str:
    """The name of a task, with the class if it names a file with one task alone."""
    return complete_reference(name, f"task {name!r}", Task, "subclass of whence.lab.tasks.Task")


def _require_complete(subject: str, task_class: type[Task]) -> None:
    """Require every method that a task must have; all missing ones are named at once."""
    missing = sorted(getattr(task_class, "__abstractmethods__", ()))
    if missing:
        raise usage_error(
            subject,
            f"{task_class.__name__} without {', '.join(missing)}",
            f"a task has the methods {', '.join(sorted(Task.__abstractmethods__))}",
            f"write def {' and def '.join(missing)} in {task_class.__name__}",
        )


def _require_facts(subject: str, task: Task) -> None:
    """Require the attributes and splits of a task that records and reports need; all missing attributes are named at once."""
    needed = ["metric", "context", "settings"]
    if type(task).build_model is Task.build_model:
        needed += ["kind", "vocab_size"]
    missing = [name for name in needed if not hasattr(task, name)]
    if missing:
        got = f"{type(task).__name__} without {', '.join(missing)}"
        remedy = f"set self.{' and self.'.join(missing)} in {type(task).__name__}.__init__"
        raise usage_error(subject, got, f"a task has the attributes {', '.join(needed)}", remedy)
    try:
        json.dumps(task.settings)
    except (TypeError, ValueError) as error:
        rule = "settings go into every record as JSON"
        raise usage_error(f"{subject}, settings", str(error), rule, "use texts, numbers, lists and dicts") from None
    splits = task.splits()
    if not isinstance(splits, dict) or not splits:
        rule = "it returns the length of the inputs of each split, of at least one"
        raise usage_error(f"{subject}, splits()", format_value(splits), rule, "return {'test': self.context}")

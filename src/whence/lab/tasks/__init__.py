"""What models are trained on and scored by: the list of all tasks, and ``load`` to build one by name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from whence.errors import usage_error
from whence.lab.tasks.base import Batch, Task, row_of
from whence.lab.tasks.books import Books
from whence.lab.tasks.copying import Copying
from whence.lab.tasks.metrics import IGNORE_INDEX, MetricAccumulator
from whence.lab.tasks.retrieval import Retrieval
from whence.lab.tasks.sources import Sources
from whence.lab.tasks.sst2 import Sst2
from whence.lab.tasks.topics import Topics
from whence.lab.tasks.wikitext import WikiText2, WikiText103
from whence.plugins import TASKS as GROUP
from whence.plugins import entry_points, is_reference, load_reference, parse_reference

__all__ = ["Batch", "Entry", "IGNORE_INDEX", "TASKS", "MetricAccumulator", "Task", "kind_of", "load", "row_of"]


@dataclass(frozen=True)
class Entry:
    """A task by name. ``embedded`` ones need no files; the others read the folder of WHENCE_DATA."""

    make: type[Task]
    embedded: bool
    idea: str


TASKS: dict[str, Entry] = {
    "retrieval": Entry(Retrieval, True, "the value that stood behind a key"),
    "copy": Entry(Copying, True, "a random string once more"),
    "topics": Entry(Topics, True, "language modelling on Python's help topics"),
    "sources": Entry(Sources, True, "prose, code or docstring"),
    "wikitext2": Entry(WikiText2, False, "language modelling on two million words of Wikipedia"),
    "wikitext103": Entry(WikiText103, False, "language modelling on a hundred million words of Wikipedia"),
    "books": Entry(Books, False, "language modelling on public-domain books"),
    "sst2": Entry(Sst2, False, "positive or negative film reviews"),
}


def load(name: str, **settings: Any) -> Task:
    """Build a task by its name; the settings are those of its class. ``module:Class`` names one from elsewhere.

    >>> load("retrieval", pairs=2).splits()
    {'test': 5, '2x': 9, '4x': 17, '8x': 33}
    """
    make = kind_of(name)
    known = list(inspect.signature(make).parameters)
    unknown = [setting for setting in settings if setting not in known]
    if unknown:
        raise usage_error(
            f'load("{name}")', f"the setting {unknown[0]}", f"it knows {', '.join(known)}", "leave it out or rename it"
        )
    return make(**settings)


def kind_of(name: str) -> type[Task]:
    """The class of a task by its name, without loading its data."""
    asked = f'load("{name}")'
    if is_reference(name):
        found = load_reference(parse_reference(name), asked)
    elif name in TASKS:
        return TASKS[name].make
    elif name in (plugins := entry_points(GROUP)):
        found = plugins[name].load()
    else:
        known = ", ".join([*TASKS, *plugins])
        raise usage_error(asked, "an unknown task", f"the tasks are {known}", "name one, or your own as module:Class")
    if not (inspect.isclass(found) and issubclass(found, Task) and not inspect.isabstract(found)):
        raise usage_error(asked, repr(found), "a task is a subclass of whence.lab.tasks.Task", "name a subclass")
    return found

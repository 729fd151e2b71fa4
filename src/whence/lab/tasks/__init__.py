"""What models are trained on and scored by: the list of all tasks, and ``load`` to build one by name."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from whence.errors import refusal
from whence.lab.tasks.base import Batch, Task, row_of
from whence.lab.tasks.books import Books
from whence.lab.tasks.copying import Copying
from whence.lab.tasks.places import Places
from whence.lab.tasks.retrieval import Retrieval
from whence.lab.tasks.sources import Sources
from whence.lab.tasks.speeches import SpeechesClassify, SpeechesLm
from whence.lab.tasks.sst2 import Sst2
from whence.lab.tasks.tally import NOT_ASKED, Tally
from whence.lab.tasks.topics import Topics
from whence.lab.tasks.votes import Votes
from whence.lab.tasks.wikitext import WikiText2, WikiText103

__all__ = ["Batch", "Entry", "NOT_ASKED", "TASKS", "Tally", "Task", "kind_of", "load", "row_of"]


@dataclass(frozen=True)
class Entry:
    """A task by name. ``embedded`` ones need no files; the others read the folder of WHENCE_DATA."""

    make: type[Task]
    embedded: bool
    idea: str


TASKS: dict[str, Entry] = {
    "retrieval": Entry(Retrieval, True, "the value that stood behind a key"),
    "copy": Entry(Copying, True, "a random string once more"),
    "votes": Entry(Votes, True, "the heavier side of votes that weigh by their place"),
    "places": Entry(Places, True, "the nearest, the farthest or the marked symbol, as a cue says"),
    "topics": Entry(Topics, True, "language modelling on Python's help topics"),
    "sources": Entry(Sources, True, "prose, code or docstring"),
    "speeches_classify": Entry(SpeechesClassify, False, "which of three presidents said it"),
    "speeches_lm": Entry(SpeechesLm, False, "language modelling on speeches, a score a president"),
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
        raise refusal(
            f'load("{name}")', f"the setting {unknown[0]}", f"it knows {', '.join(known)}", "leave it out or rename it"
        )
    return make(**settings)


def kind_of(name: str) -> type[Task]:
    """The class of a task by its name, which needs no data yet."""
    if ":" in name:
        return _from_elsewhere(name)
    if name not in TASKS:
        raise refusal(f'load("{name}")', "an unknown task", f"there are {', '.join(TASKS)}", "give one of these")
    return TASKS[name].make


def _from_elsewhere(name: str) -> type[Task]:
    """A subclass of Task by its module and name, so that a study can bring its own; nothing else is ever called."""
    module, _, kind = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), kind, None)
    except ImportError:
        found = None
    if not (inspect.isclass(found) and issubclass(found, Task) and not inspect.isabstract(found)):
        raise refusal(
            f'load("{name}")',
            "no such task",
            "module:Class names a subclass of whence.lab.tasks.Task that can be imported",
            "check both names",
        )
    return found

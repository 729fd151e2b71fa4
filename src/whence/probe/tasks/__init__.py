"""The tasks of a probe by name: built in, registered by installed packages, or named by module or file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from whence.errors import usage_error
from whence.plugins import PROBE_TASKS, did_you_mean, entry_points, is_reference, require_known_settings
from whence.probe.tasks.lost_in_the_middle import build_documents, generate_key_values, load_published_key_values
from whence.probe.tasks.needle import build_needle
from whence.probe.tasks.task import CLOSED_BOOK, ORACLE, Item, ProbeTask, Prompt, spread_slots
from whence.probe.tasks.user_tasks import load_items, load_task

TASKS: dict[str, Callable[..., ProbeTask]] = {
    "key-value": generate_key_values,
    "key-value-75": load_published_key_values,
    "documents": build_documents,
    "needle": build_needle,
}

#: the name of the task that reads items from a file
ITEMS = "items"
#: the source of the items, for tasks without one
SOURCES = {"needle": "generated names and numbers between help topics of Python; not published data"}


def build_task(name: str, items: int, **settings: Any) -> ProbeTask:
    """Build a task by name.

    Args:
        name: a built-in task; ``items`` together with a file; ``my_module:MyTask`` or ``./file.py:MyTask(words=3)``; or a
            name that a package registers in the entry-point group ``whence.probe_tasks``.
        settings: keyword arguments of the task.
    """
    if name == ITEMS:
        require_known_settings(f"task {name!r}", load_items, settings, given="items")
        return load_items(items, **settings)
    if is_reference(name) or is_installed(name):
        return load_task(name, items, **settings)
    if name not in TASKS:
        known = [*TASKS, *entry_points(PROBE_TASKS)]
        remedy = did_you_mean(name, known, "choose one of them, or module:Name for your own")
        raise usage_error(f"task {name!r}", "an unknown name", f"the tasks are {', '.join(known)}", remedy)
    require_known_settings(f"task {name!r}", TASKS[name], settings, given="items")
    task = TASKS[name](items, **settings)
    return task if task.source else replace(task, source=SOURCES.get(name, "generated; not published data"))


def is_installed(name: str) -> bool:
    """Whether an installed package registers the task, with or without arguments in parentheses."""
    return name.partition("(")[0].strip() in entry_points(PROBE_TASKS)


__all__ = [
    "CLOSED_BOOK", "ITEMS", "ORACLE", "TASKS", "Item", "ProbeTask", "Prompt", "build_task", "is_installed", "load_items", "spread_slots",
]  # fmt: skip

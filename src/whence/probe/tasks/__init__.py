"""The questions a probe asks, by short name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from whence.errors import usage_error
from whence.plugins import is_reference
from whence.probe.tasks.lost_in_the_middle import documents, generated, published
from whence.probe.tasks.needle import needle
from whence.probe.tasks.task import CLOSED_BOOK, ORACLE, Item, ProbeTask, Prompt, spread_slots
from whence.probe.tasks.user_tasks import load_items, load_task

TASKS: dict[str, Callable[..., ProbeTask]] = {
    "key-value": generated,
    "key-value-75": published,
    "documents": documents,
    "needle": needle,
}

#: the task of a file of one's own items
ITEMS = "items"
#: where the questions of a task come from, where the task does not say so itself
SOURCES = {"needle": "generated names and numbers between help topics of Python; not published data"}


def build_task(name: str, items: int, **settings: Any) -> ProbeTask:
    """A task by its short name, with so many items; ``items`` with a file, or ``module:Name`` for one of one's own."""
    if name == ITEMS:
        return load_items(items, **settings)
    if is_reference(name):
        return load_task(name, items, **settings)
    if name not in TASKS:
        raise usage_error(
            "build_task",
            repr(name),
            f"the tasks are {', '.join(TASKS)}",
            "take one of them, or module:Name for your own",
        )
    made = TASKS[name](items, **settings)
    return made if made.source else replace(made, source=SOURCES.get(name, "generated; not published data"))


def is_known(name: str) -> bool:
    """Whether a plan may name it; one's own are looked for when they are asked, so that a report needs none of them."""
    return name in TASKS or name == ITEMS or is_reference(name)


__all__ = [
    "CLOSED_BOOK", "ITEMS", "ORACLE", "TASKS", "Item", "ProbeTask", "Prompt", "build_task", "is_known", "load_items", "spread_slots",
]  # fmt: skip

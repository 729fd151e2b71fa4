"""The questions a probe asks, by short name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whence.bias.tasks.documents import documents
from whence.bias.tasks.key_value import generated, published
from whence.bias.tasks.needle import needle
from whence.bias.tasks.prompts import CLOSED_BOOK, ORACLE, Item, Prompt, Task, spread
from whence.errors import refusal

TASKS: dict[str, Callable[..., Task]] = {
    "key-value": generated,
    "key-value-75": published,
    "documents": documents,
    "needle": needle,
}


def task(name: str, items: int, **settings: Any) -> Task:
    """A task by its short name, with so many items."""
    if name not in TASKS:
        raise refusal("task", repr(name), f"the tasks are {', '.join(TASKS)}", "take one of them")
    return TASKS[name](items, **settings)


__all__ = ["CLOSED_BOOK", "ORACLE", "Item", "Prompt", "Task", "TASKS", "spread", "task"]

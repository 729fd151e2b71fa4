"""A task of one's own, by module or file: ``my_module:MyTask`` or ``./file.py:MyTask(words=3)``.

What is named is called with the number of items, and gives a ``Task``. Arguments in the text are literals; nothing else
of it is evaluated. Code runs only because a module or a file was named.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.plugins import load_reference, parse_reference
from whence.probe.tasks.prompts import Task, require_items

METRICS = ("value", "subspan")


def own_task(text: str, items: int, **settings: Any) -> Task:
    """The task with so many items; what is wrong with it is said with its name."""
    asked = f"--task {text}"
    reference = parse_reference(text, "--task")
    name, given = reference.name, reference.arguments
    make = load_reference(reference, asked)
    if isinstance(make, Task):
        made: object = make
    elif callable(make):
        try:
            made = make(items, **{**given, **settings})
        except WhenceError:
            raise
        except Exception as error:
            raise usage_error(
                asked, f"{type(error).__name__}: {error}", f"{name}(items) makes a task without an error", "correct it"
            ) from error
    else:
        raise usage_error(
            asked,
            f"{name} of {reference.module}, a {type(make).__name__}",
            "it is a class or a function there",
            "check both names",
        )
    return replace(require_sound(asked, made, items), source=f"own task {text}")


def require_sound(asked: str, made: object, items: int) -> Task:
    """A task that can be asked: alike items with answers, and a prompt with a place for the question."""
    if not isinstance(made, Task):
        raise usage_error(asked, type(made).__name__, "it gives a whence.probe.tasks.Task", "return one")
    require_items(asked, len(made.items), items)
    made = made.first(items)
    slots, rivals = len(made.items[0].others), len(made.items[0].rivals)
    for number, item in enumerate(made.items):
        wrong = None
        if len(item.others) != slots or not slots:
            wrong = f"{len(item.others)} others", f"each item has as many as the first, which has {slots}, at least one"
        elif len(item.rivals) != rivals or (made.paired and rivals != slots):
            wrong = f"{len(item.rivals)} rivals", "each item has as many, and in a paired task one for each other text"
        elif not item.answers:
            wrong = "no answers", "each item has at least one"
        if wrong:
            raise usage_error(f"{asked}, item {number},", *wrong, "correct the item")
    if made.metric not in METRICS:
        raise usage_error(
            asked, f"the metric {made.metric!r}", f"it is one of {', '.join(METRICS)}", "take one of them"
        )
    if "{question}" not in made.tail:
        raise usage_error(asked, f"the tail {made.tail!r}", "the question stands there as {question}", "add it")
    try:
        made.prompt(made.items[0], 0)
    except (KeyError, IndexError, ValueError) as error:
        raise usage_error(
            asked,
            f"the tail {made.tail!r} and the label {made.label!r} ({type(error).__name__}: {error})",
            "braces stand around {question} in the tail and around {number} in the label, and are doubled elsewhere",
            "correct them",
        ) from None
    return made

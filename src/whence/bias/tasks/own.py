"""A task of one's own, by module or file: ``my_module:MyTask`` or ``./file.py:MyTask(words=3)``.

What is named is called with the number of items, and gives a ``Task``. Arguments in the text are literals; nothing else
of it is evaluated. Code runs only because a module or a file was named.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from whence.bias.tasks.prompts import Task, require_items
from whence.errors import WhenceError, refusal

FORM = re.compile(r"(?P<where>.+):(?P<name>[A-Za-z_]\w*)\s*(?P<given>\(.*\))?", re.DOTALL)
METRICS = ("value", "subspan")


def is_own(name: str) -> bool:
    """Whether a task is named by module or file.

    >>> is_own("./mine.py:Mine(words=3)"), is_own("needle")
    (True, False)
    """
    return ":" in name


def named(text: str) -> tuple[str, str, dict[str, Any]]:
    """The module or file, the name in it, and the literal arguments.

    >>> named("./mine.py:Mine(words=3, names=['a'])")
    ('./mine.py', 'Mine', {'words': 3, 'names': ['a']})
    """
    match = FORM.fullmatch(text.strip())
    if match is None:
        raise refusal(
            f"--task {text}",
            "no name behind a colon",
            "a task of your own is my_module:MyTask or ./file.py:MyTask(words=3)",
            "name the class or function",
        )
    return match["where"], match["name"], _literals(text, match["given"])


def own_task(text: str, items: int, **settings: Any) -> Task:
    """The task with so many items; what is wrong with it is said with its name."""
    where, name, given = named(text)
    asked = f"--task {text}"
    make = getattr(_module(asked, where), name, None)
    if isinstance(make, Task):
        made: object = make
    elif callable(make):
        try:
            made = make(items, **{**given, **settings})
        except WhenceError:
            raise
        except Exception as error:
            raise refusal(
                asked, f"{type(error).__name__}: {error}", f"{name}(items) makes a task without an error", "correct it"
            ) from error
    else:
        raise refusal(asked, f"no {name} in {where}", "it is a class or a function there", "check both names")
    return replace(require_sound(asked, made, items), source=f"own task {text}")


def require_sound(asked: str, made: object, items: int) -> Task:
    """A task that can be asked: alike items with answers, and a prompt with a place for the question."""
    if not isinstance(made, Task):
        raise refusal(asked, type(made).__name__, "it gives a whence.bias.tasks.Task", "return one")
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
            raise refusal(f"{asked}, item {number},", *wrong, "correct the item")
    if made.metric not in METRICS:
        raise refusal(asked, f"the metric {made.metric!r}", f"it is one of {', '.join(METRICS)}", "take one of them")
    if "{question}" not in made.tail:
        raise refusal(asked, f"the tail {made.tail!r}", "the question stands there as {question}", "add it")
    try:
        made.prompt(made.items[0], 0)
    except (KeyError, IndexError, ValueError) as error:
        raise refusal(
            asked,
            f"the tail {made.tail!r} and the label {made.label!r} ({type(error).__name__}: {error})",
            "braces stand around {question} in the tail and around {number} in the label, and are doubled elsewhere",
            "correct them",
        ) from None
    return made


def _literals(text: str, given: str | None) -> dict[str, Any]:
    if not given:
        return {}
    asked = f"--task {text}"
    rule = "arguments are named and literal, like (words=3, kind='short')"
    try:
        call = ast.parse(f"task{given}", mode="eval").body
    except (SyntaxError, ValueError):
        raise refusal(asked, f"arguments {given}", rule, "correct them") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise refusal(asked, f"arguments {given}", rule, "name each of them")
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in found:
            raise refusal(asked, f"arguments {given}", rule, "name each of them once")
        try:
            found[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            raise refusal(
                asked, f"{keyword.arg}={ast.unparse(keyword.value)}", rule, "write the value itself"
            ) from None
    return found


def _module(asked: str, where: str) -> ModuleType:
    """A module by its name or its file. Modules of the working directory are found too."""
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        return _from_file(asked, Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except WhenceError:
        raise
    except ModuleNotFoundError as error:
        if error.name != where.split(".")[0] and error.name != where:
            raise refusal(
                asked, f"{where}, which needs {error.name}", "it can be imported", f"install {error.name}"
            ) from error
        raise refusal(
            asked, f"no module {where}", "it can be imported from here", "check the name, or give a file.py"
        ) from None
    except Exception as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise refusal(
            asked, f"{where}{line}: {type(error).__name__}: {error}", "it is imported without an error", "correct it"
        ) from error
    finally:
        sys.path.remove(here)


def _from_file(asked: str, path: Path) -> ModuleType:
    path = path.expanduser()
    if not path.is_file():
        raise refusal(asked, f"no file {path}", "a path leads to a Python file", "check the path")
    name = f"whence_task_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module

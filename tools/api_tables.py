"""Tables of public names for docs/ and the site, with the vocabulary that both share."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

#: modules whose public names the API page lists
API = (
    "whence",
    "whence.position",
    "whence.attention",
    "whence.models",
    "whence.parallel",
    "whence.hf",
    "whence.lab.study",
    "whence.lab.arms",
    "whence.lab.executors",
    "whence.lab.experiment",
    "whence.lab.tasks",
    "whence.discover",
    "whence.probe",
    "whence.mend",
    "whence.bench",
    "whence.statistics",
    "whence.records",
)
#: what a hook does, in a table
ACTS = {
    "embed": "changes the input",
    "rotate": "rotates queries and keys",
    "score_scale": "multiplies the score",
    "bias": "added to the score",
    "content_bias": "added to the score, by content",
    "value_bias": "added to the output",
    "sink": "one extra logit per row",
    "clock": "added to the score, accumulated over the tokens between",
}


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table.

    >>> print(markdown(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def api() -> str:
    """The public names of the modules in ``API`` with the first sentence of each docstring."""
    sections = []
    for module in API:
        loaded = importlib.import_module(module)
        rows = [[f"`{name}`", summary(getattr(loaded, name))] for name in public_names(loaded)]
        sections.append(f"## `{module}`\n\n{summary(loaded)}\n\n{markdown(['name', 'what it is'], rows)}")
    return "\n\n".join(sections)


def public_names(module: ModuleType) -> list[str]:
    """The names in a module's ``__all__``; without one, the public classes and functions that it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    defined = (name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__)
    return sorted(name for name in defined if not name.startswith("_") and getattr(module, name).__doc__)


def summary(thing: Any) -> str:
    """The first sentence of a docstring, for a table cell; constants show their type."""
    if not (inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isroutine(thing)):
        return f"a constant of type `{type(thing).__name__}`"
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text.split(". ")[0].rstrip(".:").replace("|", "\\|") + "."

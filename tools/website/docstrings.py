"""Docstrings as Markdown, for the site: examples, literal blocks and plain-text tables become code blocks.

Docstrings are written for ``help()``: an example begins with ``>>>``, and a block after ``::`` is code. Markdown reads
the first as a quotation.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import griffe

RULE = re.compile(r"={3,}( +={3,})*\s*$")  # above and below a plain-text table


class DocstringBlocks(griffe.Extension):
    """Rewrite the docstring of every object before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    r"""A docstring with its examples, literal blocks and plain-text tables in fences.

    >>> to_markdown("Add.\n\n>>> 1 + 1\n2\n\nUse it::\n\n    add(1, 1)\n").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'Use it:', '', '```python', 'add(1, 1)', '```']
    """
    lines = inspect.cleandoc(text).splitlines()
    return "\n".join(_fence(lines)).rstrip()


def _fence(lines: list[str]) -> Iterator[str]:
    number = 0
    while number < len(lines):
        line = lines[number]
        indent = line[: len(line) - len(line.lstrip())]
        if line.lstrip().startswith(">>> "):
            end = next((n for n in range(number, len(lines)) if not lines[n].strip()), len(lines))
            yield from _code(lines[number:end], indent, "pycon")
            number = end
        elif line.rstrip().endswith("::"):
            yield line.rstrip()[:-1]
            start = number + 1
            while start < len(lines) and not lines[start].strip():
                start += 1
            end = start
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith(indent + "    ")):
                end += 1
            block = inspect.cleandoc("\n" + "\n".join(lines[start:end])).splitlines()
            yield ""
            yield from _code([indent + one for one in block], indent, "python")
            yield ""
            number = end
        elif RULE.match(line.strip()):
            last = max(n for n in range(number, len(lines)) if RULE.match(lines[n].strip()))
            yield from _code(lines[number : last + 1], indent, "text")
            number = last + 1
        else:
            yield line
            number += 1


def _code(block: list[str], indent: str, language: str) -> Iterator[str]:
    yield f"{indent}```{language}"
    yield from block
    yield f"{indent}```"

"""Reference pages of the site: a page for each public module, from its docstrings, and one for the commands, from their help."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from api_tables import API, markdown, public_names, summary


def module_pages(documented: dict[str, str]) -> dict[str, str]:
    """The page of each module, by its path. ``documented`` names objects that have another page, and gains those of these pages.

    An object is documented once: in the first module below ``whence`` that exports it. Other pages link there.
    """
    pages = {}
    for module in (*API[1:], API[0]):
        path = f"reference/{module}.md"
        pages[path] = _module_page(importlib.import_module(module), path, documented)
    return {f"reference/{module}.md": pages[f"reference/{module}.md"] for module in API}


def _module_page(module: ModuleType, path: str, documented: dict[str, str]) -> str:
    rows, details = [], []
    for name in public_names(module):
        thing = getattr(module, name)
        target = object_path(module, name)
        if target not in documented and _has_docstring(thing):
            documented[target] = path
            details.append(f"::: {target}\n")
        label = f"[`{name}`][{target}]" if target in documented else f"`{name}`"
        rows.append([label, summary(thing)])
    intro = f"# {module.__name__}\n\n{summary(module)}\n\n```python\nimport {module.__name__}\n```\n"
    return "\n".join([intro, markdown(["name", "what it is"], rows), "", *details])


def object_path(module: ModuleType, name: str) -> str:
    """Where an exported object is defined; constants are where they are exported."""
    thing = getattr(module, name)
    if _has_docstring(thing) and not inspect.ismodule(thing):
        return f"{thing.__module__}.{thing.__qualname__}"
    return f"{module.__name__}.{name}"


def _has_docstring(thing: Any) -> bool:
    return (inspect.isclass(thing) or inspect.isroutine(thing)) and bool(thing.__doc__)


def link_names(text: str, documented: Mapping[str, str]) -> str:
    """The list of all public names with a link to the documentation of each name that has one.

    >>> print(link_names("## `whence`\\n\\n| `attend` | Scaled |\\n| `none` | x |", {"whence.attention.attend.attend": "a.md"}))
    ## `whence`
    <BLANKLINE>
    | [`attend`][whence.attention.attend.attend] | Scaled |
    | `none` | x |
    """
    lines, module = [], importlib.import_module("whence")
    for line in text.splitlines():
        if heading := re.fullmatch(r"## `([\w.]+)`", line):
            module = importlib.import_module(heading[1])
        row = re.match(r"\| `(\w+)` \|", line)
        if row and hasattr(module, row[1]) and (target := object_path(module, row[1])) in documented:
            line = line.replace(f"`{row[1]}`", f"[`{row[1]}`][{target}]", 1)
        lines.append(line)
    return "\n".join(lines)


def commands_page() -> str:
    """All commands with their options and examples, from the help texts."""
    import typer
    from typer.cli import get_docs_for_click

    from whence.cli.app import app

    group = typer.main.get_command(app)
    text = get_docs_for_click(obj=group, ctx=typer.Context(group, info_name="whence"), name="whence")
    _, heading, details = text.partition("## `whence ")
    rows = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        about = " ".join((command.help or "").split("\n\n")[0].split())
        rows.append([f"[`whence {name}`](#whence-{name})", about.replace("|", "\\|")])
    table = markdown(["command", "what it does"], rows)
    return f"# Commands\n\n{(group.help or '').strip()}\n\n{table}\n\n{fence_examples(heading + details)}\n"


def fence_examples(text: str) -> str:
    """Help texts with each list of examples in a code block.

    >>> print(fence_examples("Examples:\\n\\nwhence show alibi\\n\\nwhence show t5\\n\\n## Next"))
    Examples:
    <BLANKLINE>
    ```bash
    whence show alibi
    whence show t5
    ```
    <BLANKLINE>
    ## Next
    """

    def fence(match: re.Match[str]) -> str:
        lines: Iterable[str] = (line.strip() for line in match[1].splitlines())
        return "Examples:\n\n```bash\n" + "\n".join(line for line in lines if line) + "\n```\n\n"

    return re.sub(
        r"^Examples:\n+((?:(?!#|\*\*|```).*\n)+?)(?=#|\*\*|\Z)", fence, text + "\n", flags=re.MULTILINE
    ).strip()

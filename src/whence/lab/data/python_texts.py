"""Text that comes with every Python: the language reference, and the standard library with its docstrings.

It differs between versions, so a task records a hash of it. The name of a topic or file decides whether it belongs to
training or to test.
"""

from __future__ import annotations

import ast
import importlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from whence.errors import usage_error
from whence.lab.data.corpora import is_held_out

#: larger files take long to parse, and the small ones suffice
MAX_FILE_SIZE = 30_000


@dataclass(frozen=True)
class Splits:
    """Texts by the name of their topic or file."""

    train: dict[str, str]
    test: dict[str, str]


def topics(subject: str) -> Splits:
    """The help topics of ``pydoc_data``, each paragraph once.

    Topics quote one another; some contain whole other topics. A paragraph of a test topic is therefore removed from all
    training topics, and a repeated paragraph of the same split is left out.
    """
    try:
        texts: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise usage_error(
            subject, "a Python without pydoc_data", "it reads the help topics", "install Python with its documentation"
        ) from None
    earlier: set[str] = set()  # paragraphs of the topics so far
    test = {name: _drop_repeated(texts[name], earlier) for name in sorted(texts) if is_held_out(name)}
    train = {name: _drop_repeated(texts[name], earlier) for name in sorted(texts) if not is_held_out(name)}
    return Splits(train, test)


def paragraphs(text: str) -> Iterator[tuple[str, str]]:
    """The paragraphs of a text, each preceded by its normalized form, in which spaces and line breaks do not count.

    >>> list(paragraphs("One\\n  line.\\n\\n\\nTwo."))
    [('One line.', 'One\\n  line.'), ('Two.', 'Two.')]
    """
    for paragraph in text.split("\n\n"):
        bare = " ".join(paragraph.split())
        if bare:
            yield bare, paragraph.strip("\n")


def library(subject: str) -> tuple[Splits, Splits]:
    """The standard library's top-level modules as (code without docstrings, docstrings), by file."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in folder.glob("*.py") if path.stat().st_size <= MAX_FILE_SIZE)
    if not files:
        raise usage_error(
            subject,
            "a Python without the sources of its library",
            "it reads them",
            "install a Python that has its library as files, not zipped",
        )
    code, prose = Splits({}, {}), Splits({}, {})
    for path in files:
        bare, docstrings = _split_docstrings(path.read_text(encoding="utf-8", errors="replace"))
        name = path.name
        (code.test if is_held_out(name) else code.train)[name] = bare
        (prose.test if is_held_out(name) else prose.train)[name] = docstrings
    return code, prose


def _drop_repeated(text: str, earlier: set[str]) -> str:
    new_paragraphs = []
    for bare, paragraph in paragraphs(text):
        if bare not in earlier:
            earlier.add(bare)
            new_paragraphs.append(paragraph)
    return "\n\n".join(new_paragraphs) + "\n"


def _split_docstrings(source: str) -> tuple[str, str]:
    """Source text without its docstrings, and the docstrings.

    >>> _split_docstrings('def f():\\n    "Say so."\\n    return 1\\n')
    ('def f():\\n    return 1\\n', 'Say so.\\n')
    """
    lines = source.splitlines(keepends=True)
    docstrings = []
    docstring_lines: set[int] = set()
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop(0)
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        nodes.extend(node.body)
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            docstrings.append(ast.get_docstring(node) or "")
            docstring_lines.update(range(first.lineno - 1, first.end_lineno or first.lineno))
    return "".join(line for number, line in enumerate(lines) if number not in docstring_lines), "\n\n".join(
        docstrings
    ) + "\n"

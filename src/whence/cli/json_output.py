"""The option ``--json``: one JSON document on stdout, and nothing else there.

A document is an object. ``command`` names the command that printed it, ``version`` the version of whence; the other keys
belong to the command. Tables, messages and progress go to stderr. A command that ends with a usage error prints no document.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from whence import __version__

#: the type of the parameter ``as_json`` of a command
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, for scripts; all else goes to stderr.")
]


@contextmanager
def json_document(command: str, enabled: bool) -> Iterator[dict[str, Any]]:
    """Collect the results of a command in a dictionary, and print them at the end if ``enabled`` and there are any.

    Enter it with ``context.with_resource``, so that it ends with the command, also if that exits with a code.
    """
    results: dict[str, Any] = {}
    if not enabled:
        yield results
        return
    try:
        with redirect_stdout(sys.stderr):
            yield results
    except typer.Exit:  # a command that ran and has something to report, such as a failed run
        print_json(command, results)
        raise
    if results:
        print_json(command, results)


def print_json(command: str, results: Mapping[str, Any]) -> None:
    """Print the document of a command."""
    print(json.dumps({"command": command, "version": __version__, **to_json(results)}, indent=2, allow_nan=False))


def to_json(value: Any) -> Any:
    """A value in the types of JSON: paths become strings, tuples lists, and numbers that are not finite null.

    >>> to_json({"folder": Path("build"), "interval": (0.5, float("nan"))})
    {'folder': 'build', 'interval': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(name): to_json(one) for name, one in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def select(findings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Some of the findings of a report, without those that only its page needs.

    >>> select({"title": "A", "environment": {}}, "title")
    {'title': 'A'}
    """
    return {name: findings[name] for name in names if name in findings}

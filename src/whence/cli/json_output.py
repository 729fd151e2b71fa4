"""The output of ``--json``: one JSON document on stdout, and nothing else there.

A document is an object. ``command`` names the command that printed it, ``version`` the version of whence; the other keys
belong to the command. Messages and progress go to stderr.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whence import __version__


def print_json(command: str, values: Mapping[str, Any]) -> None:
    """Print the document of a command."""
    import json

    print(json.dumps({"command": command, "version": __version__, **to_json(values)}, indent=2, allow_nan=False))


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

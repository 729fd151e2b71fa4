"""The command line: one file for each command. Heavy packages are imported when a command runs."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point ``whence``. Without the extra it prints which one is missing."""
    try:
        from whence.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        from whence.errors import missing_extra

        print(missing_extra("the command whence", "cli", str(error.name)), file=sys.stderr)
        sys.exit(2)
    run()

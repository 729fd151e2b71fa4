"""A command in a process of its own, for ``whence.compare``: the document alone on its output, also of an error."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from whence.cli.app import run


def main() -> None:
    """Run the command of the arguments after the first one, until it ends or standard input is closed."""
    sys.argv = ["whence", *sys.argv[2:]]
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries write to the output is no part of the document
    threading.Thread(target=stop_with_parent, daemon=True).start()
    run(on_error=print_error)


def stop_with_parent() -> None:
    """End with a checkpoint when the other process closes its pipe or ends."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def print_error(text: str) -> None:
    print(json.dumps({"error": text}))

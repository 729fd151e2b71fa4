"""Run the Python blocks of the tutorials and write what they print below them.

python tools/tutorials.py           # write the outputs
python tools/tutorials.py --check   # fail if an output is out of date

A block ``text`` that directly follows a block ``python`` is its output. Tests compare words and integers exactly and numbers
with a decimal point up to a tolerance, because training differs in the last digits from machine to machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
TOLERANCE = 0.25  # of a number, relative; training differs from machine to machine


def run_blocks(text: str, name: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each Python block of a page with what it prints. The blocks share their names."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "tutorial"}
    for match in BLOCK.finditer(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match["code"], name, "exec"), names)
        yield match, "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def render(text: str, name: str) -> str:
    """A page with the outputs of its blocks replaced."""
    result, end = [], 0
    for match, printed in run_blocks(text, name):
        output = f"\n```text\n{printed}```\n" if printed else ""
        result += [text[end : match.start()], f"```python\n{match['code']}```\n{output}"]
        end = match.end()
    return "".join(result) + text[end:]


def same_output(printed: str, shown: str) -> bool:
    """Whether two outputs have the same words and integers, and decimal numbers that agree up to the tolerance.

    >>> same_output("loss 2.31 at step 40", "loss 2.35 at step 40"), same_output("loss 2.31", "loss 9.31")
    (True, False)
    >>> same_output("22 checks", "24 checks")
    False
    >>> same_output("worse 1.0", "better 1.0")
    False
    """
    if NUMBER.sub("#", printed).split() != NUMBER.sub("#", shown).split():
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(
        a == b or ("." in a + b and math.isclose(float(a), float(b), rel_tol=TOLERANCE, abs_tol=0.02)) for a, b in pairs
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="Write nothing; fail if an output is out of date.")
    parser.add_argument("pages", nargs="*", type=Path, help="Pages. Default: all tutorials.")
    options = parser.parse_args()
    for page in options.pages or TUTORIALS:
        page = page.resolve()
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            new = render(text, page.name)
        if options.check and not same_output(new, text):
            sys.exit(f"{os.path.relpath(page)} is out of date; run: python tools/tutorials.py")
        if not options.check:
            page.write_text(new)


if __name__ == "__main__":
    main()

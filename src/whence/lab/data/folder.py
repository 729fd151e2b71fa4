"""The data folder: files of others that are never part of the project, found through one environment variable.

A file that is not there is an error before any work: what is missing, where it was looked for, what to run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from whence.errors import usage_error

VARIABLE = "WHENCE_DATA"

#: how each data set gets into the folder
ORIGINS = {
    "speeches": "run: python -m whence.lab.data.downloads speeches",
    "nltk_data": f"run: python -m nltk.downloader -d ${VARIABLE}/nltk_data punkt_tab",
    "wikitext2": "run: python -m whence.lab.data.downloads wikitext2",
    "wikitext103": "run: python -m whence.lab.data.downloads wikitext103",
    "sst2": "run: python -m whence.lab.data.downloads sst2",
    "lost_in_the_middle": "put kv-retrieval-75_keys.jsonl.gz and nq-open-oracle.jsonl.gz, as published with arXiv "
    "2307.03172, into its folder lost_in_the_middle",
    "geolife": "run: python -m whence.lab.data.downloads geolife",
    "foursquare": "run: python -m whence.lab.data.downloads foursquare",
    "books": "put train.txt.xz, valid.txt.xz and test.txt.xz into its folder books",
}


def data_folder(asked: str, fill: str = "fill it") -> Path:
    """The folder that WHENCE_DATA names; ``asked`` says in the error who wanted it, and ``fill`` what it needs next."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise usage_error(
            asked,
            f"no {VARIABLE}",
            "real data is read from the folder which that environment variable names",
            f"set {VARIABLE} to a folder and {fill}",
        )
    return Path(named).expanduser()


def data_file(asked: str, data_set: str, path: str, otherwise: str | None = None) -> Path:
    """A file of a data set, or an error that says how it is had; ``otherwise`` adds a second way out."""
    folder = data_folder(asked, ORIGINS[data_set])
    if (folder / path).is_file():
        return folder / path
    mend = ORIGINS[data_set] + (f", or {otherwise}" if otherwise else "")
    raise usage_error(asked, f"no {path} in {folder}", f"{VARIABLE} names the folder that holds it", mend)


def content_hash(parts: Iterable[str | bytes]) -> str:
    """A short hash of what a task was built from: two records with the same one saw the same data.

    The length goes in before each part, so that moving text from one part to the next changes the hash.

    >>> content_hash(["ab", "c"]) == content_hash(["a", "bc"])
    False
    """
    total = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode()
        total.update(len(raw).to_bytes(8, "little") + raw)
    return total.hexdigest()[:16]


def held_out(name: str, percent: int = 20) -> bool:
    """Whether a file or a topic belongs to the test part: decided by its name alone, so the same on every machine.

    >>> [name for name in ("abc.py", "ast.py", "bisect.py", "cmd.py", "code.py") if held_out(name, 40)]
    ['bisect.py', 'cmd.py', 'code.py']
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") % 100 < percent

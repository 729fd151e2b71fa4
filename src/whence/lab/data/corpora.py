"""Data that is not part of the package: the folder named by WHENCE_DATA, its data sets, and content hashes.

A missing file is an error before any work starts. The error names the file, the folder and the command that fetches it.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from whence.errors import usage_error

VARIABLE = "WHENCE_DATA"
#: the first line of a book begins so
BOOK_START = "# Title: "

#: how to get each data set into the folder
ORIGINS = {
    "wikitext2": "run: python -m whence.lab.data.downloads wikitext2",
    "wikitext103": "run: python -m whence.lab.data.downloads wikitext103",
    "sst2": "run: python -m whence.lab.data.downloads sst2",
    "multi30k": "run: python -m whence.lab.data.downloads multi30k",
    "wmt14": "run: python -m whence.lab.data.downloads wmt14",
    "squad": "put train-v2.0.json and dev-v2.0.json, as published with arXiv 1806.03822, into its folder squad",
    "glue": "put train.tsv and dev.tsv of the task, as published with arXiv 1804.07461, into its folder, such as glue/SST-2; for "
    "SST-2 run: python -m whence.lab.data.downloads sst2",
    "qmsum": "put train.jsonl, val.jsonl and test.jsonl, as published with arXiv 2104.05938, into its folder qmsum",
    "arxiv": "put train.txt, val.txt and test.txt, as published with arXiv 1804.05685, into its folder arxiv",
    "lost_in_the_middle": "put kv-retrieval-75_keys.jsonl.gz and nq-open-oracle.jsonl.gz, as published with arXiv "
    "2307.03172, into its folder lost_in_the_middle",
    "books": "run: python -m whence.lab.data.downloads books",
}


def data_folder(subject: str, fill: str = "fill it", may_be_new: bool = False) -> Path:
    """The folder that WHENCE_DATA names, which exists unless ``may_be_new``.

    ``subject`` begins the error; ``fill`` says how to get the data.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        raise usage_error(
            subject,
            f"no {VARIABLE}",
            "data files are read from the folder in that environment variable",
            f"set {VARIABLE} to a folder and {fill}",
        )
    folder = Path(named).expanduser()
    if not folder.is_dir() and not may_be_new:
        got = f"{VARIABLE}={named}"
        raise usage_error(
            subject, got, "there is no such folder", f"correct {VARIABLE}, or create the folder and {fill}"
        )
    return folder


def data_file(subject: str, origin: str, path: str, otherwise: str | None = None) -> Path:
    """A file in the data folder, or an error that says how to get it.

    Args:
        subject: begins the error.
        origin: how to get the file, such as a text of ``ORIGINS``.
        path: its path in the data folder.
        otherwise: an alternative to the file.
    """
    folder = data_folder(subject, origin)
    if (folder / path).is_file():
        return folder / path
    remedy = origin + (f", or {otherwise}" if otherwise else "")
    raise usage_error(subject, f"no {path} in {folder}", f"{VARIABLE} must name the folder that contains it", remedy)


def content_hash(parts: Iterable[str | bytes]) -> str:
    """A short hash of a task's data: two records with the same hash used the same data.

    The length of each part is hashed before it, so that moving text from one part to the next changes the hash.

    >>> content_hash(["ab", "c"]) == content_hash(["a", "bc"])
    False
    """
    total = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode()
        total.update(len(raw).to_bytes(8, "little") + raw)
    return total.hexdigest()[:16]


def is_held_out(name: str, percent: int = 20) -> bool:
    """Whether a file or a topic belongs to the test split. Its name alone decides, so every machine agrees.

    >>> [name for name in ("abc.py", "ast.py", "bisect.py", "cmd.py", "code.py") if is_held_out(name, 40)]
    ['bisect.py', 'cmd.py', 'code.py']
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") % 100 < percent


def wikitext(subject: str, size: int, part: str) -> str:
    """A split of WikiText-2 or WikiText-103, as published: words separated by spaces, rare ones replaced by <unk>."""
    name = f"wikitext{size}"
    otherwise = f'load("{name}", train_part="valid")' if part == "train" else None
    return data_file(subject, ORIGINS[name], f"{name}/{part}.txt", otherwise).read_text(encoding="utf-8")


def books(subject: str, part: str, characters: int | None = None) -> str:
    """The first ``characters`` of a split of the books; only these are decompressed."""
    path = data_file(subject, ORIGINS["books"], f"books/{part}.txt.xz")
    try:
        with lzma.open(path, "rt", encoding="utf-8") as stream:
            return stream.read() if characters is None else stream.read(characters)
    except (lzma.LZMAError, EOFError):
        raise usage_error(
            subject, f"a damaged {path.name}", "it must be a complete xz file", "download it again"
        ) from None


def parallel_text(
    subject: str, name: str, stem: str, languages: tuple[str, str], count: int = 0
) -> list[tuple[str, str]]:
    """The first ``count`` sentence pairs of a part of a data set, or all for 0; two files with one sentence on each line."""
    sides = []
    for language in languages:
        path = data_file(subject, ORIGINS[name], f"{name}/{stem}.{language}.gz")
        try:
            with gzip.open(
                path, "rt", encoding="utf-8", newline="\n"
            ) as stream:  # other line breaks are part of a sentence
                sides.append([line.strip() for line in islice(stream, count or None)])
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise usage_error(
                subject, f"a damaged {path.name}", "it must be a complete gzip file", "download it again"
            ) from None
    if len(sides[0]) != len(sides[1]):
        got = (
            f"{len(sides[0]):,} sentences in {stem}.{languages[0]}.gz and {len(sides[1]):,} in {stem}.{languages[1]}.gz"
        )
        raise usage_error(
            subject, got, "line n of one is the translation of line n of the other", "download both again"
        )
    return [(first, second) for first, second in zip(*sides, strict=True) if first and second]


def sentiment(subject: str, name: str) -> tuple[list[str], list[int]]:
    """Sentences and labels (0 negative, 1 positive) of a file with a header line."""
    lines = data_file(subject, ORIGINS["sst2"], f"glue/SST-2/{name}").read_text(encoding="utf-8").split("\n")
    texts, labels = [], []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        text, tab, label = line.rpartition("\t")
        if not tab or label.strip() not in ("0", "1"):
            raise usage_error(
                subject,
                f"line {number} of {name} ending with {line[-12:]!r}",
                "each line has a sentence, a tab and a label 0 or 1",
                "download the file again",
            )
        texts.append(text.strip())
        labels.append(int(label))
    return texts, labels

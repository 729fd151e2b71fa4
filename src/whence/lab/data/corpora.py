"""Readers of the larger text sets: WikiText, books and the sentiment treebank."""

from __future__ import annotations

import lzma

from whence.errors import usage_error
from whence.lab.data.folder import data_file

WIKITEXT_PARTS = ("train", "valid", "test")


def wikitext(asked: str, size: int, part: str) -> str:
    """A part of WikiText-2 or WikiText-103, as published: words apart by spaces, rare ones written <unk>."""
    name = f"wikitext{size}"
    otherwise = f'load("{name}", train_part="valid")' if part == "train" else None
    return data_file(asked, name, f"{name}/{part}.txt", otherwise).read_text(encoding="utf-8")


def books(asked: str, part: str, characters: int | None = None) -> str:
    """The beginning of a part of the books; only as much as is asked for is unpacked."""
    path = data_file(asked, "books", f"books/{part}.txt.xz")
    try:
        with lzma.open(path, "rt", encoding="utf-8") as stream:
            return stream.read() if characters is None else stream.read(characters)
    except (lzma.LZMAError, EOFError):
        raise usage_error(asked, f"a broken {path.name}", "it is a whole xz file", "fetch it again") from None


def sentiment(asked: str, name: str) -> tuple[list[str], list[int]]:
    """Sentences and labels (0 negative, 1 positive) of a file with a header line."""
    lines = data_file(asked, "sst2", f"glue/SST-2/{name}").read_text(encoding="utf-8").split("\n")
    texts, labels = [], []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        text, tab, label = line.rpartition("\t")
        if not tab or label.strip() not in ("0", "1"):
            raise usage_error(
                asked,
                f"line {number} of {name} ending with {line[-12:]!r}",
                "a line is a sentence, a tab and a label 0 or 1",
                "fetch the file again",
            )
        texts.append(text.strip())
        labels.append(int(label))
    return texts, labels

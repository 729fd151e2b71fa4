"""Running text from a file, a folder of files or a column of a table, in training, validation and test parts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab.data.rows import NOT_UTF8, SPLIT_NAMES, BadRow, split_value
from whence.lab.data.splits import SHARES, normalize_text
from whence.lab.data.tables import (
    FORMATS,
    SPLIT,
    SUFFIXES,
    TEXT_SUFFIXES,
    UNSUPPORTED,
    Table,
    decode_text,
    plain_suffix,
)

#: with fewer files than this, the end of every file is held out instead of whole files
MIN_FILES = 10
#: a table with fewer rows has no test part: a tenth of the rows, rounded down
MIN_ROWS = 10


@dataclass
class Corpus:
    """The text of each part, how the parts were chosen, and what was left out."""

    parts: dict[str, str]
    how: str
    units: int  # lines that can be used
    bad: list[BadRow] = field(default_factory=list)
    files: int = 1
    ignored: list[str] = field(default_factory=list)  # files of a folder that are not text
    notes: list[str] = field(default_factory=list)  # sentences about what was not read


def read_corpus(path: Path, seed: int) -> Corpus:
    """The text of a file or a folder."""
    if not path.exists():
        raise usage_error("--data", f"no file {path}", "it must name a text file or a folder of them", "check the path")
    if path.is_file():
        text, bad, lines = _read_text(path, "")
        parts = dict(zip(("train", "validation", "test"), _cut(text), strict=True))
        return Corpus(
            parts, "the last tenth of the text is the test part, the tenth before it the validation part", lines, bad
        )
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    chosen = [file for file in files if plain_suffix(file) in TEXT_SUFFIXES]
    if not chosen:
        got = f"{path} without a text or a table"
        rule = f"a folder has files that end in {', '.join((*TEXT_SUFFIXES, *SUFFIXES))}"
        raise usage_error("--data", got, rule, "rename the files; a folder of a Hugging Face dataset is hf:FOLDER")
    texts: dict[str, str] = {}
    all_bad: list[BadRow] = []
    total = 0
    for file in chosen:
        name = file.relative_to(path).as_posix()
        texts[name], bad, lines = _read_text(file, name)
        all_bad += bad
        total += lines
    parts, how = _split_files(texts, seed)
    ignored = [file.relative_to(path).as_posix() for file in files if file not in set(chosen)]
    return Corpus({part: "\n".join(own) for part, own in parts.items()}, how, total, all_bad, len(chosen), ignored)


def corpus_of_table(table: Table, column: str, split_column: str = "") -> Corpus:
    """The texts of a column, one below the other. The rows keep their order; empty texts are blank lines.

    ``split_column`` names the part of each row; without it the parts are those of the files, or cut from the end.
    """
    if column == split_column:
        got, rule = f"the column {column!r} for two of them", "text and split are different columns"
        raise usage_error("--data", got, rule, "name another column")
    splits = split_column or (SPLIT if table.has_splits else "")
    texts: list[tuple[str, str]] = []
    bad = list(table.bad)
    for row in table.rows:
        value, part = row.values.get(column), split_value(row, splits) if splits else "train"
        if not isinstance(value, str):
            bad.append(row.bad("no text"))
        elif isinstance(part, BadRow):
            bad.append(part)
        else:
            texts.append((part, value.rstrip("\n") + "\n"))
    if splits:
        parts = {part: "".join(text for own, text in texts if own == part) for part in ("train", "validation", "test")}
        if not parts["test"]:
            parts["test"] = parts.pop("validation")
        named = {part: text for part, text in parts.items() if text}
        how = f"the parts that the {f'column {splits!r} names' if split_column else 'data name'}"
        return Corpus(named, how, len(texts), bad, notes=table.notes)
    pieces = _cut([text for _, text in texts])
    how = "the last tenth of the rows is the test part, the tenth before it the validation part"
    cut = {part: "".join(own) for part, own in zip(("train", "validation", "test"), pieces, strict=True) if own}
    return Corpus(cut, how, len(texts), bad, notes=[*table.notes, *table.notice_split_columns()])


def is_table(path: Path) -> bool:
    """Whether a path has the name of a table. A format that is neither a table nor text is an error."""
    if plain_suffix(path) in UNSUPPORTED:
        raise usage_error("--data", path.name, f"formats are {FORMATS}", UNSUPPORTED[plain_suffix(path)])
    return plain_suffix(path) in SUFFIXES


def _read_text(path: Path, name: str) -> tuple[str, list[BadRow], int]:
    """The text without its lines that are not UTF-8, those lines, and the number of the others."""
    text = decode_text(path).replace("\r\n", "\n")
    if not text.strip():
        return "", [BadRow(1, "empty file", name)], 0
    if text.isascii() or not any("\udc80" <= c <= "\udcff" for c in text):
        return text, [], text.count("\n") + 1
    lines = text.split("\n")
    wrong = [number for number, line in enumerate(lines, start=1) if any("\udc80" <= c <= "\udcff" for c in line)]
    left_out = set(wrong)
    rest = "\n".join(line for number, line in enumerate(lines, start=1) if number not in left_out)
    return rest, [BadRow(number, NOT_UTF8, name) for number in wrong], len(lines) - len(wrong)


def _cut(text: Any) -> tuple[Any, Any, Any]:
    """The first eight tenths, the next and the last tenth of a text or a list."""
    test = len(text) - len(text) // 10
    validation = test - len(text) // 10
    return text[:validation], text[validation:test], text[test:]


def _split_files(texts: dict[str, str], seed: int) -> tuple[dict[str, list[str]], str]:
    """The texts of each part: by file name, by whole files, or from the end of every file."""
    named = {name: SPLIT_NAMES.get(_first_word(name)) for name in texts}
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    if all(named.values()) and {"train", "test"} <= set(named.values()):
        for name, split in named.items():
            parts[str(split)].append(texts[name])
        return {part: own for part, own in parts.items() if own}, "the parts that the file names say"
    if len(texts) >= MIN_FILES:
        waiting = sorted(texts)
        random.Random(seed).shuffle(waiting)
        total = sum(map(len, texts.values()))
        for part, share in SHARES.items():
            while sum(map(len, parts[part])) < share * total and len(waiting) > 1:
                parts[part].append(texts[waiting.pop()])
        parts["train"] = [texts[name] for name in sorted(waiting)]
        return parts, f"whole files, about a tenth of the text for test and for validation, by seed {seed}"
    for name in sorted(texts):
        for part, piece in zip(("train", "validation", "test"), _cut(texts[name]), strict=True):
            parts[part].append(piece)
    return parts, "the last tenth of every file is in the test part, the tenth before it in the validation part"


def _first_word(name: str) -> str:
    words = "".join(c if c.isalnum() else " " for c in Path(name).name.lower()).split()
    return words[0] if words else ""


def describe_repeated_lines(parts: dict[str, str], shortest: int = 40) -> dict[str, float]:
    """The share of long lines of each held-out part that also occur in training, in normalised form."""
    train = {normalize_text(line) for line in parts["train"].split("\n") if len(line) >= shortest}
    shares = {}
    for part, text in parts.items():
        lines = [normalize_text(line) for line in text.split("\n") if len(line) >= shortest]
        if part != "train" and lines:
            shares[part] = sum(line in train for line in lines) / len(lines)
    return shares

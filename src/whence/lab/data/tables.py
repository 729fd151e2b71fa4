"""Rows of a user's table: CSV, TSV, JSON Lines or Parquet. Every row that cannot be used is named by its line.

CSV follows RFC 4180: quotes may contain commas and line breaks. TSV has no quotes. Blank lines are not rows. The text formats
may be compressed (``.gz``, ``.xz``). Columns are named by the header line, or by numbers from 1 on if the file has no header
line. A folder with ``train``, ``test`` and optionally ``validation`` tables is one table; the file names give the split.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import lzma
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, require_package, usage_error

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet", ".pq")
COMPRESSED = (".gz", ".xz")
SUFFIXES = (*DELIMITERS, *JSON_LINES, *PARQUET)
#: names of the splits in a split column, in file names and in Hugging Face datasets
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation", "development": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
#: number of bad rows that an error and a record name
NAMED_ROWS = 5
SPLIT = "split"  # the column that a folder or a Hugging Face dataset adds


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used, and why."""

    line: int
    reason: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file + ' ' if self.file else ''}line {self.line}: {self.reason}"


@dataclass(frozen=True)
class Row:
    """The values of a row. ``line`` is its first line in the file, or its number in a Parquet file or a dataset."""

    line: int
    values: Mapping[str, Any]
    file: str = ""

    def bad(self, reason: str) -> BadRow:
        return BadRow(self.line, reason, self.file)


@dataclass
class Table:
    """The rows of a file, with those that have the wrong structure."""

    name: str
    columns: list[str]
    rows: list[Row] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    has_splits: bool = False  # whether the column ``SPLIT`` was added

    def require_columns(self, columns: Mapping[str, str | None]) -> None:
        """Reject an option whose column does not exist."""
        for option, column in columns.items():
            if column is not None and column not in self.columns:
                raise usage_error(
                    option,
                    repr(column),
                    f"the columns of {self.name} are {', '.join(self.columns)}",
                    "name one of them",
                )


def plain_suffix(path: Path) -> str:
    """The suffix of a file without that of its compression, in lower case.

    >>> plain_suffix(Path("reviews.CSV.gz")), plain_suffix(Path("book.txt"))
    ('.csv', '.txt')
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed."""
    try:
        raw = path.read_bytes()
        if path.suffix.lower() == ".gz":
            return gzip.decompress(raw)
        return lzma.decompress(raw) if path.suffix.lower() == ".xz" else raw
    except FileNotFoundError:
        raise usage_error("--data", f"no file {path}", "it must name a file", "check the path") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError):
        raise usage_error(
            "--data", f"{path}, which is damaged", "it must be a complete file", "compress it again"
        ) from None
    except OSError as error:
        got = f"{path}, which cannot be read ({error.strerror})"
        raise usage_error("--data", got, "it must be a readable file", "correct its permissions") from None


def table_files(path: Path) -> dict[str, Path]:
    """The tables of a folder by split, from file names that start with a name of a split; empty if there is no such file.

    ``train_full.tsv`` and ``dev.tsv`` are the splits train and validation.
    """
    found: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        word = "".join(c if c.isalnum() else " " for c in file.name.lower()).split()
        split = SPLIT_NAMES.get(word[0]) if word else None
        if split is None or plain_suffix(file) not in SUFFIXES:
            continue
        if split in found:
            got = f"{found[split].name} and {file.name} in {path}"
            raise usage_error(
                "--data", got, f"a folder has one table of the split {split}", "remove or rename one of them"
            )
        found[split] = file
    return found


def read_table(path: Path, columns: Sequence[str | None]) -> Table:
    """All rows of a file or a folder. ``columns`` are those that will be used; numbers mean a file without a header line."""
    if path.is_dir():
        return _read_folder(path, columns)
    suffix = plain_suffix(path)
    if suffix in PARQUET:
        return _read_parquet(path)
    text = read_bytes(path).decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")
    if suffix in JSON_LINES:
        return _read_json_lines(path, text)
    used = [column for column in columns if column is not None]
    return _read_delimited(path, text, DELIMITERS[suffix], bool(used) and all(column.isdecimal() for column in used))


def _read_folder(path: Path, columns: Sequence[str | None]) -> Table:
    tables = {split: read_table(file, columns) for split, file in table_files(path).items()}
    shared = [
        column for column in next(iter(tables.values())).columns if all(column in t.columns for t in tables.values())
    ]
    merged = Table(path.name, [*shared, *([] if SPLIT in shared else [SPLIT])], has_splits=True)
    for split, table in tables.items():
        merged.rows += [Row(row.line, {**row.values, SPLIT: split}, table.name) for row in table.rows]
        merged.bad += [BadRow(row.line, row.reason, table.name) for row in table.bad]
    return merged


def _read_delimited(path: Path, text: str, delimiter: str, numbered: bool) -> Table:
    quoting: Any = {"quoting": csv.QUOTE_NONE} if delimiter == "\t" else {"strict": True}
    limit = csv.field_size_limit(max(len(text) + 1, 1))  # of the whole process; the default refuses long texts
    try:
        # newline="" keeps line breaks inside quotes as they are
        parsed = list(_parse_lines(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, **quoting)))
    finally:
        csv.field_size_limit(limit)
    if not parsed or isinstance(parsed[0][1], str):
        got = f"{path.name}, which is empty" if not parsed else f"{path.name} line 1: {parsed[0][1]}"
        raise usage_error("--data", got, "the first line names the columns", "correct the file")
    first = parsed[0][1]
    names = [str(number + 1) for number in range(len(first))] if numbered else [name.strip() for name in first]
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        got = f"{path.name} with the column {doubled[0]!r} twice"
        raise usage_error("--data", got, "columns have different names", "rename one of them")
    table = Table(path.name, names)
    for line, fields in parsed if numbered else parsed[1:]:
        if isinstance(fields, str):
            table.bad.append(BadRow(line, fields))
        elif len(fields) != len(names):
            table.bad.append(BadRow(line, f"{len(fields)} fields instead of {len(names)}"))
        elif any(map(_has_invalid_utf8, fields)):
            table.bad.append(BadRow(line, "not UTF-8"))
        else:
            table.rows.append(Row(line, dict(zip(names, fields, strict=True))))
    return table


def _parse_lines(reader: Any) -> Iterator[tuple[int, list[str] | str]]:
    """The first line of each row, and its fields or what is wrong with it."""
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            unclosed = "unexpected end" in str(error)
            yield line, "a quote that is never closed" if unclosed else f"malformed CSV ({error})"
            continue
        if fields:  # a blank line is no row
            yield line, fields


def _read_json_lines(path: Path, text: str) -> Table:
    table, columns = Table(path.name, []), dict[str, None]()
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        if _has_invalid_utf8(content):
            table.bad.append(BadRow(line, "not UTF-8"))
            continue
        try:
            values = json.loads(content)
        except (json.JSONDecodeError, RecursionError):
            table.bad.append(BadRow(line, "not JSON"))
            continue
        if not isinstance(values, dict):
            table.bad.append(BadRow(line, f"a JSON {type(values).__name__} instead of an object"))
            continue
        columns |= dict.fromkeys(values)
        table.rows.append(Row(line, values))
    table.columns = list(columns)
    return table


def _read_parquet(path: Path) -> Table:
    parquet = require_package("pyarrow.parquet", f"reading {path.name}", "data")
    if not path.is_file():
        raise usage_error("--data", f"no file {path}", "it must name a file", "check the path")
    try:
        content = parquet.read_table(path)
    except Exception as error:  # pyarrow has many classes of errors
        got = f"{path.name}, which cannot be read ({type(error).__name__})"
        raise usage_error("--data", got, "it must be a complete Parquet file", "write it again") from error
    rows = [Row(number, values) for number, values in enumerate(content.to_pylist(), start=1)]
    return Table(path.name, list(content.column_names), rows)


def _has_invalid_utf8(text: str) -> bool:
    """Whether a text contains bytes that are not UTF-8, or lone surrogates from a JSON escape."""
    return any("\ud800" <= c <= "\udfff" for c in text)


def text_value(row: Row, column: str, what: str) -> str | BadRow:
    """A text of a row, or what is wrong with it. Numbers and truth values count as text."""
    value = row.values.get(column)
    if value is None:
        return row.bad(f"no {what}")
    if isinstance(value, bool | int | float):
        value = str(value)
    if not isinstance(value, str):
        return row.bad(f"{what} is a {type(value).__name__}, not a text")
    if not value.strip():
        return row.bad(f"empty {what}")
    if _has_invalid_utf8(value):
        return row.bad(f"{what} is not UTF-8")
    return value


def split_value(row: Row, column: str) -> str | BadRow:
    """The split of a row: train, validation or test, from any usual name of it."""
    text = text_value(row, column, "split")
    if isinstance(text, BadRow):
        return text
    split = SPLIT_NAMES.get(text.strip().lower())
    return row.bad(f"split {text.strip()!r} instead of train, validation or test") if split is None else split


def report_bad_rows(name: str, bad: Iterable[BadRow], good: int, skip: bool, rule: str) -> dict[str, Any]:
    """Raise if there are bad rows, unless they are to be skipped; return what a record says about them."""
    listed = sorted(bad, key=lambda row: (row.file, row.line))
    if listed and not skip:
        raise bad_rows_error(name, listed, good, rule)
    reasons = Counter(row.reason for row in listed)
    return {
        "count": len(listed),
        "reasons": dict(reasons.most_common(2 * NAMED_ROWS)),
        "first": [str(row) for row in listed[:NAMED_ROWS]],
    }


def bad_rows_error(name: str, bad: Sequence[BadRow], good: int, rule: str) -> WhenceError:
    """The error that names the first bad rows and their number."""
    first = "; ".join(str(row) for row in bad[:NAMED_ROWS])
    more = f"; {len(bad) - NAMED_ROWS} more" if len(bad) > NAMED_ROWS else ""
    got = f"{len(bad)} bad row{'' if len(bad) == 1 else 's'} of {len(bad) + good} in {name} ({first}{more})"
    return usage_error("--data", got, rule, "correct the file, or add --skip-bad-rows to leave them out")


def hash_data(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of the files of a folder."""
    total = hashlib.sha256()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        digest = hashlib.sha256(file.read_bytes())
        if not path.is_dir():
            return digest.hexdigest()
        total.update(f"{file.relative_to(path).as_posix()}\0{digest.hexdigest()}\n".encode())
    return total.hexdigest()

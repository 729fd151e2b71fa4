"""Tables of a user: CSV, TSV, JSON Lines or Parquet. Every row that cannot be used is named by its line.

CSV follows RFC 4180: quotes may contain commas and line breaks. TSV has no quotes. Blank lines are not rows. The text formats
may be compressed (``.gz``, ``.xz``). Columns are named by the header line, or by numbers from 1 on if the file has no header
line. A folder of tables is one table. Names such as ``train.csv`` and ``test.csv`` give the splits.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whence.errors import require_package, usage_error
from whence.lab.data.rows import NOT_UTF8, SPLIT_NAMES, BadRow, Row, bad_rows_error, has_invalid_utf8
from whence.plugins import did_you_mean

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet", ".pq")
COMPRESSED = (".gz", ".xz")
SUFFIXES = (*DELIMITERS, *JSON_LINES, *PARQUET)
FORMATS = "tables (.csv, .tsv, .jsonl, .parquet) and text (.txt)"
#: formats that are neither, with what to do
UNSUPPORTED = {
    ".json": "write one object per line into a .jsonl file", ".xlsx": "export it as .csv", ".xls": "export it as .csv",
    ".ods": "export it as .csv", ".zip": "unpack it", ".tar": "unpack it", ".pdf": "extract its text",
    ".docx": "save it as text", ".doc": "save it as text",
}  # fmt: skip
#: files that are read as text
TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex")
#: the number of a file among those of one split, as Hugging Face writes it
_SHARD = re.compile(r"-\d+-of-\d+")
SPLIT = "split"  # the column that a folder or a Hugging Face dataset adds
SPLIT_COLUMNS = ("split", "part", "fold", "partition")  # usual names of a column of splits


@dataclass
class Table:
    """The rows of a file, with those that have the wrong structure."""

    name: str
    columns: list[str]
    rows: list[Row] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    has_splits: bool = False  # whether the column ``SPLIT`` was added
    notes: list[str] = field(default_factory=list)  # sentences about what was not read

    def require_columns(self, columns: Mapping[str, str | None]) -> None:
        """Reject an option whose column does not exist."""
        for option, column in columns.items():
            if column is None or column in self.columns:
                continue
            if not self.columns and self.bad:
                raise bad_rows_error(self.name, self.bad, 0, "a table has rows with columns")
            if not self.columns:
                raise usage_error("--data", f"{self.name}, which is empty", "a table has rows", "check the path")
            raise usage_error(
                option,
                repr(column),
                f"the columns of {self.name} are {_list_columns(self.columns)}",
                self._column_remedy(column),
            )

    def notice_split_columns(self) -> list[str]:
        """A note about a column that seems to name the parts and is not used."""
        return [
            f"The column {column!r} is not used; --split-column {column} would take the parts from it."
            for column in self.columns
            if column.lower() in SPLIT_COLUMNS
            and any(str(row.values.get(column)).strip().lower() in SPLIT_NAMES for row in self.rows)
        ]

    def _column_remedy(self, column: str) -> str:
        (only, *more) = self.columns
        for name, separator in (("commas", ","), ("tabs", "\t"), ("semicolons", ";"), ("bars", "|")):
            if not more and separator in only:
                wanted = "a .tsv file" if separator == "\t" else "commas in a .csv file or tabs in a .tsv file"
                return f"the columns seem to be separated by {name}; use {wanted}"
        same = [one for one in self.columns if one.casefold() == column.casefold()]
        if same:
            return f"did you mean {same[0]}?"
        return did_you_mean(
            column, self.columns, "name one of them, or name columns by numbers from 1 if there is no header line"
        )


def _list_columns(columns: Sequence[str], most: int = 20, longest: int = 40) -> str:
    """
    >>> _list_columns(["text", "label"]), _list_columns(["a" * 50, *"bcd"], most=2)
    ('text, label', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…, b and 2 more')
    """
    listed = ", ".join(name if len(name) <= longest else f"{name[:longest]}…" for name in columns[:most])
    return listed if len(columns) <= most else f"{listed} and {len(columns) - most} more"


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


def decode_text(path: Path) -> str:
    """The text of a file. Bytes that are not UTF-8 become surrogates, so that the lines with them can be named."""
    content = read_bytes(path)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        remedy = f"convert it: iconv -f utf-16 -t utf-8 {path.name}"
        raise usage_error("--data", f"{path.name} in UTF-16", "data must be UTF-8", remedy)
    if b"\0" in content[:4096] and plain_suffix(path) not in SUFFIXES:
        raise usage_error("--data", f"{path.name}, which is a binary file", f"formats are {FORMATS}", "convert it")
    return content.decode("utf-8", errors="surrogateescape").removeprefix("\ufeff")


def table_files(path: Path) -> dict[str, list[Path]]:
    """The tables of a folder by split, from file names that start with a name of a split.

    ``train_full.tsv`` and ``dev.tsv`` are the splits train and validation. Files such as ``train-00000-of-00002.parquet`` are one
    split together. If no name starts with a split and the folder has no text files, all its tables are one, under the name "".
    """
    tables = [file for file in sorted(path.iterdir()) if file.is_file() and plain_suffix(file) in SUFFIXES]
    found: dict[str, list[Path]] = {}
    for file in tables:
        word = "".join(c if c.isalnum() else " " for c in file.name.lower()).split()
        split = SPLIT_NAMES.get(word[0]) if word else None
        if split is not None:
            found.setdefault(split, []).append(file)
    for split, files in found.items():
        if len({_SHARD.sub("", file.name) for file in files}) > 1:
            got = f"{files[0].name} and {files[1].name} in {path}"
            raise usage_error(
                "--data", got, f"a folder has one table of the split {split}", "remove or rename one of them"
            )
    texts = any(plain_suffix(file) in TEXT_SUFFIXES and file.stem.lower() != "readme" for file in path.iterdir())
    return found or ({"": tables} if tables and not texts else {})


def read_table(path: Path, columns: Sequence[str | None]) -> Table:
    """All rows of a file or a folder. ``columns`` are those that will be used; numbers mean a file without a header line."""
    if path.is_dir():
        return _read_folder(path, columns)
    suffix = plain_suffix(path)
    if suffix in PARQUET:
        return _read_parquet(path)
    text = decode_text(path)
    if suffix in JSON_LINES:
        return _read_json_lines(path, text)
    used = [column for column in columns if column is not None]
    return _read_delimited(path, text, DELIMITERS[suffix], bool(used) and all(column.isdecimal() for column in used))


def _read_folder(path: Path, columns: Sequence[str | None]) -> Table:
    files = table_files(path)
    tables = [(split, read_table(file, columns)) for split, own in files.items() for file in own]
    known = dict.fromkeys(column for _, table in tables for column in table.columns)
    for column in columns:
        lacking = [table.name for _, table in tables if column is not None and column not in table.columns]
        if column in known and lacking:
            got = f"{lacking[0]} without the column {column!r}"
            raise usage_error("--data", got, f"all tables of {path.name} need it", "add the column or remove the file")
    shared = [column for column in known if all(column in table.columns for _, table in tables)]
    has_splits = "" not in files
    merged = Table(path.name, shared, has_splits=has_splits)
    if has_splits and SPLIT not in shared:
        merged.columns.append(SPLIT)
    for split, table in tables:
        added = {SPLIT: split} if has_splits else {}
        merged.rows += [Row(row.line, {**row.values, **added}, table.name, row.unit) for row in table.rows]
        merged.bad += [BadRow(row.line, row.reason, table.name, row.unit) for row in table.bad]
    read = {file for own in files.values() for file in own}
    others = [file.name for file in sorted(path.iterdir()) if file not in read and not file.name.startswith(".")]
    if others:
        more = "" if len(others) <= 3 else f" and {len(others) - 3} more"
        merged.notes.append(f"Not read in the folder: {', '.join(others[:3])}{more}.")
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
        elif any(map(has_invalid_utf8, fields)):
            table.bad.append(BadRow(line, NOT_UTF8))
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
            for swallowed in range(line + 1, reader.line_num + 1):  # these may be rows of their own
                yield swallowed, f"inside the quote that line {line} opens"
            continue
        if fields:  # a blank line is no row
            yield line, fields


def _read_json_lines(path: Path, text: str) -> Table:
    table, columns = Table(path.name, []), dict[str, None]()
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        if has_invalid_utf8(content):
            table.bad.append(BadRow(line, NOT_UTF8))
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
    rows = [Row(number, values, unit="row") for number, values in enumerate(content.to_pylist(), start=1)]
    return Table(path.name, list(content.column_names), rows)


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

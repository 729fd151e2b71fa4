"""Rows of a user's table: their values, and every row that cannot be used by its line and reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whence.errors import WhenceError, usage_error

#: names of the splits in a split column, in file names and in Hugging Face datasets
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation", "development": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip
#: number of bad rows that an error and a record name
NAMED_ROWS = 5
NOT_UTF8 = "not UTF-8"


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used, and why."""

    line: int
    reason: str
    file: str = ""
    unit: str = "line"  # or "row", in a file without lines

    def __str__(self) -> str:
        return f"{self.file + ' ' if self.file else ''}{self.unit} {self.line}: {self.reason}"


@dataclass(frozen=True)
class Row:
    """The values of a row. ``line`` is its first line in the file, or its number in a Parquet file or a dataset."""

    line: int
    values: Mapping[str, Any]
    file: str = ""
    unit: str = "line"  # or "row"

    def bad(self, reason: str) -> BadRow:
        return BadRow(self.line, reason, self.file, self.unit)


def has_invalid_utf8(text: str) -> bool:
    """Whether a text contains bytes that are not UTF-8, or lone surrogates from a JSON escape."""
    return any("\ud800" <= c <= "\udfff" for c in text)


def text_value(row: Row, column: str, what: str) -> str | BadRow:
    """A text of a row, or what is wrong with it. Numbers and truth values count as text."""
    value = row.values.get(column)
    if value is None or (isinstance(value, float) and math.isnan(value)):  # NaN marks a missing value in pandas
        return row.bad(f"no {what}")
    if isinstance(value, bool | int | float):
        value = str(value)
    if not isinstance(value, str):
        return row.bad(f"{what} is a {type(value).__name__}, not a text")
    if not value.strip():
        return row.bad(f"empty {what}")
    if has_invalid_utf8(value):
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
    if all(row.reason == NOT_UTF8 for row in bad):
        rule = "data must be UTF-8"
        remedy = "convert the file, for example with iconv -f latin1 -t utf-8, or add --skip-bad-rows to leave them out"
        return usage_error("--data", got, rule, remedy)
    return usage_error("--data", got, rule, "correct the file, or add --skip-bad-rows to leave them out")

"""Visits: who was where, when and for how long. Read from CSV files in which every bad row is named with its line.

The columns are those of the published GeoLife stays: ``user_id``, ``location_id``, ``start_day`` (a count of days),
``start_min`` (minute of the day), ``weekday`` (0 is Monday) and, where it is known, ``duration`` in minutes. Instead of the
three columns of time there may be one, ``time``, such as 2024-05-17T08:30. Other columns are left alone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple

from whence.errors import usage_error

MINUTES_A_DAY = 24 * 60
FIRST_DATE = date(1900, 1, 1).toordinal()  # days from there on are dates: no count of days goes so far
LAST_DAY = date.max.toordinal()
NAMED = 5  # bad rows of which an error says what is wrong; of the others it names the lines


class Visit(NamedTuple):
    """One stay of one user."""

    user: str
    place: str
    day: int
    minute: int  # of the day
    weekday: int  # 0 is Monday
    duration: float | None = None  # minutes


def read_visits(path: Path, asked: str) -> list[Visit]:
    """All visits of a file, in time within each user. A file with a bad row is refused, and the row is named.

    ``asked`` says in the error who wanted it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets put a mark before the first name
    except FileNotFoundError:
        raise usage_error(asked, f"no file {path}", "it names a CSV file of visits", "check the path") from None
    except OSError as error:
        raise usage_error(
            asked, f"{path}: {error.strerror}", "it names a CSV file that can be read", "check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise usage_error(
            asked, f"{path.name}, which is no text at byte {error.start}", "a file of visits is UTF-8", "save it so"
        ) from None
    found: list[Visit] = []
    bad: dict[int, str] = {}  # by line
    rows = _rows(text, bad)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    timed = not bad and _require_columns(path, asked, header)
    for line, cells in rows:
        try:
            found.append(_visit(header, cells, timed))
        except ValueError as error:
            bad[line] = str(error)
    if bad:
        raise usage_error(
            asked, f"{path.name} with {_named(bad)}", "every row is one visit, and none is left out", "correct them"
        )
    if not found:
        raise usage_error(asked, f"{path.name} without a visit", "there is something to go on", "add visits")
    return in_time(found)


def _rows(text: str, bad: dict[int, str]) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV text, each with the line on which it begins; an empty line is no row.

    Behind what is no CSV, such as a quotation mark that is never closed, rows cannot be told apart: it is noted as bad.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            bad[line] = f"no CSV from here on: {error}"
            return
        if cells is None:
            return
        if cells:
            yield line, cells


def _named(bad: dict[int, str]) -> str:
    """Every bad row with its line, and of the first ones what is wrong.

    >>> _named({line: "no user_id" for line in (2, 3, 4, 5, 6, 8, 9, 12)})[-41:]
    'line 6 (no user_id); and lines 8 to 9, 12'
    """
    told = "; ".join(f"line {line} ({what})" for line, what in list(bad.items())[:NAMED])
    runs: list[list[int]] = []
    for line in list(bad)[NAMED:]:
        if runs and line == runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    others = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)
    return f"bad rows: {told}" + (f"; and {'lines' if len(bad) > NAMED + 1 else 'line'} {others}" if others else "")


def in_time(visits: Iterable[Visit]) -> list[Visit]:
    """Users in the order in which they first appear, each user's visits from first to last.

    >>> [v.place for v in in_time([Visit("b", "x", 1, 9, 0), Visit("a", "y", 0, 5, 0), Visit("b", "z", 0, 9, 0)])]
    ['z', 'x', 'y']
    """
    by_user: dict[str, list[Visit]] = {}
    for visit in visits:
        by_user.setdefault(visit.user, []).append(visit)
    return [v for own in by_user.values() for v in sorted(own, key=lambda v: (v.day, v.minute))]


def day_name(day: int) -> str:
    """A day for people: a count of days as it is, a date where days are dates.

    >>> day_name(12), day_name(739023)
    ('day 12', '2024-05-17')
    """
    return date.fromordinal(day).isoformat() if day >= FIRST_DATE else f"day {day}"


def day_of(text: str) -> int:
    """The day that a person means by a number or a date.

    >>> day_of("12"), day_of("2024-05-17")
    (12, 739023)
    """
    try:
        return int(text) if text.isdigit() else date.fromisoformat(text).toordinal()
    except ValueError:
        raise usage_error(
            "--day", repr(text), "a day is a whole number or a date like 2024-05-17", "give one"
        ) from None


def _require_columns(path: Path, asked: str, header: list[str]) -> bool:
    """Whether a file has one column of time; one without the columns that are needed is refused."""
    timed = "time" in header
    needed = {"user_id", "location_id"} | ({"time"} if timed else {"start_day", "start_min", "weekday"})
    missing = sorted(needed - set(header))
    twice = sorted({name for name in header if header.count(name) > 1})
    if missing or twice:
        got = f"{path.name} " + (f"without {', '.join(missing)}" if missing else f"with {', '.join(twice)} twice")
        raise usage_error(
            asked,
            got,
            "its first line names user_id, location_id and either time, or start_day, start_min and weekday",
            "name the columns so",
        )
    return timed


def _visit(header: list[str], cells: list[str], timed: bool) -> Visit:
    """One row; what is wrong with it is the text of a ValueError."""
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells for {len(header)} columns")
    row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
    for name in ("user_id", "location_id"):
        if not row[name]:
            raise ValueError(f"no {name}")
    duration = _minutes(row["duration"]) if row.get("duration") else None
    if timed:
        try:
            at = datetime.fromisoformat(row["time"])
        except ValueError:
            raise ValueError(f"time={row['time']!r} is no date and time") from None
        day, minute, weekday = at.toordinal(), 60 * at.hour + at.minute, at.weekday()
    else:
        day = _whole("start_day", row["start_day"], 0, LAST_DAY)
        minute = _whole("start_min", row["start_min"], 0, MINUTES_A_DAY - 1)
        weekday = _whole("weekday", row["weekday"], 0, 6)
    return Visit(row["user_id"], row["location_id"], day, minute, weekday, duration)


def _whole(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ValueError(f"{name}={text!r} is no whole number from {low} to {high}")
    return value


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"duration={text!r} is no number of minutes")
    return value

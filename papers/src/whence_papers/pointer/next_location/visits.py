"""Visits: who was where, when and for how long, read from CSV files. Errors name every invalid row with its line.

The columns are those of the published GeoLife stays: ``user_id``, ``location_id``, ``start_day`` (a count of days or a
date), ``start_min`` (minute of the day), ``weekday`` (0 is Monday; not needed for dates) and, optionally, ``duration`` in
minutes. One column ``time``, such as 2024-05-17T08:30, can replace the three columns of time. Other columns are ignored.

Times are local clock times, because habits follow the clock. A time may have a UTC offset; either all have one or none.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple

from whence.errors import usage_error

MINUTES_A_DAY = 24 * 60
FIRST_DATE = date(1900, 1, 1).toordinal()  # larger day numbers are dates: no count of days is that large
LAST_DAY = date.max.toordinal()
NAMED = 5  # invalid rows that an error describes; for further rows it lists the lines


class Visit(NamedTuple):
    """One stay of one user."""

    user: str
    place: str
    day: int
    minute: int  # of the day
    weekday: int  # 0 is Monday
    duration: float | None = None  # minutes
    utc_offset: int | None = None  # minutes; None if the file has none


def read_visits(path: Path, subject: str) -> list[Visit]:
    """Read all visits of a file, sorted by time within each user. Errors name every invalid row.

    ``subject`` begins the error texts.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except FileNotFoundError:
        raise usage_error(subject, f"no file {path}", "a CSV file of visits is needed", "check the path") from None
    except OSError as error:
        raise usage_error(
            subject, f"{path}: {error.strerror}", "the CSV file must be readable", "check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise usage_error(
            subject, f"{path.name}, invalid at byte {error.start}", "a file of visits is UTF-8 text", "save it as UTF-8"
        ) from None
    visits: list[Visit] = []
    bad: dict[int, str] = {}  # by line
    rows = _rows(text, bad)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    timed = not bad and _require_columns(path, subject, header)
    with_offset: dict[int, bool] = {}  # by line
    for line, cells in rows:
        try:
            visits.append(_visit(header, cells, timed))
            with_offset[line] = visits[-1].utc_offset is not None
        except ValueError as error:
            bad[line] = str(error)
    bad |= _mixed_offsets(with_offset)
    bad = dict(sorted(bad.items()))
    if bad:
        raise usage_error(
            subject, f"{path.name} with {_named(bad)}", "every row must be a valid visit", "correct these rows"
        )
    if not visits:
        raise usage_error(subject, f"{path.name} without a visit", "at least one visit is needed", "add visits")
    return sort_by_time(visits)


def _rows(text: str, bad: dict[int, str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV text with the line on which each begins. Empty lines are skipped.

    After invalid CSV, such as an unclosed quotation mark, rows cannot be separated; the line is noted in ``bad``.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            bad[line] = f"invalid CSV from here on: {error}"
            return
        if cells is None:
            return
        if cells:
            yield line, cells


def _mixed_offsets(with_offset: dict[int, bool]) -> dict[int, str]:
    """The rarer rows by line, if some times have a UTC offset and others do not: they cannot be ordered.

    >>> _mixed_offsets({2: True, 3: False, 4: True})
    {3: 'no UTC offset, unlike line 2'}
    """
    lines = {kind: [line for line, own in with_offset.items() if own == kind] for kind in (True, False)}
    if not lines[True] or not lines[False]:
        return {}
    rarer = len(lines[True]) < len(lines[False])
    what = f"{'a' if rarer else 'no'} UTC offset, unlike line {lines[not rarer][0]}"
    return dict.fromkeys(lines[rarer], what)


def describe_time_zones(visits: Iterable[Visit]) -> str:
    """A sentence for visits with several UTC offsets; empty otherwise.

    >>> describe_time_zones([Visit("a", "x", 1, 0, 0, None, 60), Visit("a", "y", 2, 0, 0, None, 120)])
    'The times have UTC offsets +01:00 (1 visit), +02:00 (1 visit); each is read as the local clock time it shows.'
    """
    counts = Counter(visit.utc_offset for visit in visits if visit.utc_offset is not None)
    if len(counts) < 2:
        return ""
    listed = ", ".join(
        f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02} ({n} visit{'' if n == 1 else 's'})"
        for offset, n in sorted(counts.items())
    )
    return f"The times have UTC offsets {listed}; each is read as the local clock time it shows."


def _named(bad: dict[int, str]) -> str:
    """Describe the first invalid rows and list the lines of the others.

    >>> _named({line: "no user_id" for line in (2, 3, 4, 5, 6, 8, 9, 12)})[-41:]
    'line 6 (no user_id); and lines 8 to 9, 12'
    """
    described = "; ".join(f"line {line} ({what})" for line, what in list(bad.items())[:NAMED])
    runs: list[list[int]] = []
    for line in list(bad)[NAMED:]:
        if runs and line == runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    others = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)
    return f"invalid rows: {described}" + (
        f"; and {'lines' if len(bad) > NAMED + 1 else 'line'} {others}" if others else ""
    )


def sort_by_time(visits: Iterable[Visit]) -> list[Visit]:
    """Sort visits by time within each user. Users keep the order in which they first appear.

    >>> [v.place for v in sort_by_time([Visit("b", "x", 1, 9, 0), Visit("a", "y", 0, 5, 0), Visit("b", "z", 0, 9, 0)])]
    ['z', 'x', 'y']
    """
    by_user: dict[str, list[Visit]] = {}
    for visit in visits:
        by_user.setdefault(visit.user, []).append(visit)
    return [v for own in by_user.values() for v in sorted(own, key=_instant)]


def _instant(visit: Visit) -> int:
    """Minutes in UTC, or on the local clock if the visits have no UTC offset."""
    return visit.day * MINUTES_A_DAY + visit.minute - (visit.utc_offset or 0)


def format_day(day: int) -> str:
    """Format a day: a count of days as it is, a date if the day is one.

    >>> format_day(12), format_day(739023)
    ('day 12', '2024-05-17')
    """
    return date.fromordinal(day).isoformat() if day >= FIRST_DATE else f"day {day}"


def day_cell(day: int) -> str:
    """A day as a cell of a table: a date if it is one, otherwise the count of days.

    >>> day_cell(12), day_cell(739023)
    ('12', '2024-05-17')
    """
    return format_day(day).removeprefix("day ")


def parse_day(text: str) -> int:
    """Parse a day from a number or a date.

    >>> parse_day("12"), parse_day("2024-05-17")
    (12, 739023)
    """
    try:
        return int(text) if text.isdigit() else date.fromisoformat(text).toordinal()
    except ValueError:
        raise usage_error(
            "--day", repr(text), "a day is a whole number or a date like 2024-05-17", "pass one of these"
        ) from None


def _require_columns(path: Path, subject: str, header: list[str]) -> bool:
    """Check the columns of a file. Returns whether it has one ``time`` column."""
    timed = "time" in header
    needed = {"user_id", "location_id"} | ({"time"} if timed else {"start_day", "start_min"})
    missing = sorted(needed - set(header))
    twice = sorted({name for name in header if header.count(name) > 1})
    if missing or twice:
        got = f"{path.name} " + (f"without {', '.join(missing)}" if missing else f"with {', '.join(twice)} twice")
        raise usage_error(
            subject,
            got,
            "the header needs user_id, location_id and either time or start_day, start_min and, unless days are dates, weekday",
            "rename or add these columns",
        )
    return timed


def _visit(header: list[str], cells: list[str], timed: bool) -> Visit:
    """Parse one row. A ValueError describes what is wrong with it."""
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
            raise ValueError(f"time={row['time']!r} is not a date and time") from None
        day, minute, weekday = at.toordinal(), 60 * at.hour + at.minute, at.weekday()
        offset = at.utcoffset()
        utc_offset = None if offset is None else round(offset.total_seconds() / 60)
        return Visit(row["user_id"], row["location_id"], day, minute, weekday, duration, utc_offset)
    minute = _whole("start_min", row["start_min"], 0, MINUTES_A_DAY - 1)
    try:
        on = date.fromisoformat(row["start_day"]) if "-" in row["start_day"][1:] else None
    except ValueError:
        raise ValueError(f"start_day={row['start_day']!r} is not a date") from None
    day = on.toordinal() if on else _whole("start_day", row["start_day"], 0, LAST_DAY)
    if on and not row.get("weekday"):
        return Visit(row["user_id"], row["location_id"], day, minute, on.weekday(), duration)
    if "weekday" not in row:
        raise ValueError(f"start_day={row['start_day']!r} is not a date, so a column weekday is needed")
    weekday = _whole("weekday", row["weekday"], 0, 6)
    if on and weekday != on.weekday():
        raise ValueError(f"weekday={weekday}, but {on} has weekday {on.weekday()}")
    return Visit(row["user_id"], row["location_id"], day, minute, weekday, duration)


def _whole(name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ValueError(f"{name}={text!r} is not a whole number from {low} to {high}")
    return value


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"duration={text!r} is not a number of minutes")
    return value

"""A table of arms that fits the terminal: columns of little weight are left out before a number is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NARROW = 60  # below this many columns a table has no lines, and progress no bar
MIN_ELASTIC = 26  # for the name of the arm and its state together


def fit_table(
    title: str,
    columns: Sequence[str],
    groups: Sequence[Sequence[Sequence[str]]],
    width: int,
    optional: Sequence[str],
) -> Any:
    """A renderable of rich: the title, and a table whose numbers are never cut.

    Args:
        title: wraps at the width of the terminal.
        columns: names, with "task" and "arm"; "arm" and the last column are texts and may be cut, the others are numbers.
        groups: rows of each study. If the column "task" is left out, its texts become a row of their own.
        width: of the terminal.
        optional: columns to leave out as long as the rest does not fit, in this order.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    natural = {
        name: max(len(name), *(len(row[at]) for rows in groups for row in rows)) for at, name in enumerate(columns)
    }
    labels = [" ".join(filter(None, (row[columns.index("task")] for row in rows))) for rows in groups]
    texts = ("arm", columns[-1])
    for count in range(len(optional) + 1):
        shown = [name for name in columns if name not in optional[:count]]
        if "task" not in shown:
            natural["arm"] = max(natural["arm"], *map(len, labels))
        lines = 2 * len(shown) if width < NARROW else 3 * len(shown) + 1
        room = width - lines - sum(natural[name] for name in shown if name not in texts)
        if room >= min(MIN_ELASTIC, sum(natural[name] for name in texts)):
            break
    room = max(room, 2)  # a terminal too narrow for the numbers cuts them
    last = min(natural[columns[-1]], max(room - natural["arm"], room // 2))
    widths = {columns[-1]: last, "arm": min(natural["arm"], room - last)}

    style: dict[str, Any] = {"box": None, "padding": (0, 2, 0, 0)} if width < NARROW else {}
    table = Table(expand=False, **style)
    for name in shown:
        justify: Any = "left" if name in (*texts, "task") else "right"
        table.add_column(
            name, justify=justify, no_wrap=True, overflow="ellipsis", width=widths.get(name, natural[name])
        )
    for label, rows in zip(labels, groups, strict=True):
        if "task" not in shown:
            table.add_row(*(Text(label, style="bold") if name == "arm" else "" for name in shown))
        for number, row in enumerate(rows, 1):
            cells = dict(zip(columns, row, strict=True))
            table.add_row(*(Text(cells[name]) for name in shown), end_section=number == len(rows))
    return Group(Text(title, style="bold"), table)

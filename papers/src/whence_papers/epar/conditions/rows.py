"""From the findings of several studies to rows of cells: what the lab's comparison says, seen from the baseline's side.

A study holds every arm against a baseline. Here the baseline is the one that is asked about, so a cell is the baseline
minus the arm, and an arm that the comparison calls worse is a win of the baseline. No verdict is made here.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass
from typing import Any

from whence.report.comparison.verdicts import kind_of

WINS, LOSES, OPEN, MISSING = "wins", "loses", "cannot be told apart", "not compared"
SEEN = {"worse": WINS, "better": LOSES, "open": OPEN}
LEAST = 3  # studies that make a figure of conditions; two are read as well side by side


@dataclass(frozen=True)
class Cell:
    """One arm in one condition; the numbers are None where nothing was compared."""

    against: str
    verdict: str
    difference: float | None = None  # baseline minus arm, so that more is better for the baseline in accuracy
    low: float | None = None  # of the interval at the corrected level
    high: float | None = None
    corrected_p: float | None = None
    own: float | None = None  # the baseline's mean
    other: float | None = None  # the arm's
    seeds: int | None = None
    comparisons: int | None = None  # those p and the interval are corrected for
    words: str = ""  # the comparison's own verdict, or why there is none


@dataclass(frozen=True)
class Row:
    """One condition. Its group is what stands before the colon of the study's question."""

    group: str
    condition: str
    study: str
    cells: tuple[Cell, ...]


def comparable(studies: list[dict[str, Any]]) -> bool:
    """Whether studies are one question under several conditions: the same arms, baseline and metric."""
    kinds = {
        (study["metric"], study["spec"]["decision"]["baseline"], tuple((a["name"], a["position"]) for a in study["arms"]))
        for study in studies
    }  # fmt: skip
    return len(kinds) == 1 and len(studies) >= LEAST and len(studies[0]["arms"]) > 1


def rows(studies: list[dict[str, Any]]) -> list[Row]:
    """One row a study, in the order given; groups are kept together in the order of their first row."""
    made = [_row(study) for study in studies]
    groups = list(dict.fromkeys(row.group for row in made))
    return sorted(made, key=lambda row: groups.index(row.group))


def _row(study: dict[str, Any]) -> Row:
    group, colon, condition = study["question"].partition(": ")
    if not colon:
        group, condition = "", study["question"]
    baseline = study["spec"]["decision"]["baseline"]
    names = [arm["name"] for arm in study["arms"] if arm["name"] != baseline]
    return Row(group, condition, study["name"], tuple(_cell(study, name) for name in names))


def _cell(study: dict[str, Any], name: str) -> Cell:
    comparison = study["comparison"]
    if comparison is None:
        return Cell(name, MISSING, words=study["why_no_comparison"] or "")
    arm, own = comparison["arms"][name], comparison["baseline_summary"]
    interval = arm["corrected_interval"]
    return Cell(
        against=name,
        verdict=SEEN[kind_of(arm["verdict"])[0]],
        difference=0.0 - arm["difference"],  # and not -0.0 where there is none
        low=None if interval is None else 0.0 - interval["high"],
        high=None if interval is None else 0.0 - interval["low"],
        corrected_p=arm["corrected_p"],
        own=own["mean"],
        other=arm["summary"]["mean"],
        seeds=own["n"],
        comparisons=comparison["m"],
        words=arm["verdict"],
    )


def cells_as_csv(made: list[Row]) -> str:
    """Every cell with all its numbers, a line each.

    >>> print(cells_as_csv([Row("length", "64", "a", (Cell("none", "wins", 2.5),))]).splitlines()[1])
    length,64,a,none,wins,2.5,,,,,,,,
    """
    lines = [
        {"group": row.group, "condition": row.condition, "study": row.study} | asdict(cell)
        for row in made
        for cell in row.cells
    ]
    text = io.StringIO()
    out = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    out.writeheader()
    out.writerows(lines)
    return text.getvalue()

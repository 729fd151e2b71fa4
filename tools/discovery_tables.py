"""The comparison of a named formula with other mechanisms, for docs/discover.md, from the committed records of its studies."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from api_tables import markdown
from whence import records
from whence.discover.studies import DISCOVERED
from whence.lab.results import collect_study, load_study, summarize_arm
from whence.report.comparison.units import difference_unit
from whence.report.discovery.findings import describe_reuse, find_comparisons


def comparison_table(place: Path) -> str:
    """Scores of all arms at every length with the verdicts at the trained and at the longest, and what is older than the plan."""
    folders = find_comparisons(place)
    first, longest = (collect_study(load_study(folder), folder) for folder in folders)
    lengths = sorted(first["lengths"], key=first["lengths"].__getitem__)
    rows = []
    for arm in first["arms"]:
        verdicts = [study["comparison"]["arms"].get(arm["name"], {}).get("verdict", "") for study in (first, longest)]
        scores = [_show(arm["values"][split].values()) for split in lengths]
        rows.append([arm["name"], *scores, *(text.partition(";")[0] for text in verdicts)])
    for scores in _earlier_formulas(folders[0], lengths):
        rows.append(["discovered, an earlier naming", *scores, "not compared", "not compared"])
    heads = [f"{first['lengths'][split]:,} tokens" for split in lengths]
    unit = difference_unit(first) or first["metric"]
    verdict_heads = [f"verdict at the trained length, in {unit}", f"verdict at {longest['split']}, in {unit}"]
    family = first["comparison"]
    tables = first["spec"]["name"].replace("discover-", "discover-tables-", 1)
    note = (
        f"Mean and standard deviation of {family['seeds']} seeds; error rate {100 * family['alpha']:g} % over all {family['m']} comparisons. "
        f"{describe_reuse(folders[0], tables)}"
    )
    table = markdown([f"test {first['metric']}", *heads, *verdict_heads], rows)
    return f"{table}\n\n{note}"


def _earlier_formulas(folder: Path, lengths: list[str]) -> list[list[str]]:
    """Scores at each length of formulas that the same tables were given before the one of a comparison."""
    own, found = load_study(folder), []
    for other in records.find_folders(folder.parent, "study.json"):
        study = load_study(other)
        if study.name == own.name and study.hash != own.hash:
            (arm,) = (arm for arm in study.arms if arm.name == DISCOVERED)
            values = summarize_arm(study, arm, other)["values"]
            found.append([_show(values[split].values()) for split in lengths])
    return found


def _show(values: Iterable[float]) -> str:
    listed = list(values)
    return f"{statistics.fmean(listed):.2f} ± {statistics.stdev(listed):.2f}"

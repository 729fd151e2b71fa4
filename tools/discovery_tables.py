"""Tables of docs/discover.md from committed records: a named formula beside other mechanisms, and how often planted curves are named."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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


def planted_curves(record: dict[str, Any]) -> str:
    """How often a planted curve is named, from the committed record of a protocol."""
    protocol, rows = record["protocol"], []
    for level, cases in record["results"].items():
        for name, case in cases.items():
            family = sum(run["named"] == case["family"] for run in case["runs"])
            possible = case["attainable"]
            row = [level, name, str(case.get("seeds") or protocol["seeds"])]
            row += [f"{family} of {len(case['runs'])}", f"{case['recovered']} of {len(case['runs'])}"]
            row += [judge_curve(protocol, case)]
            row += ["n/a" if possible is None else f"{100 * possible:.0f} %"]
            rows.append([*row, "n/a" if possible is None else str(case["seeds_needed"])])
    share = protocol.get("attainable", 0.95)
    head = [
        "level",
        "curve",
        "seeds",
        "family named",
        "family, and parameters within 10 %",
        "criterion",
        "attainable",
        f"seeds for {100 * share:.0f} %",
    ]
    verdicts = ", ".join(f"{level} {'met' if met else 'not met'}" for level, met in record["met"].items())
    return f"{markdown(head, rows)}\n\nCriterion of all curves together: {verdicts}."


def judge_curve(protocol: dict[str, Any], case: dict[str, Any]) -> str:
    """Whether the runs of one curve reach the number that a protocol requires of them."""
    required = protocol["required_null" if case["family"] == "no effect" else "required"]
    return "met" if case["recovered"] >= required else "not met"


def learned_curves(record: dict[str, Any]) -> str:
    """How often students of a teacher learn its curve, from the committed record."""
    rows = []
    for name, case in record["results"]["converged"].items():
        runs = case["runs"]
        family = sum(run["named"] == case["family"] for run in runs)
        worst = max((error for run in runs for error in run["errors"].values()), default=None)
        row = [name, f"{family} of {len(runs)}", f"{case['recovered']} of {len(runs)}"]
        row += [judge_curve(record["protocol"], case)]
        row += ["n/a" if worst is None else f"{100 * worst:.1f} %"]
        rows.append(
            [
                *row,
                *(f"{100 * statistics.median(run[key] for run in runs):.2f} %" for key in ("spread", "shared_error")),
            ]
        )
    head = [
        "curve of the teacher", "family named", "family, and parameters within 10 %", "criterion", "largest error of a parameter",
        "spread of a student", "largest error of the mean",
    ]  # fmt: skip
    met = "met" if record["met"]["converged"] else "not met"
    return f"{markdown(head, rows)}\n\nCriterion of all curves together: {met}."

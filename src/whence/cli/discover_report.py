"""The reports of ``whence discover``: a page for each discovery and each measured model, from their records alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whence import records
from whence.cli.json_output import select

DISCOVERY, PROFILES, PAGE = "discovery.json", "profiles.json", "report.html"


def find_comparisons(place: Path) -> list[Path]:
    """The folders of the studies that judge the mechanism of a discovery: the trained length first, then the longest."""
    from whence.discover.discovery import MECHANISM
    from whence.discover.studies import DISCOVERED
    from whence.lab.results import load_study

    own = f"{place.name}/{MECHANISM}:"
    found = []
    for folder in records.find_folders(place.resolve().parent, "study.json"):
        study = load_study(folder)
        if study.decision.baseline == DISCOVERED and any(own in arm.position for arm in study.arms):
            found.append((len(study.name), folder))
    return [folder for _, folder in sorted(found)]


def write_discovery_report(place: Path, folders: Sequence[Path], out: Path | None = None) -> dict[str, Any]:
    """Write the page of a discovery from its record and the studies of the comparison; return its findings."""
    from whence.discover.discovery import MECHANISM
    from whence.lab.results import collect_findings
    from whence.lab.study import Study
    from whence.lab.study_labels import label_task
    from whence.report.discovery import page

    record = records.read(place / DISCOVERY)
    study = Study.from_spec(record["spec"])
    title = f"The position that {label_task(study.task, study.task_settings)} teaches"
    command = record["command"] or "whence discover"
    if folders:
        findings = collect_findings(list(folders), title, command)
    else:
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        findings = {
            "title": title,
            "command": command,
            "when": when,
            "studies": [],
            "environment": record["environment"],
        }
    findings |= {"record": record, "mechanism": str(place / MECHANISM)}
    records.write_text(out or place / PAGE, page(findings))
    return findings


def summarize_discovery(findings: dict[str, Any]) -> dict[str, Any]:
    """The formula of every kind of head and the comparison, for ``--json``."""
    from whence.cli.run import summarize_study

    names = ("label", "heads", "name", "formula", "values", "ranking", "challenger")
    hooks = findings["record"]["hooks"].items()
    kinds = {hook: [select(kind, *names) for kind in curves["kinds"]] for hook, curves in hooks}
    return {"kinds": kinds, "studies": [summarize_study(study) for study in findings["studies"]]}


def write_profile_report(folder: Path, out: Path | None = None) -> tuple[dict[str, Any], Path]:
    """Print and write the page of the profiles of a pretrained model; return their record and the page's path."""
    from whence.report.discovery.profile_page import page, profile_lines

    record, path = records.read(folder / PROFILES), out or folder / PAGE
    records.write_text(path, page(record))
    print("\n".join(profile_lines(record)))
    print(f"report: {path}")
    return record, path


def summarize_profiles(record: dict[str, Any]) -> dict[str, Any]:
    """The families and the formula of every head, for ``--json``."""
    listed = [select(one, "layer", "head", "name", "formula", "explained") for one in record["heads"]]
    return {"families": record["families"], "heads": listed}

"""What the page of a discovery shows, from its record and the studies that compare its mechanism."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whence import records
from whence.report.record_page import DISCOVERY

#: in what the comparison differs from the study of tables by the rules of the command
PLANNED_CHANGES = {"arms", "baseline", "split", "comparisons"}


def find_comparisons(place: Path) -> list[Path]:
    """The folders of the studies that judge the mechanism of a discovery: the trained length first, then the longest.

    Studies of a mechanism that the same tables were given before, such as one with more kinds of heads, are left out.
    """
    from whence.discover.discovery import MECHANISM
    from whence.discover.studies import DISCOVERED
    from whence.lab.results import load_study

    own = f"{place.name}/{MECHANISM}:"
    digest = hashlib.sha256(records.read(place / DISCOVERY)["mechanism"].encode()).hexdigest()
    found = []
    for folder in records.find_folders(place.resolve().parent, "study.json"):
        study = load_study(folder)
        sources = [stored for name, stored in study.sources.items() if own in name]
        if study.decision.baseline == DISCOVERED and digest in sources:
            found.append((len(study.name), folder))
    return [folder for _, folder in sorted(found)]


def collect_discovery(place: Path, folders: Sequence[Path]) -> dict[str, Any]:
    """The findings of a discovery and of the studies in ``folders``, for ``whence.report.discovery.page``."""
    from whence.discover.discovery import MECHANISM
    from whence.lab.results import collect_findings
    from whence.lab.study import Study
    from whence.lab.study_labels import label_task

    record = records.read(place / DISCOVERY)
    study = Study.from_spec(record["spec"])
    title = f"The position that {label_task(study.task, study.task_settings)} teaches"
    command = record["command"] or "whence discover"
    if folders:
        findings = collect_findings(list(folders), title, command)
        for folder, own in zip(folders, findings["studies"], strict=True):
            own["plan_change"] = describe_reuse(folder, study.name)
    else:
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        findings = {
            "title": title,
            "command": command,
            "when": when,
            "studies": [],
            "environment": record["environment"],
        }
    return findings | {"record": record, "mechanism": str(place / MECHANISM)}


def describe_reuse(folder: Path, tables: str) -> str | None:
    """What a comparison uses again of the study of tables, and which other records existed before it was planned."""
    from whence.lab.plan_changes import describe_plan_change, find_changes
    from whence.lab.results import load_arm_records, load_study, read_planned

    study = load_study(folder)
    listed = [record for arm in study.arms for record in load_arm_records(study, arm, folder)]
    # the runs of the trained length are judged on the longest inputs too
    expected = {tables: PLANNED_CHANGES, tables.replace("tables-", "", 1): {"split"}}
    older = describe_plan_change(study, listed, read_planned(folder), expected)
    used = [
        record
        for record in listed
        if record["spec"]["name"] == tables
        and "evaluation" not in record
        and not set(find_changes(study, record["spec"])) - PLANNED_CHANGES
    ]
    if not used:
        return older
    text = (
        f"{len(used)} of {len(listed)} runs are those of the free table, which the formula was named from. whence discover fixes the other arms, "
        "seeds, metric and splits before it trains"
    )
    return f"{text}; no result of the comparison leads to the formula." if older is None else f"{text}. {older}"

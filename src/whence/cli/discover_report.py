"""The reports of ``whence discover``: a page for each discovery and each measured model, from their records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whence import records
from whence.cli.json_output import select
from whence.report.record_page import PROFILES

PAGE = "report.html"


def write_discovery_report(place: Path, folders: Sequence[Path], out: Path | None = None) -> dict[str, Any]:
    """Write the page of a discovery from its record and the studies of the comparison; return its findings."""
    from whence.report.discovery import page
    from whence.report.discovery.findings import collect_discovery

    findings = collect_discovery(place, folders)
    records.write_text(out or place / PAGE, page(findings))
    return findings


def summarize_discovery(findings: dict[str, Any]) -> dict[str, Any]:
    """The formula of every kind of head and the comparison, for ``--json``."""
    from whence.cli.run import summarize_study

    names = ("label", "heads", "name", "formula", "values", "ranking", "challenger")
    hooks = findings["record"]["hooks"].items()
    kinds = {hook: [select(kind, *names) for kind in curves["kinds"]] for hook, curves in hooks}
    learning = findings["record"].get("learning")
    return {"learning": learning, "kinds": kinds, "studies": [summarize_study(study) for study in findings["studies"]]}


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

"""The report of a folder of records, packed or not, as HTML: the page that ``whence report`` writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from whence import records

DISCOVERY, PROFILES = "discovery.json", "profiles.json"


def render_records(folder: Path) -> str:
    """The page of one study, probe, trial of cures, model's benchmarks, discovery, or profiles of a model. Nothing is written."""
    names = records.RecordFolder(folder).names()
    render = next(render for name, render in RENDERERS.items() if name in names)
    return render(folder)


def _render_study(folder: Path) -> str:
    from whence.lab.results import collect_findings, load_study
    from whence.lab.study_labels import title_studies
    from whence.report.comparison import page

    return page(collect_findings([folder], title_studies([load_study(folder)]), f"whence report {folder}"))


def _render_probe(folder: Path) -> str:
    from whence.probe.findings import findings
    from whence.report.probe import page

    command = records.read(folder / "plan.json").get("command")
    return page(findings(folder, command or f"whence report {folder}"))


def _render_trial(folder: Path) -> str:
    from whence.mend.judgement import collect_trial
    from whence.report.mend import page

    return page(collect_trial(folder))


def _render_benchmarks(folder: Path) -> str:
    from whence.bench.findings import collect_findings
    from whence.report.bench import page

    return page(collect_findings(folder))


def _render_discovery(folder: Path) -> str:
    from whence.report.discovery import page
    from whence.report.discovery.findings import collect_discovery, find_comparisons

    return page(collect_discovery(folder, find_comparisons(folder)))


def _render_profiles(folder: Path) -> str:
    from whence.report.discovery.profile_page import page

    return page(records.read(folder / PROFILES))


#: the first record of a folder, and what renders it
RENDERERS: dict[str, Callable[[Path], str]] = {
    "study.json": _render_study,
    "plan.json": _render_probe,
    "trial.json": _render_trial,
    "bench.json": _render_benchmarks,
    DISCOVERY: _render_discovery,
    PROFILES: _render_profiles,
}

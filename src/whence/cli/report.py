"""``whence report``"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli import probe_report
from whence.cli.bench_report import (
    find_benchmarks,
    summarize_benchmarks,
    write_bench_comparison,
    write_bench_report,
)
from whence.cli.discover_report import (
    PAGE,
    summarize_discovery,
    summarize_profiles,
    write_discovery_report,
    write_profile_report,
)
from whence.cli.json_output import JsonOption, json_document, select
from whence.cli.mend_report import summarize_trial, write_trial_report
from whence.cli.run import summarize_study
from whence.errors import usage_error
from whence.records import find_folders
from whence.report.record_page import DISCOVERY, PROFILES

if TYPE_CHECKING:
    from whence.lab.study import Study

HELP = (
    "Write the report of the studies, probes, trials of cures, benchmarks or discoveries in a folder, from their records alone. Compare "
    "two probes or two benchmarked models in one report."
)
EXAMPLES = """Examples:

whence report

whence report build/compare

whence report build/probe

whence report build/probe/FIRST build/probe/SECOND --out comparison.html"""

RESULTS = Path("results")
REPORT = "report.html"


def report(
    ctx: typer.Context,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folder of studies, probes, trials, benchmarks or discoveries (default: results), or two to compare."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output file. Default: report.html in the folder.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Name of a compared probe or model. Repeat it for each.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    results = ctx.with_resource(json_document("report", as_json))
    if len(folders or ()) > 1 or label:
        benchmarks = [found for folder in folders or () for found in find_benchmarks(folder)]
        if benchmarks:
            page, findings = write_bench_comparison(benchmarks, out, label or ())
            results["reports"] = [{"kind": "benchmarks compared", "report": page, **summarize_benchmarks(findings)}]
            return
        page, findings = probe_report.write_comparison(folders or (), out, label or ())
        print(f"report: {page}")
        summary = select(findings, "labels", "tasks", "answer")
        results["reports"] = [{"kind": "probes compared", "report": page, **summary}]
        return
    results["reports"] = report_folder(folders[0] if folders else RESULTS, out)


def report_folder(folder: Path, out: Path | None) -> list[dict[str, Any]]:
    """Write the reports of one folder: one for all its studies, and one for each of its
    probes, trials, benchmarked models, discoveries and measured models.

    Returns what ``--json`` prints of each.
    """
    folders, probes = find_folders(folder, "study.json"), find_folders(folder, "plan.json")
    trials, benchmarks = find_folders(folder, "trial.json"), find_benchmarks(folder)
    discoveries, profiles = find_folders(folder, DISCOVERY), find_folders(folder, PROFILES)
    own = [*probes, *trials, *benchmarks, *discoveries, *profiles]  # each has a report of its own
    if not folders and not own:
        raise usage_error(
            "whence report",
            f"no study.json, plan.json, trial.json, bench.json, {DISCOVERY} or {PROFILES} in {folder}"
            if folder.exists()
            else f"no folder {folder}",
            "a study has a file study.json, a probe plan.json, a trial of cures trial.json, benchmarks bench.json, a discovery "
            f"{DISCOVERY}, and the profiles of a model {PROFILES}",
            "name a folder of records, or run a study, a probe or a trial first",
        )
    if out is not None and len(own) + bool(folders) > 1:
        raise usage_error(
            "whence report --out",
            f"{len(probes)} probes, {len(trials)} trials, {len(benchmarks)} benchmarked models, {len(discoveries)} discoveries and "
            f"{len(profiles)} measured models in {folder}",
            "each of them has its own report",
            "name the folder of one of them",
        )
    reports: list[dict[str, Any]] = []
    for benchmark in benchmarks:
        page, findings = write_bench_report(benchmark, out)
        reports.append({"kind": "benchmarks", "report": page, **summarize_benchmarks(findings)})
    for trial in trials:
        findings = write_trial_report(trial, out)
        reports.append({"kind": "trial", "report": out or trial / REPORT, **summarize_trial(findings)})
    for probe in probes:
        page, findings = probe_report.write_report(probe, out)
        print(f"report: {page}")
        reports.append({"kind": "probe", "report": page, **probe_report.summarize_probe(findings)})
    if discoveries:
        from whence.report.discovery.findings import find_comparisons
    for place in discoveries:
        findings, page = write_discovery_report(place, find_comparisons(place), out), out or place / PAGE
        if not Path(findings["mechanism"]).exists():
            _print_warning(
                f"note: no file {findings['mechanism']}, which the page names; its text is the entry mechanism of {DISCOVERY}, "
                f"and this command writes it again: {findings['record']['command']}"
            )
        print(f"report: {page}")
        reports.append({"kind": "discovery", "report": page, **summarize_discovery(findings)})
    for measured in profiles:
        record, page = write_profile_report(measured, out)
        reports.append({"kind": "profiles", "report": page, **summarize_profiles(record)})
    if folders:
        studies: list[dict[str, Any]] = []
        page = write_report(
            folders, out or folder / REPORT, None, f"whence report {folder}", _print_warning, studies.append,
            [place for place in folders if place.is_dir() and not (place / REPORT).exists()],
        )  # fmt: skip
        print(f"report: {page}")
        reports.append({"kind": "studies", "report": page, "studies": [summarize_study(study) for study in studies]})
    return reports


def write_report(
    folders: list[Path],
    out: Path,
    title: str | None,
    command: str,
    warn: Callable[[str], None] = lambda problem: None,
    on_study: Callable[[dict[str, Any]], None] = lambda study: None,
    own_reports: Collection[Path] = (),
) -> Path:
    """Write one self-contained HTML report of several studies.

    It shows the commands that the studies store, or ``command`` if they store none. ``warn`` is called for each record
    that cannot be read, and ``on_study`` with the findings of each study. The studies of ``own_reports``, some of the
    folders, get a report in their own folder too, with the same numbers: the comparisons of all studies are one family.
    """
    from whence import records
    from whence.lab.results import collect_findings, load_study
    from whence.lab.study_labels import title_studies
    from whence.report.comparison import page

    studies = [load_study(folder) for folder in folders]
    title = title or title_studies(studies)
    findings = collect_findings(folders, title, command)
    for study in findings["studies"]:
        for problem in study["problems"]:
            warn(f"{study['name']}: {problem}")
        on_study(study)
    records.write_text(out, page(findings))
    labels = _tell_apart(findings["studies"])
    for index, (study, folder) in enumerate(zip(studies, folders, strict=True)):
        if folder in own_reports and folder / REPORT != out:
            others = [labels[other] for other in _find_family(studies, index) if other != index]
            own = findings["studies"][index] | {"compared_with": others}
            records.write_text(folder / REPORT, page({**findings, "title": title_studies([study]), "studies": [own]}))
    return out


def _find_family(studies: Sequence[Study], index: int) -> list[int]:
    """The indices of the studies whose comparisons are one family with those of a study; none if they are not known."""
    stated = studies[index].decision.comparisons
    family = [other for other, study in enumerate(studies) if study.decision.comparisons == stated]
    known = stated is None or stated == sum(studies[other].contrasts for other in family)
    return family if known else []


def _tell_apart(studies: list[dict[str, Any]]) -> list[str]:
    """The names of studies, with their hashes where names are equal."""
    names = [study["name"] for study in studies]
    return [
        study["name"] if names.count(study["name"]) == 1 else f"{study['name']} {study['hash']}" for study in studies
    ]


def _print_warning(problem: str) -> None:
    print(problem, file=sys.stderr)

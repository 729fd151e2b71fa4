"""Collect the records of a study: values by arm, split and seed, the comparison, and the learned values."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import MissingExtra, WhenceError, usage_error
from whence.lab import decisions, sweeps, tasks
from whence.lab.arms import Arm
from whence.lab.failures import load_failure
from whence.lab.observe import load_observations
from whence.lab.plan_changes import describe_plan_change
from whence.lab.scores import collect_baselines, collect_scores, judge_constant
from whence.lab.sources import has_same_sources
from whence.lab.study import Study
from whence.lab.study_folder import find_record_problem, read_run_record, task_facts
from whence.lab.study_labels import describe_task, label_study
from whence.records import RecordReader


def load_study(folder: Path, reader: RecordReader | None = None) -> Study:
    """The study of a folder."""
    stored = (reader or RecordReader()).read(folder / "study.json")
    missing = [name for name in ("spec", "hash") if name not in stored]
    if missing:
        got = f"{folder.name}/study.json without {', '.join(missing)}"
        raise usage_error(
            "whence report", got, "it states the plan of a study", "restore the file, or run the study again"
        )
    study = Study.from_spec(stored["spec"], stored.get("about", ""))
    if study.hash != stored["hash"]:
        raise usage_error(
            "whence report",
            f"{folder.name}/study.json, whose spec does not match its hash",
            "a spec must not change after a run",
            "restore the file, or run the study again",
        )
    return study


def read_planned(folder: Path, reader: RecordReader | None = None) -> str | None:
    """When the plan of a study was fixed, if its study.json says so."""
    reader, path = reader or RecordReader(), folder / "study.json"
    return reader.read(path).get("planned") if reader.exists(path) else None


def collect_study(study: Study, folder: Path, comparisons: int | None = None) -> dict[str, Any]:
    """All that a report shows of one study, as plain JSON. Missing runs are left out.

    ``comparisons`` is the size of the family if other studies belong to it and the spec does not say it.

    The records suffice; the first report also reads the task's data and the weights, to write observations.json. If code
    of the user is gone or has changed since the runs, it is not used: the report has the stored observations, no panels and no remarks.
    """
    same_code = not study.sources or has_same_sources(study)
    facts, reader = task_facts(study, folder), RecordReader()
    loaded = {arm.name: load_arm_records(study, arm, folder, reader) for arm in study.arms}
    arms = [summarize_arm(study, arm, folder, reader, facts["metric"]) for arm in study.arms]
    baselines = _read_optional(folder / "baselines.json", "baselines")
    levels = collect_baselines(baselines, study.decision.split)
    comparison, reason = compare_arms(study, arms, facts, comparisons)
    return {
        "name": label_study(study), "question": study.question, "task": describe_task(study.task, study.task_settings), "hash": study.hash, "spec": study.spec(),
        "about": study.about, "split": study.decision.split, "arms": arms,
        **{name: facts[name] for name in ("metric", "higher_is_better", "lengths", "trained_length")},
        "data": _read_optional(folder / "data.json", "data"), "baselines": levels,
        "scores": collect_scores(loaded, study.decision.split),
        "constant": judge_constant(
            arms, levels, facts["metric"], facts["higher_is_better"], study.decision.split,
            count_items(loaded, study.decision.split), study.decision.alpha,
        ),
        "comparison": comparison, "why_no_comparison": reason,
        "plan_change": describe_plan_change(
            study, [record for own in loaded.values() for record in own], read_planned(folder, reader)
        ),
        "observations": load_observations(study, folder, observe=same_code) or None,
        "panels": tasks.find_task_class(study.task).panels(loaded, baselines) if same_code else [],
        "remarks": tasks.find_task_class(study.task).remarks(loaded, baselines) if same_code else [],
        "ran": group_environments([record for own in loaded.values() for record in own]),
        "problems": find_problems(study, folder), "sweep": _read_optional(folder / sweeps.RECORD, "sweep"),
    }  # fmt: skip


def _read_optional(path: Path, part: str) -> dict[str, Any]:
    """A part of a record that older studies do not have."""
    return records.read(path)[part] if records.exists(path) else {}


def count_items(runs: dict[str, list[dict[str, Any]]], split: str) -> int | None:
    """The number of scored items of a split, from any record; None if no record has it."""
    for record in (record for own in runs.values() for record in own):
        evaluations = record["result"].get("evaluations")
        if evaluations and "num_targets" in evaluations[-1]["splits"].get(split, {}):
            return int(evaluations[-1]["splits"][split]["num_targets"])
    return None


def load_arm_records(study: Study, arm: Arm, folder: Path, reader: RecordReader | None = None) -> list[dict[str, Any]]:
    """The valid records of an arm, in the order of its seeds."""
    reader = reader or RecordReader()
    paths = [(run, folder / run.file_name) for run in study.runs() if run.arm == arm]
    read = [read_run_record(path, run, reader) for run, path in paths if reader.exists(path)]
    return [record for record, problem in read if problem is None]


def find_problems(study: Study, folder: Path) -> list[str]:
    """What is wrong with the records that cannot be read."""
    reader = RecordReader()
    paths = [(run, folder / run.file_name) for run in study.runs()]
    problems = [find_record_problem(path, run, reader) for run, path in paths if reader.exists(path)]
    return [problem for problem in problems if problem is not None]


def group_environments(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The different environments of records, each with its number of runs and the start of the first."""
    groups: list[dict[str, Any]] = []
    for record in sorted(runs, key=lambda record: record["started"]):
        same = [group for group in groups if group["environment"] == record["environment"]]
        if same:
            same[0]["runs"] += 1
        else:
            group = {"environment": record["environment"], "runs": 1, "started": record["started"]}
            groups.append(group | {"provenance": record.get("provenance")})  # of packed records
    return groups


def summarize_arm(
    study: Study, arm: Arm, folder: Path, reader: RecordReader | None = None, metric: str = ""
) -> dict[str, Any]:
    """The values, curves and costs in an arm's records, by seed. ``metric`` says on which scale its summary is."""
    values: dict[str, dict[str, float]] = {}
    curves: dict[str, Any] = {}
    diverged: list[dict[str, Any]] = []
    seconds: list[float] = []
    parameters = 0
    numbers: dict[str, Any] = {"before": {}, "after": {}}
    for record in load_arm_records(study, arm, folder, reader):
        result, seed = record["result"], str(record["seed"])
        parameters = record["parameters"]
        seconds.append(record["wall_seconds"])
        curves[seed] = {
            "losses": result.get("losses", []),
            "evaluations": [
                {"step": e["step"], "splits": {s: row["value"] for s, row in e["splits"].items()}}
                | ({"training": e["training"]["value"]} if "training" in e else {})
                for e in result.get("evaluations", [])
            ],
        }
        if result["status"] != "done":
            diverged.append({"seed": record["seed"], "step": result["step"], "reason": result["reason"]})
            continue
        if not values:
            numbers = record["numbers"]
        for split, row in result["evaluations"][-1]["splits"].items():
            values.setdefault(split, {})[seed] = row["value"]
    decisive = list(values.get(study.decision.split, {}).values())
    failed = find_failures(study, arm, folder, reader)
    return {
        "summary": decisions.summarize_values(
            decisive, 1 - study.decision.alpha, decisions.choose_scale(study, metric)
        ).to_json() if decisive else None,
        "name": arm.name, "position": arm.position, "parameters": parameters, "values": values, "diverged": diverged,
        "failed": failed, "curves": curves, "numbers": numbers, "wall_seconds": sum(seconds) / len(seconds) if seconds else 0.0,
    }  # fmt: skip


def find_failures(study: Study, arm: Arm, folder: Path, reader: RecordReader | None = None) -> list[dict[str, Any]]:
    """The seeds of an arm whose run failed or whose record cannot be read, each with the reason."""
    reader, failures = reader or RecordReader(), []
    for run in study.runs():
        if run.arm != arm:
            continue
        path, failure = folder / run.file_name, load_failure(run, folder, reader)
        problem = find_record_problem(path, run, reader) if reader.exists(path) else None
        reason = failure.reason() if failure else problem
        if reason:
            failures.append({"seed": run.seed, "reason": reason})
    return failures


def compare_arms(
    study: Study, arms: list[dict[str, Any]], facts: dict[str, Any], comparisons: int | None = None
) -> tuple[dict[str, Any] | None, str | None]:
    """The comparison that the spec fixed, or the reason why there is none."""
    values = decisive_values(study, arms)
    try:
        study = widen_family(study, comparisons)
        judgement = decisions.judge_study(study, values, facts["metric"], facts["higher_is_better"])
    except MissingExtra:
        raise
    except WhenceError as error:
        return None, str(error)
    if judgement.comparison is None:
        return None, judgement.reason
    return decisions.comparison_findings(study, judgement.comparison, values, facts["metric"]), None


def judge_folder(study: Study, folder: Path) -> decisions.Judgement:
    """The comparison of the records in a study's folder."""
    facts, reader = task_facts(study, folder), RecordReader()
    arms = [summarize_arm(study, arm, folder, reader) for arm in study.arms]
    return decisions.judge_study(study, decisive_values(study, arms), facts["metric"], facts["higher_is_better"])


def decisive_values(study: Study, arms: list[dict[str, Any]]) -> dict[str, dict[int, float | None]]:
    """The value of each arm and seed on the deciding split; None for a run that failed or diverged."""
    return {
        arm["name"]: {int(seed): value for seed, value in arm["values"].get(study.decision.split, {}).items()}
        | {failure["seed"]: None for failure in (*arm["diverged"], *arm["failed"])}
        for arm in arms
    }


def widen_family(study: Study, comparisons: int | None) -> Study:
    """The study with another size of its family, unless its spec has one."""
    if comparisons is None or study.decision.comparisons is not None:
        return study
    return replace(study, decision=replace(study.decision, comparisons=comparisons))


def collect_findings(folders: list[Path], title: str, command: str) -> dict[str, Any]:
    """The findings of several studies for a report. ``command`` is shown where no study stores its own.

    The comparisons of all studies are one family, except those of studies whose spec states ``Decision.comparisons``.
    """
    loaded = [load_study(folder) for folder in folders]
    family = sum(study.contrasts for study in loaded if study.decision.comparisons is None)
    studies = [collect_study(study, folder, family or None) for study, folder in zip(loaded, folders, strict=True)]
    stored = [records.read(folder / "study.json").get("command") for folder in folders]
    commands = "\n".join(dict.fromkeys(line for line in stored if line)) or command
    return {
        "title": title, "command": commands, "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "environment": records.describe_environment(("torch", "accelerate", "scipy")), "studies": studies,
    }  # fmt: skip

"""From the records of a study to what they say: values by arm, split and seed, the comparison, and what was learned."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import MissingExtra, WhenceError, usage_error
from whence.lab import runner, tasks
from whence.lab.arms import Arm
from whence.lab.observe import observations
from whence.lab.study import Budget, Decision, Study
from whence.statistics import compare, summary


def study_in(folder: Path) -> Study:
    """The study whose records a folder holds."""
    kept = records.read(folder / "study.json")
    spec = dict(kept["spec"])
    study = Study(
        name=spec["name"], question=spec["question"], task=spec["task"],
        arms=tuple(Arm(**arm) for arm in spec["arms"]), seeds=tuple(spec["seeds"]), budget=Budget(**spec["budget"]),
        decision=Decision(**spec["decision"]), model=spec["model"], task_settings=spec["task_settings"],
        about=kept.get("about", ""),
    )  # fmt: skip
    if study.hash != kept["hash"]:
        raise usage_error(
            "report",
            f"{folder.name}/study.json, whose spec does not have its hash",
            "a spec is never changed after a run",
            "restore it, or run the study anew",
        )
    return study


def findings_of(study: Study, folder: Path) -> dict[str, Any]:
    """All that a report shows of one study, as plain JSON; runs that are missing are missing.

    What is kept beside the records is enough: the task's data are needed only for what no report has asked before.
    """
    facts = runner.task_facts(study, folder)
    found = {arm.name: records_of(study, arm, folder) for arm in study.arms}
    arms = [arm_of(study, arm, folder) for arm in study.arms]
    baselines = folder / "baselines.json"
    simple = records.read(baselines)["baselines"] if records.exists(baselines) else {}
    comparison, why_not = judged(study, arms, facts)
    return {
        "name": study.name, "question": study.question, "task": study.task, "hash": study.hash, "spec": study.spec(),
        "about": study.about, "split": study.decision.split, "arms": arms,
        **{name: facts[name] for name in ("metric", "higher_is_better", "lengths", "trained_length")},
        "comparison": comparison, "why_no_comparison": why_not, "observations": observations(study, folder) or None,
        "exhibits": tasks.kind_of(study.task).exhibits(found, simple),
        "ran": where_run([record for own in found.values() for record in own]),
        "problems": problems_in(study, folder),
    }  # fmt: skip


def records_of(study: Study, arm: Arm, folder: Path) -> list[dict[str, Any]]:
    """The sound records of an arm, in the order of its seeds."""
    paths = [(run, folder / run.file_name) for run in study.runs() if run.arm == arm]
    return [records.read(path) for run, path in paths if records.exists(path) and runner.problem_of(path, run) is None]


def problems_in(study: Study, folder: Path) -> list[str]:
    """What is wrong with records that are there and are not read."""
    paths = [(run, folder / run.file_name) for run in study.runs()]
    return [said for run, path in paths if records.exists(path) and (said := runner.problem_of(path, run)) is not None]


def where_run(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The environments in which records were made, each once, with how many there are and when the first began."""
    found: list[dict[str, Any]] = []
    for record in sorted(made, key=lambda record: record["started"]):
        same = [one for one in found if one["environment"] == record["environment"]]
        if same:
            same[0]["runs"] += 1
        else:
            found.append({"environment": record["environment"], "runs": 1, "started": record["started"]})
    return found


def arm_of(study: Study, arm: Arm, folder: Path) -> dict[str, Any]:
    """What an arm's records hold, every seed with its own value."""
    values: dict[str, dict[str, float]] = {}
    curves: dict[str, Any] = {}
    diverged: list[dict[str, Any]] = []
    seconds: list[float] = []
    parameters = 0
    numbers: dict[str, Any] = {"before": {}, "after": {}}
    for record in records_of(study, arm, folder):
        result, seed = record["result"], str(record["seed"])
        parameters = record["parameters"]
        seconds.append(record["wall_seconds"])
        curves[seed] = {
            "losses": result.get("losses", []),
            "evaluations": [
                {"step": e["step"], "splits": {s: row["value"] for s, row in e["splits"].items()}}
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
    return {
        "summary": summary(decisive, 1 - study.decision.alpha).to_json() if decisive else None,
        "name": arm.name, "position": arm.position, "parameters": parameters, "values": values, "diverged": diverged,
        "curves": curves, "numbers": numbers, "wall_seconds": sum(seconds) / len(seconds) if seconds else 0.0,
    }  # fmt: skip


def judged(study: Study, arms: list[dict[str, Any]], facts: dict[str, Any]) -> tuple[dict[str, Any] | None, str | None]:
    """The comparison that the spec announced, or why there is none."""
    split, baseline = study.decision.split, study.decision.baseline
    unfinished = [arm["name"] for arm in arms if len(arm["values"].get(split, {})) < len(study.seeds)]
    if unfinished:
        return None, f"not every seed of {', '.join(unfinished)} has a value"
    if len(arms) < 2:
        return None, "there is one arm only"
    given = {arm["name"]: list(arm["values"][split].values()) for arm in arms}
    percent = facts["metric"] == "accuracy"
    scaled = {name: [100 * v for v in values] for name, values in given.items()} if percent else given
    try:
        found = compare(
            scaled, baseline, study.comparisons, facts["higher_is_better"], level=1 - study.decision.alpha,
            unit="points" if percent else "",
        )  # fmt: skip
    except MissingExtra:
        raise
    except WhenceError as error:
        return None, str(error)
    return found.to_json(), None


def findings(folders: list[Path], title: str, command: str) -> dict[str, Any]:
    """The findings of several studies together, ready for a page; ``command`` is one that runs them, or several lines."""
    studies = [findings_of(study_in(folder), folder) for folder in folders]
    return {
        "title": title, "command": command, "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "environment": records.describe_environment(("torch", "accelerate", "scipy")), "studies": studies,
    }  # fmt: skip

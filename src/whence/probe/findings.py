"""Everything a page about a probe shows, as plain JSON, from the records in its folder alone: no model and no data is read."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from whence import records
from whence.errors import usage_error
from whence.lab.results import where_run
from whence.probe import explaining, run_folder
from whence.probe.curves import chosen_slots, curve
from whence.probe.decisions import decide, measures
from whence.probe.plan import Plan
from whence.probe.subject import QUICK


def findings(folder: Path, command: str) -> dict[str, Any]:
    """The findings of one probe. What was not measured yet is left out: a task that lacks a record is named."""
    plan, about = run_folder.plan_in(folder)
    scores = measures(plan.scores)
    tasks, missing, found = [], [], []
    for task in about["tasks"]:
        own = read_task(plan, task, folder)
        if own is None:
            missing.append(task["name"])
            continue
        found += own
        chosen = chosen_slots(own) if task["paired"] else {}
        tasks.append({**task, "curves": [curve(own, score) for score in scores], "chosen": chosen})
    if not tasks:
        raise usage_error(
            "report",
            f"{folder.name}, which has no complete task",
            "a curve needs the records of every slot",
            "run the same probe again to resume it",
        )
    tasks, decision = decide(tasks, tests=len(about["tasks"]) * len(scores))
    explained = [part for name in explaining.WAYS if (part := read_part(plan, folder / explaining.file_name(name)))]
    return {
        "title": f"What position does to {'a tiny random model' if plan.model == QUICK else Path(plan.model).name}",
        "command": command,
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "environment": records.describe_environment(("torch",)),
        "ran": where_run([*found, *explained]),
        "model": {"name": plan.model, **about["model"]},
        "plan": about["plan"],
        "hash": plan.hash,
        "seconds": sum(record["seconds"] for record in found),
        "identity": about["plan"].get("identity"),  # older records have none
        "tasks": tasks,
        "decision": decision,
        "missing": missing,
        "explanation": {"attention": explaining.attention(found), **{part["way"]: part["found"] for part in explained}},
    }


def read_task(plan: Plan, task: dict[str, Any], folder: Path) -> list[dict[str, Any]] | None:
    """All records of a task, or nothing where one is not there yet."""
    paths = [folder / name for name in run_folder.record_names(plan, task)]
    if not all(records.exists(path) for path in paths):
        return None
    return [run_folder.require_plan(records.read(path), plan, path) for path in paths]


def read_part(plan: Plan, path: Path) -> dict[str, Any] | None:
    """One way of explaining, where its record is there."""
    return run_folder.require_plan(records.read(path), plan, path) if records.exists(path) else None

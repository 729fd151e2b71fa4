"""The folder of a probe: its plan, the description of its tasks, and the names of its records.

The folder is sufficient to write the report again: on another machine, without the model, and with another version of
Python, whose help topics would give other needle items.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from whence import records
from whence.errors import usage_error
from whence.probe.endpoint import Endpoint
from whence.probe.identity import difference, same_model
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks import CLOSED_BOOK, ORACLE, ProbeTask

PLAN = "plan.json"


def folder_of(plan: Plan, base: Path) -> Path:
    """The folder of a plan, named after the last part of the model's name or path and the plan's hash."""
    return base / f"{re.sub(r'[^A-Za-z0-9._]+', '-', Path(plan.model).name)}-{plan.hash}"


def open_folder(lm: ProbedModel | Endpoint, plan: Plan, base: Path, tasks: Sequence[ProbeTask]) -> Path:
    """Create the folder of a plan and write the plan to it. A folder with another plan is an error.

    The plan has its model's identity, see ``with_identity``; so two models never share a folder.
    """
    folder = folder_of(plan, base)
    path = folder / PLAN
    if not records.exists(path):
        command = records.rerun_command()
        about = [describe_task(spec, task) for spec, task in zip(plan.tasks, tasks, strict=True)]
        reason = getattr(lm, "capture_error", None)
        model = lm.about | ({"capture_error": reason} if reason else {})
        records.write(
            path, {"plan": plan_json(plan), "hash": plan.hash, "model": model, "tasks": about, "command": command}
        )
    elif records.read(path).get("plan") != plan_json(plan):
        raise usage_error(
            "whence probe", f"another plan in {folder.name}", "a folder has one plan", "use another folder"
        )
    return folder


def with_identity(plan: Plan, identity: dict[str, Any]) -> Plan:
    """The plan with the identity of its model. A plan with another identity is an error."""
    if plan.identity is not None and plan.identity != identity:
        raise usage_error(
            "whence probe",
            f"{plan.model} with {difference(plan.identity, identity)}",
            "a plan belongs to one model",
            "make a new plan; the other model's records stay in their folder",
        )
    return dataclasses.replace(plan, identity=identity)


def load_matching_plan(folder: Path, plan: Plan, identity: dict[str, Any]) -> Plan:
    """The plan in a folder to which records are added. It must have the same tasks and the same model."""
    stored_plan = require_identity(folder, identity)
    if plan_json(dataclasses.replace(stored_plan, identity=plan.identity)) != plan_json(plan):
        raise usage_error(
            "whence probe", f"a folder of another plan, {folder.name}", "a folder has one plan", "use another"
        )
    return stored_plan


def require_identity(folder: Path, identity: dict[str, Any]) -> Plan:
    """The plan in a folder, which must be of this model. Nothing is added to records of an unknown model."""
    stored_plan = load_plan(folder)[0]
    if stored_plan.identity is None:
        raise usage_error(
            "whence probe",
            f"{folder.name}, whose model's identity is unknown",
            "older records without an identity are read-only",
            "run the probe again; the new records get another folder",
        )
    if not same_model(stored_plan.identity, identity):
        raise usage_error(
            "whence probe",
            f"{folder.name} for a model with {difference(stored_plan.identity, identity)}",
            "a folder holds the records of one model",
            "use another folder",
        )
    return stored_plan


def describe_task(spec: TaskSpec, task: ProbeTask) -> dict[str, Any]:
    """The description of a task that the report needs besides its records."""
    return {
        "task": spec.label,
        "kind": spec.settings.get("file", spec.task),  # for items from a file, the file
        "name": task.name,
        "about": task.about,
        "source": task.source,
        "slots": task.slots,
        "gold_slots": list(spec.select_slots(task)),
        "items": spec.items,
        "chance": 1 / (1 + len(task.items[0].rivals)) if task.items[0].rivals else 0.0,
        "paired": task.paired,
        "hash": task.hash,
    }


def load_plan(folder: Path) -> tuple[Plan, dict[str, Any]]:
    """The plan in a folder, and the content of its file. A plan that does not match its hash is an error."""
    content = records.read(folder / PLAN)
    try:
        fields = content["plan"]
        tasks = tuple(TaskSpec(**{**one, "gold_slots": tuple(one.get("gold_slots", ()))}) for one in fields["tasks"])
        layers = None if fields.get("layers") is None else tuple(fields["layers"])
        plan = Plan(**{**fields, "tasks": tasks, "scores": tuple(fields["scores"]), "layers": layers})
        matches = plan.hash == content["hash"] and all(one["task"] and one["gold_slots"] for one in content["tasks"])
    except (KeyError, TypeError, AttributeError):
        matches = False
    if not matches:
        raise usage_error(
            "whence report",
            f"{folder.name}/{PLAN}, which is not a plan with its own hash and tasks",
            "it is written by the probe and never changed",
            "restore it, or run the probe again",
        )
    return plan, content


def record_name(label: str, condition: int | str, first: int) -> str:
    """The file name of the record with a task's items from ``first`` on, in one condition.

    >>> record_name("needle", 3, 40), record_name("needle", "closed book", 0)
    ('needle-003-0040.json', 'needle-closed-book-0000.json')
    """
    place = f"{condition:03d}" if isinstance(condition, int) else re.sub(r"\W+", "-", condition)
    return f"{label}-{place}-{first:04d}.json"


def record_names(plan: Plan, about: dict[str, Any]) -> list[str]:
    """The names of all records of a task."""
    conditions: list[int | str] = [*about["gold_slots"], CLOSED_BOOK, ORACLE]
    firsts = range(0, about["items"], plan.items_per_record)
    return [record_name(about["task"], condition, first) for condition in conditions for first in firsts]


def require_plan_hash(record: dict[str, Any], plan: Plan, path: Path) -> dict[str, Any]:
    """The record itself, if it belongs to the plan and its model; otherwise an error that names the file."""
    if record.get("plan") != plan.hash:
        raise usage_error(
            "whence probe", f"{path.name} of another plan", "a record belongs to its plan", "delete it, or restore it"
        )
    if plan.identity is not None and not same_model(record.get("identity") or {}, plan.identity):
        raise usage_error(
            "whence probe", f"{path.name} of another model", "a folder holds one model", "delete it, or restore it"
        )
    return record


def environment(lm: ProbedModel | Endpoint) -> dict[str, Any]:
    """The environment of the process, stored in every record, because a probe may be resumed on another machine."""
    if isinstance(lm, Endpoint):
        return records.describe_environment(("torch",))
    accelerator = torch.cuda.get_device_name(lm.device) if lm.device.type == "cuda" else None
    return records.describe_environment(("torch", "transformers"), accelerator=accelerator)


def utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as read from JSON: tuples become lists."""
    return json.loads(json.dumps(plan.to_json()))

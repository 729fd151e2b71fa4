"""From the options of ``whence probe`` to its plan, and from a plan back to the options."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.plugins import did_you_mean, is_reference
from whence.probe import plan as plans
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import DTYPES, QUICK
from whence.probe.tasks import ITEMS, TASKS, ProbeTask, is_installed, load_items
from whence.probe.tasks.user_tasks import describe_suspect_items

#: items in one record of an endpoint, whose answers are expensive
ENDPOINT_CHUNK = 8


def plan_from_options(
    model: str,
    quick: bool,
    full: bool,
    tasks: Sequence[str] | None,
    items: int | None,
    scores: Sequence[str] | None,
    dtype: str | None = None,
    lengths: Sequence[int] | None = None,
    *,
    files: Sequence[str] = (),
    slots: str | None = None,
    chat: bool = False,
    layers: tuple[int, ...] | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    position: str | None = None,
    keep_rotary: bool = True,
    intervention: str | None = None,
) -> tuple[Plan, str]:
    """The plan of the options, and the name of its size."""
    if quick and (full or model or endpoint):
        raise usage_error("whence probe --quick", "another model or size", "it has its own", "leave the others out")
    if not quick and not model:
        raise usage_error(
            "whence probe", "no model", "a probe measures one model", "name one, such as smollm2, or add --quick"
        )
    if endpoint and (layers or revision or position or not keep_rotary or intervention):
        raise usage_error(
            "whence probe --endpoint",
            "--layers, --revision, --position, --replace-rotary or --intervention",
            "an endpoint gives access to answers only",
            "leave it out",
        )
    for option, values, known in (
        ("--score", scores or (), plans.SCORES),
        ("--dtype", (dtype,) if dtype else (), DTYPES),
    ):
        for value in values:
            if value not in known:
                remedy = did_you_mean(value, known, "choose one")
                raise usage_error(f"whence probe {option}", repr(value), f"they are {', '.join(known)}", remedy)
    own_only = (tasks or files) and all(name not in TASKS for name in tasks or ())
    size = "quick" if quick else "full" if full else "usual"
    base = (
        plans.quick_plan()
        if quick
        else plans.full_plan(model)
        if full
        else plans.default_plan(model, not own_only and has_documents())
    )
    specs = select_tasks(base.tasks, tasks, items, lengths, files, slots)
    plan = dataclasses.replace(
        base, tasks=tuple(one.with_items_hash() if one.is_custom else one for one in specs), dtype=dtype or base.dtype, chat=chat,
        layers=layers, revision=revision, position=position, keep_rotary=keep_rotary, intervention=intervention,
        **_score_settings(base, scores, endpoint),
    )  # fmt: skip
    return plan, size


def _score_settings(base: Plan, scores: Sequence[str] | None, endpoint: str | None) -> dict[str, Any]:
    if endpoint is None:
        return {"scores": tuple(scores or base.scores)}
    chunk = min(base.items_per_record, ENDPOINT_CHUNK)
    return {"scores": tuple(scores or ("generation",)), "endpoint": endpoint.rstrip("/"), "items_per_record": chunk}


def select_tasks(
    specs: tuple[TaskSpec, ...],
    tasks: Sequence[str] | None,
    items: int | None,
    lengths: Sequence[int] | None,
    files: Sequence[str] = (),
    slots: str | None = None,
    command: str = "whence probe",
) -> tuple[TaskSpec, ...]:
    """The named tasks of a plan and custom tasks, with so many items, each at every length.

    Without names and files the tasks of the plan stay as they are; with files alone those are specs.
    """
    usual = specs[0].items
    if tasks or files:
        known = {one.task: one for one in specs}
        unknown = [
            name for name in tasks or () if name not in known and not is_reference(name) and not is_installed(name)
        ]
        if unknown:
            raise usage_error(
                f"{command} --task",
                ", ".join(unknown),
                f"this plan has {', '.join(known)}",
                did_you_mean(unknown[0], known, "name one of them, or module:Name for your own"),
            )
        named = [known.get(name) or TaskSpec(name, usual) for name in tasks or ()]
        specs = (*named, *(task_from_file(file, items) for file in files))
    if lengths:
        specs = plans.at_lengths(specs, lengths)
    if slots is not None:
        counts = parse_numbers("--slots", slots, 1, command)
        if counts == (1,):
            raise usage_error(f"{command} --slots", slots, "a curve has at least two slots", "give a larger count")
        slot_settings: dict[str, Any] = (
            {"num_gold_slots": counts[0]} if len(counts) == 1 else {"gold_slots": tuple(n - 1 for n in counts)}
        )
        specs = tuple(dataclasses.replace(one, **slot_settings) for one in specs)
    return tuple(dataclasses.replace(one, items=items) for one in specs) if items else specs


def task_from_file(file: str, items: int | None) -> TaskSpec:
    """The task of a JSONL file of items; all of them by default."""
    count = items or len(load_items(None, file).items)
    name = re.sub(r"[^A-Za-z0-9._]+", "-", Path(file).stem).strip("-")
    return TaskSpec(ITEMS, count, settings={"file": file}, name=name or ITEMS)


def print_warnings(specs: Sequence[TaskSpec], tasks: Sequence[ProbeTask], slots: str | None) -> None:
    """Warnings about items of a file, and about tasks with fewer slots than ``--slots`` asks for."""
    for spec, task in zip(specs, tasks, strict=True):
        if spec.task == ITEMS and (warning := describe_suspect_items(task.items)):
            print(f"warning: {task.name}:{warning}", file=sys.stderr)
        if slots is not None and not spec.gold_slots and spec.num_gold_slots > task.slots:
            print(
                f"warning: {task.name}: it has {task.slots} slots; --slots {slots} measures all of them",
                file=sys.stderr,
            )


def split_items_option(values: Sequence[str] | None, command: str = "whence probe") -> tuple[int | None, list[str]]:
    """The values of ``--items``: a number of items, and files.

    >>> split_items_option(["mine.jsonl", "20"])
    (20, ['mine.jsonl'])
    """
    counts = [one for one in values or () if re.fullmatch(r"[+-]?\d+", one)]
    files = [one for one in values or () if one not in counts]
    if len(counts) > 1 or any(int(one) < 1 for one in counts):
        raise usage_error(f"{command} --items", " and ".join(counts), "it is one number of at least 1", "give one")
    return int(counts[0]) if counts else None, files


def parse_numbers(option: str, text: str, least: int, command: str = "whence probe") -> tuple[int, ...]:
    """Whole numbers with commas between them.

    >>> parse_numbers("--layers", "1,3, 5", 0)
    (1, 3, 5)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts) or len(set(parts)) < len(parts):
        raise usage_error(
            f"{command} {option}", repr(text), f"it is whole numbers from {least} on, each once", "write 1,3,5"
        )
    return tuple(int(part) for part in parts)


def rerun_command(plan: Plan, device: str) -> str:
    """The command that makes the records of a plan; empty if no options do. No file of the user is read."""
    named: list[tuple[str, Plan]] = [
        (plan.model, plans.default_plan(plan.model, include_documents=True)),
        (plan.model, plans.default_plan(plan.model, include_documents=False)),
        (f"{plan.model} --full", plans.full_plan(plan.model)),
    ]
    tasks = tuple(dict.fromkeys(one.task for one in plan.tasks if one.task != ITEMS))
    files = tuple(dict.fromkeys(one.settings.get("file", "") for one in plan.tasks if one.task == ITEMS))
    marks = [match for one in plan.tasks if (match := re.search(r"-of-(\d+)$", one.name))]
    lengths = tuple(dict.fromkeys(int(match[1]) for match in marks))
    items = plan.tasks[0].items
    for size, base in [("--quick", plans.quick_plan())] if plan.model == QUICK else named:
        whole = not files and tasks == tuple(one.task for one in base.tasks)
        usual = {one.task: one.items for one in base.tasks}
        as_many = not files and all(one.items == usual.get(one.task, base.tasks[0].items) for one in plan.tasks)
        for slots in (None, _slots(plan)):
            try:
                specs = select_tasks(base.tasks, tasks, None if as_many else items, lengths, files, slots)
            except WhenceError:  # a task that this size does not have
                continue
            again = dataclasses.replace(
                base, tasks=specs, dtype=plan.dtype, chat=plan.chat, layers=plan.layers, revision=plan.revision,
                position=plan.position, keep_rotary=plan.keep_rotary, intervention=plan.intervention,
                **_score_settings(base, plan.scores, plan.endpoint),
            )  # fmt: skip
            if again == _without_identity(plan):
                options = [
                    *([] if whole else [f"--task {shlex.quote(task)}" for task in tasks]),
                    *(f"--items {shlex.quote(file)}" for file in files),
                    *(f"--length {length}" for length in lengths),
                    *([] if as_many else [f"--items {items}"]),
                    *([] if slots is None else [f"--slots {slots}"]),
                    *([] if plan.scores == base.scores or plan.endpoint else [f"--score {one}" for one in plan.scores]),
                    *([] if plan.dtype == base.dtype else [f"--dtype {plan.dtype}"]),
                    *(["--chat"] if plan.chat else []),
                    *([] if plan.layers is None else [f"--layers {','.join(map(str, plan.layers))}"]),
                    *([f"--revision {shlex.quote(plan.revision)}"] if plan.revision else []),
                    *([f"--position {shlex.quote(plan.position)}"] if plan.position else []),
                    *([] if plan.keep_rotary else ["--replace-rotary"]),
                    *([f"--intervention {shlex.quote(plan.intervention)}"] if plan.intervention else []),
                    *([f"--endpoint {shlex.quote(plan.endpoint)}"] if plan.endpoint else []),
                    *([] if device == "cpu" else [f"--device {device}"]),
                ]
                return " ".join(["whence probe", size, *options])
    return ""


def _slots(plan: Plan) -> str:
    first = plan.tasks[0]
    return ",".join(str(slot + 1) for slot in first.gold_slots) if first.gold_slots else str(first.num_gold_slots)


def _without_identity(plan: Plan) -> Plan:
    """The plan without the identity of the model and the hashes of custom items."""
    specs = tuple(dataclasses.replace(one, items_hash="") for one in plan.tasks)
    return dataclasses.replace(plan, tasks=specs, identity=None)


def has_documents() -> bool:
    """Whether the published passages are in the data folder; without them the plan has one task less, and a message states it."""
    from whence.probe.tasks.lost_in_the_middle import DOCUMENTS_FILE

    there = (Path(os.environ.get("WHENCE_DATA", "")) / DOCUMENTS_FILE).is_file()
    if not there:
        print("no questions over documents: WHENCE_DATA names no folder with lost_in_the_middle", file=sys.stderr)
    return there

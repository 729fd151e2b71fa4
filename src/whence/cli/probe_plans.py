"""From the options of ``whence probe`` to its plan, and from a plan back to the options."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from whence.bias import plan as plans
from whence.bias.plan import Asked, Plan
from whence.bias.subject import QUICK
from whence.errors import WhenceError, refusal


def planned(
    model: str,
    quick: bool,
    full: bool,
    tasks: Sequence[str] | None,
    items: int | None,
    scores: Sequence[str] | None,
    dtype: str | None = None,
    lengths: Sequence[int] | None = None,
) -> tuple[Plan, str]:
    """The plan that the options ask for, and the name of its size."""
    if quick and (full or model):
        raise refusal("whence probe --quick", "another model or size", "it has its own", "leave the others out")
    if not quick and not model:
        raise refusal("whence probe", "no model", "it looks into one", "name one, such as smollm2, or add --quick")
    made = plans.quick() if quick else plans.full(model) if full else plans.usual(model, documents=documents_there())
    asked = chosen(made.asked, tasks, items, lengths)
    made = dataclasses.replace(made, asked=asked, scores=tuple(scores or made.scores), dtype=dtype or made.dtype)
    return made, "quick" if quick else "full" if full else "usual"


def chosen(
    asked: tuple[Asked, ...], tasks: Sequence[str] | None, items: int | None, lengths: Sequence[int] | None
) -> tuple[Asked, ...]:
    """The tasks of a plan that are named, with so many items, each at every length; all as they are by default."""
    if tasks:
        known = {one.task: one for one in asked}
        unknown = [name for name in tasks if name not in known]
        if unknown:
            raise refusal(
                "whence probe --task", ", ".join(unknown), f"this plan has {', '.join(known)}", "name one of them"
            )
        asked = tuple(known[name] for name in tasks)
    if lengths:
        asked = plans.at_lengths(asked, lengths)
    return tuple(dataclasses.replace(one, items=items) for one in asked) if items else asked


def command(plan: Plan, doubts: bool, device: str) -> str:
    """The command that makes the records of a plan; empty where no options do."""
    named: list[tuple[str, Plan]] = [
        (plan.model, plans.usual(plan.model, documents=True)),
        (plan.model, plans.usual(plan.model, documents=False)),
        (f"{plan.model} --full", plans.full(plan.model)),
    ]
    tasks = tuple(dict.fromkeys(one.task for one in plan.asked))
    lengths = tuple(dict.fromkeys(int(one.name.rpartition("-")[2]) for one in plan.asked if one.name))
    items = plan.asked[0].items
    for size, base in [("--quick", plans.quick())] if plan.model == QUICK else named:
        whole = tasks == tuple(one.task for one in base.asked)
        as_many = all(one.items == next((b.items for b in base.asked if b.task == one.task), 0) for one in plan.asked)
        try:
            asked = chosen(base.asked, tasks, None if as_many else items, lengths)
        except WhenceError:  # a task that this size does not have
            continue
        if dataclasses.replace(base, asked=asked, scores=plan.scores, dtype=plan.dtype) == plan:
            options = [
                *([] if whole else [f"--task {task}" for task in tasks]),
                *(f"--length {length}" for length in lengths),
                *([] if as_many else [f"--items {items}"]),
                *([] if plan.scores == base.scores else [f"--score {score}" for score in plan.scores]),
                *([] if plan.dtype == base.dtype else [f"--dtype {plan.dtype}"]),
                *(["--doubts"] if doubts else []),
                *([] if device == "cpu" else [f"--device {device}"]),
            ]
            return " ".join(["whence probe", size, *options])
    return ""


def documents_there() -> bool:
    """Whether the published passages are in the data folder; without them the plan has one task less, and says so."""
    from whence.bias.tasks.documents import FILE

    there = (Path(os.environ.get("WHENCE_DATA", "")) / FILE).is_file()
    if not there:
        print("no questions over documents: WHENCE_DATA names no folder with lost_in_the_middle", file=sys.stderr)
    return there

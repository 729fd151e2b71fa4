"""Everything a page about a probe shows, as plain JSON: curves from the records, explanations, doubts, and what was run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whence import records
from whence.bias.curves import chosen_slots, curve
from whence.bias.plan import Plan
from whence.bias.subject import QUICK


def findings(
    plan: Plan,
    folder: Path,
    found: Sequence[Mapping[str, Any]],
    explanation: dict[str, Any],
    doubts: Sequence[Mapping[str, Any]],
    command: str,
) -> dict[str, Any]:
    """The findings of one probe; scores that were not taken are left out."""
    kept = records.read(folder / "plan.json")
    tasks = []
    for asked in plan.asked:
        own = [record for record in found if record["task"] == asked.task]
        made = asked.made()
        scores = [*plan.scores, *(["share"] if "likelihood" in plan.scores else [])]
        tasks.append({
            "task": asked.task,
            "name": made.name,
            "about": made.about,
            "slots": made.slots,
            "items": asked.items,
            "chance": 1 / (1 + len(made.items[0].rivals)),
            "curves": [curve(own, score) for score in scores],
            "chosen": chosen_slots(own) if made.paired else {},
        })  # fmt: skip
    return {
        "title": f"What position does to {'a tiny random model' if plan.model == QUICK else Path(plan.model).name}",
        "command": command,
        "when": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "environment": kept["environment"],
        "model": {"name": plan.model, **kept["model"]},
        "plan": kept["plan"],
        "hash": plan.hash,
        "seconds": sum(record["seconds"] for record in found),
        "tasks": tasks,
        "explanation": explanation,
        "doubts": list(doubts),
    }

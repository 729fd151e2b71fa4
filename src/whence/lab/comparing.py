"""``whence compare``: the same positions on a classification, a language model and a retrieval task."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import product
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.lab.arms import Arm, arm
from whence.lab.study import Budget, Decision, Study

SEEDS = 3
POSITIONS = ("none", "sinusoidal", "rotary", "alibi", "epar", "power")

#: what each task of the default comparison asks and how long it trains, so that all of it takes minutes on two cores
QUESTIONS: dict[str, dict[str, Any]] = {
    "sources": {
        "question": "Does it tell where a piece of text comes from?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 200, "batch_size": 32, "lr": 2e-3, "evaluate_every": 50},
        "settings": {},
    },
    "topics": {
        "question": "How well does it predict the next byte of prose, also in longer texts than it was trained on?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 250, "batch_size": 16, "lr": 3e-3, "evaluate_every": 125},
        "settings": {"context": 64, "blocks": 32},
    },
    "retrieval": {
        "question": "Does it find the value of a key, also in longer lists than it was trained on?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 32, "lr": 3e-3, "evaluate_every": 100},
        "settings": {"pairs": 4, "keys": 32, "values": 8, "items": 128},
    },
}


def studies(
    tasks: tuple[str, ...] = tuple(QUESTIONS),
    positions: tuple[str, ...] = POSITIONS,
    seeds: tuple[int, ...] = tuple(range(SEEDS)),
    steps: int | None = None,
    baseline: str | None = None,
) -> list[Study]:
    """One study a task, all with the same arms and seeds.

    >>> [study.name for study in studies()]
    ['compare-sources', 'compare-topics', 'compare-retrieval']
    """
    arms = tuple(arm(text) for text in positions)
    chosen = baseline or arms[0].name
    return [_study(task, arms, seeds, steps, chosen) for task in tasks]


def command(made: Sequence[Study]) -> str | None:
    """The ``whence compare`` that makes exactly these studies; None where there is none.

    >>> command(studies()), command(studies(("copy",), ("none", "Alibi(scale=2)"), (0,), 9))
    ('whence compare', "whence compare --task copy --position none --position 'Alibi(scale=2)' --seeds 1 --steps 9")
    """
    first = made[0]
    tasks, positions, seeds = tuple(one.task for one in made), tuple(arm.name for arm in first.arms), first.seeds
    for steps, baseline in product((None, first.budget.steps), (None, first.decision.baseline)):
        try:
            again = studies(tasks, positions, seeds, steps, baseline)
        except WhenceError:  # arms with names of their own, say
            return None
        if [one.hash for one in again] == [one.hash for one in made] and seeds == tuple(range(len(seeds))):
            options = [("--task", task) for task in tasks if set(tasks) != set(QUESTIONS)]
            options += [("--position", text) for text in positions if positions != POSITIONS]
            options += [("--seeds", str(len(seeds)))] * (len(seeds) != SEEDS)
            options += [("--steps", str(steps))] * (steps is not None)
            options += [("--baseline", str(baseline))] * (baseline is not None)
            return " ".join(["whence compare", *(f"{name} {shlex.quote(value)}" for name, value in options)])
    return None


def _study(task: str, arms: tuple[Arm, ...], seeds: tuple[int, ...], steps: int | None, baseline: str) -> Study:
    from whence.lab.tasks import TASKS

    if task not in TASKS:
        raise usage_error("compare(task=...)", repr(task), f"a task is one of {', '.join(TASKS)}", "choose one of them")
    asked = QUESTIONS.get(task, {})
    budget = {"steps": 300, "batch_size": 16, "lr": 1e-3} | asked.get("budget", {})
    if steps is not None:
        budget["steps"] = steps
    if steps is not None or "evaluate_every" not in budget:
        budget["evaluate_every"] = max(1, budget["steps"] // 4)  # on the way too: a curve has more than one point
    return Study(
        name=f"compare-{task}",
        question=asked.get("question", f"Which position does best on {task}?"),
        task=task,
        task_settings=asked.get("settings", {}),
        model=asked.get("model", {}),
        arms=arms,
        seeds=seeds,
        budget=Budget(**budget),
        decision=Decision(baseline=baseline, split=_first_split(task)),
    )


def _first_split(task: str) -> str:
    return {"speeches_lm": "obama", "sst2": "dev"}.get(task, "test")

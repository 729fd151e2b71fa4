"""The studies of ``whence compare``: the same positions on a classification, a language modelling and a retrieval task."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab import tasks as lab_tasks
from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Decision, Study
from whence.position.expression import parse_position

DEFAULT_SEEDS = 3
DEFAULT_POSITIONS = ("none", "sinusoidal", "rotary", "alibi", "epar", "power")

#: question, model and budget of each default task, so that the whole comparison takes minutes on two cores
TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "sources": {
        "question": "Does it recognise where a piece of text comes from?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 200, "batch_size": 32, "lr": 2e-3, "evaluate_every": 50},
        "settings": {},
    },
    "topics": {
        "question": "How well does it predict the next byte of prose, also in longer texts than in training?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 250, "batch_size": 16, "lr": 3e-3, "evaluate_every": 125},
        "settings": {"context": 64, "blocks": 32},
    },
    "retrieval": {
        "question": "Does it retrieve the value of a key, also from longer lists than in training?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 32, "lr": 3e-3, "evaluate_every": 100},
        "settings": {"pairs": 4, "keys": 32, "values": 8, "items": 128},
    },
}


def build_studies(
    tasks: Sequence[str] = tuple(TASK_DEFAULTS),
    positions: Sequence[str] = DEFAULT_POSITIONS,
    seeds: tuple[int, ...] = tuple(range(DEFAULT_SEEDS)),
    steps: int | None = None,
    baseline: str | None = None,
    task_settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Study]:
    """One study for each task, all with the same arms and seeds.

    >>> [study.name for study in build_studies()]
    ['compare-sources', 'compare-topics', 'compare-retrieval']
    """
    arms = tuple(parse_arm(text) for text in positions)
    _require_different("position", [(parse_position(one.position).normal_form, one.name) for one in arms])
    _require_different("task", [(task, task) for task in tasks])
    chosen = baseline or arms[0].name
    names = [arm.name for arm in arms]
    if chosen not in names:
        raise usage_error(
            "--baseline", repr(chosen), f"the positions are {', '.join(names)}", "name one of them, or add --position"
        )
    return [_build_study(task, arms, seeds, steps, chosen, (task_settings or {}).get(task)) for task in tasks]


def file_task(
    path: Path, text_column: str | None = None, label_column: str | None = None
) -> tuple[str, dict[str, Any]]:
    """The task on a user's file with its settings: classification of a table, language modelling of any other text.

    The settings contain a hash of the file, so that a changed file makes another study.
    """
    if not path.is_file():
        raise usage_error("--data", f"no file {path}", "it must name a CSV, TSV or text file", "check the path")
    settings: dict[str, Any] = {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    columns = {"text_column": text_column, "label_column": label_column}
    if path.suffix in (".csv", ".tsv"):
        return "labelled_file", settings | {name: column for name, column in columns.items() if column is not None}
    for name, column in columns.items():
        if column is not None:
            got = f"{column!r} with {path.name}"
            raise usage_error(
                f"--{name.replace('_', '-')}", got, "only .csv and .tsv files have columns", "leave it out"
            )
    return "text_file", settings


def _require_different(option: str, keys: list[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for key, text in keys:
        if key in seen:
            got = f"{text!r} twice" if seen[key] == text else f"{seen[key]!r} and {text!r}, which are the same"
            raise usage_error(f"--{option}", got, f"each {option} may occur once", "remove one of them")
        seen[key] = text


def _build_study(
    task: str,
    arms: tuple[Arm, ...],
    seeds: tuple[int, ...],
    steps: int | None,
    baseline: str,
    task_settings: Mapping[str, Any] | None,
) -> Study:
    lab_tasks.find_task_class(task)
    defaults = TASK_DEFAULTS.get(task, {})
    settings = defaults.get("settings", {}) if task_settings is None else task_settings
    budget = {"steps": 300, "batch_size": 16, "lr": 1e-3} | defaults.get("budget", {})
    if steps is not None:
        budget["steps"] = steps
    if steps is not None or "evaluate_every" not in budget:
        budget["evaluate_every"] = max(1, budget["steps"] // 4)  # so that a curve has several points
    name = str(settings.get("path", task)) if task in lab_tasks.FILE_TASKS else task
    return Study(
        name=f"compare-{_file_name(name)}",
        question=defaults.get("question", f"Which position does best on {Path(name).name}?"),
        task=task,
        task_settings=settings,
        model=defaults.get("model", {}),
        arms=arms,
        seeds=seeds,
        budget=Budget(**budget),
        decision=Decision(baseline=baseline, split=_first_split(task, settings)),
    )


def _file_name(task: str) -> str:
    """A task's name without what a folder name should not contain.

    >>> _file_name("sst2"), _file_name("./mine.py:Mine(size=3)"), _file_name("data/reviews.csv")
    ('sst2', 'mine-Mine', 'reviews')
    """
    module, _, name = task.partition("(")[0].rpartition(":")
    parts = [Path(module).stem, name] if module else [Path(name).stem if "/" in name or "." in name else name]
    return "-".join("".join(c if c.isalnum() or c in "_-" else "-" for c in part) for part in parts)


def _first_split(task: str, settings: Mapping[str, Any]) -> str:
    """The split that decides. Built-in tasks are not loaded for it, since their data may be large."""
    if task in lab_tasks.TASKS:
        return "dev" if task == "sst2" else "test"
    return next(iter(lab_tasks.load(task, **settings).splits()))

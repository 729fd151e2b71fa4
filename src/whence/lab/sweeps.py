"""Sweeps: choose settings of the model or the budget for each arm on validation data, before the comparison.

Every arm gets the same number of tries: each combination of the values, with the same tuning seeds and the same budget. The
tries are the arms of a study of their own, in the folder ``tuning``: its runs are claimed, resumed and reused like others.
They train and evaluate a ``TuningTask``, which has no test split. The best combination of an arm is the one with the best
mean on validation data; the comparison then runs with other seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence import records
from whence.errors import usage_error
from whence.lab.arms import Arm
from whence.lab.default_studies import complete_budget
from whence.lab.failures import load_failure
from whence.lab.settings import parse_value, split_settings
from whence.lab.sources import OWN_PACKAGES
from whence.lab.study import Decision, Run, Study
from whence.lab.study_folder import find_record_problem, study_folder
from whence.lab.study_labels import TUNING_TASK
from whence.lab.study_task import load_task
from whence.lab.tasks import Batch, MetricAccumulator, Task, find_task_class, load
from whence.plugin_sources import hash_source_file

#: values by setting
Sweep = Mapping[str, tuple[Any, ...]]
#: the first seed of tuning, far from those of comparisons
FIRST_SEED = 1_000_000
#: folder of the tuning runs, inside the folder of the comparison
FOLDER = "tuning"
#: the record of a sweep in the folder of the study whose settings it chose
RECORD = "sweep.json"
OPTION = "--sweep"


def parse_sweeps(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """The values of each setting.

    >>> parse_sweeps(["lr=1e-4,3e-4", "layers=2,4"])
    {'lr': (0.0001, 0.0003), 'layers': (2, 4)}
    """
    sweep: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, sign, rest = (part.strip() for part in text.partition("="))
        values = tuple(parse_value(value) for value in rest.split(",") if value.strip())
        if not sign or not name or not values:
            raise usage_error(OPTION, repr(text), "a sweep is a name, = and values", "write lr=1e-4,3e-4, for example")
        for value in values:
            split_settings({name: value}, OPTION)
        if name in sweep:
            raise usage_error(OPTION, f"{name} twice", "each setting has one list of values", f"keep one {name}=")
        if len(set(map(repr, values))) < len(values):
            raise usage_error(OPTION, repr(text), "each value may occur once", "remove one of them")
        sweep[name] = values
    return sweep


def list_combinations(sweep: Sweep) -> list[dict[str, Any]]:
    """Every combination of the values.

    >>> list_combinations({"lr": (1, 2), "layers": (3,)})
    [{'lr': 1, 'layers': 3}, {'lr': 2, 'layers': 3}]
    """
    return [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]


def describe_settings(settings: Mapping[str, Any]) -> str:
    """
    >>> describe_settings({"lr": 3e-4, "schedule": "cosine"})
    'lr=0.0003, schedule=cosine'
    """
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def apply_settings(arm: Arm, settings: Mapping[str, Any]) -> Arm:
    """The arm with further settings."""
    model, budget = split_settings(settings, OPTION)
    return replace(arm, model={**arm.model, **model}, budget=complete_budget({**arm.budget, **budget}, {}))


def build_tuning_study(study: Study, sweep: Sweep, seeds: int = 1) -> Study:
    """The study of all tries: each arm with each combination, on the validation split of the study's task alone."""
    for arm in study.arms:
        for name in sweep:
            if name in arm.model or name in arm.budget:
                got = f"{name}, which the arm {arm.name!r} sets itself"
                raise usage_error(OPTION, got, "a sweep chooses a setting for every arm", f"remove {name} from the arm")
    arms = tuple(
        replace(apply_settings(arm, own), name=f"{arm.name}; {describe_settings(own)}")
        for arm in study.arms
        for own in list_combinations(sweep)
    )
    question = f"Which values of {' and '.join(sweep)} are best for each arm?"
    return build_validation_study(study, f"{study.name}-tuning", question, arms, seeds)


def build_validation_study(study: Study, name: str, question: str, arms: tuple[Arm, ...], seeds: int = 1) -> Study:
    """A study of other arms on the validation split of a study's task alone, with seeds that no comparison uses."""
    digest = hash_source_file(find_task_class(study.task))
    is_own = find_task_class(study.task).__module__.partition(".")[0] not in OWN_PACKAGES
    settings: dict[str, Any] = {
        "task": study.task,
        "settings": dict(study.task_settings),
        "metric": study.decision.metric,
        "sha256": (digest or "") if is_own else "",
    }
    first = max(FIRST_SEED, max(study.seeds) + 1)
    return Study(
        name=name,
        question=question,
        task=TUNING_TASK,
        task_settings=settings,
        model=study.model,
        arms=arms,
        seeds=tuple(range(first, first + seeds)),
        budget=study.budget,
        decision=Decision(split=str(TuningTask(**settings).validation), baseline=arms[0].name),
    )


def choose_settings(study: Study, tuning: Study, folder: Path, sweep: Sweep) -> tuple[Study, dict[str, Any]]:
    """The study with the best settings of each arm, and the record of the sweep. Of equal tries the first is best.

    A try that failed or diverged has no value. If no try of an arm has one, an error says so.
    """
    task = load_task(tuning)
    sign = -1.0 if task.higher_is_better else 1.0
    combinations, tries, chosen = list_combinations(sweep), [], []
    for number, arm in enumerate(study.arms):
        first = number * len(combinations)
        own: list[dict[str, Any]] = []
        for settings, tried in zip(combinations, tuning.arms[first : first + len(combinations)], strict=True):
            values = {str(seed): read_value(Run(tuning, tried, seed), folder) for seed in tuning.seeds}
            finite = [value for value in values.values() if value is not None]
            mean = statistics.fmean(finite) if len(finite) == len(values) else None
            own.append({"arm": arm.name, "settings": settings, "values": values, "mean": mean})
        if all(one["mean"] is None for one in own):
            rule = "a try that fails or diverges has no value to choose by"
            raise usage_error(OPTION, f"only tries of {arm.name!r} that failed or diverged", rule, "try other values")
        best = min(own, key=lambda one: math.inf if one["mean"] is None else sign * one["mean"])
        tries += [one | {"chosen": one is best} for one in own]
        chosen.append(apply_settings(arm, best["settings"]))
    record = {
        "settings": {name: list(values) for name, values in sweep.items()},
        "tries_per_arm": len(combinations),
        "seeds": list(tuning.seeds),
        "split": tuning.decision.split,
        "metric": task.metric,
        "tuning_study": folder.name,
        "tries": tries,
    }
    return replace(study, arms=tuple(chosen), about=f"{study.about} {describe_choice(record)}".strip()), record


def describe_choice(record: Mapping[str, Any]) -> str:
    """One sentence: the number of tries and the chosen values."""
    chosen = "; ".join(
        f"{one['arm']}: {describe_settings(one['settings'])}" for one in record["tries"] if one["chosen"]
    )
    tries, seeds = record["tries_per_arm"], len(record["seeds"])
    times = "" if seeds == 1 else f" with {seeds} seeds each"
    return f"Settings chosen from {tries} tries of each arm{times} on {record['split']} data: {chosen}."


def read_value(run: Run, folder: Path) -> float | None:
    """The last validation value of a try; None if it failed or diverged."""
    if load_failure(run, folder) is not None:
        return None
    path = folder / run.file_name
    problem = None if not records.exists(path) else find_record_problem(path, run)
    if problem is not None or not records.exists(path):
        got = problem or f"no record of {run.arm.name!r}"
        raise usage_error(OPTION, got, "every arm has the same number of tries", "run the command again")
    result = records.read(path)["result"]
    if result["status"] != "done":
        return None
    return float(result["evaluations"][-1]["splits"][run.study.decision.split]["value"])


def write_sweep(study: Study, base: Path, record: Mapping[str, Any]) -> None:
    """Write the record of a sweep beside the records of the study whose settings it chose."""
    records.write(study_folder(study, base) / RECORD, {"hash": study.hash, "sweep": dict(record)})


class TuningTask(Task):
    """Another task with its validation split alone, for the runs of a sweep.

    A task without a validation split holds out a part of its training data (``Task.hold_out_validation``).

    Args:
        task: the task's name.
        settings: the task's settings.
        metric: the metric that decides; empty for the task's own.
        sha256: the hash that the source file of a user's task must have, if it is not empty.
    """

    name = "tuning"

    def __init__(self, task: str, settings: Mapping[str, Any], metric: str = "", sha256: str = "") -> None:
        if sha256 and hash_source_file(find_task_class(task)) != sha256:
            rule = "all runs of a study use the same code"
            raise usage_error(f"task {task!r}", "changed code", rule, "run the command again: it starts a new sweep")
        self.inner = load(task, **settings)
        self.inner.metric = metric or self.inner.metric
        if self.inner.validation is None:
            self.inner.hold_out_validation()
        self.validation = self.inner.validation
        self.kind, self.vocab_size, self.num_classes = self.inner.kind, self.inner.vocab_size, self.inner.num_classes
        self.context, self.metric, self.pad = self.inner.context, self.inner.metric, self.inner.pad
        self.settings = self.inner.settings | {"tuning": True}

    @property
    def higher_is_better(self) -> bool:
        return self.inner.higher_is_better

    def build_model(self, settings: Mapping[str, Any], arm: Arm, seed: int) -> nn.Module:
        return self.inner.build_model(settings, arm, seed)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.inner.logits(model, batch)

    def metric_accumulator(self) -> MetricAccumulator:
        return self.inner.metric_accumulator()

    @property
    def prediction_metrics(self) -> tuple[str, ...]:
        return self.inner.prediction_metrics

    def score_predictions(self, model: nn.Module, split: str) -> dict[str, float]:
        return self.inner.score_predictions(model, split)

    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        return self.inner.train_batch(size, generator)

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        return self.inner.epoch(size, generator)

    def splits(self) -> dict[str, int]:
        validation = str(self.validation)
        return {validation: self.inner.splits()[validation]}

    def evaluation(self, split: str) -> list[Batch]:
        self.split_length(split)  # an error for any other split
        return self.inner.evaluation(split)

    def decode(self, tokens: Any) -> list[str]:
        return self.inner.decode(tokens)

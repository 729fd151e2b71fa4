"""The studies of ``whence compare``: the same positions on tasks where position matters, each for its own reason."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab import tasks as lab_tasks
from whence.lab.arms import Arm, shorten_names
from whence.lab.settings import parse_arm_text, split_settings
from whence.lab.study import METRICS, Budget, Decision, Study, share_family
from whence.lab.study_labels import PREFIX
from whence.lab.task_defaults import FILE_DEFAULTS, TASK_DEFAULTS
from whence.lab.tasks.base import extrapolation_lengths
from whence.plugins import did_you_mean
from whence.position.expression import parse_position

#: numbers of seeds after which the default comparison is judged
DEFAULT_LOOKS = (3, 5, 8, 12)
DEFAULT_POSITIONS = ("none", "sinusoidal", "rotary", "alibi", "epar", "power")

DEFAULT_TASKS = ("copy", "recall")


def build_studies(
    tasks: Sequence[str] = DEFAULT_TASKS,
    arms: Sequence[str | Arm] = DEFAULT_POSITIONS,
    looks: tuple[int, ...] = DEFAULT_LOOKS,
    *,
    baseline: str | None = None,
    settings: Mapping[str, Any] | None = None,
    task_settings: Mapping[str, Mapping[str, Any]] | None = None,
    context: int | None = None,
    lengths: Sequence[int] | None = None,
    metric: str = "",
    margin: float | None = None,
    family: str = "baseline",
) -> list[Study]:
    """One study for each task, all with the same arms and seeds. Their comparisons are one family.

    Args:
        tasks: names of tasks.
        arms: positions, each with settings after semicolons if they differ from those of the other arms; or arms.
        looks: numbers of seeds after which the records are judged; the last one is the number of seeds.
        baseline: the arm that the others are compared with, by its text or its name; by default the task's own if it is among
            them, else the first.
        settings: settings of the model and the budget for all arms, by name, instead of the defaults of the task.
        task_settings: settings of a task instead of its defaults, by the task's name.
        context: tokens of an input, for the tasks that have this setting.
        lengths: lengths of the evaluation as multiples of the trained length, for the tasks that have several.
        metric: the metric that decides; empty for the task's own.
        margin: arms that differ by less are equivalent; 0 claims no equivalence; None for the default of the task, which has
            one only for its own metric.
        family: "baseline" compares every arm with the baseline, "pairs" every two arms.

    >>> [study.name for study in build_studies()]
    ['compare-copy', 'compare-recall']
    """
    chosen_arms = tuple(parse_arm_text(arm) if isinstance(arm, str) else arm for arm in arms)
    _require_different("position", [(_describe_arm(arm), arm.name) for arm in chosen_arms])
    _require_different("position", [(arm.name, arm.name) for arm in chosen_arms])
    _require_different("task", [(task, task) for task in tasks])
    written = [arm.name for arm in chosen_arms]
    chosen_arms = shorten_names(chosen_arms)
    names = [arm.name for arm in chosen_arms]
    baseline = names[written.index(baseline)] if baseline in written else baseline
    if baseline is not None and baseline not in names:
        remedy = did_you_mean(baseline, names, "name one of them, or add --position")
        raise usage_error("--baseline", repr(baseline), f"the positions are {', '.join(names)}", remedy)
    if metric not in ("", *METRICS):
        remedy = did_you_mean(metric, METRICS, "choose one of them")
        raise usage_error("--metric", repr(metric), f"the metrics are {', '.join(METRICS)}", remedy)
    if margin is not None and not 0 <= margin < math.inf:
        rule = "it must be a difference above 0 in points, per cent of perplexity or units of the metric"
        raise usage_error("--margin", repr(margin), rule, "use 0 to claim no equivalence")
    if len(chosen_arms) == 1:
        looks = looks[:1]  # there is nothing to decide
    own_settings = _add_lengths(tasks, _add_context(tasks, task_settings or {}, context), lengths)
    decision = Decision(
        baseline=baseline or "", metric=metric, margin=margin or None, family=family, looks=looks if len(looks) > 1 else (),
    )  # fmt: skip
    seeds = tuple(range(looks[-1]))
    return share_family(
        [
            _build_study(
                task, chosen_arms, seeds, settings or {}, _add_margin(decision, margin, task), own_settings.get(task)
            )
            for task in tasks
        ]
    )


def _describe_arm(arm: Arm) -> str:
    """The same text for arms that are the same."""
    return repr((parse_position(arm.position).normal_form, sorted(arm.model.items()), sorted(arm.budget.items())))


def _add_context(
    tasks: Sequence[str], task_settings: Mapping[str, Mapping[str, Any]], context: int | None
) -> dict[str, Mapping[str, Any]]:
    """The settings of tasks, with the context for those that have this setting."""
    added = dict(task_settings)
    if context is None:
        return added
    having = [task for task in tasks if "context" in inspect.signature(lab_tasks.find_task_class(task)).parameters]
    if not having:
        rule = f"the inputs of {' and '.join(tasks)} have another setting for their length"
        raise usage_error("--context", str(context), rule, "leave it out, or choose a task on texts such as topics")
    for task in having:
        added[task] = {**(added.get(task) or TASK_DEFAULTS.get(task, {}).get("settings", {})), "context": context}
    return added


def _add_lengths(
    tasks: Sequence[str], task_settings: Mapping[str, Mapping[str, Any]], lengths: Sequence[int] | None
) -> dict[str, Mapping[str, Any]]:
    """The settings of tasks, with the evaluation lengths for those that have several."""
    added = dict(task_settings)
    if lengths is None:
        return added
    having = [task for task in tasks if "lengths" in lab_tasks.find_task_class(task).evaluation_settings]
    if not having:
        got = ",".join(f"{length}x" for length in lengths)
        rule = f"{' and '.join(tasks)} has no setting for its evaluation lengths"
        remedy = "leave it out, choose a task such as topics, or name lengths in evaluation_settings of your own"
        raise usage_error("--lengths", got, rule, remedy)
    for task in having:
        usual = TASK_DEFAULTS.get(task, {}).get("settings", {})
        added[task] = {**added.get(task, usual), "lengths": sorted({1, *lengths})}
    return added


def parse_lengths(text: str) -> list[int]:
    """
    >>> parse_lengths("1x,2x,16x")
    [1, 2, 16]
    """
    parts = [part.strip().removesuffix("x") for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise usage_error(
            "--lengths", repr(text), "it lists multiples of the trained length", "pass 1x,2x,4x, for example"
        )
    return [int(part) for part in parts]


def choose_looks(seeds: int | None, until: str | None) -> tuple[int, ...]:
    """The looks for the options --seeds and --until.

    >>> choose_looks(None, None), choose_looks(5, None), choose_looks(6, "decided")
    ((3, 5, 8, 12), (5,), (3, 5, 6))
    """
    if until not in (None, "decided"):
        raise usage_error("--until", repr(until), "it can be decided", "leave it out for a fixed number of --seeds")
    if seeds is None:
        return DEFAULT_LOOKS
    if until is None:
        return (seeds,)
    return (*(look for look in DEFAULT_LOOKS if look < seeds), seeds)


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
    own: Mapping[str, Any],
    decision: Decision,
    task_settings: Mapping[str, Any] | None,
) -> Study:
    lab_tasks.find_task_class(task)
    defaults = FILE_DEFAULTS if task in lab_tasks.FILE_TASKS else TASK_DEFAULTS.get(task, {})
    settings = defaults.get("settings", {}) if task_settings is None else task_settings
    model, chosen = split_settings(own, "whence compare")
    budget = complete_budget(chosen, {"steps": 300, "batch_size": 16, "lr": 1e-3} | defaults.get("budget", {}))
    arms = tuple(replace(arm, budget=complete_budget(arm.budget, {})) for arm in arms)
    name = str(settings.get("path", task)) if task in lab_tasks.FILE_TASKS else task
    split = defaults.get("split") or _first_split(task, settings)
    if "lengths" in settings and split not in (chosen_splits := extrapolation_lengths(1, settings["lengths"])):
        split = [*chosen_splits][-1]  # the longest
    own_baseline = next((arm.name for arm in arms if arm.name == defaults.get("baseline")), arms[0].name)
    return Study(
        name=f"{PREFIX}{_file_name(name)}",
        question=defaults.get("question", f"Which position does best on {Path(name).name}?"),
        task=task,
        task_settings=settings,
        model=defaults.get("model", {}) | model,
        arms=arms,
        seeds=seeds,
        budget=Budget(**budget),
        decision=replace(
            decision,
            split=split,
            baseline=decision.baseline or own_baseline,
            perplexity_scale="log" if (decision.metric or _find_metric(task, settings)) == "perplexity" else "value",
        ),
    )


def _add_margin(decision: Decision, margin: float | None, task: str) -> Decision:
    """The decision with the default margin of the task, if none is given and accuracy decides."""
    if margin is not None or decision.metric not in ("", "accuracy"):
        return decision
    return replace(decision, margin=TASK_DEFAULTS.get(task, {}).get("margin"))


def complete_budget(chosen: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen settings over the defaults. Another number of steps or epochs also sets ``evaluate_every``, so that a curve
    has several points.

    >>> complete_budget({"steps": 100}, {"steps": 300, "lr": 1e-3, "evaluate_every": 50})
    {'steps': 100, 'lr': 0.001, 'evaluate_every': 25}
    >>> complete_budget({"epochs": 3}, {"steps": 300}), complete_budget({"lr": 1e-4}, {})
    ({'epochs': 3, 'evaluate_every': 1}, {'lr': 0.0001})
    """
    other = {"steps": "epochs", "epochs": "steps"}
    replaced = [other[name] for name in chosen if name in other and other[name] not in chosen]
    budget = {name: value for name, value in defaults.items() if name not in replaced} | dict(chosen)
    length = budget.get("epochs", budget.get("steps"))
    sets_length = any(name in chosen for name in other) or (length is not None and "evaluate_every" not in budget)
    if sets_length and "evaluate_every" not in chosen and isinstance(length, int):
        budget["evaluate_every"] = max(1, length // 4)
    return budget


def _file_name(task: str) -> str:
    """A task's name without what a folder name should not contain.

    >>> _file_name("sst2"), _file_name("./mine.py:Mine(size=3)"), _file_name("data/reviews.csv")
    ('sst2', 'mine-Mine', 'reviews')
    """
    module, _, name = task.partition("(")[0].rpartition(":")
    parts = [Path(module).stem, name] if module else [Path(name).stem if "/" in name or "." in name else name]
    return "-".join("".join(c if c.isalnum() or c in "_-" else "-" for c in part) for part in parts)


def _find_metric(task: str, settings: Mapping[str, Any]) -> str:
    """The metric of a task. No task is loaded for it: one that chooses its metric by its data has that of its class here."""
    return str(settings.get("metric") or getattr(lab_tasks.find_task_class(task), "metric", ""))


def _first_split(task: str, settings: Mapping[str, Any]) -> str:
    """The split that decides. Built-in tasks are not loaded for it, since their data may be large."""
    if task in lab_tasks.TASKS:
        return "dev" if task in ("sst2", "glue") else "test"
    return next(iter(lab_tasks.load(task, **settings).splits()))

"""Checks before the first step of training: can every arm process every evaluation, and can these seeds decide?

The batches of the task are checked first (``task_checks``). The model of each arm is built and run once, on one input of the
longest evaluation. An arm that fails there would fail after its training. ``whence compare`` leaves such arms out with a note; a study file with one is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn

from whence.errors import CausalOnly, NonFiniteHook, WhenceError, require_package, usage_error
from whence.lab.setting_errors import rename_arm_settings
from whence.lab.study import Run, Study
from whence.lab.study_labels import label_study, label_task
from whence.lab.task_checks import TRAINING, read_batches
from whence.lab.tasks import Batch, Task, select_row
from whence.position.base import Position, is_built_in
from whence.statistics.analysis_plan import AnalysisPlan
from whence.statistics.further_seeds import POWER
from whence.statistics.moderated_t import FEATURE, Layout, Reference, Scenario, reference_scenarios, simulate
from whence.user_code import find_user_frame, locate_error

#: seeds can decide if a difference of this many standard deviations is claimed with a probability of ``POWER``
LARGE_DIFFERENCE = 10.0
#: simulated data sets of the reference distribution, and for that probability
DRAWS, POWER_DRAWS = 2000, 400
#: up to this many seeds are tried
MOST_SEEDS = 64


@dataclass(frozen=True)
class UnusableArm:
    """An arm that cannot run on a task, and why."""

    arm: str
    reason: str


def find_unusable_arms(study: Study, task: Task) -> list[UnusableArm]:
    """The arms whose model cannot process the training inputs or an evaluation of the task."""
    inputs, label = longest_inputs(read_batches(study, task)), label_task(study.task, study.task_settings)
    found = []
    for arm in study.arms:
        run = Run(study, arm, study.seeds[0])
        try:
            with rename_arm_settings(arm.name) if arm.model else nullcontext():
                model = task.build_model(run.model, arm, run.seed)
            reason = find_reason(task, model.eval(), inputs, label)
        except CausalOnly:  # other errors are about the settings, which the user can correct
            reason = describe_causal_only(label)
        if reason is not None:
            found.append(UnusableArm(arm.name, reason))
    return found


def longest_inputs(batches: dict[str, list[Batch]]) -> dict[str, Batch]:
    """One input of training and of each split, by the name of the split, the longest last."""
    longest = {name: max(own, key=lambda batch: batch.tokens.shape[1]) for name, own in batches.items()}
    inputs = {name: select_row(batch, 0) for name, batch in longest.items()}
    return dict(sorted(inputs.items(), key=lambda item: item[1].tokens.shape[1]))


def find_reason(task: Task, model: nn.Module, inputs: dict[str, Batch], label: str) -> str | None:
    """Why a model cannot process an input of a task with this label; None if it can.

    If the longest input works, the shorter ones are not tried. An error on the training input is raised as it is if a mechanism of
    the user or the user's own code caused it: commands show its file and line, or the remedy.
    """
    parts = [one for one in model.modules() if isinstance(one, Position) and one.parts[0] is one]
    own = [part for part in parts if not is_built_in(part)]
    *_, last = inputs
    if try_input(task, model, inputs[last], bool(own)) is None:
        return None
    for name, batch in inputs.items():
        error = try_input(task, model, batch, bool(own))
        if error is None:
            continue
        if isinstance(error, CausalOnly):
            return describe_causal_only(label)
        if name == TRAINING and is_caused_by(error, own):
            raise error
        if isinstance(error, NonFiniteHook):
            continue  # training reports it
        if name == TRAINING and not isinstance(error, WhenceError):
            return None  # training reports it
        what = "an input of training" if name == TRAINING else f"the split {name}"
        text = str(error) if isinstance(error, WhenceError) else describe_error(error)
        return f"it cannot process the {batch.tokens.shape[1]} tokens of {what} ({text.rstrip('.')})"
    return None


def is_caused_by(error: Exception, own: Sequence[Position]) -> bool:
    """Whether one of these mechanisms or the user's code causes an error. One of whence names the class that it is about."""
    if isinstance(error, WhenceError):
        return any(re.search(rf"\b{type(one).__name__}\b", str(error)) for one in own)
    return bool(own) or find_user_frame(error) is not None


def describe_error(error: Exception) -> str:
    """An error of code outside whence, with its place if that is known."""
    place, text = locate_error(error), f"{type(error).__name__}: {error}"
    return text if place is None else f"{place}: {text}"


def describe_causal_only(label: str) -> str:
    return f"it is defined for causal attention, and the model for {label} also attends to later tokens"


@torch.no_grad()
def try_input(task: Task, model: nn.Module, batch: Batch, check_finite: bool) -> Exception | None:
    """The error of a forward pass on one input, if there is one. Without ``check_finite``, numbers that are not finite are left
    to training."""
    try:
        task.logits(model, batch)
    except NonFiniteHook as error:
        return error if check_finite else None
    except Exception as error:  # the code of a user's mechanism may raise anything
        return error
    return None


def require_usable_arms(study: Study, task: Task) -> None:
    """Raise for the first arm that cannot run."""
    for one in find_unusable_arms(study, task):
        raise usage_error(
            f"the study {label_study(study)}",
            f"the arm {one.arm!r}",
            one.reason,
            "remove the arm, or choose another task",
        )


def leave_out_arms(study: Study, unusable: Sequence[UnusableArm], baseline: str | None) -> tuple[Study, list[str]]:
    """The study without some arms, and a note on each. ``baseline`` is the baseline that the user named, if any.

    If the first arm was the baseline by default and is left out, the next one takes its place.
    """
    if not unusable:
        return study, []
    reasons = {one.arm: one.reason for one in unusable}
    remaining = tuple(arm for arm in study.arms if arm.name not in reasons)
    first, label = unusable[0], label_task(study.task, study.task_settings)
    if not remaining:
        remedy = "choose another position or another --task"
        raise usage_error(
            "--position", f"only arms that cannot run on {label}, such as {first.arm!r}", first.reason, remedy
        )
    if baseline in reasons:
        remedy = f"name another one, such as {remaining[0].name!r}, or another --task"
        raise usage_error("--baseline", f"{baseline!r} on {label}", str(reasons[baseline]), remedy)
    notes = [f"{one.arm} is left out on {label}: {one.reason}." for one in unusable]
    decision = study.decision
    if decision.baseline in reasons:
        decision = replace(decision, baseline=remaining[0].name)
        notes.append(f"The baseline on {label} is {remaining[0].name}.")
    return replace(study, arms=remaining, decision=replace(decision, comparisons=None)), notes


def describe_seeds(studies: Sequence[Study], plans: Sequence[AnalysisPlan]) -> str | None:
    """A note if the seeds of some studies cannot decide, with the number that would do for all of them."""
    enough = 0
    for study, plan in zip(studies, plans, strict=True):
        arms, seeds, level = len(study.arms), len(study.seeds), plan.look_levels()[-1]
        if arms < 2 or (seeds > 1 and estimate_power(arms, seeds, plan.family, level) >= POWER):
            continue
        enough = max(enough, find_deciding_seeds(arms, plan.family, level, seeds + 1))
    if not enough:
        return None
    seeds = max(len(study.seeds) for study in studies)
    if seeds == 1:
        return f"1 seed cannot decide: it has no variance. {enough} seeds would do."
    rule = f"even a difference of {LARGE_DIFFERENCE:g} standard deviations is claimed in less than {100 * POWER:g} % of comparisons"
    return f"{seeds} seeds are too few: {rule}. {enough} seeds would do."


def find_deciding_seeds(arms: int, family: str, level: float, first: int = 2) -> int:
    """The least number of seeds from ``first`` on with which a large difference is claimed with ``POWER``.

    >>> find_deciding_seeds(6, "baseline", 0.05)
    3
    """
    seeds = max(2, first)
    while estimate_power(arms, seeds, family, level) < POWER and seeds < MOST_SEEDS:
        seeds += 1
    return seeds


def estimate_power(arms: int, seeds: int, family: str, level: float, difference: float = LARGE_DIFFERENCE) -> float:
    """The probability that a difference, in standard deviations of an arm, is claimed; by simulation."""
    numpy = require_package("numpy", FEATURE, "lab")
    pairs = [(arm, 0) for arm in range(1, arms)]
    if family == "pairs":
        pairs = [(second, first) for first in range(arms) for second in range(first + 1, arms)]
    layout = Layout(numpy.ones((seeds, arms), dtype=bool), pairs)
    reference = Reference(layout, reference_scenarios(family), draws=max(DRAWS, math.ceil(20 / level)))
    values = simulate(layout, Scenario(), POWER_DRAWS, numpy.random.default_rng(1))
    values[:, :, 0] -= difference  # every contrast with arm 0 has it
    estimates, errors, freedom = (part[:, : arms - 1] for part in layout.statistics(values))
    critical = numpy.array([reference.critical_t(level, float(one)) for one in freedom.ravel()]).reshape(freedom.shape)
    return float((estimates > critical * errors).mean())

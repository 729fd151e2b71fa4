"""Adaptive attention trained end to end on a mixture of tasks, and what its weights then mean.

``adapt`` trains one small model on ``places`` (the answer is near, far, or marked); ``by_kind`` reads what it does on each
kind; ``forced`` gives it one task type by hand, which shows whether the type causes what its name says.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whence.errors import usage_error
from whence.lab.study import Budget
from whence.lab.training import train
from whence.position.epar import Epar
from whence_papers.epar.adapters import Adapter, ContentAware, Fused, PerRow, TaskAware
from whence_papers.epar.adaptive import AdaptiveModel
from whence_papers.epar.places import KINDS, Places

ADAPTERS = ("none", "row", "task", "content", "fused")
BUDGET = Budget(steps=500, batch_size=32, lr=1e-2, weight_decay=0.0)


@dataclass(frozen=True)
class Adapted:
    """A trained model, what it was trained on, and the training's curves."""

    adapter: str
    seed: int
    model: AdaptiveModel
    task: Places
    curves: dict[str, Any]


def maker(adapter: str, context: int) -> Callable[[int], Adapter] | None:
    """The adapter of a name for any width: none, the source's per-row form, task, content, or both fused, on keys."""
    if adapter not in ADAPTERS:
        raise usage_error(
            "maker(adapter)", repr(adapter), f"an adapter is one of {', '.join(ADAPTERS)}", "choose one of them"
        )
    makers: dict[str, Callable[[int], Adapter] | None] = {
        "none": None,
        "row": PerRow,
        "task": lambda embed_dim: TaskAware(embed_dim, context),
        "content": ContentAware,
        "fused": lambda embed_dim: Fused(TaskAware(embed_dim, context), ContentAware(embed_dim)),
    }
    return makers[adapter]


def adapt(adapter: str = "fused", *, seed: int = 0, task: Places | None = None, budget: Budget = BUDGET) -> Adapted:
    """Train a model with learnable EPAR and an adapter; seconds on a CPU."""
    task = Places(count=10) if task is None else task
    position = Epar(2, learnable=True, context=task.context)
    make = maker(adapter, task.context)
    model = AdaptiveModel(task.vocabulary, make, position=position, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        curves = train(model, task, budget, seed, Path(folder) / "state")
    return Adapted(adapter, seed, model.cpu().eval(), task, curves)


def by_kind(model: AdaptiveModel, task: Places, split: str = "test") -> dict[str, dict[str, float]]:
    """For each kind of input, means over the row that is asked: accuracy and what was read and looked at.

    ``near``, ``anywhere`` and ``far`` are the task weights; ``slope`` is above 0 where near keys are wanted;
    ``row_scale`` is how much of the score of queries and keys is left; ``task_share`` is how much of the fusion is task; ``distance`` is the mean distance of what is attended to, as a share of the
    greatest; ``marked`` is the weight on the marked key. What an adapter does not have is left out.
    """
    batches = task.evaluation(split)
    tokens, targets = torch.cat([b.tokens for b in batches]), torch.cat([b.targets for b in batches])[:, -1]
    with torch.no_grad():
        answers = model(tokens)[:, -1].argmax(-1)
    weights, reading = model.look(tokens)
    row = weights[:, :, -1].mean(1)  # [B, T], over heads
    distance = torch.arange(tokens.shape[1] - 1, -1, -1) / (tokens.shape[1] - 1)
    measured = {
        "accuracy": (answers == targets).float(),
        "distance": row @ distance,
        "marked": (row * task.marked(tokens)).sum(-1),
    }
    for name in ("slope", "task_share", "row_scale"):
        read = getattr(reading, name)
        if read is not None:
            measured[name] = read[:, -1]
    if reading.task_weights is not None:
        measured |= dict(zip(KINDS, reading.task_weights[:, -1].unbind(-1), strict=True))
    kinds = task.kinds(tokens)
    return {
        kind: {name: float(each[kinds == number].mean()) for name, each in measured.items()}
        for number, kind in enumerate(KINDS)
    }


def forced(model: AdaptiveModel, task_type: str) -> AdaptiveModel:
    """A copy of a model that takes every input for one task type, whatever it reads."""
    changed = copy.deepcopy(model)
    found = [part for part in changed.modules() if isinstance(part, TaskAware)]
    if not found or task_type not in found[0].types:
        raise usage_error(
            "forced(model, task_type)",
            repr(task_type) if found else "a model without task types",
            "the type is one of a task-aware model's",
            f"choose one of {', '.join(found[0].types)}" if found else "train one with adapter='task' or 'fused'",
        )
    with torch.no_grad():
        found[0].weigh.weight.zero_()
        found[0].weigh.bias.fill_(-40.0)
        found[0].weigh.bias[found[0].types.index(task_type)] = 40.0
    return changed


def answered_from(model: AdaptiveModel, task: Places, split: str = "test") -> dict[str, float]:
    """Of the inputs whose near, marked and far symbols all differ, the share answered with each of them."""
    tokens = torch.cat([batch.tokens for batch in task.evaluation(split)])
    shown = tokens[:, 1:-1]
    plain = shown % task.symbols
    marked = plain.gather(1, task.marked(tokens)[:, 1:-1].float().argmax(-1, keepdim=True))[:, 0]
    choices = torch.stack([plain[:, -1], marked, plain[:, 0]])  # in the order of KINDS
    differ = (choices[0] != choices[1]) & (choices[1] != choices[2]) & (choices[0] != choices[2])
    with torch.no_grad():
        answers = model(tokens)[:, -1].argmax(-1)
    return {kind: float((answers == choices[n])[differ].float().mean()) for n, kind in enumerate(KINDS)}

"""Train adaptive attention end to end on a mixture of tasks, and examine its task weights.

``train_adaptive`` trains one small model on ``places`` (the answer is near, far, or marked). ``measure_by_kind`` measures it on
each kind of input. ``force_task_type`` fixes the task type, which shows whether the type causes the behavior it is named for.
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
from whence_papers.epar.attention import Adapter, AdaptiveModel, ContentAware, FusedAdapter, PerRow, TaskAware
from whence_papers.epar.places import KINDS, Places

ADAPTERS = ("none", "row", "task", "content", "fused")
BUDGET = Budget(steps=500, batch_size=32, lr=1e-2, weight_decay=0.0)


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, its task, and its training curves."""

    adapter: str
    seed: int
    model: AdaptiveModel
    task: Places
    curves: dict[str, Any]


def adapter_factory(adapter: str, context: int) -> Callable[[int], Adapter] | None:
    """The function from ``embed_dim`` to the named adapter: the source's per-row form, task, content, or both fused."""
    if adapter not in ADAPTERS:
        raise usage_error(
            "adapter_factory(adapter)", repr(adapter), f"the adapters are {', '.join(ADAPTERS)}", "choose one of these"
        )
    factories: dict[str, Callable[[int], Adapter] | None] = {
        "none": None,
        "row": PerRow,
        "task": lambda embed_dim: TaskAware(embed_dim, context),
        "content": ContentAware,
        "fused": lambda embed_dim: FusedAdapter(TaskAware(embed_dim, context), ContentAware(embed_dim)),
    }
    return factories[adapter]


def train_adaptive(
    adapter: str = "fused", *, seed: int = 0, task: Places | None = None, budget: Budget = BUDGET
) -> TrainedModel:
    """Train a model with learnable EPAR and an adapter. Takes seconds on a CPU."""
    task = Places(count=10) if task is None else task
    position = Epar(2, learnable=True, context=task.context)
    factory = adapter_factory(adapter, task.context)
    model = AdaptiveModel(task.vocab_size, factory, position=position, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        curves = train(model, task, budget, seed, Path(folder) / "state")
    return TrainedModel(adapter, seed, model.cpu().eval(), task, curves)


def measure_by_kind(model: AdaptiveModel, task: Places, split: str = "test") -> dict[str, dict[str, float]]:
    """Means over the last row of each kind of input: accuracy, attention, and the adapter's output.

    ``near``, ``anywhere`` and ``far`` are the task weights. ``slope`` is positive where near keys are preferred.
    ``row_scale`` is the factor on q.k. ``task_share`` is the share of the task in the fusion. ``distance`` is the mean
    distance of the attended keys as a share of the largest distance. ``marked`` is the weight on the marked key. Quantities
    that an adapter does not have are left out.
    """
    batches = task.evaluation(split)
    tokens, targets = torch.cat([b.tokens for b in batches]), torch.cat([b.targets for b in batches])[:, -1]
    with torch.no_grad():
        answers = model(tokens)[:, -1].argmax(-1)
    weights, output = model.inspect_attention(tokens)
    row = weights[:, :, -1].mean(1)  # [B, T], over heads
    distance = torch.arange(tokens.shape[1] - 1, -1, -1) / (tokens.shape[1] - 1)
    measures = {
        "accuracy": (answers == targets).float(),
        "distance": row @ distance,
        "marked": (row * task.marked(tokens)).sum(-1),
    }
    for name in ("slope", "task_share", "row_scale"):
        values = getattr(output, name)
        if values is not None:
            measures[name] = values[:, -1]
    if output.task_weights is not None:
        measures |= dict(zip(KINDS, output.task_weights[:, -1].unbind(-1), strict=True))
    kinds = task.kinds(tokens)
    return {
        kind: {name: float(each[kinds == number].mean()) for name, each in measures.items()}
        for number, kind in enumerate(KINDS)
    }


def force_task_type(model: AdaptiveModel, task_type: str) -> AdaptiveModel:
    """A copy of a model that assigns every input to one task type."""
    changed = copy.deepcopy(model)
    adapters = [module for module in changed.modules() if isinstance(module, TaskAware)]
    if not adapters or task_type not in adapters[0].types:
        raise usage_error(
            "force_task_type(model, task_type)",
            repr(task_type) if adapters else "a model without task types",
            "the model must have a task-aware adapter with this type",
            f"choose one of {', '.join(adapters[0].types)}" if adapters else "train one with adapter='task' or 'fused'",
        )
    with torch.no_grad():
        adapters[0].task_logits.weight.zero_()
        adapters[0].task_logits.bias.fill_(-40.0)
        adapters[0].task_logits.bias[adapters[0].types.index(task_type)] = 40.0
    return changed


def answer_shares(model: AdaptiveModel, task: Places, split: str = "test") -> dict[str, float]:
    """For inputs whose near, marked and far symbols all differ, the share answered with each of the three."""
    tokens = torch.cat([batch.tokens for batch in task.evaluation(split)])
    symbols = tokens[:, 1:-1]
    plain = symbols % task.symbols
    marked = plain.gather(1, task.marked(tokens)[:, 1:-1].float().argmax(-1, keepdim=True))[:, 0]
    choices = torch.stack([plain[:, -1], marked, plain[:, 0]])  # in the order of KINDS
    differ = (choices[0] != choices[1]) & (choices[1] != choices[2]) & (choices[0] != choices[2])
    with torch.no_grad():
        answers = model(tokens)[:, -1].argmax(-1)
    return {kind: float((answers == choices[n])[differ].float().mean()) for n, kind in enumerate(KINDS)}

"""Experiment 4: adaptive attention. Task, content and their fusion acting on keys, against the source's form per row.

Small models are trained on a mixture of three tasks (``whence_papers.epar.places``): the answer is the nearest symbol, the
farthest, or the marked one, and a cue says which. What is measured is the row that is asked, of test inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.lab.experiment import Results, Tell
from whence.lab.study import Budget
from whence.position.epar import Epar
from whence.position.parameter import Quantity
from whence_papers.epar.adaptive_training import (
    ADAPTERS,
    TrainedModel,
    answer_shares,
    force_task_type,
    measure_by_kind,
    train_adaptive,
)
from whence_papers.epar.attention import CONTENT_TYPES, AdaptiveModel
from whence_papers.epar.experiments.setup import entropy, round_values
from whence_papers.epar.places import KINDS, Places

NUMBERS = ("alpha", "beta", "gamma")
TASKED, CONTENTED = ("row", "task", "fused"), ("content", "fused")
TOKENS = ("symbol", "marked symbol", "cue", "question")


@dataclass(frozen=True)
class AdaptiveAttention:
    seeds: tuple[int, ...] = (42, 43, 44, 45, 46)
    symbols_shown: int = 10
    inputs: int = 256  # of the test
    steps: int = 300
    batch_size: int = 32
    lr: float = 0.01
    alphas: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    betas: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    gammas: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)

    @property
    def swept(self) -> dict[str, tuple[float, ...]]:
        return dict(zip(NUMBERS, (self.alphas, self.betas, self.gammas), strict=True))


def compute(spec: AdaptiveAttention, given: Mapping[str, Results], tell: Tell) -> Results:
    """``results["models"][adapter]`` has an entry for each seed."""
    task = Places(count=spec.symbols_shown, items=spec.inputs)
    budget = Budget(steps=spec.steps, batch_size=spec.batch_size, lr=spec.lr, weight_decay=0.0)
    models: Results = {adapter: [] for adapter in ADAPTERS}
    for adapter in ADAPTERS:
        for seed in spec.seeds:
            done = train_adaptive(adapter, seed=seed, task=task, budget=budget)
            models[adapter].append(
                describe_model(done, task) | (sweep_parameters(done, task, spec) if adapter == "fused" else {})
            )
            right = done.curves["evaluations"][-1]["splits"]["test"]["value"]
            tell(f"adaptive attention: {adapter}, seed {seed}, accuracy {right:.3f}")
    kinds = task.kinds(_inputs(task))
    shares = {kind: round_values((kinds == number).double().mean()) for number, kind in enumerate(KINDS)}
    return {"models": models, "kinds": list(KINDS), "tokens": list(TOKENS), "mixture": shares}


def describe_model(done: TrainedModel, task: Places) -> dict[str, Any]:
    tokens = _inputs(task)
    weights, reading = done.model.inspect_attention(tokens)
    row = weights[:, :, -1].mean(1)  # of the question, over heads
    kinds = task.kinds(tokens)
    found: dict[str, Any] = {
        "splits": {split: one["value"] for split, one in done.curves["evaluations"][-1]["splits"].items()},
        "by_kind": {
            kind: {n: round_values(x) for n, x in read.items()}
            for kind, read in measure_by_kind(done.model, task).items()
        },
        "attention": {kind: round_values(row[kinds == n].mean(0)) for n, kind in enumerate(KINDS)},
        "entropy": {kind: round_values(entropy(weights[kinds == n, :, -1]).mean(1), 4) for n, kind in enumerate(KINDS)},
        "first_key_moved": round_values(_first_key_moved(done.model, tokens)),
    }
    if reading.task_weights is not None:
        asked = reading.task_weights[:, -1]
        found["task_weights"] = {kind: round_values(asked[kinds == n], 4) for n, kind in enumerate(KINDS)}
    if reading.content_types is not None:
        found["content"] = describe_content(done.model, task)
    if done.adapter in ("task", "fused"):
        found["answered_from"] = {"as read": answer_shares(done.model, task)} | {
            f"forced to {kind}": answer_shares(force_task_type(done.model, kind), task) for kind in KINDS
        }
        found["answered_from"] = {
            how: {kind: round_values(x) for kind, x in shares.items()} for how, shares in found["answered_from"].items()
        }
    return found


def _inputs(task: Places) -> Tensor:
    return torch.cat([batch.tokens for batch in task.evaluation("test")])


def _first_key_moved(model: AdaptiveModel, tokens: Tensor) -> Tensor:
    """The share of rows in which the adapter changes which key comes first; a temperature cannot."""
    bare = copy.deepcopy(model)
    bare.attention.adapter = None
    with_it, without = model.inspect_attention(tokens)[0], bare.inspect_attention(tokens)[0]
    return (with_it[:, :, -1].argmax(-1) != without[:, :, -1].argmax(-1)).double().mean()


def describe_content(model: AdaptiveModel, task: Places) -> dict[str, Any]:
    """What each kind of token is sorted into and its importance; both come from the token alone, wherever it stands."""
    every = torch.arange(task.vocabulary)
    _, reading = model.inspect_attention(every[None])
    assert reading.content_types is not None and reading.importance is not None
    groups = {"symbol": slice(0, task.symbols), "marked symbol": slice(task.symbols, 2 * task.symbols)}
    groups |= {"cue": slice(2 * task.symbols, task.vocabulary - 1), "question": slice(task.vocabulary - 1, None)}
    return {
        "types": dict(CONTENT_TYPES),  # with the importance of each
        "importance": {name: round_values(reading.importance[0, where], 4) for name, where in groups.items()},
        "sorted": {name: round_values(reading.content_types[0, where].mean(0), 4) for name, where in groups.items()},
    }


def sweep_parameters(done: TrainedModel, task: Places, spec: AdaptiveAttention) -> dict[str, Any]:
    """Accuracy by kind and entropy of a trained model with one of EPAR's numbers set to a value in all its heads."""
    position = done.model.attention.position
    assert isinstance(position, Epar)
    learned = {name: _quantity(position, name) for name in NUMBERS}
    found: dict[str, Any] = {"numbers": {name: round_values(values) for name, values in learned.items()}, "sweeps": {}}
    tokens = _inputs(task)
    for name, values in spec.swept.items():
        points: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "entropy")}
        for value in values:
            changed = copy.deepcopy(done.model)
            now = learned | {name: [value] * len(learned[name])}
            changed.attention.position = Epar(
                len(learned[name]), context=task.context, alpha=now["alpha"], beta=now["beta"], gamma=now["gamma"]
            )  # fmt: skip
            for kind, read in measure_by_kind(changed, task).items():
                points[kind].append(round_values(read["accuracy"]))
            points["entropy"].append(round_values(entropy(changed.inspect_attention(tokens)[0][:, :, -1]).mean()))
        found["sweeps"][name] = {"at": list(values)} | points
    return found


def _quantity(position: Epar, name: str) -> list[float]:
    quantity = getattr(position, name)
    assert isinstance(quantity, Quantity)
    return [float(x) for x in quantity().detach().flatten()]

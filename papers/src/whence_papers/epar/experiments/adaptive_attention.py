"""Experiment 4: adaptive attention. Task, content and their fusion as terms on keys, compared with the source's per-row form.

Small models are trained on a mixture of three tasks (``whence_papers.epar.places``): the answer is the nearest symbol, the
farthest, or the marked one, and a cue tells which. All measurements are of the question's row on test inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.lab.experiment import ProgressCallback, Results
from whence.lab.study import Budget
from whence.position.epar import Epar
from whence.position.parameter import BoundedParameter
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

PARAMETERS = ("alpha", "beta", "gamma")
TASKED, CONTENTED = ("row", "task", "fused"), ("content", "fused")
TOKENS = ("symbol", "marked symbol", "cue", "question")


@dataclass(frozen=True)
class AdaptiveAttentionSpec:
    seeds: tuple[int, ...] = (42, 43, 44, 45, 46)
    symbols_shown: int = 10
    inputs: int = 256  # of the test split
    steps: int = 300
    batch_size: int = 32
    lr: float = 0.01
    alphas: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    betas: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    gammas: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)

    @property
    def swept(self) -> dict[str, tuple[float, ...]]:
        return dict(zip(PARAMETERS, (self.alphas, self.betas, self.gammas), strict=True))


def compute(spec: AdaptiveAttentionSpec, inputs: Mapping[str, Results], progress: ProgressCallback) -> Results:
    """``results["models"][adapter]`` has one entry per seed."""
    task = Places(count=spec.symbols_shown, items=spec.inputs)
    budget = Budget(steps=spec.steps, batch_size=spec.batch_size, lr=spec.lr, weight_decay=0.0)
    models: Results = {adapter: [] for adapter in ADAPTERS}
    for adapter in ADAPTERS:
        for seed in spec.seeds:
            trained = train_adaptive(adapter, seed=seed, task=task, budget=budget)
            models[adapter].append(
                describe_model(trained, task) | (sweep_parameters(trained, task, spec) if adapter == "fused" else {})
            )
            right = trained.curves["evaluations"][-1]["splits"]["test"]["value"]
            progress(f"adaptive attention: {adapter}, seed {seed}, accuracy {right:.3f}")
    kinds = task.kinds(_test_tokens(task))
    shares = {kind: round_values((kinds == number).double().mean()) for number, kind in enumerate(KINDS)}
    return {"models": models, "kinds": list(KINDS), "tokens": list(TOKENS), "mixture": shares}


def describe_model(trained: TrainedModel, task: Places) -> dict[str, Any]:
    tokens = _test_tokens(task)
    weights, output = trained.model.inspect_attention(tokens)
    row = weights[:, :, -1].mean(1)  # the question's row, mean over heads
    kinds = task.kinds(tokens)
    description: dict[str, Any] = {
        "splits": {split: one["value"] for split, one in trained.curves["evaluations"][-1]["splits"].items()},
        "by_kind": {
            kind: {n: round_values(x) for n, x in measures.items()}
            for kind, measures in measure_by_kind(trained.model, task).items()
        },
        "attention": {kind: round_values(row[kinds == n].mean(0)) for n, kind in enumerate(KINDS)},
        "entropy": {kind: round_values(entropy(weights[kinds == n, :, -1]).mean(1), 4) for n, kind in enumerate(KINDS)},
        "first_key_moved": round_values(_first_key_changes(trained.model, tokens)),
    }
    if output.task_weights is not None:
        task_weights = output.task_weights[:, -1]
        description["task_weights"] = {kind: round_values(task_weights[kinds == n], 4) for n, kind in enumerate(KINDS)}
    if output.content_types is not None:
        description["content"] = describe_content(trained.model, task)
    if trained.adapter in ("task", "fused"):
        description["answered_from"] = {"as read": answer_shares(trained.model, task)} | {
            f"forced to {kind}": answer_shares(force_task_type(trained.model, kind), task) for kind in KINDS
        }
        description["answered_from"] = {
            how: {kind: round_values(x) for kind, x in shares.items()}
            for how, shares in description["answered_from"].items()
        }
    return description


def _test_tokens(task: Places) -> Tensor:
    return torch.cat([batch.tokens for batch in task.evaluation("test")])


def _first_key_changes(model: AdaptiveModel, tokens: Tensor) -> Tensor:
    """The share of rows in which the adapter changes the key with the largest weight; a temperature cannot change it."""
    bare = copy.deepcopy(model)
    bare.attention.adapter = None
    with_it, without = model.inspect_attention(tokens)[0], bare.inspect_attention(tokens)[0]
    return (with_it[:, :, -1].argmax(-1) != without[:, :, -1].argmax(-1)).double().mean()


def describe_content(model: AdaptiveModel, task: Places) -> dict[str, Any]:
    """The content types and importance of each kind of token; both depend on the token alone, not on its position."""
    every = torch.arange(task.vocab_size)
    _, output = model.inspect_attention(every[None])
    assert output.content_types is not None and output.importance is not None
    groups = {"symbol": slice(0, task.symbols), "marked symbol": slice(task.symbols, 2 * task.symbols)}
    groups |= {"cue": slice(2 * task.symbols, task.vocab_size - 1), "question": slice(task.vocab_size - 1, None)}
    return {
        "types": dict(CONTENT_TYPES),  # type -> importance
        "importance": {name: round_values(output.importance[0, where], 4) for name, where in groups.items()},
        "sorted": {name: round_values(output.content_types[0, where].mean(0), 4) for name, where in groups.items()},
    }


def sweep_parameters(trained: TrainedModel, task: Places, spec: AdaptiveAttentionSpec) -> dict[str, Any]:
    """Accuracy by kind and entropy of a trained model with one of EPAR's parameters set to a value in all its heads."""
    position = trained.model.attention.position
    assert isinstance(position, Epar)
    learned = {name: _parameter_values(position, name) for name in PARAMETERS}
    results: dict[str, Any] = {
        "numbers": {name: round_values(values) for name, values in learned.items()},
        "sweeps": {},
    }
    tokens = _test_tokens(task)
    for name, values in spec.swept.items():
        points: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "entropy")}
        for value in values:
            changed = copy.deepcopy(trained.model)
            now = learned | {name: [value] * len(learned[name])}
            changed.attention.position = Epar(
                len(learned[name]), context=task.context, alpha=now["alpha"], beta=now["beta"], gamma=now["gamma"]
            )  # fmt: skip
            for kind, measures in measure_by_kind(changed, task).items():
                points[kind].append(round_values(measures["accuracy"]))
            points["entropy"].append(round_values(entropy(changed.inspect_attention(tokens)[0][:, :, -1]).mean()))
        results["sweeps"][name] = {"at": list(values)} | points
    return results


def _parameter_values(position: Epar, name: str) -> list[float]:
    quantity = getattr(position, name)
    assert isinstance(quantity, BoundedParameter)
    return [float(x) for x in quantity().detach().flatten()]

"""What only trained weights can say: scores on the training set, and where trained models look. Kept as records.

Weights are large and are not kept with the project; without them these records stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from whence.errors import MissingExtra, WhenceError
from whence.lab import checkpoints, runner, tasks, training
from whence.lab.observe import weights_path
from whence.models import attention_maps
from whence_papers.ledger.places import Places, Waiting
from whence_papers.ledger.studies import METRICS, found_study, judged

ROWS = 64  # sentences that are looked at; all seeds and arms see the same


def models(places: Places, study: str, arm: str) -> Iterator[tuple[Any, tasks.Task]]:
    """Every seed's trained model of an arm, with its task."""
    spec, folder = found_study(places, study)
    runs = [run for run in spec.runs() if run.arm.name == arm]
    missing = [run for run in runs if not weights_path(run, folder).exists()]
    if not runs or missing:
        raise Waiting(f"the weights of {len(missing)} of {len(runs)} seeds of {study}, {arm}")
    try:
        task = runner.load_task(spec)
    except (WhenceError, MissingExtra) as error:
        raise Waiting(f"the data of {study} ({error})") from None
    for run in runs:
        model = runner.build_model(run, task)
        checkpoints.load_weights(weights_path(run, folder), model)
        yield model.eval(), task


def training_scores(places: Places, study: str, arm: str, metric: str, split: str) -> dict[str, Any]:
    """Each seed's score on what it was trained on, without dropout, and how far it lies from that on a test split."""
    factor, own, gaps = METRICS[metric][0], [], []
    for model, task in models(places, study, arm):
        seen = training.evaluate(task, model, seen_in_training(task), torch.device("cpu"))["value"]
        new = training.evaluate(task, model, task.evaluation(split), torch.device("cpu"))["value"]
        own.append(factor * seen)
        gaps.append(factor * (seen - new))
    return {"training": own, "training_minus_test": gaps}


def seen_in_training(task: tasks.Task) -> list[tasks.Batch]:
    """All training items once; of a language model's windows 200 batches of 16, as many as the source scores."""
    if task.kind == "classify":
        return list(task.epoch(128, torch.Generator().manual_seed(0)))
    drawn = torch.Generator().manual_seed(0)
    return [task.train_batch(16, drawn) for _ in range(200)]


def padding_attention(places: Places, study: str, arm: str) -> dict[str, Any]:
    """The share of real tokens' attention that goes to padding, over padding's share of the places, seed by seed.

    1 is what attention that knows nothing of padding would give.
    """
    found, share = [], 0.0
    for model, task in models(places, study, arm):
        tokens = task.evaluation("test")[0].tokens[:ROWS]
        real = (tokens != 0).float()
        maps = attention_maps(model, tokens).mean((0, 2))  # [B, T, T], over layers and heads
        to_padding = (maps * (1 - real)[:, None, :]).sum(-1)
        share = float(1 - real.mean())
        uniform = (1 - real).mean(-1, keepdim=True)
        found.append(float((to_padding * real).sum() / (uniform * real).sum()))
    return {"attention_over_uniform": found, "padding_share": share}


def attention_reach(places: Places, study: str, arm: str, baseline: str) -> dict[str, Any]:
    """How far away real tokens look among real tokens, in tokens on average: one arm against another.

    The direction is 1 where the arm looks nearer and the difference can be claimed.
    """
    sides = {name: [_reach(model, task) for model, task in models(places, study, name)] for name in (baseline, arm)}
    found = judged(sides, baseline, "perplexity", 1)[arm]
    return found | {"tokens_away": sides[arm], "tokens_away_of_baseline": sides[baseline]}


def _reach(model: Any, task: tasks.Task) -> float:
    tokens = task.evaluation("test")[0].tokens[:ROWS]
    real = (tokens != 0).float()
    maps = attention_maps(model, tokens).mean((0, 2)) * real[:, None, :]
    return float(mean_reach(maps)[real.bool()].mean())


def mean_reach(maps: Tensor) -> Tensor:
    """The mean distance of each row's weight, ``[..., T, T]`` to ``[..., T]``; rows need not sum to 1.

    >>> mean_reach(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 2.0]]))
    tensor([0.0000, 0.5000, 0.0000])
    """
    here = torch.arange(maps.shape[-1])
    apart = (here[:, None] - here[None, :]).abs().to(maps.dtype)
    return (maps * apart).sum(-1) / maps.sum(-1).clamp(min=1e-12)


def deeper_looks_farther(places: Places, study: str, arm: str, lower: int, upper: int) -> dict[str, Any]:
    """Whether an upper layer's heads look farther back than a lower one's: 1 where that can be claimed over the seeds."""
    sides: dict[str, list[float]] = {"lower": [], "upper": []}
    for model, task in models(places, study, arm):
        tokens = task.evaluation(next(iter(task.splits())))[0].tokens[:ROWS]
        maps = attention_maps(model, tokens)
        for name, layer in (("lower", lower), ("upper", upper)):
            sides[name].append(float(mean_reach(maps[layer - 1]).mean()))
    return judged(sides, "lower", "accuracy", 1)["upper"] | {f"{name}_layer": rows for name, rows in sides.items()}


def _named(measure: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The same measurement with the name of the study's folder, whose hash says exactly what was trained."""

    @functools.wraps(measure)
    def measured(places: Places, study: str, *given: Any, **named: Any) -> dict[str, Any]:
        found = measure(places, study, *given, **named)
        return found | {"study": found_study(places, study)[1].name}

    return measured


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: _named(function)
    for function in (training_scores, padding_attention, attention_reach, deeper_looks_farther)
}

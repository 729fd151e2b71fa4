"""Evidence from trained weights: scores on the training set, and where trained models attend.

Weights are large and not committed. Without them the stored records stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from whence.errors import MissingExtra, WhenceError
from whence.lab import checkpoints, tasks, training
from whence.lab.study_folder import weights_path
from whence.lab.study_task import build_model, load_task
from whence.models import attention_maps
from whence_papers.ledger.claims import LedgerFolders, MissingEvidence
from whence_papers.ledger.comparisons import METRICS, compare_lists, contrast_figures
from whence_papers.ledger.study_records import find_study

ROWS = 64  # number of sentences; the same for all seeds and arms


def load_models(folders: LedgerFolders, study: str, arm: str) -> Iterator[tuple[Any, tasks.Task]]:
    """Yield the trained model of every seed of an arm, with its task."""
    spec, folder = find_study(folders, study)
    runs = [run for run in spec.runs() if run.arm.name == arm]
    missing = [run for run in runs if not weights_path(run, folder).exists()]
    if not runs or missing:
        raise MissingEvidence(f"the weights of {len(missing)} of {len(runs)} seeds of {study}, {arm}")
    try:
        task = load_task(spec)
    except (WhenceError, MissingExtra) as error:
        raise MissingEvidence(f"the data of {study} ({error})") from None
    for run in runs:
        model = build_model(run, task)
        checkpoints.load_weights(weights_path(run, folder), model)
        yield model.eval(), task


def training_scores(folders: LedgerFolders, study: str, arm: str, metric: str, split: str) -> dict[str, Any]:
    """Score of each seed on the training set, without dropout, and its difference from the score on a test split."""
    factor, own, gaps = METRICS[metric][0], [], []
    for model, task in load_models(folders, study, arm):
        on_training = training.evaluate(task, model, training_batches(task), torch.device("cpu"))["value"]
        on_test = training.evaluate(task, model, task.evaluation(split), torch.device("cpu"))["value"]
        own.append(factor * on_training)
        gaps.append(factor * (on_training - on_test))
    return {"training": own, "training_minus_test": gaps}


def training_batches(task: tasks.Task) -> list[tasks.Batch]:
    """All training items once; for a language model 200 batches of 16 windows, as many as the source scores."""
    if task.kind == "classify":
        return list(task.epoch(128, torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(0)
    return [task.train_batch(16, generator) for _ in range(200)]


def padding_attention(folders: LedgerFolders, study: str, arm: str) -> dict[str, Any]:
    """Attention of real tokens to padding, divided by the share of padding among the positions, per seed.

    Uniform attention gives 1.
    """
    ratios, share = [], 0.0
    for model, task in load_models(folders, study, arm):
        tokens = task.evaluation("test")[0].tokens[:ROWS]
        real = (tokens != 0).float()
        maps = attention_maps(model, tokens).mean((0, 2))  # [B, T, T], over layers and heads
        to_padding = (maps * (1 - real)[:, None, :]).sum(-1)
        share = float(1 - real.mean())
        uniform = (1 - real).mean(-1, keepdim=True)
        ratios.append(float((to_padding * real).sum() / (uniform * real).sum()))
    return {"attention_over_uniform": ratios, "padding_share": share}


def attention_reach(folders: LedgerFolders, study: str, arm: str, baseline: str) -> dict[str, Any]:
    """Mean attention distance among real tokens, in tokens, of two arms, per seed."""
    return {
        figure: [_mean_reach_of_model(model, task) for model, task in load_models(folders, study, name)]
        for figure, name in (("tokens_away", arm), ("tokens_away_of_baseline", baseline))
    }


def compare_reach(figures: dict[str, Any], arm: str, baseline: str, **_: Any) -> dict[str, Any]:
    """The direction is 1 if the arm attends nearer and the difference can be claimed."""
    sides = {baseline: figures["tokens_away_of_baseline"], arm: figures["tokens_away"]}
    return contrast_figures(compare_lists(sides, "nearness", baseline), arm, baseline)


def _mean_reach_of_model(model: Any, task: tasks.Task) -> float:
    tokens = task.evaluation("test")[0].tokens[:ROWS]
    real = (tokens != 0).float()
    maps = attention_maps(model, tokens).mean((0, 2)) * real[:, None, :]
    return float(mean_reach(maps)[real.bool()].mean())


def mean_reach(maps: Tensor) -> Tensor:
    """Mean attention distance of each row, ``[..., T, T]`` to ``[..., T]``; rows need not sum to 1.

    >>> mean_reach(torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 2.0]]))
    tensor([0.0000, 0.5000, 0.0000])
    """
    here = torch.arange(maps.shape[-1])
    apart = (here[:, None] - here[None, :]).abs().to(maps.dtype)
    return (maps * apart).sum(-1) / maps.sum(-1).clamp(min=1e-12)


def deeper_looks_farther(folders: LedgerFolders, study: str, arm: str, lower: int, upper: int) -> dict[str, Any]:
    """Mean attention distance of two layers of the same models, per seed."""
    sides: dict[str, list[float]] = {"lower": [], "upper": []}
    for model, task in load_models(folders, study, arm):
        tokens = task.evaluation(next(iter(task.splits())))[0].tokens[:ROWS]
        maps = attention_maps(model, tokens)
        for name, layer in (("lower", lower), ("upper", upper)):
            sides[name].append(float(mean_reach(maps[layer - 1]).mean()))
    return {f"{name}_layer": rows for name, rows in sides.items()}


def compare_layers(figures: dict[str, Any], **_: Any) -> dict[str, Any]:
    """The direction is 1 if the upper layer attends farther back and the difference can be claimed."""
    sides = {f"{name} layer": figures[f"{name}_layer"] for name in ("lower", "upper")}
    return contrast_figures(compare_lists(sides, "distance", "lower layer"), "upper layer", "lower layer")


def _with_study_name(measure: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Add the name of the study's folder to a measurement; its hash identifies what was trained."""

    @functools.wraps(measure)
    def wrapper(folders: LedgerFolders, study: str, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        figures = measure(folders, study, *arguments, **keywords)
        return figures | {"study": find_study(folders, study)[1].name}

    return wrapper


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: _with_study_name(function)
    for function in (training_scores, padding_attention, attention_reach, deeper_looks_farther)
}

#: comparisons of measured values, made when a record is read, so that they follow the rule for differences
COMPARISONS: dict[str, Callable[..., dict[str, Any]]] = {
    "attention_reach": compare_reach,
    "deeper_looks_farther": compare_layers,
}

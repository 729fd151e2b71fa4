"""Attention maps of a few examples, and the mean attention by distance, of trained models."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence import records
from whence.lab import checkpoints, tasks
from whence.lab.study import Run, Study
from whence.lab.study_folder import weights_path
from whence.lab.study_task import build_model, load_task
from whence.models import Decoder, Encoder, attention_maps

EXAMPLES = 3
MAX_TOKENS = 64  # of an example: the size of a map grows with the square


def load_observations(study: Study, folder: Path, observe: bool = True) -> dict[str, Any]:
    """Observations of each arm's first seed that has weights. They are stored beside the records and read from there.

    ``observe``: make them if none are stored.
    """
    path = folder / "observations.json"
    if records.exists(path):
        return records.read(path)["arms"]
    runs = [run for run in study.runs() if weights_path(run, folder).exists()]
    if not runs or not observe:
        return {}
    task = load_task(study)
    arms: dict[str, Any] = {}
    for arm in study.arms:
        own = [run for run in runs if run.arm == arm]
        if own and isinstance(build_model(own[0], task), Encoder | Decoder):  # other models have no attention maps
            arms[arm.name] = observe_run(own[0], task, folder)
    if len(arms) == len(study.arms):  # an unfinished study is observed again next time
        records.write(path, {"hash": study.hash, "arms": arms})
    return arms


def observe_run(run: Run, task: tasks.Task, folder: Path) -> dict[str, Any]:
    """Attention maps of some examples and the mean attention by distance of one trained model."""
    model = build_model(run, task)
    checkpoints.load_weights(weights_path(run, folder), model)
    examples = []
    for batch in task.examples(EXAMPLES):
        tokens = batch.tokens[:, :MAX_TOKENS]
        key_mask = None if batch.key_mask is None else batch.key_mask[:, :MAX_TOKENS]
        maps = attention_maps(model, tokens, key_mask)[:, 0]  # type: ignore[arg-type]
        examples.append(
            {
                "tokens": task.decode(tokens[0]),
                # True at padding tokens, whether or not the model masks them
                "padding": None if task.pad is None else (tokens[0] == task.pad).tolist(),
                "maps": [[_encode_map(head) for head in layer] for layer in maps],
            }
        )
    split = next(iter(task.splits()))
    batch = task.evaluation(split)[0]
    rows = slice(0, max(1, 4096 // batch.tokens.shape[1]))
    sample = batch.map(lambda tensor: tensor[rows])
    weights = attention_maps(model, sample.tokens, sample.key_mask).mean(2)  # type: ignore[arg-type]
    return {"seed": run.seed, "examples": examples, "mass": attention_by_distance(weights, sample.key_mask)}


def attention_by_distance(weights: Tensor, key_mask: Tensor | None) -> dict[str, Any]:
    """The mean attention at each distance ``|query - key|``, from weights ``[layers, B, T, T]``.

    >>> attention_by_distance(torch.eye(3).reshape(1, 1, 3, 3), None)
    {'distance': [0, 1, 2], 'by_layer': [[1.0, 0.0, 0.0]]}
    """
    length = weights.shape[-1]
    positions = torch.arange(length)
    distances = (positions[:, None] - positions[None, :]).abs()
    # padded queries do not count
    rows = torch.ones(weights.shape[1], length) if key_mask is None else key_mask.float()
    masked = weights * rows[None, :, :, None]
    # float64, because in float32 the order of so many small summands would show
    sums = torch.zeros(len(weights), length, dtype=torch.float64)
    sums.index_add_(1, distances.flatten(), masked.double().sum(1).flatten(1)).div_(rows.sum())
    return {"distance": positions.tolist(), "by_layer": [[round(x, 6) for x in layer] for layer in sums.tolist()]}


def _encode_map(weights: Tensor) -> str:
    """Weights from 0 to 1 as one byte each, in base64, for an HTML page."""
    return base64.b64encode(weights.mul(255).round().clamp(0, 255).byte().numpy().tobytes()).decode()

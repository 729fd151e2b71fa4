"""Looking into trained models: attention maps of a few examples, and how much attention goes how far."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence import records
from whence.lab import checkpoints, runner, tasks
from whence.lab.study import Run, Study
from whence.models import Decoder, Encoder, attention_maps

EXAMPLES = 3
LONGEST = 64  # tokens of an example that is drawn: a map grows with the square


def observations(study: Study, folder: Path) -> dict[str, Any]:
    """Of each arm's first seed that has weights; written beside the records once, and read again from there."""
    path = folder / "observations.json"
    if records.exists(path):
        return records.read(path)["arms"]
    runs = [run for run in study.runs() if weights_of(run, folder).exists()]
    if not runs:
        return {}
    task = runner.task_for(study)
    arms: dict[str, Any] = {}
    for arm in study.arms:
        own = [run for run in runs if run.arm == arm]
        if own and isinstance(runner.model_for(own[0], task), Encoder | Decoder):  # others have no maps to show
            arms[arm.name] = observed(own[0], task, folder)
    if len(arms) == len(study.arms):  # a study that is not finished is looked at anew next time
        records.write(path, {"hash": study.hash, "arms": arms})
    return arms


def weights_of(run: Run, folder: Path) -> Path:
    return folder / "weights" / f"{run.file_name.removesuffix('.json')}.safetensors"


def observed(run: Run, task: tasks.Task, folder: Path) -> dict[str, Any]:
    """Maps of some examples and the mean attention by distance, of one trained model."""
    model = runner.model_for(run, task)
    checkpoints.load_weights(weights_of(run, folder), model)
    examples = []
    for batch in task.examples(EXAMPLES):
        tokens = batch.tokens[:, :LONGEST]
        key_mask = None if batch.key_mask is None else batch.key_mask[:, :LONGEST]
        maps = attention_maps(model, tokens, key_mask)[:, 0]  # type: ignore[arg-type]
        examples.append(
            {
                "tokens": task.decode(tokens[0]),
                "key_mask": None if task.pad is None else (tokens[0] == task.pad).tolist(),  # marked, hidden or not
                "maps": [[_packed(head) for head in layer] for layer in maps],
            }
        )
    split = next(iter(task.splits()))
    batch = task.evaluation(split)[0]
    rows = slice(0, max(1, 4096 // batch.tokens.shape[1]))
    some = batch.each(lambda tensor: tensor[rows])
    weights = attention_maps(model, some.tokens, some.key_mask).mean(2)  # type: ignore[arg-type]
    return {"seed": run.seed, "examples": examples, "mass": mass_by_distance(weights, some.key_mask)}


def mass_by_distance(weights: Tensor, key_mask: Tensor | None) -> dict[str, Any]:
    """The share of a row's attention that goes to each distance, ``|query - key|``, averaged over rows: ``[layers, B, T, T]``.

    >>> mass_by_distance(torch.eye(3).reshape(1, 1, 3, 3), None)
    {'distance': [0, 1, 2], 'by_layer': [[1.0, 0.0, 0.0]]}
    """
    length = weights.shape[-1]
    here = torch.arange(length)
    apart = (here[:, None] - here[None, :]).abs()
    # a padded query looks nowhere in particular
    rows = torch.ones(weights.shape[1], length) if key_mask is None else key_mask.float()
    counted = weights * rows[None, :, :, None]
    # in float64: so many small shares are added that their order would show
    sums = torch.zeros(len(weights), length, dtype=torch.float64)
    sums.index_add_(1, apart.flatten(), counted.double().sum(1).flatten(1)).div_(rows.sum())
    return {"distance": here.tolist(), "by_layer": [[round(x, 6) for x in layer] for layer in sums.tolist()]}


def _packed(weights: Tensor) -> str:
    """Weights from 0 to 1 as one byte each, for a page."""
    return base64.b64encode(weights.mul(255).round().clamp(0, 255).byte().numpy().tobytes()).decode()

"""Saving and resuming a run in the middle: weights, optimiser, randomness and curves in one file, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import missing_extra, refusal


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise missing_extra("saving a model", "lab", "safetensors") from None
    return safetensors


def save(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    """Replace a checkpoint in one step: a reader sees the old one or the new one, whenever the writer is killed."""
    tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    state = optimiser.state_dict()
    for number, values in state["state"].items():
        for name, value in values.items():
            tensors[f"optimiser.{number}.{name}"] = torch.as_tensor(value)
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    groups = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
    _write(path, tensors, {"progress": json.dumps(progress | {"groups": groups})})


def load(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Put a checkpoint back into a model and its optimiser; the progress noted with it, or None where there is none."""
    if not path.exists():
        return None
    try:
        with _safetensors().safe_open(path, framework="pt") as file:
            progress = json.loads(file.metadata()["progress"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  a file is no mapping
    except Exception as error:
        raise refusal(
            "resuming a run",
            f"a broken checkpoint {path.name} ({type(error).__name__})",
            "a checkpoint is read whole or not at all",
            "delete that file to begin the run anew",
        ) from None
    model.load_state_dict({k.removeprefix("model."): t for k, t in tensors.items() if k.startswith("model.")})
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("optimiser."):
            _, number, name = key.split(".", 2)
            state.setdefault(int(number), {})[name] = tensor
    current = optimiser.state_dict()
    groups = [now | before for now, before in zip(current["param_groups"], progress.pop("groups"), strict=True)]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
    torch.set_rng_state(tensors["random"].cpu())
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"].cpu())
    return progress


def remove(path: Path) -> None:
    """A checkpoint that is no longer needed, with what killed writers left of it."""
    for leftover in (path, *path.parent.glob(f"{path.name}.*.part")):
        leftover.unlink(missing_ok=True)


def save_weights(path: Path, model: nn.Module) -> None:
    """The final weights alone."""
    _write(path, dict(model.state_dict()), {})


def load_weights(path: Path, model: nn.Module) -> None:
    """Put final weights into a model of the same spec."""
    model.load_state_dict(_safetensors().torch.load_file(path))


def _write(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    _safetensors().torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part, notes)
    os.replace(part, path)

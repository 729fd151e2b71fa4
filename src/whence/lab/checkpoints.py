"""Saving and resuming a run in the middle: weights, optimiser, randomness and curves, written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
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
    return safetensors.torch


def save(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    """Replace the checkpoint in a folder; a reader sees the old one or the new one."""
    tensors: dict[str, Tensor] = {f"model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    state = optimiser.state_dict()
    for number, values in state["state"].items():
        for name, value in values.items():
            tensors[f"optimiser.{number}.{name}"] = torch.as_tensor(value).contiguous()
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    _safetensors().save_file(tensors, part / "state.safetensors")
    groups = [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]]
    (part / "progress.json").write_text(json.dumps(progress | {"groups": groups}))
    old = folder.with_name(f"{folder.name}.{os.getpid()}.old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(part, folder)
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Put a checkpoint back into a model and its optimiser; the progress noted with it, or None where there is none."""
    if not (folder / "progress.json").exists():
        return None
    try:
        progress = json.loads((folder / "progress.json").read_text())
        tensors = _safetensors().load_file(folder / "state.safetensors")
    except Exception as error:
        raise refusal(
            "resuming a run",
            f"a broken checkpoint in {folder.name} ({type(error).__name__})",
            "a checkpoint is read whole or not at all",
            "delete that folder to begin the run anew",
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


def save_weights(path: Path, model: nn.Module) -> None:
    """The final weights alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    _safetensors().save_file({k: t.contiguous() for k, t in model.state_dict().items()}, part)
    os.replace(part, path)

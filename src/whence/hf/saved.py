"""Positions that were saved with a model, read back into one that has them attached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from whence.errors import refusal
from whence.hf.interface import KEY
from whence.hf.packages import needed


def saved_positions(folder: Path) -> list[str]:
    """The names of positions' weights in a folder that ``save_pretrained`` wrote; nothing is loaded for that."""
    safetensors = needed("safetensors", f'saved_positions("{folder}")')
    names: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            names += [name for name in list(file.keys()) if f".{KEY}." in name]
    return names


def read_positions(model: Any, folder: str | Path) -> None:
    """Fill the attached positions with what ``model.save_pretrained(folder)`` wrote of them.

    transformers reads the weights it knows and passes over those of positions, so a trained model comes back in three
    steps: ``load`` the folder, ``attach`` the same kind of position, ``read_positions`` from the folder.
    """
    asked = f'read_positions("{folder}")'
    safetensors = needed("safetensors.torch", asked)
    wanted = {name: tensor for name, tensor in model.state_dict().items() if f".{KEY}." in name}
    found: dict[str, torch.Tensor] = {}
    for path in sorted(Path(folder).expanduser().glob("*.safetensors")):
        found |= {name: tensor for name, tensor in safetensors.load_file(path).items() if f".{KEY}." in name}
    if set(found) != set(wanted):
        lost, homeless = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
        got = [f"no {name}" for name in lost[:1]] + [f"{name}, which the model does not have" for name in homeless[:1]]
        raise refusal(
            asked,
            " and ".join(got),
            "the folder holds the positions that are attached",
            "attach the same kind of position to the same layers as when it was saved",
        )
    for name, tensor in found.items():
        if tensor.shape != wanted[name].shape:
            raise refusal(
                asked,
                f"{name} of shape {list(tensor.shape)} for {list(wanted[name].shape)}",
                "shapes are as they were",
                "build the position with the same settings",
            )
    model.load_state_dict(found, strict=False)

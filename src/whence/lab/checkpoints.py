"""Checkpoints of a run in one file: weights, optimizer state, random state and curves, written atomically."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import require_package, usage_error
from whence.records import make_folder, remove_partial_files, replace_file


def _safetensors() -> Any:
    require_package("safetensors.torch", "saving a model", "lab")
    return require_package("safetensors", "saving a model", "lab")


def _options(cpu_offload: bool = False) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=cpu_offload)  # full tensors, also of sharded models


def gather_weights(model: nn.Module) -> dict[str, Tensor]:
    """All weights, also of a sharded model. In distributed training every process must call this."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    weights: Any = get_model_state_dict(model, options=_options())
    return weights


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any], *,
    best: Mapping[str, Tensor] | None = None, write: bool = True,
) -> None:  # fmt: skip
    """Replace a checkpoint atomically: a reader sees the old one or the new one, even if the writer is killed.

    ``best`` are the best weights so far, with early stopping. In distributed training every process must call this, and
    one of them writes.
    """
    from torch.distributed.checkpoint.state_dict import get_state_dict

    both: Any = get_state_dict(model, optimizer, options=_options(cpu_offload=True))  # to process 0
    tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in both[0].items()}
    for weight, values in both[1].get("state", {}).items():
        tensors |= {f"optimiser.{weight}.{name}": torch.as_tensor(value) for name, value in values.items()}
    tensors |= {f"best.{name}": tensor for name, tensor in (best or {}).items()}
    for rank, states in enumerate(_gather_from_all(_random_state())):
        tensors |= {f"random.{rank}.{name}": states[name] for name in states}
    if write:
        _write(path, tensors, {"progress": json.dumps(progress)})


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Load a checkpoint into a model and its optimizer and return its progress, or None if there is no checkpoint.

    ``best`` in the progress are the best weights so far, with early stopping.
    """
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    if not path.exists():
        return None
    try:
        with _safetensors().safe_open(path, framework="pt") as file:
            progress = json.loads(file.metadata()["progress"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  the file is not a mapping
    except Exception as error:
        raise usage_error(
            "resuming a run",
            f"a damaged checkpoint {path.name} ({type(error).__name__})",
            "a checkpoint must be complete",
            "delete that file to start the run again",
        ) from None
    state: Any = get_optimizer_state_dict(model, optimizer, options=_options())  # keeps the settings of this optimizer
    state["state"] = {}
    for key, tensor in tensors.items():
        if key.startswith("optimiser."):
            weight, name = key.removeprefix("optimiser.").rsplit(".", 1)
            state["state"].setdefault(weight, {})[name] = tensor
    weights = {key.removeprefix("model."): t for key, t in tensors.items() if key.startswith("model.")}
    set_model_state_dict(model, weights, options=_options())
    # not strict: a parameter without a gradient has no optimizer state
    set_optimizer_state_dict(model, optimizer, state, options=replace(_options(), strict=False))
    own = f"random.{_rank()}."
    if f"{own}cpu" in tensors:  # processes that are new keep their random state
        torch.set_rng_state(tensors[f"{own}cpu"])
    if f"{own}cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors[f"{own}cuda"])
    best = {key.removeprefix("best."): tensor for key, tensor in tensors.items() if key.startswith("best.")}
    return progress | ({"best": best} if best else {})


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _random_state() -> dict[str, Tensor]:
    on_gpu = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"cpu": torch.get_rng_state()} | on_gpu


def _gather_from_all(own: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    if not torch.distributed.is_initialized():
        return [own]
    states: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(states, own)
    return states


def remove(path: Path) -> None:
    """Delete a checkpoint and the partial files of writers that were killed."""
    path.unlink(missing_ok=True)
    remove_partial_files(path)


def save_weights(path: Path, model: nn.Module, metadata: Mapping[str, Any] | None = None) -> None:
    """Save the final weights, with plain JSON metadata that is needed to use them."""
    _write(path, dict(model.state_dict()), {"about": json.dumps(metadata)} if metadata else {})


def copy_weights(source: Path, target: Path) -> None:
    """Copy the final weights of a run, atomically."""
    make_folder(target.parent)
    with replace_file(target) as part:
        shutil.copyfile(source, part)


#: the remedy where weights are missing or cannot be used
PASS_WEIGHTS = "pass the weights of a finished run, weights/*.safetensors in a study's folder"


def read_metadata(path: Path, subject: str, remedy: str = PASS_WEIGHTS) -> dict[str, Any]:
    """The metadata stored with final weights. ``subject`` begins the error texts, and ``remedy`` ends them."""
    if not path.is_file():
        raise usage_error(subject, f"no file {path}", "it must name trained weights", remedy)
    try:
        with _safetensors().safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {})["about"])
    except KeyError:
        raise usage_error(
            subject, f"{path.name} without a spec", "weights are stored with their spec", remedy
        ) from None
    except Exception as error:
        got = f"{path.name}, which cannot be read ({type(error).__name__})"
        raise usage_error(subject, got, "it must be a complete safetensors file", remedy) from None


def load_weights(path: Path, model: nn.Module) -> None:
    """Load final weights into a model of the same spec."""
    model.load_state_dict(_safetensors().torch.load_file(path))


def _write(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    # safetensors writes to a temporary file with a name of its own; in a folder of ours it can be found after a kill
    with (
        replace_file(path) as part,
        tempfile.TemporaryDirectory(prefix=f"{path.name}.", suffix=".part", dir=path.parent) as folder,
    ):
        written = Path(folder) / path.name
        _safetensors().torch.save_file(_copy_shared(tensors), written, notes)
        os.replace(written, part)


def _copy_shared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory, such as tied weights: the format stores each memory once."""
    separate: dict[str, Tensor] = {}
    addresses = set()
    for name, tensor in tensors.items():
        contiguous = tensor.contiguous()
        address = (contiguous.device, contiguous.data_ptr())
        separate[name] = contiguous.clone() if address in addresses else contiguous
        addresses.add(address)
    return separate

"""Saving and resuming a run in the middle: weights, optimiser, randomness and curves in one file, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import require_package, usage_error
from whence.records import replace_file


def _safetensors() -> Any:
    require_package("safetensors.torch", "saving a model", "lab")
    return require_package("safetensors", "saving a model", "lab")


def _options(cpu_offload: bool = False) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=cpu_offload)  # whole tensors, whoever holds which part


def weights_in(model: nn.Module) -> dict[str, Tensor]:
    """All weights, also of a model that several processes share; every process must ask."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    weights: Any = get_model_state_dict(model, options=_options())
    return weights


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: dict[str, Any], *,
    best: Mapping[str, Tensor] | None = None, write: bool = True,
) -> None:  # fmt: skip
    """Replace a checkpoint in one step: a reader sees the old one or the new one, whenever the writer is killed.

    ``best`` are the weights that will be kept, where they are not the last. Of several processes all must call this, and
    one writes.
    """
    from torch.distributed.checkpoint.state_dict import get_state_dict

    both: Any = get_state_dict(model, optimizer, options=_options(cpu_offload=True))  # the first process gets them
    tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in both[0].items()}
    for weight, values in both[1].get("state", {}).items():
        tensors |= {f"optimiser.{weight}.{name}": torch.as_tensor(value) for name, value in values.items()}
    tensors |= {f"best.{name}": tensor for name, tensor in (best or {}).items()}
    for rank, states in enumerate(_from_all(_randomness())):
        tensors |= {f"random.{rank}.{name}": states[name] for name in states}
    if write:
        _write(path, tensors, {"progress": json.dumps(progress)})


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Put a checkpoint back into a model and its optimiser; the progress noted with it, or None where there is none.

    Its ``best`` are the best weights so far, where others than the last are kept.
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
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  a file is no mapping
    except Exception as error:
        raise usage_error(
            "resuming a run",
            f"a broken checkpoint {path.name} ({type(error).__name__})",
            "a checkpoint is read whole or not at all",
            "delete that file to begin the run anew",
        ) from None
    state: Any = get_optimizer_state_dict(
        model, optimizer, options=_options()
    )  # its settings: no checkpoint changes those
    state["state"] = {}
    for key, tensor in tensors.items():
        if key.startswith("optimiser."):
            weight, name = key.removeprefix("optimiser.").rsplit(".", 1)
            state["state"].setdefault(weight, {})[name] = tensor
    weights = {key.removeprefix("model."): t for key, t in tensors.items() if key.startswith("model.")}
    set_model_state_dict(model, weights, options=_options())
    # not strict: a weight that no answer depends on has no numbers yet, and so none in the file
    set_optimizer_state_dict(model, optimizer, state, options=replace(_options(), strict=False))
    mine = f"random.{_rank()}."
    if f"{mine}cpu" in tensors:  # with more processes than before, the new ones keep their fresh randomness
        torch.set_rng_state(tensors[f"{mine}cpu"])
    if f"{mine}cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors[f"{mine}cuda"])
    best = {key.removeprefix("best."): tensor for key, tensor in tensors.items() if key.startswith("best.")}
    return progress | ({"best": best} if best else {})


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _randomness() -> dict[str, Tensor]:
    on_gpu = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"cpu": torch.get_rng_state()} | on_gpu


def _from_all(mine: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    if not torch.distributed.is_initialized():
        return [mine]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, mine)
    return found


def remove(path: Path) -> None:
    """A checkpoint that is no longer needed, with what killed writers left of it."""
    for leftover in (path, *path.parent.glob(f"{path.name}.*.part")):
        leftover.unlink(missing_ok=True)


def save_weights(path: Path, model: nn.Module, about: Mapping[str, Any] | None = None) -> None:
    """The final weights, with what must be known to use them, as plain JSON."""
    _write(path, dict(model.state_dict()), {"about": json.dumps(about)} if about else {})


def about(path: Path, asked: str) -> dict[str, Any]:
    """What was written beside final weights; a file that is missing, broken or without it is named."""
    mend = "give the weights of a finished run, weights/*.safetensors in a study's folder"
    if not path.is_file():
        raise usage_error(asked, f"no file {path}", "it names trained weights", mend)
    try:
        with _safetensors().safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {})["about"])
    except KeyError:
        raise usage_error(asked, f"{path.name} without its spec", "weights are kept with their spec", mend) from None
    except Exception as error:
        got = f"{path.name}, which cannot be read ({type(error).__name__})"
        raise usage_error(asked, got, "it is a whole safetensors file", mend) from None


def load_weights(path: Path, model: nn.Module) -> None:
    """Put final weights into a model of the same spec."""
    model.load_state_dict(_safetensors().torch.load_file(path))


def _write(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    with replace_file(path) as part:
        _safetensors().torch.save_file(_apart(tensors), part, notes)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in memory of their own: the format knows no two names for one, as tied weights have."""
    apart: dict[str, Tensor] = {}
    places = set()
    for name, tensor in tensors.items():
        whole = tensor.contiguous()
        place = (whole.device, whole.data_ptr())
        apart[name] = whole.clone() if place in places else whole
        places.add(place)
    return apart

"""Positions on disk: found in the folders that ``save_pretrained`` writes, read back with their settings, saved alone.

transformers renames the weights of some models when it writes them, so a position is found by the name ``whence`` in the
names of its tensors and by the layer that its settings state.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence.errors import WhenceError, usage_error
from whence.hf import settings
from whence.hf.attach import Attachment, Given, attach
from whence.hf.devices import bring_into_memory, execution_device
from whence.hf.interface import KEY
from whence.hf.packages import needed
from whence.hf.position_state import SETTINGS, attached_positions, require_same, tensors_of
from whence.position.base import Position
from whence.records import replace_file

ALONE = f"{KEY}.safetensors"  # the file of ``save_positions``


@dataclass
class Saved:
    """One layer's position on disk."""

    file: str
    name: str  # of the position in that file
    record: dict[str, Any] | None = None  # None in a folder that was written before settings were saved
    tensors: dict[str, Tensor] = field(default_factory=dict)


def save_positions(model: Any, folder: str | Path) -> Path:
    """Write the attached positions alone, with their settings, into one small file; ``read_positions`` reads it.

    The file appears in one step, and an older one of that name is replaced.
    """
    asked = f'save_positions("{folder}")'
    safetensors = needed("safetensors.torch", asked)
    positions = _require_attached(asked, model)
    path = Path(folder).expanduser() / ALONE
    state = {
        f"layers.{layer}.{KEY}.{name}": tensor.detach().cpu().contiguous().clone()
        for layer, position in positions.items()
        for name, tensor in position.state_dict().items()
    }
    with replace_file(path) as part:
        safetensors.save_file(state, part, metadata={"sha256": _checksum(state)})
    return path


def saved_positions(folder: Path) -> list[str]:
    """The names of positions' weights in a folder that ``save_pretrained`` wrote; nothing is loaded for that."""
    asked = f'saved_positions("{folder}")'
    names: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        with _opened(asked, path) as file:
            names += [name for name in list(file.keys()) if _parsed(name)]
    return names


def read_positions(model: Any, folder: str | Path) -> None:
    """Fill the attached positions with those in a folder that ``save_pretrained`` or ``save_positions`` wrote.

    The settings in the folder must be those of the attached positions. ``attach_saved`` builds the positions as well.
    """
    asked = f'read_positions("{folder}")'
    _fill(asked, _require_attached(asked, model), _read(asked, Path(folder).expanduser()))


def attach_saved(
    model: Any,
    folder: str | Path,
    *,
    position: Given | None = None,
    classes: Sequence[type[Position]] = (),
) -> Attachment:
    """Attach the positions that were saved with a model: built from their settings, on their layers, with their weights.

    transformers and PEFT load the weights they know and pass over those of positions, so a model comes back in two steps:
    load it, then ``attach_saved`` from the same folder.

    Args:
        model: the model, loaded and with nothing attached.
        folder: what ``save_pretrained`` (of a plain, multimodal or PEFT model) or ``save_positions`` wrote.
        position: the position itself, as ``attach`` takes it, where it cannot be built from its settings; it must have them.
        classes: your own subclasses of Position that occur in the folder. Those of whence are known.

    Example::

        model, tokenizer = load("tuned")
        attachment = attach_saved(model, "tuned")
    """
    asked = f'attach_saved("{folder}")'
    saved = _read(asked, Path(folder).expanduser())
    if not saved:
        raise usage_error(
            asked, "a folder without positions", "a model with positions was saved there", "call attach for new ones"
        )
    records = {layer: one.record for layer, one in saved.items() if one.record is not None}
    if len(records) < len(saved):
        raise usage_error(
            asked,
            "positions without settings",
            "they were saved by a version of whence that did not save settings",
            "attach the same position, then call read_positions",
        )
    rotary = {bool(record["keep_rotary"]) for record in records.values()}
    if len(rotary) > 1:
        raise usage_error(
            asked,
            "layers with and without the model's rotation",
            "one call attaches alike",
            "attach, then call read_positions",
        )
    built = position
    if built is None:
        made = {layer: settings.build(asked, record["position"], classes) for layer, record in records.items()}
        built = made.__getitem__
    attachment = attach(model, built, layers=list(saved), keep_rotary=rotary.pop())
    try:
        _fill(asked, attachment.positions, saved)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def _fill(asked: str, positions: Mapping[int, Position], saved: Mapping[int, Saved]) -> None:
    """Check everything, then load: a refusal leaves every position as it was."""
    if set(saved) != set(positions):
        without, spare = sorted(set(positions) - set(saved)), sorted(set(saved) - set(positions))
        got = [f"no position for layers {without}"] if without else []
        got += [f"positions for layers {spare}, where none is attached"] if spare else []
        raise usage_error(
            asked,
            " and ".join(got),
            "the folder holds the positions that are attached",
            f"attach with layers={sorted(saved)}" if saved else "read from the folder that they were saved in",
        )
    for layer, one in saved.items():
        if one.record is not None:
            require_same(asked, f"{one.name} in {one.file}", one.record, positions[layer])
        own = dict(tensors_of(positions[layer].state_dict()))
        if set(own) != set(one.tensors):
            lost, extra = sorted(set(own) - set(one.tensors)), sorted(set(one.tensors) - set(own))
            got = [f"no {one.name}.{name}" for name in lost[:1]]
            got += [f"{one.name}.{name}, which the attached position does not have" for name in extra[:1]]
            raise usage_error(
                asked,
                f"{' and '.join(got)} in {one.file}",
                "the folder holds the positions that are attached",
                "attach the same kind of position as when it was saved",
            )
        for name, tensor in one.tensors.items():
            if tensor.shape != own[name].shape:
                raise usage_error(
                    asked,
                    f"{one.name}.{name} of shape {list(tensor.shape)} for {list(own[name].shape)}",
                    "shapes are as they were",
                    "build the position with the same settings",
                )
    for layer, one in saved.items():
        positions[layer].load_state_dict(one.tensors)


def _read(asked: str, folder: Path) -> dict[int, Saved]:
    """All positions in a folder, by layer. Several files may hold the same ones, but not different ones."""
    if not folder.is_dir():
        raise usage_error(asked, "no such folder", "a model was saved there", "check the path")
    found: dict[int, Saved] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for layer, one in _in_file(asked, path).items():
            other = found.setdefault(layer, one)
            if other is not one and not _alike(other, one):
                raise usage_error(
                    asked,
                    f"different positions for layer {layer} in {other.file} and {one.file}",
                    "a folder holds one model",
                    f"delete the older file, which may be {ALONE}",
                )
    return dict(sorted(found.items()))


def _in_file(asked: str, path: Path) -> dict[int, Saved]:
    with _opened(asked, path) as file:
        names = [(name, parsed) for name in list(file.keys()) if (parsed := _parsed(name))]
        tensors = {name: file.get_tensor(name) for name, _ in names}
        if path.name == ALONE and (file.metadata() or {}).get("sha256") != _checksum(tensors):
            raise _damaged(asked, path)
    by_name: dict[str, Saved] = {}
    layers: dict[str, int] = {}
    for name, (place, layer, inner) in names:
        one = by_name.setdefault(place, Saved(path.name, place))
        layers.setdefault(place, layer)
        if inner == SETTINGS:
            one.record = settings.decode(asked, f"{name} in {path}", tensors[name])
            layers[place] = int(one.record["layer"])
        else:
            one.tensors[inner] = tensors[name]
    return {layers[place]: one for place, one in by_name.items()}


def _opened(asked: str, path: Path) -> Any:
    safetensors = needed("safetensors", asked)
    try:
        return safetensors.safe_open(path, framework="pt")
    except (OSError, safetensors.SafetensorError):
        raise _damaged(asked, path) from None


def _damaged(asked: str, path: Path) -> WhenceError:
    return usage_error(
        asked, f"{path}, which is truncated or damaged", "it is a whole safetensors file", "save or copy it again"
    )


def _parsed(name: str) -> tuple[str, int, str] | None:
    """The place of a position, its layer and the name inside it, of a tensor's name on disk.

    >>> _parsed("language_model.model.layers.3.self_attn.whence.slope.fixed")
    ('language_model.model.layers.3.self_attn.whence', 3, 'slope.fixed')
    """
    place, middle, inner = name.rpartition(f".{KEY}.")
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", place)
    return (place + middle[:-1], int(numbers[-1]), inner) if middle and numbers else None


def _alike(one: Saved, other: Saved) -> bool:
    return (
        one.record == other.record
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    )


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}\0".encode())
        total.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _require_attached(asked: str, model: Any) -> dict[int, Position]:
    positions = attached_positions(model)
    if not positions:
        raise usage_error(
            asked, "a model without positions", "positions are attached to it", "call attach, or attach_saved"
        )
    for position in positions.values():
        bring_into_memory(position, execution_device(asked, position))
    return positions

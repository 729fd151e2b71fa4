"""Save and load attached positions: in the folders that ``save_pretrained`` writes, or in a small file of their own.

transformers renames the weights of some models when it writes them, so a position is found by ``whence`` in the names of
its tensors and by the layer in its settings.
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

from whence.errors import WhenceError, require_package, usage_error
from whence.hf.attach import Attachment, PositionLike, attach
from whence.hf.integrations import execution_device, load_from_meta
from whence.hf.interface import KEY
from whence.hf.settings import (
    FORMAT,
    SETTINGS,
    attached_positions,
    build_from_description,
    decode,
    require_same_settings,
    without_settings,
)
from whence.position.base import Position
from whence.records import replace_file

FILE_NAME = f"{KEY}.safetensors"  # written by ``save_positions``


@dataclass
class SavedPosition:
    """One layer's position on disk."""

    file: str
    name: str  # the prefix of its tensors in that file
    record: dict[str, Any] | None = None  # None if it was saved without settings, or with those of an older format
    tensors: dict[str, Tensor] = field(default_factory=dict)


def save_positions(model: Any, folder: str | Path) -> Path:
    """Write the attached positions with their settings into one small file, which ``read_positions`` reads.

    The file is replaced atomically.
    """
    subject = f'save_positions("{folder}")'
    safetensors = require_package("safetensors.torch", subject, "hf")
    positions = _require_attached(subject, model)
    path = Path(folder).expanduser() / FILE_NAME
    state = {
        f"layers.{layer}.{KEY}.{name}": tensor.detach().cpu().contiguous().clone()
        for layer, position in positions.items()
        for name, tensor in position.state_dict().items()
    }
    with replace_file(path) as part:
        safetensors.save_file(state, part, metadata={"sha256": _tensors_checksum(state)})
    return path


def saved_position_names(folder: Path) -> list[str]:
    """The names of the tensors of positions in a folder that ``save_pretrained`` wrote. No tensor is loaded."""
    subject = f'saved_position_names("{folder}")'
    names: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        with _open(subject, path) as file:
            names += [name for name in list(file.keys()) if _parse_name(name)]
    return names


def read_positions(model: Any, folder: str | Path) -> None:
    """Load the weights of the attached positions from a folder that ``save_pretrained`` or ``save_positions`` wrote.

    The settings in the folder must equal those of the attached positions. ``attach_saved`` also builds the positions.
    """
    subject = f'read_positions("{folder}")'
    _load_into(subject, _require_attached(subject, model), _read_folder(subject, Path(folder).expanduser()))


def attach_saved(
    model: Any,
    folder: str | Path,
    *,
    position: PositionLike | None = None,
    classes: Sequence[type[Position]] = (),
) -> Attachment:
    """Attach the positions that were saved with a model: built from their settings, in their layers, with their weights.

    transformers and PEFT load the weights they know and ignore those of positions, so a model is restored in two steps:
    load it, then call ``attach_saved`` with the same folder.

    Args:
        model: the loaded model, with nothing attached.
        folder: written by ``save_pretrained`` (of a plain, multimodal or PEFT model) or by ``save_positions``.
        position: the position itself, as in ``attach``, if it cannot be built from its settings; it must have the same.
        classes: your own subclasses of Position that occur in the folder. Those of whence are known.

    Example::

        model, tokenizer = load("tuned")
        attachment = attach_saved(model, "tuned")
    """
    subject = f'attach_saved("{folder}")'
    saved = _read_folder(subject, Path(folder).expanduser())
    if not saved:
        raise usage_error(
            subject,
            "a folder without positions",
            "it must have been saved from a model with attached positions",
            "call attach for new ones",
        )
    records = {layer: one.record for layer, one in saved.items() if one.record is not None}
    if len(records) < len(saved):
        raise usage_error(
            subject,
            "positions without settings of the current format",
            "older versions of whence saved none, or other argument names (format 1)",
            "attach the same position, call read_positions, and save again",
        )
    keep_rotary = {bool(record["keep_rotary"]) for record in records.values()}
    if len(keep_rotary) > 1:
        raise usage_error(
            subject,
            "layers with and without the model's rotation",
            "one attachment treats all layers alike",
            "call attach, then read_positions",
        )
    source = position
    if source is None:
        built = {
            layer: build_from_description(subject, record["position"], classes) for layer, record in records.items()
        }
        source = built.__getitem__
    attachment = attach(model, source, layers=list(saved), keep_rotary=keep_rotary.pop())
    try:
        _load_into(subject, attachment.positions, saved)
    except BaseException:
        attachment.detach()
        raise
    return attachment


def _load_into(subject: str, positions: Mapping[int, Position], saved: Mapping[int, SavedPosition]) -> None:
    """Check everything, then load, so that an error leaves every position unchanged."""
    if set(saved) != set(positions):
        without, extra = sorted(set(positions) - set(saved)), sorted(set(saved) - set(positions))
        problems = [f"no position for layers {without}"] if without else []
        problems += [f"positions for layers {extra}, where none is attached"] if extra else []
        raise usage_error(
            subject,
            " and ".join(problems),
            "the folder must contain the positions that are attached",
            f"attach with layers={sorted(saved)}" if saved else "pass the folder that they were saved in",
        )
    for layer, one in saved.items():
        if one.record is not None:
            require_same_settings(subject, f"{one.name} in {one.file}", one.record, positions[layer])
        own = dict(without_settings(positions[layer].state_dict()))
        if set(own) != set(one.tensors):
            missing, unknown = sorted(set(own) - set(one.tensors)), sorted(set(one.tensors) - set(own))
            problems = [f"no {one.name}.{name}" for name in missing[:1]]
            problems += [f"{one.name}.{name}, which the attached position does not have" for name in unknown[:1]]
            raise usage_error(
                subject,
                f"{' and '.join(problems)} in {one.file}",
                "the folder must contain the positions that are attached",
                "attach the same kind of position as when it was saved",
            )
        for name, tensor in one.tensors.items():
            if tensor.shape != own[name].shape:
                raise usage_error(
                    subject,
                    f"{one.name}.{name} of shape {list(tensor.shape)} for {list(own[name].shape)}",
                    "the shapes must be equal",
                    "build the position with the same settings",
                )
    for layer, one in saved.items():
        positions[layer].load_state_dict(one.tensors)


def _read_folder(subject: str, folder: Path) -> dict[int, SavedPosition]:
    """All positions in a folder, by layer. Several files may contain the same ones, but not different ones."""
    if not folder.is_dir():
        raise usage_error(subject, "no such folder", "it must be the folder of a saved model", "check the path")
    saved: dict[int, SavedPosition] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for layer, one in _read_file(subject, path).items():
            other = saved.setdefault(layer, one)
            if other is not one and not _are_equal(other, one):
                raise usage_error(
                    subject,
                    f"different positions for layer {layer} in {other.file} and {one.file}",
                    "a folder must contain one model",
                    f"delete the older file, which may be {FILE_NAME}",
                )
    return dict(sorted(saved.items()))


def _read_file(subject: str, path: Path) -> dict[int, SavedPosition]:
    with _open(subject, path) as file:
        names = [(name, parts) for name in list(file.keys()) if (parts := _parse_name(name))]
        tensors = {name: file.get_tensor(name) for name, _ in names}
        if path.name == FILE_NAME and (file.metadata() or {}).get("sha256") != _tensors_checksum(tensors):
            raise _damaged_file(subject, path)
    by_prefix: dict[str, SavedPosition] = {}
    layers: dict[str, int] = {}
    for name, (prefix, layer, inner) in names:
        one = by_prefix.setdefault(prefix, SavedPosition(path.name, prefix))
        layers.setdefault(prefix, layer)
        if inner == SETTINGS:
            record = decode(subject, f"{name} in {path}", tensors[name])
            layers[prefix] = int(record["layer"])
            one.record = record if record["format"] == FORMAT else None
        else:
            one.tensors[inner] = tensors[name]
    return {layers[prefix]: one for prefix, one in by_prefix.items()}


def _open(subject: str, path: Path) -> Any:
    safetensors = require_package("safetensors", subject, "hf")
    try:
        return safetensors.safe_open(path, framework="pt")
    except (OSError, safetensors.SafetensorError):
        raise _damaged_file(subject, path) from None


def _damaged_file(subject: str, path: Path) -> WhenceError:
    return usage_error(
        subject,
        f"{path}, which is truncated or damaged",
        "it must be a complete safetensors file",
        "save or copy it again",
    )


def _parse_name(name: str) -> tuple[str, int, str] | None:
    """The prefix of a position, its layer and the name inside it, from the name of a tensor on disk.

    >>> _parse_name("language_model.model.layers.3.self_attn.whence.slope.fixed")
    ('language_model.model.layers.3.self_attn.whence', 3, 'slope.fixed')
    """
    module, separator, inner = name.rpartition(f".{KEY}.")
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", module)
    return (module + separator[:-1], int(numbers[-1]), inner) if separator and numbers else None


def _are_equal(one: SavedPosition, other: SavedPosition) -> bool:
    return (
        one.record == other.record
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    )


def _tensors_checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}\0".encode())
        digest.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _require_attached(subject: str, model: Any) -> dict[int, Position]:
    positions = attached_positions(model)
    if not positions:
        raise usage_error(
            subject, "a model without positions", "positions must be attached to it", "call attach or attach_saved"
        )
    for position in positions.values():
        load_from_meta(position, execution_device(subject, position))
    return positions

"""An attached Position's settings in its ``state_dict``: written with the weights, and checked when these are loaded.

Every way to save a model goes through ``state_dict`` and keeps what it finds there: ``save_pretrained`` of plain,
multimodal and PEFT models, trainers, checkpoints. So the settings are one more tensor, the bytes of a JSON text, beside the
weights they belong to. Weights of a position with other settings are refused, whoever loads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from whence.errors import usage_error
from whence.hf import adapters, settings
from whence.hf.interface import KEY
from whence.position.base import Position

SETTINGS = "_settings_json"  # the buffer that holds the settings
PLACE = "_whence_place"  # the attribute that holds the layer, and whether the model's own rotation stays


def mark(position: Position, layer: int, keep_rotary: bool) -> list[RemovableHandle]:
    """From now on the settings travel with the position's state; removing the handles and ``unmark`` end it."""
    position.__dict__[PLACE] = {"layer": layer, "keep_rotary": keep_rotary}
    position.register_buffer(SETTINGS, settings.encode(record_of(position)))
    return [position.register_state_dict_pre_hook(_write), position.register_load_state_dict_pre_hook(_check)]


def unmark(position: Position) -> None:
    position.__dict__.pop(PLACE, None)
    position._buffers.pop(SETTINGS, None)


def warn_before_saving(model: nn.Module) -> RemovableHandle:
    """Whoever takes the state of a model with an adapter is told when the adapter lacks the positions."""
    return model.register_state_dict_pre_hook(_warn)


def attached_positions(model: Any) -> dict[int, Position]:
    """The positions that are attached to a model, by layer; a PEFT model's are those of its active adapter."""
    found: dict[int, Position] = {}
    for module in model.modules():
        position = adapters.unwrapped(module._modules.get(KEY))
        if position is not None and PLACE in position.__dict__:
            found[position.__dict__[PLACE]["layer"]] = position
    return dict(sorted(found.items()))


def attached_settings(model: Any) -> dict[int, dict[str, Any]]:
    """What is attached to a model, by layer, as plain values: the class, its settings, whether the model's rotation stays."""
    return {layer: record_of(position) for layer, position in attached_positions(model).items()}


def record_of(position: Position) -> dict[str, Any]:
    """All that is saved of a position beside its weights."""
    return {"format": 1, **position.__dict__[PLACE], "position": settings.describe(position)}


def require_same(asked: str, name: str, saved: dict[str, Any], position: Position) -> None:
    """Refuse the state of a position with other settings; both are named."""
    own = record_of(position)
    differs = settings.difference(saved["position"], own["position"])
    if differs is None and saved["keep_rotary"] != own["keep_rotary"]:
        differs = f"a position saved with keep_rotary={saved['keep_rotary']}, while it is {own['keep_rotary']} here"
    if differs is not None:
        raise usage_error(
            asked,
            f"{name}: {differs}",
            "weights belong to the settings they were trained with",
            "attach a position with the saved settings, or call attach_saved",
        )


def tensors_of(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """A position's state without its settings."""
    return ((name, tensor) for name, tensor in state.items() if name != SETTINGS)


def _write(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """What is saved are the settings of now: an attribute may have changed."""
    assert isinstance(module, Position)
    before = module._buffers[SETTINGS]
    now = settings.encode(record_of(module))
    assert before is not None
    if not torch.equal(before.cpu(), now):  # a new tensor would have a compiled model traced again
        module._buffers[SETTINGS] = now.to(before.device)


def _check(module: nn.Module, state: dict[str, Any], prefix: str, *others: Any) -> None:
    assert isinstance(module, Position)
    data = state.get(prefix + SETTINGS)  # absent from what was saved before settings were
    if data is not None:
        saved = settings.decode("load_state_dict(...)", prefix + SETTINGS, data)
        require_same("load_state_dict(...)", prefix.rstrip("."), saved, module)
    state[prefix + SETTINGS] = module._buffers[SETTINGS]


def _warn(model: nn.Module, prefix: str, keep_vars: bool) -> None:
    adapters.warn_of_loss(model, KEY)

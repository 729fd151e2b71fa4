"""A Position's settings as JSON: saved with its weights, compared when weights are loaded, enough to build it again.

Settings are a module's public attributes with plain values (numbers, strings, lists, dtypes, dataclasses of these), and
those of the modules inside it. An attribute of any other type is represented by the name of its type. Nothing is pickled
or evaluated: a class is looked up among the mechanisms of whence and the classes that the caller passes.

The settings of an attached Position are one more tensor in its ``state_dict``, the bytes of a JSON text. Every way to save
a model goes through ``state_dict`` and keeps what it contains: ``save_pretrained`` of plain, multimodal and PEFT models,
trainers, checkpoints. Loading the weights of a position with other settings is an error, whoever loads them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from whence import position as mechanisms
from whence.errors import WhenceError, usage_error
from whence.hf.integrations import active_position, warn_if_adapter_omits_positions
from whence.hf.interface import KEY
from whence.position.base import Position
from whence.position.rotary_scaling import Scaling
from whence.position.sum import Sum

Description = dict[str, Any]
FORMAT = 2
OLD_FORMAT = 1  # its settings have argument names that this version does not know; its weights can still be read
SETTINGS = "_settings_json"  # the buffer with the settings
ATTACHED_AT = "_whence_attached_at"  # the attribute with the layer, and whether the model's own rotation stays
NOT_SETTINGS = ("training", "relative", "causal_only")  # a state, and two that follow from the settings


def describe(module: nn.Module) -> Description:
    """The class, the settings and the names of the tensors of a Position.

    >>> description = describe(mechanisms.Alibi(2, scale=2.0))
    >>> description["class"], description["settings"]["scale"], description["buffers"]
    ('Alibi', 2.0, ['slope.fixed'])
    """
    if isinstance(module, Sum):
        return {"class": "Sum", "parts": [describe(part) for part in module.parts]}
    persistent = set(_persistent_names(module))
    buffers = [name for name, _ in module.named_buffers() if name in persistent and not name.startswith("_")]
    return {
        "class": type(module).__qualname__,
        "settings": _settings(module),
        "modules": {name: _describe_submodule(child) for name, child in module.named_children()},
        "parameters": sorted(name for name, _ in module.named_parameters()),
        "buffers": sorted(buffers),
    }


def difference(saved: Description, attached: Description) -> str | None:
    """How two descriptions differ: ``<saved>, while the attached one has <its own>``; None if they are equal."""
    name, other = _name(saved), _name(attached)
    if name != other:
        return f"{name}, while {other} is attached"
    if "parts" in saved:
        texts = (difference(*parts) for parts in zip(saved["parts"], attached["parts"], strict=True))
        return next((text for text in texts if text), None)
    for key in ("settings", "modules"):
        ours, theirs = saved.get(key, {}), attached.get(key, {})
        for setting in sorted(set(ours) | set(theirs)):
            if setting not in ours or setting not in theirs or ours[setting] != theirs[setting]:
                return f"{name} with {_format(setting, ours)}, while the attached one has {_format(setting, theirs)}"
    for key in ("parameters", "buffers"):
        if saved.get(key) != attached.get(key):
            return f"{name} with the {key} {saved.get(key)}, while the attached one has {attached.get(key)}"
    return None


def build_from_description(subject: str, description: Description, classes: Sequence[type[Position]] = ()) -> Position:
    """A Position with these settings; its parameters have their initial values.

    Args:
        subject: the call that needs it, for errors.
        description: the result of ``describe``.
        classes: the user's own classes, looked up by name.
    """
    if "parts" in description:
        return Sum(*(build_from_description(subject, part, classes) for part in description["parts"]))
    kind = _find_class(subject, description["class"], classes)
    values = {name: _from_json(subject, value) for name, value in description["settings"].items()}
    values |= {"learnable": bool(description["parameters"])}
    names = inspect.signature(kind.__init__).parameters
    try:
        with torch.random.fork_rng(devices=[]):  # random initial values are replaced by the saved ones
            position = kind(**{name: values[name] for name in names if name in values})
        problem = difference(description, describe(position))
    except (TypeError, WhenceError) as error:
        problem = str(error)
    if problem:
        raise usage_error(
            subject,
            f"a {description['class']} that cannot be built from its settings ({problem.rstrip('.')})",
            "every constructor argument without a default must be stored in an attribute of the same name",
            "build the position yourself and pass it as position=...",
        )
    return position


def encode(record: dict[str, Any]) -> Tensor:
    """JSON as bytes in a tensor, which every weight format can store."""
    return torch.tensor(list(json.dumps(record, sort_keys=True, allow_nan=False).encode()), dtype=torch.uint8)


def decode(subject: str, name: str, data: Tensor) -> dict[str, Any]:
    """The record that ``encode`` wrote; anything else is an error that names the tensor."""
    try:
        record = json.loads(bytes(data.detach().to("cpu", torch.uint8).flatten().tolist()).decode())
        valid = isinstance(record["layer"], int) and isinstance(record["keep_rotary"], bool)
        valid = valid and _is_description(record["position"])
        version = record["format"]
    except (ValueError, TypeError, KeyError):
        valid, version = False, None
    if not valid:
        raise usage_error(
            subject,
            f"{name}, which is damaged",
            "it must contain the settings as JSON",
            "save the model again, or copy the file again",
        )
    if version not in (OLD_FORMAT, FORMAT):
        raise usage_error(
            subject,
            f"{name} of format {version}",
            f"this version of whence reads formats up to {FORMAT}",
            "install a newer version of whence",
        )
    return record


def track_settings(position: Position, layer: int, keep_rotary: bool) -> list[RemovableHandle]:
    """Make the settings part of a position's state. Removing the handles and ``untrack_settings`` undo it."""
    position.__dict__[ATTACHED_AT] = {"layer": layer, "keep_rotary": keep_rotary}
    position.register_buffer(SETTINGS, encode(settings_record(position)))
    return [
        position.register_state_dict_pre_hook(_update_settings),
        position.register_load_state_dict_pre_hook(_check_settings),
    ]


def untrack_settings(position: Position) -> None:
    position.__dict__.pop(ATTACHED_AT, None)
    position._buffers.pop(SETTINGS, None)


def warn_before_saving(model: nn.Module) -> RemovableHandle:
    """Warn whenever the state of a model is read whose adapter does not include the positions."""
    return model.register_state_dict_pre_hook(_warn)


def attached_positions(model: Any) -> dict[int, Position]:
    """The positions attached to a model, by layer; for a PEFT model those of its active adapter."""
    positions: dict[int, Position] = {}
    for module in model.modules():
        position = active_position(module._modules.get(KEY))
        if position is not None and ATTACHED_AT in position.__dict__:
            positions[position.__dict__[ATTACHED_AT]["layer"]] = position
    return dict(sorted(positions.items()))


def attached_settings(model: Any) -> dict[int, dict[str, Any]]:
    """What is attached to a model, by layer, as JSON: the class, its settings, and whether the model's rotation stays."""
    return {layer: settings_record(position) for layer, position in attached_positions(model).items()}


def settings_record(position: Position) -> dict[str, Any]:
    """Everything that is saved of a position beside its weights."""
    return {"format": FORMAT, **position.__dict__[ATTACHED_AT], "position": describe(position)}


def require_same_settings(subject: str, name: str, saved: dict[str, Any], position: Position) -> None:
    """Raise if a saved record has other settings than the position; the error names both."""
    own = settings_record(position)
    problem = difference(saved["position"], own["position"])
    if problem is None and saved["keep_rotary"] != own["keep_rotary"]:
        problem = f"a position saved with keep_rotary={saved['keep_rotary']}, while it is {own['keep_rotary']} here"
    if problem is not None:
        raise usage_error(
            subject,
            f"{name}: {problem}",
            "weights belong to the settings they were trained with",
            "attach a position with the saved settings, or call attach_saved",
        )


def without_settings(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a position's state except its settings."""
    return ((name, tensor) for name, tensor in state.items() if name != SETTINGS)


def _update_settings(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """Save the current settings: an attribute may have changed since ``attach``."""
    assert isinstance(module, Position)
    before = module._buffers[SETTINGS]
    current = encode(settings_record(module))
    assert before is not None
    if not torch.equal(before.cpu(), current):  # a new tensor would make a compiled model trace again
        module._buffers[SETTINGS] = current.to(before.device)


def _check_settings(module: nn.Module, state: dict[str, Any], prefix: str, *unused: Any) -> None:
    assert isinstance(module, Position)
    data = state.get(prefix + SETTINGS)  # older versions saved no settings
    if data is not None:
        saved = decode("load_state_dict(...)", prefix + SETTINGS, data)
        if saved["format"] == FORMAT:
            require_same_settings("load_state_dict(...)", prefix.rstrip("."), saved, module)
    state[prefix + SETTINGS] = module._buffers[SETTINGS]


def _warn(model: nn.Module, prefix: str, keep_vars: bool) -> None:
    warn_if_adapter_omits_positions(model, KEY)


def _settings(module: nn.Module) -> dict[str, Any]:
    # accelerate and others replace ``forward`` on an instance
    public = [name for name in vars(module) if not name.startswith("_") and not hasattr(nn.Module, name)]
    return {name: _to_json(getattr(module, name)) for name in public if name not in NOT_SETTINGS}


def _describe_submodule(module: nn.Module) -> Description:
    """The same for a module inside a Position, whose tensors are named with the Position."""
    description: Description = {"class": type(module).__qualname__}
    if settings := _settings(module):
        description["settings"] = settings
    if children := {name: _describe_submodule(child) for name, child in module.named_children()}:
        description["modules"] = children
    return description


def _persistent_names(module: nn.Module) -> list[str]:
    names = []
    for prefix, part in module.named_modules():
        tensors = {**part._parameters, **part._buffers}
        kept = [n for n, value in tensors.items() if value is not None and n not in part._non_persistent_buffers_set]
        names += [f"{prefix}.{name}" if prefix else name for name in kept]
    return names


def _to_json(value: object) -> Any:
    """A value as JSON."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _to_json(item) for name, item in value.items()}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Tensor) and not value.is_meta:  # neither a parameter nor a buffer
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        return {"tensor": list(value.shape), "sha256": hashlib.sha256(bytes(content.tolist())).hexdigest()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"dataclass": type(value).__qualname__, "fields": fields}
    return {"object": type(value).__qualname__}


def _from_json(subject: str, value: Any) -> Any:
    """The inverse of ``_to_json``, where there is one."""
    if isinstance(value, list):
        return [_from_json(subject, item) for item in value]
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    if "dict" in value:
        return {name: _from_json(subject, item) for name, item in value["dict"].items()}
    if "dtype" in value and isinstance(dtype := getattr(torch, str(value["dtype"]), None), torch.dtype):
        return dtype
    scaling = getattr(mechanisms, str(value.get("dataclass")), None)
    if isinstance(scaling, type) and issubclass(scaling, Scaling):
        fields = {name: _from_json(subject, item) for name, item in value["fields"].items()}
        return scaling(**{name: tuple(item) if isinstance(item, list) else item for name, item in fields.items()})
    raise usage_error(
        subject,
        f"a setting of type {value.get('dataclass') or value.get('object') or next(iter(value), 'unknown')}",
        "positions are built from plain values",
        "build the position yourself and pass it as position=...",
    )


def _find_class(subject: str, name: str, classes: Sequence[type[Position]]) -> type[Position]:
    own = {kind.__qualname__: kind for kind in classes}
    kind = own.get(name) or getattr(mechanisms, name, None)
    if isinstance(kind, type) and issubclass(kind, Position):
        return kind
    raise usage_error(
        subject,
        f"a position of class {name}",
        "only the mechanisms of whence are found by name",
        f"pass classes=[{name.rpartition('.')[2]}], or the position itself as position=...",
    )


def _name(description: Description) -> str:
    if "parts" in description:
        return " + ".join(_name(part) for part in description["parts"])
    return str(description["class"])


def _format(setting: str, settings: dict[str, Any]) -> str:
    return f"{setting}={settings[setting]!r}" if setting in settings else f"no {setting}"


def _is_description(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if "parts" in value:
        return isinstance(value["parts"], list) and bool(value["parts"]) and all(map(_is_description, value["parts"]))
    kinds = {"class": str, "settings": dict, "modules": dict, "parameters": list, "buffers": list}
    return all(isinstance(value.get(name), kind) for name, kind in kinds.items())

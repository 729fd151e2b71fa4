"""A Position's settings as JSON: saved beside its weights, compared when they are read back, and enough to build it again.

Settings are a module's public attributes that are plain values (numbers, texts, lists, dtypes, dataclasses of these), with
those of the modules inside it. An attribute of any other type is known by its type alone. Nothing is pickled or
evaluated: a class is looked up among the mechanisms of whence and the classes that the caller passes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence import position as mechanisms
from whence.errors import WhenceError, usage_error
from whence.position.base import Position
from whence.position.composition import Sum
from whence.position.rotary_scaling import Scaling

Described = dict[str, Any]
NOT_SETTINGS = ("training", "relative", "causal_only")  # a state, and two that follow from the settings


def describe(module: nn.Module) -> Described:
    """The class, the settings and the tensors' names of a Position.

    >>> told = describe(mechanisms.Alibi(2, scale=2.0))
    >>> told["class"], told["settings"]["scale"], told["buffers"]
    ('Alibi', 2.0, ['slope.fixed'])
    """
    if isinstance(module, Sum):
        return {"class": "Sum", "parts": [describe(part) for part in module.parts]}
    kept = set(_state(module))
    return {
        "class": type(module).__qualname__,
        "settings": _settings(module),
        "modules": {name: _inside(child) for name, child in module.named_children()},
        "parameters": sorted(name for name, _ in module.named_parameters()),
        "buffers": sorted(name for name, _ in module.named_buffers() if name in kept and not name.startswith("_")),
    }


def difference(saved: Described, attached: Described) -> str | None:
    """What two descriptions differ in, as ``<saved>, while the attached one has <its own>``; None where they agree."""
    name, other = _name(saved), _name(attached)
    if name != other:
        return f"{name}, while {other} is attached"
    if "parts" in saved:
        found = (difference(*both) for both in zip(saved["parts"], attached["parts"], strict=True))
        return next((text for text in found if text), None)
    for key in ("settings", "modules"):
        ours, theirs = saved.get(key, {}), attached.get(key, {})
        for setting in sorted(set(ours) | set(theirs)):
            if setting not in ours or setting not in theirs or ours[setting] != theirs[setting]:
                return f"{name} with {_shown(setting, ours)}, while the attached one has {_shown(setting, theirs)}"
    for key in ("parameters", "buffers"):
        if saved.get(key) != attached.get(key):
            return f"{name} with the {key} {saved.get(key)}, while the attached one has {attached.get(key)}"
    return None


def build(asked: str, told: Described, classes: Sequence[type[Position]] = ()) -> Position:
    """A Position with these settings; its parameters have their initial values.

    Args:
        asked: the call this is for, as errors name it.
        told: what ``describe`` gave.
        classes: classes of one's own, looked up by name.
    """
    if "parts" in told:
        return Sum(*(build(asked, part, classes) for part in told["parts"]))
    kind = _class_of(asked, told["class"], classes)
    known = {name: _value(asked, value) for name, value in told["settings"].items()}
    known |= {"learnable": bool(told["parameters"])}
    names = inspect.signature(kind.__init__).parameters
    try:
        with torch.random.fork_rng(devices=[]):  # initial values are drawn and then replaced
            made = kind(**{name: known[name] for name in names if name in known})
        differs = difference(told, describe(made))
    except (TypeError, WhenceError) as error:
        differs = str(error)
    if differs:
        raise usage_error(
            asked,
            f"a {told['class']} that cannot be built from its settings ({differs.rstrip('.')})",
            "every argument of the constructor without a default is kept in an attribute of its name",
            "build the position and pass it as position=...",
        )
    return made


def encode(record: dict[str, Any]) -> Tensor:
    """JSON as bytes in a tensor, which every format for weights can hold."""
    return torch.tensor(list(json.dumps(record, sort_keys=True, allow_nan=False).encode()), dtype=torch.uint8)


def decode(asked: str, name: str, data: Tensor) -> dict[str, Any]:
    """What ``encode`` wrote; anything else is refused by name."""
    try:
        record = json.loads(bytes(data.detach().to("cpu", torch.uint8).flatten().tolist()).decode())
        whole = isinstance(record["layer"], int) and isinstance(record["keep_rotary"], bool)
        whole = whole and _is_description(record["position"])
        version = record["format"]
    except (ValueError, TypeError, KeyError):
        whole, version = False, None
    if not whole:
        raise usage_error(
            asked, f"{name}, which is damaged", "it holds the settings as JSON", "save the model again, or copy it anew"
        )
    if version != 1:
        raise usage_error(
            asked, f"{name} of format {version}", "this version of whence reads format 1", "install a newer version"
        )
    return record


def _settings(module: nn.Module) -> dict[str, Any]:
    # accelerate and others replace ``forward`` on an instance
    public = [name for name in vars(module) if not name.startswith("_") and not hasattr(nn.Module, name)]
    return {name: _plain(getattr(module, name)) for name in public if name not in NOT_SETTINGS}


def _inside(module: nn.Module) -> dict[str, Any]:
    """The same of a module inside a Position, whose tensors the Position already names."""
    told: dict[str, Any] = {"class": type(module).__qualname__}
    if settings := _settings(module):
        told["settings"] = settings
    if children := {name: _inside(child) for name, child in module.named_children()}:
        told["modules"] = children
    return told


def _state(module: nn.Module) -> list[str]:
    names = []
    for prefix, part in module.named_modules():
        own = {**part._parameters, **part._buffers}
        lasting = [n for n, value in own.items() if value is not None and n not in part._non_persistent_buffers_set]
        names += [f"{prefix}.{name}" if prefix else name for name in lasting]
    return names


def _plain(value: object) -> Any:
    """A value as JSON can hold it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _plain(one) for name, one in value.items()}}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Tensor) and not value.is_meta:  # one that is no parameter and no buffer
        content = value.detach().cpu().contiguous().flatten().view(torch.uint8)
        return {"tensor": list(value.shape), "sha256": hashlib.sha256(bytes(content.tolist())).hexdigest()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"dataclass": type(value).__qualname__, "fields": fields}
    return {"object": type(value).__qualname__}


def _value(asked: str, plain: Any) -> Any:
    """What ``_plain`` was given, where it can be made again."""
    if isinstance(plain, list):
        return [_value(asked, one) for one in plain]
    if not isinstance(plain, dict):
        return plain
    if "float" in plain:
        return float(plain["float"])
    if "dict" in plain:
        return {name: _value(asked, one) for name, one in plain["dict"].items()}
    if "dtype" in plain and isinstance(found := getattr(torch, str(plain["dtype"]), None), torch.dtype):
        return found
    scaling = getattr(mechanisms, str(plain.get("dataclass")), None)
    if isinstance(scaling, type) and issubclass(scaling, Scaling):
        fields = {name: _value(asked, one) for name, one in plain["fields"].items()}
        return scaling(**{name: tuple(one) if isinstance(one, list) else one for name, one in fields.items()})
    raise usage_error(
        asked,
        f"a setting of type {plain.get('dataclass') or plain.get('object') or next(iter(plain), 'unknown')}",
        "positions are built from plain values",
        "build the position and pass it as position=...",
    )


def _class_of(asked: str, name: str, classes: Sequence[type[Position]]) -> type[Position]:
    own = {kind.__qualname__: kind for kind in classes}
    found = own.get(name) or getattr(mechanisms, name, None)
    if isinstance(found, type) and issubclass(found, Position):
        return found
    raise usage_error(
        asked,
        f"a position of class {name}",
        "mechanisms of whence are found by name, and classes of one's own are passed",
        f"pass classes=[{name.rpartition('.')[2]}], or the position itself as position=...",
    )


def _name(told: Described) -> str:
    return " + ".join(_name(part) for part in told["parts"]) if "parts" in told else str(told["class"])


def _shown(setting: str, settings: dict[str, Any]) -> str:
    return f"{setting}={settings[setting]!r}" if setting in settings else f"no {setting}"


def _is_description(told: Any) -> bool:
    if not isinstance(told, dict):
        return False
    if "parts" in told:
        return isinstance(told["parts"], list) and bool(told["parts"]) and all(map(_is_description, told["parts"]))
    kinds = {"class": str, "settings": dict, "modules": dict, "parameters": list, "buffers": list}
    return all(isinstance(told.get(name), kind) for name, kind in kinds.items())

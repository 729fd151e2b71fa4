"""Which model a record belongs to: weights, configuration, tokenizer, chat template, and what is attached.

A name or a path is not enough. The weights under a path change, and a mechanism may be attached between two
measurements. The identity is part of a plan's hash, so each model has its own folder, and part of every record.

The checksum of the weights is SHA-256 over names, shapes, dtypes and bytes; it is the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.plugin_sources import hash_source_file
from whence.plugins import display_name
from whence.position.base import Position
from whence.probe.endpoint import Endpoint
from whence.probe.probed_model import ProbedModel

#: fields of a configuration that do not change results or are recorded elsewhere
NOT_CONFIGURATION = ("transformers_version", "architectures", "dtype", "torch_dtype", "quantization_config")
#: packages whose hooks are not recorded; hooks of other packages are part of the model
KNOWN_HOOKS = ("transformers", "accelerate", "torch", "peft")
#: buffers with the settings of a position, which are recorded as text
NOT_NUMBERS = ("_settings_json",)
#: may differ between the measured model and the float32 copy that is analyzed
OF_PRECISION = ("dtype", "weights", "quantization", "attention")


def identify(lm: ProbedModel | Endpoint) -> dict[str, Any]:
    """The identity of a model, as plain JSON. It reads all weights, so it takes about a second per gigabyte."""
    if isinstance(lm, Endpoint):
        return lm.identity()
    from whence.hf.interface import KEY

    model, tokenizer = lm.model, lm.tokenizer
    config = model.config
    weights = weights_checksum(model, lambda name: KEY in name.split("."))
    if len(weights.get("unread", ())) == weights["tensors"]:
        raise usage_error(
            "whence probe",
            "a model without data in its weights (meta device)",
            "the weights are read for their checksum",
            "load the weights before probing",
        )
    settings = config.to_diff_dict()
    quantization = settings.get("quantization_config")
    settings = {name: value for name, value in settings.items() if not name.startswith("_")}
    generation = getattr(model, "generation_config", None)
    identity: dict[str, Any] = {
        "kind": "weights",
        "weights": weights,
        "config": text_checksum({k: v for k, v in settings.items() if k not in NOT_CONFIGURATION}),
        "revision": getattr(config, "_commit_hash", None),
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": _plain(quantization),
        "device": lm.device.type,
        "attention": getattr(config, "_attn_implementation", None),
        "tokenizer": tokenizer_checksum(tokenizer),
        "chat_template": text_checksum(template) if (template := getattr(tokenizer, "chat_template", None)) else None,
        "chat": list(lm.template_parts) if lm.chat else None,
        "layers": None if lm.capture_layers is None else sorted(lm.capture_layers),
        "generation": {} if generation is None else _plain(_without_versions(generation.to_diff_dict())),
        "attached": attached_positions(model, KEY),
        "adapters": _adapters(model),
        "hooks": _hooks(model),
    }
    if lm.intervention is not None:
        identity["intervention"] = lm.intervention
    return json.loads(json.dumps(identity))


def attached_positions(model: nn.Module, key: str) -> list[dict[str, Any]]:
    """The attached mechanisms: text, settings and a checksum of the parameters. Equal layers are grouped."""
    attached: list[dict[str, Any]] = []
    modules = [module for module in model.modules() if key in module._modules]
    for number, module in enumerate(modules):
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
        layer = int(getattr(module, "layer_idx", number))
        for position in _positions(module._modules[key]):
            description = {
                "position": repr(position),
                "parts": [_part(part) for part in position.parts],
                "own_rotation": "removed" if "RemoveRotation" in hooks else "kept",
            }
            same = [other for other in attached if {k: v for k, v in other.items() if k != "layers"} == description]
            if same:
                same[0]["layers"].append(layer)
            else:
                attached.append({"layers": [layer], **description})
    return attached


def _positions(module: nn.Module | None) -> list[Position]:
    """A position, or the copies of it that peft keeps for its adapters; the active one is recorded under ``adapters``."""
    if module is None or isinstance(module, Position):
        return [] if module is None else [module]
    return [position for part in module.children() for position in _positions(part)]


def tokenizer_checksum(tokenizer: Any) -> str:
    """The checksum of a tokenizer: its vocabulary, rules and special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts: dict[str, Any] = {
        "special": {name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items())},
        "added": [getattr(tokenizer, f"add_{end}_token", None) for end in ("bos", "eos")],
    }
    if backend is not None:
        rules = json.loads(backend.to_str())
        for changing in ("truncation", "padding"):  # set by each call
            rules.pop(changing, None)
        parts["rules"] = rules
    else:
        parts |= {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    return text_checksum(parts)


def same_model(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two identities belong to one model: they are equal, or differ only in the precision of the loaded weights."""
    if one.get("dtype") == other.get("dtype"):
        return one == other
    return all(one.get(name) == other.get(name) for name in {*one, *other} - {*OF_PRECISION})


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The names of the fields in which two identities differ.

    >>> difference({"weights": 1, "config": 2}, {"weights": 3, "config": 2})
    'other weights'
    """
    names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    return "other " + ", ".join(names) if names else "nothing"


def describe_intervention(intervention: dict[str, Any]) -> str:
    """An intervention with its settings.

    >>> describe_intervention({"name": "attention-temperature", "settings": {"temperature": 2.0}})
    'attention-temperature(temperature=2.0)'
    """
    settings = ", ".join(f"{name}={value!r}" for name, value in intervention["settings"].items())
    return f"{intervention['name']}({settings})"


def describe_identity(identity: dict[str, Any] | None) -> str:
    """One line about a model for pages and tables.

    >>> describe_identity(None)
    'identity unknown (older record)'
    """
    if identity is None:
        return "identity unknown (older record)"
    if identity["kind"] == "endpoint":
        stamp = f", fingerprint {identity['fingerprint']}" if identity.get("fingerprint") else ""
        return f"{identity['served_as']} at {identity['url']}{stamp}; not verifiable"
    weights = identity["weights"]
    parts = [f"weights {weights['sha256'][:12]}"]
    if weights.get("unread"):
        parts[0] += f" ({len(weights['unread'])} of {weights['tensors']} tensors could not be read)"
    if identity["revision"]:
        parts.append(f"revision {identity['revision'][:12]}")
    parts += [f"{identity['dtype']} on {identity['device']}"]
    for one in identity["attached"]:
        parts.append(f"{one['position']} attached in {len(one['layers'])} layers, own rotation {one['own_rotation']}")
    if identity.get("intervention"):
        parts.append(f"intervention {describe_intervention(identity['intervention'])}")
    if identity["adapters"]:
        parts.append("with adapters")
    return ", ".join([*parts, "chat template" if identity["chat"] else "raw text"])


def _part(part: Position) -> dict[str, Any]:
    kind = type(part)
    name = display_name(kind)
    plain = {key: repr(value) for key, value in sorted(vars(part).items()) if _is_setting(key, value)}
    state = (*part.named_parameters(), *part.named_buffers())
    numbers = checksum((key, value) for key, value in state if key not in NOT_NUMBERS)
    parts: dict[str, Any] = {"class": name, "settings": plain, "sha256": numbers["sha256"]}
    return parts if name.startswith("whence.") else parts | {"code": hash_source_file(kind)}


def _is_setting(name: str, value: object) -> bool:
    return not name.startswith("_") and name != "training" and " at 0x" not in repr(value)


def _adapters(model: Any) -> dict[str, Any] | None:
    """Adapters of peft: their settings and whether they are active. Their weights are among those of the model."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        return None
    parts = {name: {k: v for k, v in one.to_dict().items() if "path" not in k} for name, one in configs.items()}
    active = getattr(model, "active_adapters", None)
    off = any(getattr(module, "_disable_adapters", False) for module in model.modules())
    return {
        "settings": text_checksum(_plain(parts)),
        "active": _plain(active() if callable(active) else active),
        "disabled": off,
    }


def _hooks(model: nn.Module) -> list[str]:
    """Hooks and replaced forward methods of a model's modules, by name and plain values, because they may change results."""
    counts: dict[str, int] = {}
    for module in model.modules():
        replaced_forward = [module.__dict__["forward"]] if "forward" in module.__dict__ else []
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values(), *replaced_forward):
            function = getattr(hook, "func", hook)
            named = function if hasattr(function, "__qualname__") else type(function)
            name = f"{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', '?')}"
            if name.split(".")[0] not in KNOWN_HOOKS:
                name += _describe_closure(function)
                counts[name] = counts.get(name, 0) + 1
    return [f"{name} on {count} modules" for name, count in sorted(counts.items())]


def _describe_closure(function: Any) -> str:
    """The plain values that a function closes over, such as the factor of an intervention."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    names = code.co_freevars if code else ()
    values = dict(zip(names, map(_cell_value, cells), strict=True)) if cells else {}
    plain = [f"{name}={value!r}" for name, value in values.items() if isinstance(value, bool | int | float | str)]
    return f"({', '.join(plain)})" if plain else ""


def _cell_value(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _without_versions(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "transformers_version" and name[0] != "_"}


def _plain(value: Any) -> Any:
    """A value as JSON: sets are sorted, and other objects become text."""
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


#: tensors hashed side by side; hashlib releases the interpreter lock
THREADS = min(8, os.cpu_count() or 1)


def weights_checksum(model: nn.Module, skip: Callable[[str], bool] = lambda name: False) -> dict[str, Any]:
    """The checksum of the state dict of a model, and the entries that could not be read.

    Buffers that are not saved, such as the frequencies of a rotation, follow from the configuration; ``identity`` hashes
    that. Weights that accelerate keeps outside the model are read from there. A tensor without data (on the meta device)
    contributes its name, shape and dtype, and is listed under ``unread``.

    Args:
        skip: which entries of the state dict to leave out, by name.
    """
    offloaded = _offloaded_weights(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is saved here, so nothing can be lost
        state = model.state_dict()
    entries = {name: value for name, value in state.items() if not skip(name)}
    entries = {name: offloaded.get(name, value) if _is_meta(value) else value for name, value in entries.items()}
    return checksum(entries.items())


def checksum(entries: Iterable[tuple[str, object]]) -> dict[str, Any]:
    """The checksum of named tensors and plain values.

    >>> checksum([("a", torch.ones(2)), ("b", 3)])["tensors"]
    1
    >>> checksum([("a", torch.ones(2))])["sha256"] == checksum([("a", torch.ones(2).double())])["sha256"]
    False
    """
    listed = sorted(entries, key=lambda entry: entry[0])
    values = [(name, value) for name, whole in listed for value in _parts(whole)]
    with ThreadPoolExecutor(THREADS) as pool:
        digests = list(pool.map(lambda entry: _digest(entry[1]), values))
    total = hashlib.sha256()
    for (name, _), digest in zip(values, digests, strict=True):
        total.update(f"{name}\0{digest}\0".encode())
    tensors = [value for _, value in values if isinstance(value, Tensor)]
    unread = sorted({name for name, value in values if _is_meta(value)})
    parts: dict[str, Any] = {
        "sha256": total.hexdigest(),
        "tensors": len(tensors),
        "bytes": sum(value.numel() * value.element_size() for value in tensors),
    }
    return parts | ({"unread": unread} if unread else {})


def text_checksum(value: object) -> str:
    """A short checksum of a text, or of anything that JSON can hold; the order of keys does not matter.

    >>> text_checksum({"a": 1, "b": 2}) == text_checksum({"b": 2, "a": 1}) != text_checksum({"a": 1})
    True
    """
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parts(value: object) -> list[object]:
    """A value as it is hashed: a tensor subclass (torchao, quanto) by its name, its settings and the tensors inside."""
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        return [value]
    names, settings = flatten()
    parts: list[object] = [f"{type(value).__name__} {settings}"]
    for name in names:
        parts += [name, *_parts(getattr(value, name))]
    return parts


def _digest(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"{type(value).__name__} {value!r}"
    kind = f"{value.dtype} {tuple(value.shape)}"
    if _is_meta(value):
        return f"{kind} unread"
    raw = value.detach().cpu().contiguous().reshape(-1)
    raw_bytes: Any = raw.view(torch.uint8).numpy() if raw.numel() else b""
    return f"{kind} {hashlib.sha256(raw_bytes).hexdigest()}"


def _is_meta(value: object) -> bool:
    return isinstance(value, Tensor) and value.device.type == "meta"


def _offloaded_weights(model: nn.Module) -> dict[str, Any]:
    """The weights that accelerate stores outside the model, by name."""
    weights_by_name: dict[str, Any] = {}
    for path, module in model.named_modules():
        for hook in _accelerate_hooks(module):
            weights = getattr(hook, "weights_map", None)
            if not isinstance(weights, Mapping):
                continue
            for name, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                try:
                    weights_by_name[f"{path}.{name}" if path else name] = torch.as_tensor(weights[name])
                except KeyError:  # not offloaded
                    continue
    return weights_by_name


def _accelerate_hooks(module: nn.Module) -> tuple[Any, ...]:
    hook = getattr(module, "_hf_hook", None)
    return tuple(getattr(hook, "hooks", (hook,)))

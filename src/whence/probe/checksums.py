"""A checksum of a model's weights: SHA-256 over names, shapes, dtypes and bytes, the same on every machine."""

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

#: tensors hashed side by side; hashlib releases the interpreter lock
THREADS = min(8, os.cpu_count() or 1)


def weights_checksum(model: nn.Module, skip: Callable[[str], bool] = lambda name: False) -> dict[str, Any]:
    """The checksum of everything that is saved with a model, and how much of it could be read.

    Buffers that are not saved, such as the frequencies of a rotation, follow from the configuration; ``identity`` hashes
    that. Weights that accelerate keeps outside the model are read from there. A tensor without data (on the meta device)
    contributes its name, shape and dtype, and is listed under ``unread``.

    Args:
        skip: which entries of the state dict to leave out, by name.
    """
    offloaded = _offloaded(model)
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
    found = [(name, value) for name, whole in listed for value in _parts(whole)]
    with ThreadPoolExecutor(THREADS) as pool:
        digests = list(pool.map(lambda entry: _digest(entry[1]), found))
    total = hashlib.sha256()
    for (name, _), digest in zip(found, digests, strict=True):
        total.update(f"{name}\0{digest}\0".encode())
    tensors = [value for _, value in found if isinstance(value, Tensor)]
    unread = sorted({name for name, value in found if _is_meta(value)})
    told: dict[str, Any] = {
        "sha256": total.hexdigest(),
        "tensors": len(tensors),
        "bytes": sum(value.numel() * value.element_size() for value in tensors),
    }
    return told | ({"unread": unread} if unread else {})


def text_checksum(value: object) -> str:
    """A short checksum of a text, or of anything that JSON can hold; order inside mappings does not count.

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
    found: list[object] = [f"{type(value).__name__} {settings}"]
    for name in names:
        found += [name, *_parts(getattr(value, name))]
    return found


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


def _offloaded(model: nn.Module) -> dict[str, Any]:
    """Where accelerate keeps weights that are not in memory: by name, what its hooks would load."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for hook in _hooks(module):
            weights = getattr(hook, "weights_map", None)
            if not isinstance(weights, Mapping):
                continue
            for name, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                try:
                    found[f"{path}.{name}" if path else name] = torch.as_tensor(weights[name])
                except KeyError:  # not offloaded
                    continue
    return found


def _hooks(module: nn.Module) -> tuple[Any, ...]:
    hook = getattr(module, "_hf_hook", None)
    return tuple(getattr(hook, "hooks", (hook,)))

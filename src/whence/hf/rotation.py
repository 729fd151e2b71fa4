"""The model's own rotary positions: find the layers that rotate, and replace the rotation by the identity.

Most families pass cosines and sines to every attention module; llama4 and deepseek_v2 pass complex numbers. A layer that
receives a rotation need not use it: the NoPE layers of llama4, smollm3, cohere2 and exaone4 ignore it. So each layer runs
twice on the same states, the second time with the identity rotation. It rotates if its queries or keys differ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whence.hf.interface import KEY, AttentionCall, observe

ARGUMENT = "position_embeddings"  # the argument in which transformers passes a rotation to an attention module


class RemoveRotation:
    """A forward pre-hook of an attention module that replaces its rotation by the identity."""

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not is_rotation(kwargs.get(ARGUMENT)):
            return None
        return args, {**kwargs, ARGUMENT: identity_rotation(kwargs[ARGUMENT])}


class RotationFinder:
    """A forward hook of attention modules that finds out which of them rotate their queries and keys."""

    def __init__(self) -> None:
        self.rotating: set[int] = set()  # ids of modules whose rotation can be removed
        self.internal: set[int] = set()  # ids of modules that compute their rotation themselves
        self._running = False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self._running:
            return
        if not is_rotation(kwargs.get(ARGUMENT)):
            own = [part for name, part in module.named_modules() if name.split(".")[0] != KEY]
            if any("Rotary" in type(part).__name__ for part in own):
                self.internal.add(id(module))
            return
        pairs: list[tuple[Tensor, Tensor]] = []

        def add(call: AttentionCall) -> None:
            pairs.append((call.q, call.k))

        remove = observe([module], add)
        self._running = True
        if "past_key_values" in kwargs:  # some models create a cache despite use_cache=False
            kwargs = {**kwargs, "past_key_values": None}
        try:
            module(*args, **kwargs)
            module(*args, **{**kwargs, ARGUMENT: identity_rotation(kwargs[ARGUMENT])})
        finally:
            self._running = False
            remove()
        half = len(pairs) // 2  # a module may call attention more than once
        unchanged = [
            torch.equal(q, p) and torch.equal(k, j) for (q, k), (p, j) in zip(pairs[:half], pairs[half:], strict=True)
        ]
        if not all(unchanged):
            self.rotating.add(id(module))


def identity_rotation(rotation: Any) -> Any:
    """The rotation by an angle of zero, in the same form as the argument."""
    if isinstance(rotation, Tensor):
        return torch.ones_like(rotation)
    cos, sin = rotation
    return torch.ones_like(cos), torch.zeros_like(sin)


def is_rotation(value: object) -> bool:
    """Whether a value is a pair of cosines and sines, or a complex tensor."""
    if isinstance(value, Tensor):
        return value.is_complex()
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(x, Tensor) for x in value)

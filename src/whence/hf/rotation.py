"""The model's own rotary positions: which layers rotate, and a rotation by nothing for chosen layers.

Most families hand cosines and sines to every attention module, llama4 and deepseek_v2 complex numbers. Being handed a
rotation does not mean using it: NoPE layers (of llama4, smollm3, cohere2, exaone4) are handed one and ignore it. So each
layer runs twice on the same states, once with a rotation by nothing; it rotates when its queries or keys change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whence.hf.interface import KEY, Attending, watch

GIVEN = "position_embeddings"  # how transformers hands a rotation to an attention module


class Unturned:
    """A hook before an attention module that hands it a rotation by nothing."""

    def __call__(
        self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not is_rotation(named.get(GIVEN)):
            return None
        return given, {**named, GIVEN: by_nothing(named[GIVEN])}


class Rotations:
    """A hook after attention modules that finds out which of them rotate their queries and keys."""

    def __init__(self) -> None:
        self.turning: set[int] = set()  # modules whose rotation can be taken away
        self.inside: set[int] = set()  # modules that compute their rotation themselves
        self._asking = False

    def __call__(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], out: Any) -> None:
        if self._asking:
            return
        if not is_rotation(named.get(GIVEN)):
            own = [part for name, part in module.named_modules() if name.split(".")[0] != KEY]
            if any("Rotary" in type(part).__name__ for part in own):
                self.inside.add(id(module))
            return
        seen: list[tuple[Tensor, Tensor]] = []

        def note(attending: Attending) -> None:
            seen.append((attending.q, attending.k))

        end = watch([module], note)
        self._asking = True
        if "past_key_values" in named:  # of a model that keeps a cache although it was asked not to
            named = {**named, "past_key_values": None}
        try:
            module(*given, **named)
            module(*given, **{**named, GIVEN: by_nothing(named[GIVEN])})
        finally:
            self._asking = False
            end()
        half = len(seen) // 2  # a module may attend more than once
        same = [
            torch.equal(q, p) and torch.equal(k, j) for (q, k), (p, j) in zip(seen[:half], seen[half:], strict=True)
        ]
        if not all(same):
            self.turning.add(id(module))


def by_nothing(rotation: Any) -> Any:
    """The rotation by an angle of zero, in the form of the given one."""
    if isinstance(rotation, Tensor):
        return torch.ones_like(rotation)
    cos, sin = rotation
    return torch.ones_like(cos), torch.zeros_like(sin)


def is_rotation(given: object) -> bool:
    """Whether it is a pair of cosines and sines, or complex numbers."""
    if isinstance(given, Tensor):
        return given.is_complex()
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(x, Tensor) for x in given)

"""Watchers of what flows through a model: hidden states by layer, queries and keys before and after rotation."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.hf.layers import block_of
from whence.hf.recorders import Watching

Pair = tuple[Tensor, Tensor]  # queries and keys


class OfStates(Watching, ABC):
    """A watcher that puts hooks of its own into a model, and leaves their removal with ``undo``."""

    @abstractmethod
    def install(
        self, model: nn.Module, modules: dict[int, nn.Module], everywhere: dict[int, nn.Module], undo: ExitStack
    ) -> None:
        """Put the hooks where they belong."""


class Hidden(OfStates):
    """The hidden states ``[B, T, W]`` that enter each layer; what leaves the last layer has the number after it.

    So ``hidden[0]`` is the embedding, and ``hidden[n]`` of a model with n layers stands before the final norm.
    """

    def install(
        self, model: nn.Module, modules: dict[int, nn.Module], everywhere: dict[int, nn.Module], undo: ExitStack
    ) -> None:
        for layer, module in modules.items():
            block = block_of(model, module)
            undo.callback(block.register_forward_pre_hook(self._entering(layer), with_kwargs=True).remove)
        last = max(everywhere)
        if last in modules:
            undo.callback(block_of(model, modules[last]).register_forward_hook(self._leaving(last + 1)).remove)

    def _entering(self, layer: int) -> Callable[..., None]:
        def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self.layers[layer] = (given[0] if given else named["hidden_states"]).detach().cpu()

        return keep

    def _leaving(self, layer: int) -> Callable[..., None]:
        def keep(module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
            self.layers[layer] = (out[0] if isinstance(out, tuple) else out).detach().cpu()

        return keep


class Turned(OfStates):
    """Queries ``[B, H, T, D]`` and keys ``[B, G, T, D]`` of the tokens of a forward, before and after rotation.

    ``before`` and ``after`` hold, by layer, a pair (queries, keys); ``turned[layer]`` is the rotated queries. Kept is what
    stands before; whoever reads what stands after has the model's own function turn it again. These are the same
    numbers in half the memory. A model without rotary positions is refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, Pair] = {}
        self.after = TurnedAgain(self.before)

    def __getitem__(self, layer: int) -> Tensor:
        super().__getitem__(layer)  # which refuses a layer that was not seen
        return self.after[layer][0]

    def install(
        self, model: nn.Module, modules: dict[int, nn.Module], everywhere: dict[int, nn.Module], undo: ExitStack
    ) -> None:
        running: list[int] = []  # the layer that is attending just now
        for layer, module in modules.items():
            home: Any = sys.modules[type(module).__module__]
            if not hasattr(home, "apply_rotary_pos_emb"):
                raise usage_error(
                    "Turned()",
                    type(model).__name__,
                    "the model's family turns queries and keys by apply_rotary_pos_emb",
                    "leave Turned() out",
                )
            undo.callback(module.register_forward_pre_hook(self._begin(running, layer)).remove)
            undo.callback(module.register_forward_hook(lambda *about: running.clear(), always_call=True).remove)
        for home in {sys.modules[type(module).__module__] for module in modules.values()}:
            original = home.apply_rotary_pos_emb
            home.apply_rotary_pos_emb = self._looking(original, running)
            undo.callback(setattr, home, "apply_rotary_pos_emb", original)

    def _begin(self, running: list[int], layer: int) -> Callable[..., None]:
        def begin(module: nn.Module, given: tuple[Any, ...]) -> None:
            running[:] = [layer]

        return begin

    def _looking(self, original: Callable[..., Any], running: list[int]) -> Callable[..., Any]:
        def turn(q: Tensor, k: Tensor, *about: Any, **named: Any) -> Any:
            for layer in running:
                self.before[layer] = (q.detach().cpu(), k.detach().cpu())
                self.layers[layer] = self.before[layer][0]
                self.after.remember(layer, original, about, named)
            return original(q, k, *about, **named)

        return turn


class TurnedAgain(Mapping[int, Pair]):
    """Pairs by layer that are turned when they are read, by the function and the angles that were used on them."""

    def __init__(self, before: dict[int, Pair]) -> None:
        self.before = before
        self.how: dict[int, Callable[[Tensor, Tensor], Any]] = {}

    def remember(self, layer: int, turn: Callable[..., Any], about: Sequence[Any], named: dict[str, Any]) -> None:
        given = [_here(value) for value in about]
        by_name = {name: _here(value) for name, value in named.items()}
        self.how[layer] = lambda q, k: turn(q, k, *given, **by_name)

    @torch.no_grad()
    def __getitem__(self, layer: int) -> Pair:
        q, k = self.how[layer](*self.before[layer])
        return q, k

    def __iter__(self) -> Iterator[int]:
        return iter(self.how)

    def __len__(self) -> int:
        return len(self.how)


def _here(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value

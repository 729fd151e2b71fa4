"""The input of an attention module for its attached position: for a clock, whose steps are cached beside the values, and for a
mechanism that reads the layer input of the queries, of which nothing is cached.

A cache of transformers holds keys and values. The steps are further columns of the values, so they follow everything that
happens to a token: sliding, cropping, reordering of beams, repeated rows, offloading. They are float32 numbers; a cache
in half precision holds each as three numbers that add up to it exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from whence import torch_modes
from whence.errors import usage_error
from whence.hf.integrations import active_position, load_from_meta
from whence.position.evaluate import evaluate_clock

CACHE_ARGUMENTS = ("past_key_values", "layer_past")
STEPS = "_whence_steps"  # the attribute of an attention module with the steps of all keys, during its forward pass
INPUT = "_whence_input"  # with its input, of a position that reads it
PARTS = {torch.float16: 3, torch.bfloat16: 3}  # numbers of a dtype that hold a float32


def pass_input(module: nn.Module, name: str) -> list[RemovableHandle]:
    """Give the Position ``name`` of an attention module the module's input. Removing the handles undoes it."""
    return [
        module.register_forward_pre_hook(_Start(name), with_kwargs=True),
        module.register_forward_hook(_forget_input, always_call=True),
    ]


class _Start:
    """A forward pre-hook of an attention module: keep its input, or evaluate the steps of the new tokens and wrap the cache."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        position = active_position(getattr(module, self.name, None))
        if position is None:
            return None
        x = args[0] if args else kwargs["hidden_states"]
        if position.reads_input:
            setattr(module, INPUT, x)
        if "clock" not in position.effects:
            return None
        if not torch_modes.is_tracing():
            load_from_meta(position, x.device)
        setattr(module, STEPS, evaluate_clock(position, x, position.heads))
        name = next((one for one in CACHE_ARGUMENTS if kwargs.get(one) is not None), None)
        return None if name is None else (args, {**kwargs, name: CacheWithSteps(kwargs[name], module)})


def _forget_input(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
    for name in (STEPS, INPUT):
        if name in module.__dict__:  # they hold the graph of the forward pass
            delattr(module, name)


class CacheWithSteps:
    """A cache of transformers that keeps the steps of a clock beside the values, as further columns."""

    def __init__(self, cache: Any, module: nn.Module) -> None:
        self.cache, self.module = cache, module

    def update(self, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        steps = getattr(self.module, STEPS)
        columns = pack_steps(steps, v)
        self._require_room(v.shape[-1] + columns.shape[-1], *args)
        keys, both = self.cache.update(k, torch.cat((v, columns), -1), *args, **kwargs)
        setattr(self.module, STEPS, unpack_steps(both[..., v.shape[-1] :], steps))
        return keys, both[..., : v.shape[-1]]

    def _require_room(self, width: int, layer: int, *_: Any) -> None:
        """Raise for tokens that were cached before the position was attached."""
        layers = self.cache.layers
        values = getattr(layers[layer], "values", None) if layer < len(layers) else None
        if values is not None and values.numel() and values.shape[-1] != width:
            raise usage_error(
                "an attached model(past_key_values=...)",
                f"a cache with values of {values.shape[-1]} columns",
                f"with the steps of a clock, the values of this layer have {width}",
                "start with an empty cache after attach",
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)


def pack_steps(steps: Tensor, v: Tensor) -> Tensor:
    """Steps ``[B, H, T]`` as columns ``[B, G, T, n]`` of the values ``[B, G, T, E]``, in their dtype.

    >>> steps = torch.tensor([[[0.1, -3.7]]])
    >>> columns = pack_steps(steps, torch.zeros(1, 1, 2, 4, dtype=torch.bfloat16))
    >>> columns.shape, torch.equal(unpack_steps(columns, steps), steps)
    (torch.Size([1, 1, 2, 3]), True)
    """
    rest, parts = steps.unflatten(1, (v.shape[1], -1)).transpose(2, 3), []
    for _ in range(PARTS.get(v.dtype, 1)):
        parts.append(rest.to(v.dtype))
        rest = rest - parts[-1].to(rest.dtype)
    return torch.cat(parts, -1)


def unpack_steps(columns: Tensor, like: Tensor) -> Tensor:
    """The steps ``[B, H, S]`` in such columns, in the dtype of the steps ``like`` ``[B, H, T]``."""
    parts = columns.to(like.dtype).unflatten(-1, (-1, like.shape[1] // columns.shape[1]))
    return parts.sum(-2).transpose(2, 3).flatten(1, 2)

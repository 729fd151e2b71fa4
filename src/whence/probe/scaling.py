"""One channel of what enters queries and keys, multiplied, for the answering rows alone (Yu et al. 2024, arXiv 2406.02536).

Rows of the prompt attend as they always do. The answering rows see keys, and make queries, from inputs in which one
channel is multiplied by s; values are left alone, and the norm is not computed again. So while the prompt is read the
cache is filled with changed keys behind the back of unchanged rows; after that, every row has the changed queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.probe.states import attention_modules
from whence.probe.subject import Subject


@contextmanager
def scaled(subject: Subject, channel: int, times: float, layers: Sequence[int]) -> Iterator[None]:
    """Every prompt that is read and answered inside has the channel scaled in these layers. Afterwards all is as before."""
    modules = attention_modules(subject)
    width = int(subject.model.config.get_text_config().hidden_size)
    if not 0 <= channel < width or not set(layers) <= set(modules):
        raise usage_error(
            "scaled",
            f"channel {channel} in layers {list(layers)}",
            f"there are {width} channels and {len(modules)} layers",
            "take some of these",
        )
    before: list[tuple[nn.Module, Any]] = []
    try:
        for layer in layers:
            module = modules[layer]
            before.append((module, module.__dict__.get("forward")))
            module.forward = _changed(module, module.forward, channel, times)
        yield
    finally:
        for module, forward in before:
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def _changed(module: nn.Module, forward: Callable[..., Any], channel: int, times: float) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        cache = named.get("past_key_values")
        if cache is None:
            raise usage_error(
                "a scaled model",
                "a forward without a cache",
                "the prompt is read into a cache, and the answering rows follow",
                "pass use_cache=True",
            )
        plain = None
        if cache.get_seq_length(module.layer_idx) == 0:
            plain = forward(*given, **{**named, "past_key_values": None})
        with _inputs_changed(module, channel, times):
            other = forward(*given, **named)
        return other if plain is None else plain

    return call


@contextmanager
def _inputs_changed(module: nn.Module, channel: int, times: float) -> Iterator[None]:
    def change(projection: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = given[0].clone()
        x[..., channel] *= times
        return (x, *given[1:])

    hooks = [getattr(module, name).register_forward_pre_hook(change) for name in ("q_proj", "k_proj")]
    try:
        with torch.no_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()

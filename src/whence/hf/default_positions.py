"""Whether a call of a model leaves the positions of the tokens to the model, which a compiler cannot see in their values.

Without an attention mask, transformers takes position ids that start again for packed sequences. The ids are tensors, so in a
compiled model every call would have segments. A call without ``position_ids`` has none: the model counts the tokens.

This holds only where the whole decoder is traced, and only during its call: layers that are called alone, compiled alone or
recomputed in the backward pass may have other ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from whence import torch_modes

CALL = "_whence_call"  # the attribute of an attention module with the ``ModelCall`` of its model


class ModelCall:
    """A forward pre-hook of a decoder, shared with its attention modules: what the current call leaves out. ``end`` is its
    forward hook."""

    def __init__(self) -> None:
        self.counts_tokens = False  # neither position_ids nor an attention mask were passed

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        passed = len(args) > 1 or kwargs.get("position_ids") is not None or kwargs.get("attention_mask") is not None
        self.counts_tokens = torch_modes.is_tracing() and not passed

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.counts_tokens = False


def watch_calls(decoder: nn.Module, modules: Iterable[nn.Module]) -> list[RemovableHandle]:
    """Let attention modules know the arguments of their decoder. Removing the handles stops it; see ``forget_calls``."""
    call = ModelCall()
    for module in modules:
        module.__dict__[CALL] = call
    return [decoder.register_forward_pre_hook(call, with_kwargs=True), decoder.register_forward_hook(call.end)]


def forget_calls(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        module.__dict__.pop(CALL, None)


def counts_tokens(module: nn.Module) -> bool:
    """Whether the tokens of the current call are one sequence without padding, counted by the model."""
    call = module.__dict__.get(CALL)
    return call is not None and call.counts_tokens

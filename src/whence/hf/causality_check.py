"""Verify with a tiny forward pass that every selected layer uses ``attend`` and that no token sees the future."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from whence.errors import WhenceError, usage_error
from whence.hf.integrations import independent_rounding
from whence.hf.interface import not_a_decoder_error, observe
from whence.hf.layers import run_tiny_forward, tiny_input


def verify_attachment(subject: str, model: Any, modules: dict[int, nn.Module]) -> None:
    """Raise if a selected layer does not call ``attend``, or if a future token changes an earlier logit."""
    active: set[int] = set()
    remove = observe(modules, lambda call: active.add(id(call.module)))
    try:
        causal = is_causal(subject, model)
    finally:
        remove()
    idle = [layer for layer, module in modules.items() if id(module) not in active]
    if idle:
        raise usage_error(
            subject,
            f"{type(model).__name__} ({model.config.model_type}), in which layers {idle} do not attend",
            "every selected layer must run",
            f"omit {idle} from layers",
        )
    if not causal:
        raise not_causal_error(subject, model)


def is_causal(subject: str, model: Any) -> bool:
    """Whether the logits before the last token stay the same when that token changes."""
    tokens = tiny_input(subject, model)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 3 + 1
    with independent_rounding(model):
        before, after = run_tiny_forward(model, tokens), run_tiny_forward(model, changed)
    # the rows before the changed token are computed by the same operations from the same numbers
    tolerance = 8 * torch.finfo(before.dtype).eps * float(before.abs().max())
    return float((before - after)[:, :-1].abs().max()) <= tolerance


def not_causal_error(subject: str, model: Any) -> WhenceError:
    return not_a_decoder_error(
        subject, f"{type(model).__name__} ({model.config.model_type}), in which a future token changes an earlier logit"
    )

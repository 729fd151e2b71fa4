"""Validation of what a mechanism's hooks return."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.shapes import format_count, format_shape, has_shape


def require_per_head(mechanism: str, hook: str, out: Tensor | None, heads: int, n: int) -> Tensor:
    """The output of a ``score_scale``, ``bias`` or ``sink`` hook as ``[heads or 1, n]``."""
    if isinstance(out, Tensor) and has_shape(out, (n,), (heads, n)):
        return out if out.ndim == 2 else out[None]
    argument = "position" if hook == "sink" else "distance"
    remedy = f"return one number per {argument}, or one row of them per head"
    if isinstance(out, Tensor) and out.ndim == 2 and out.shape[1] == n:
        remedy = f"build it with heads={heads}, or give a parameter the shape [heads, 1]"
    raise usage_error(
        f"{mechanism}.{hook}",
        _describe_output(out),
        f"for {format_count(n, argument)} and {format_count(heads, 'query head')} "
        f"it must return shape [{n}] or [{heads}, {n}]",
        remedy,
    )


def require_shape(mechanism: str, hook: str, out: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """The output of a ``content_bias``, ``value_bias``, ``embed`` or ``rotate`` hook, of exactly this shape."""
    if isinstance(out, Tensor) and tuple(out.shape) == shape:
        return out
    rule = f"it must return shape {list(shape)}"
    raise usage_error(f"{mechanism}.{hook}", _describe_output(out), rule, "return one number per element")


def require_like(mechanism: str, hook: str, out: Tensor | None, argument: Tensor, name: str) -> Tensor:
    """The output of an ``embed`` or ``rotate`` hook, with the shape and dtype of its argument ``name``.

    Under autocast a hook may return autocast's dtype; that is converted back.
    """
    out = require_shape(mechanism, hook, out, tuple(argument.shape))
    if out.dtype == argument.dtype:
        return out
    if torch.is_autocast_enabled(argument.device.type):
        return out.to(argument.dtype)
    raise usage_error(
        f"{mechanism}.{hook}",
        f"an output of dtype {out.dtype}",
        f"it must return the dtype of {name}, {argument.dtype}",
        f"convert the output with .to({name}.dtype)",
    )


def require_rotated(mechanism: str, out: object, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The output of a ``rotate`` hook: a pair like q and k."""
    if not isinstance(out, tuple) or len(out) != 2:
        rule = "it must return a pair (q, k)"
        raise usage_error(f"{mechanism}.rotate", _describe_output(out), rule, "return both, also if one is unchanged")
    return require_like(mechanism, "rotate", out[0], q, "q"), require_like(mechanism, "rotate", out[1], k, "k")


def _describe_output(out: object) -> str:
    if isinstance(out, Tensor):
        return f"an output of shape {format_shape(out)}"
    return f"an output of type {type(out).__name__}"

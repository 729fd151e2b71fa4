"""Call the functions that a user writes, the hooks of a mechanism among them, and validate what they return."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence import torch_modes
from whence.errors import WhenceError, usage_error
from whence.shapes import format_count, format_shape, has_shape

#: parts of torch's messages for a tensor of several elements that is used as one number or truth value
_READS_OF_VALUES = (
    "Boolean value of Tensor",
    "only one element tensors can be converted",
    "cannot be converted to Scalar",
    "only integer tensors of a single element",
)


#: parts of torch's messages for tensors of different dtypes
_MIXED_DTYPES = (
    "have the same dtype",
    "have same dtype",
    "expected scalar type",
    "mixed dtype",
    "dtypes match",
)


def call_on_tensors(subject: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function on whole tensors. Python control flow on their values and mixed dtypes become usage errors."""
    if torch_modes.is_tracing():
        return function(*arguments)
    try:
        return function(*arguments)
    except WhenceError:  # of a library function inside; it is precise already
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, TypeError) and "NoneType" in str(error) and arguments and arguments[-1] is None:
            rule = "length is None for a mechanism that was built without one"
            remedy = 'begin its __init__ with super().__init__(length="context", context=4096), or do not read length'
            raise usage_error(subject, f"TypeError: {error}", rule, remedy) from error
        mixed = isinstance(error, RuntimeError) and any(text in str(error) for text in _MIXED_DTYPES)
        if not mixed and not any(text in str(error) for text in _READS_OF_VALUES):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        outside_torch = [frame for frame in frames if Path(torch.__file__).parent not in Path(frame.filename).parents]
        frame = (outside_torch or frames)[-1]
        place = f"in line {frame.lineno} of {frame.filename}: {frame.line}"
        if mixed:
            rule = "arguments may have another dtype than parameters, as in a model in half precision, and positions are integers"
            remedy = "convert them to one dtype, such as parameter.to(argument.dtype), or positions.to(parameter.dtype)"
            raise usage_error(subject, f"tensors of different dtypes, {place}", rule, remedy) from error
        raise usage_error(
            subject,
            f"Python code that needs one number, {place}",
            "the function is called once on tensors that hold all positions",
            "use torch.where(condition, a, b) instead of if, & and | instead of and and or, torch.exp instead of math.exp",
        ) from error


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


def require_like(
    mechanism: str, hook: str, out: Tensor | None, argument: Tensor, name: str, columns: int | None = None
) -> Tensor:
    """The output of an ``embed`` or ``rotate`` hook, with the shape and dtype of its argument ``name``.

    ``columns`` replaces the size of the last axis. Under autocast a hook may return autocast's dtype; that is converted back.
    """
    shape = tuple(argument.shape) if columns is None else (*argument.shape[:-1], columns)
    out = require_shape(mechanism, hook, out, shape)
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


def require_rotated(
    mechanism: str, out: object, q: Tensor, k: Tensor, *, widens: bool = False
) -> tuple[Tensor, Tensor]:
    """The output of a ``rotate`` hook: a pair like q and k. A mechanism that ``widens`` may change the number of columns."""
    if not isinstance(out, tuple) or len(out) != 2:
        rule = "it must return a pair (q, k)"
        raise usage_error(f"{mechanism}.rotate", _describe_output(out), rule, "return both, also if one is unchanged")
    columns = out[0].shape[-1] if widens and isinstance(out[0], Tensor) and out[0].ndim == 4 else None
    return (
        require_like(mechanism, "rotate", out[0], q, "q", columns),
        require_like(mechanism, "rotate", out[1], k, "k", columns),
    )


def _describe_output(out: object) -> str:
    if isinstance(out, Tensor):
        return f"an output of shape {format_shape(out)}"
    return f"an output of type {type(out).__name__}"

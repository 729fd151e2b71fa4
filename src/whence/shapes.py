"""Validation of tensor arguments: layout, shape, dtype and device. ``validation`` is for flags, numbers and strings,
``hook_outputs`` for what hooks return.

Nothing is broadcast silently: an axis that does not match is an error.

Axes: B batch, H query heads, G key-value heads, T query rows, S keys, D head dimension, E value dimension.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.torch_modes import can_read_values
from whence.validation import special_layout

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: converted to int64 where they are used: torch has few operations for the unsigned types
INTEGERS = (
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


def format_shape(x: Tensor) -> str:
    return "[" + ", ".join(str(n) for n in x.shape) + "]"


def has_shape(x: Tensor, *allowed: tuple[int, ...]) -> bool:
    """Whether x has one of the shapes. Ranks are compared first, because an exporter adds a guard for each compared size."""
    return any(x.ndim == len(shape) and tuple(x.shape) == shape for shape in allowed)


def format_count(n: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> format_count(1, "head"), format_count(2, "query", "queries")
    ('1 head', '2 queries')
    """
    return f"{n} {singular if n == 1 else plural or singular + 's'}"


def require_dense(subject: str, name: str, x: object) -> None:
    """Require a dense torch tensor: not sparse, nested or quantized."""
    if not isinstance(x, Tensor):
        raise usage_error(
            subject, type(x).__name__, f"{name} must be a torch tensor", "convert it with torch.as_tensor"
        )
    kind = special_layout(x)
    if kind is not None:
        remedy = {"a nested tensor": "torch.nested.to_padded_tensor", "a quantized tensor": f"{name}.dequantize()"}
        raise usage_error(
            subject, kind, f"{name} must be a dense tensor", f"convert it with {remedy.get(kind, f'{name}.to_dense()')}"
        )


def require_one_device(*tensors: Tensor | None) -> None:
    """Require tensors of an operator to share a device. For shapes while tracing: eager calls check the position first."""
    first = next(x for x in tensors if x is not None)
    for x in tensors:
        if x is not None and x.device != first.device:
            raise usage_error(
                "attend",
                f"a tensor on {x.device} with q on {first.device}",
                "all tensors share one device",
                "move the position with position.to(q.device)",
            )


def require_values(subject: str, name: str, x: Tensor) -> None:
    """Require a tensor with values; one on the meta device has none."""
    if x.is_meta:
        raise usage_error(
            subject,
            "a tensor on the meta device",
            f"{name} must have values",
            "create it on a real device, or use torch's FakeTensorMode to infer shapes",
        )


def require_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """q ``[B, H, T, D]``, k ``[B, G, S, D]``, v ``[B, G, S, E]`` of one dtype on one device, H a multiple of G."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        require_dense(f"attend({name})", name, x)
        if x.ndim != 4:
            raise usage_error(
                f"attend({name})",
                f"shape {format_shape(x)}",
                f"{name} must have four axes [batch, heads, length, head_dim]",
                "add the missing axis with unsqueeze, or split the heads with unflatten and transpose",
            )
        if x.dtype not in FLOATS:
            raise usage_error(
                f"attend({name})",
                f"dtype {x.dtype}",
                "the dtype must be float64, float32, float16 or bfloat16",
                f"convert with {name}.float()",
            )
        if 0 in x.shape:
            raise usage_error(
                f"attend({name})",
                f"shape {format_shape(x)}",
                "no axis may be empty",
                "skip the call when there is nothing to attend to",
            )
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise usage_error(
                f"attend({name})",
                f"dtype {x.dtype} with q of {q.dtype}",
                "q, k and v must have the same dtype",
                f"convert with {name}.to(q.dtype)",
            )
        if x.device != q.device:
            raise usage_error(
                f"attend({name})",
                f"device {x.device} with q on {q.device}",
                "q, k and v must be on the same device",
                f"move with {name}.to(q.device)",
            )
        if x.shape[0] != q.shape[0]:
            raise usage_error(
                f"attend({name})",
                f"batch {x.shape[0]} with {q.shape[0]} in q",
                "batch sizes must be equal; they are not broadcast",
                f"use {name}.expand",
            )
    require_values("attend(q)", "q", q)
    if k.shape[3] != q.shape[3]:
        raise usage_error(
            "attend(k)",
            f"head_dim {k.shape[3]} with {q.shape[3]} in q",
            "queries and keys must have the same head_dim",
            "project both to the same head_dim",
        )
    if v.shape[1] != k.shape[1]:
        raise usage_error(
            "attend(v)",
            f"{format_count(v.shape[1], 'head')} with {k.shape[1]} in k",
            "keys and values must have the same number of heads",
            transpose_remedy("v")
            if v.shape[1:3] == (k.shape[2], k.shape[1])
            else "project both to the same number of heads",
        )
    if v.shape[2] != k.shape[2]:
        raise usage_error(
            "attend(v)",
            f"length {v.shape[2]} with {k.shape[2]} in k",
            "keys and values must have the same length",
            "compute both from the same tokens",
        )
    if q.shape[1] % k.shape[1] != 0:
        raise usage_error(
            "attend(q)",
            f"{format_count(q.shape[1], 'head')} for {format_count(k.shape[1], 'key head')}",
            "the number of query heads must be a multiple of the number of key heads",
            transpose_remedy("q")
            if q.shape[1:3] == (k.shape[2], k.shape[1])
            else transpose_remedy("q", "k", "v")
            if q.shape[2] % k.shape[2] == 0
            else "change one of the two numbers",
        )


def transpose_remedy(*names: str) -> str:
    """The remedy for tensors that are probably ``[batch, length, heads, head_dim]``."""
    calls = ", ".join(f"{name}.transpose(1, 2)" for name in names)
    return f"if the axes are [batch, length, heads, head_dim], pass {calls}"


def require_finite(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        bad = int((~torch.isfinite(x)).sum())
        if bad:
            raise usage_error(
                f"attend({name}, check_finite=True)",
                f"{bad} of {x.numel()} numbers that are NaN or infinite",
                "check_finite=True requires finite inputs",
                "find the operation that produced them",
            )


#: positions below it are exact in float32, which rotations, embeddings and sinks compute with
EXACT_IN_FLOAT32 = 2**24
#: positions below it have exact differences in int64 and in float64
EXACT_IN_FLOAT64 = 2**53


def validate_positions(
    name: str, value: Tensor, batch: int, length: int, device: torch.device, *, below: int = EXACT_IN_FLOAT32
) -> Tensor:
    """Positions as ``[B or 1, length]`` in int64, float32 or float64, from ``[length]`` or ``[B, length]``.

    Narrow and unsigned types are converted, because differences of positions would overflow in them.
    """
    if not is_numeric(value):
        got = special_layout(value) or str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
        raise usage_error(f"attend({name}=...)", got, "positions must be a tensor of numbers", "use torch.arange")
    if not has_shape(value, (length,), (batch, length)):
        raise usage_error(
            f"attend({name}=...)",
            f"shape {format_shape(value)}",
            f"positions must have shape [{length}] or [{batch}, {length}]",
            "pass one position per token",
        )
    require_device(name, value, device)
    wide = value.to(torch.promote_types(value.dtype, torch.float32)) if value.is_floating_point() else value.long()
    if can_read_values(wide):
        low, high = (x.item() for x in wide.aminmax())
        if value.dtype == torch.uint64 and low < 0:  # the largest ones overflowed in int64
            low, high = 0, low + 2**64
        if not low >= 0:  # also true for NaN
            raise usage_error(
                f"attend({name}=...)",
                f"a position of {low}",
                "positions must be at least 0",
                "mark left padding with key_mask=..., which numbers the tokens itself",
            )
        if not high < below:
            raise usage_error(
                f"attend({name}=...)",
                f"a position of {high}",
                f"positions must be below {below}, where the arithmetic is exact",
                "subtract the first position of each sequence, or divide by a unit of distance",
            )
    return wide if wide.ndim == 2 else wide[None]


def validate_key_mask(value: Tensor, batch: int, length: int, device: torch.device, heads: int | None = None) -> Tensor:
    """Which keys are real tokens, ``[B, length]`` bool. With ``heads``, the error recognizes k with its axes swapped."""
    dense = isinstance(value, Tensor) and special_layout(value) is None
    fits = dense and tuple(value.shape) == (batch, length)
    if not fits or value.dtype != torch.bool:
        got = describe_tensor(value)
        if fits and value.is_floating_point():
            remedy = "convert it with key_mask.bool() if 1 marks the real keys, or with key_mask == 0 if it is additive"
        elif fits:
            remedy = "convert it with key_mask.bool()"
        elif dense and heads is not None and tuple(value.shape) == (batch, heads):
            remedy = transpose_remedy("q", "k", "v")
        elif dense and value.ndim > 2:
            remedy = "pass a mask over pairs of queries and keys as attn_mask"
        else:
            remedy = "pass one value per token of this call"
        raise usage_error(
            "attend(key_mask=...)",
            got,
            f"key_mask must be a bool tensor [{batch}, {length}], True where a key is attended to",
            remedy,
        )
    require_device("key_mask", value, device)
    return value


def mask_from_lengths(value: Tensor, batch: int, length: int, device: torch.device) -> Tensor:
    """Lengths ``[B]`` of right-padded sequences as a bool mask ``[B, length]`` of the real keys."""
    if not is_integer(value) or tuple(value.shape) != (batch,):
        got = describe_tensor(value)
        raise usage_error(
            "attend(lengths=...)",
            got,
            f"lengths must be an integer tensor [{batch}]",
            "pass one length per sequence of the batch",
        )
    require_device("lengths", value, device)
    value = value.long()  # a narrow integer type cannot hold the length of a long sequence
    if can_read_values(value) and bool(((value < 0) | (value > length)).any()):
        raise usage_error(
            "attend(lengths=...)",
            str(value.tolist()),
            f"each length must be between 0 and {length}, the number of keys",
            "count the real tokens of each sequence",
        )
    return torch.arange(length, device=device) < value[:, None]


def require_real_tokens(subject: str, real: Tensor | None) -> None:
    """Require at least one real token in every sequence of a mask ``[B, length]``."""
    if real is None or not can_read_values(real):
        return
    empty = (~real.any(-1)).nonzero().flatten().tolist()
    if empty:
        raise usage_error(
            subject,
            f"lengths or key_mask without a real token in sequence {empty[0]}",
            "each sequence needs at least one real token",
            "remove empty sequences from the batch",
        )


def require_sequences(owner: str, name: str, value: Tensor, layer: nn.Linear) -> None:
    """Require the input ``[B, length, in_features]`` of a projection, with at least one sequence and one token."""
    subject, in_features = f"{owner}({name})", layer.in_features
    dense = isinstance(value, Tensor) and special_layout(value) is None
    if not dense or value.ndim != 3 or value.shape[2] != in_features or 0 in value.shape:
        raise usage_error(
            subject,
            f"shape {format_shape(value)}" if dense else describe_tensor(value),
            f"{name} must be a tensor [batch, length, {in_features}] with at least one token",
            "pass a tensor of that shape",
        )
    require_like(subject, name, value, layer)


def require_like(subject: str, name: str, value: Tensor, layer: nn.Module) -> None:
    """Require the dtype and device of a layer's weight, if the layer has one."""
    weight = layer.weight if type(layer) is nn.Linear else None
    fits = weight is None or weight.dtype == value.dtype
    if weight is not None and torch.float64 not in (weight.dtype, value.dtype) and not value.is_meta:
        fits = fits or torch.is_autocast_enabled(value.device.type)  # autocast converts all but float64
    if value.dtype not in FLOATS or not fits:
        wanted = torch.float32 if weight is None else weight.dtype
        raise usage_error(
            subject,
            f"dtype {value.dtype}",
            f"{name} must have the dtype {wanted} of the layer",
            f"use {name}.to({wanted})",
        )
    if weight is not None and weight.device != value.device:
        got, rule = f"device {value.device}", f"{name} must be on the device {weight.device} of the layer"
        raise usage_error(subject, got, rule, "move one of them with .to(device)")


def describe_tensor(value: object) -> str:
    """A tensor by its shape and dtype, anything else by its type.

    >>> describe_tensor(torch.zeros(2, 3)), describe_tensor(None)
    ('shape [2, 3] of torch.float32', 'NoneType')
    """
    if not isinstance(value, Tensor):
        return type(value).__name__
    return special_layout(value) or f"shape {format_shape(value)} of {value.dtype}"


def validate_segment_ids(value: Tensor, batch: int, length: int, device: torch.device) -> Tensor:
    """Segment numbers as ``[B or 1, length]``."""
    if not is_integer(value) or not has_shape(value, (length,), (batch, length)):
        got = describe_tensor(value)
        raise usage_error(
            "attend(segment_ids=...)",
            got,
            f"segment_ids must be an integer tensor [{length}] or [{batch}, {length}]",
            "number the segments of a packed row 0, 0, 1, 1, 1 and so on",
        )
    require_device("segment_ids", value, device)
    value = value.long()
    return value if value.ndim == 2 else value[None]


def is_numeric(value: object) -> TypeGuard[Tensor]:
    """Whether it is a dense tensor of real numbers."""
    return isinstance(value, Tensor) and value.dtype in (*FLOATS, *INTEGERS) and special_layout(value) is None


def is_floating(value: object) -> TypeGuard[Tensor]:
    """Whether it is a dense floating-point tensor."""
    return isinstance(value, Tensor) and value.dtype in FLOATS and special_layout(value) is None


def is_integer(value: object) -> TypeGuard[Tensor]:
    """Whether it is a dense integer tensor."""
    return isinstance(value, Tensor) and value.dtype in INTEGERS and special_layout(value) is None


def require_device(name: str, value: Tensor, device: torch.device) -> None:
    if value.device != device:
        raise usage_error(
            f"attend({name}=...)",
            f"device {value.device} with q on {device}",
            "all tensors must be on the same device",
            "move it with .to(q.device)",
        )

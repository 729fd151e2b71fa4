"""The only validation of tensors: kind, shape, dtype and device. ``validation`` is for flags, numbers and strings, and
``answers`` for what hooks return.

Nothing is broadcast silently: an axis fits or it is refused.

Legend of the axes: B batch, H query heads, G key-value heads, T query rows, S keys, D key width, E value width.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from whence.errors import usage_error
from whence.validation import unusual

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: widened to int64 where they are used: torch has few operations for the unsigned ones
INTEGERS = (
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


def shape(x: Tensor) -> str:
    return "[" + ", ".join(str(n) for n in x.shape) + "]"


def has_shape(x: Tensor, *allowed: tuple[int, ...]) -> bool:
    """Whether x has one of the shapes. Ranks are compared first: an exporter remembers every comparison of lengths."""
    return any(x.ndim == len(wanted) and tuple(x.shape) == wanted for wanted in allowed)


def many(n: int, one: str, more: str | None = None) -> str:
    """A number of things in words.

    >>> many(1, "head"), many(2, "query", "queries")
    ('1 head', '2 queries')
    """
    return f"{n} {one if n == 1 else more or one + 's'}"


def require_dense(asked: str, name: str, x: object) -> None:
    """A plain torch tensor: not sparse, nested or quantized."""
    if not isinstance(x, Tensor):
        raise usage_error(asked, type(x).__name__, f"{name} is a torch tensor", "convert it with torch.as_tensor")
    kind = unusual(x)
    if kind is not None:
        remedy = {"a nested tensor": "torch.nested.to_padded_tensor", "a quantized tensor": f"{name}.dequantize()"}
        raise usage_error(
            asked, kind, f"{name} is a dense tensor", f"convert it with {remedy.get(kind, f'{name}.to_dense()')}"
        )


def require_values(asked: str, name: str, x: Tensor) -> None:
    """A tensor on the meta device has a shape and no numbers."""
    if x.is_meta:
        raise usage_error(
            asked,
            "a tensor on the meta device",
            f"{name} holds numbers",
            "create it on a real device, or use torch's FakeTensorMode to infer shapes",
        )


def require_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """q ``[B, H, T, D]``, k ``[B, G, S, D]``, v ``[B, G, S, E]`` of one dtype on one device, H a multiple of G."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        require_dense(f"attend({name})", name, x)
        if x.ndim != 4:
            raise usage_error(
                f"attend({name})",
                f"shape {shape(x)}",
                f"{name} has four axes [batch, heads, length, width]",
                "add the missing axis with unsqueeze, or split the heads with unflatten and transpose",
            )
        if x.dtype not in FLOATS:
            raise usage_error(
                f"attend({name})",
                f"dtype {x.dtype}",
                "attention takes float64, float32, float16 or bfloat16",
                f"convert with {name}.float()",
            )
        if 0 in x.shape:
            raise usage_error(
                f"attend({name})",
                f"shape {shape(x)}",
                "no axis may be empty",
                "leave the call out when there is nothing to attend to",
            )
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise usage_error(
                f"attend({name})",
                f"dtype {x.dtype} with q of {q.dtype}",
                "q, k and v share one dtype",
                f"convert with {name}.to(q.dtype)",
            )
        if x.device != q.device:
            raise usage_error(
                f"attend({name})",
                f"device {x.device} with q on {q.device}",
                "q, k and v share one device",
                f"move with {name}.to(q.device)",
            )
        if x.shape[0] != q.shape[0]:
            raise usage_error(
                f"attend({name})",
                f"batch {x.shape[0]} with {q.shape[0]} in q",
                "batches are equal and never broadcast",
                f"use {name}.expand",
            )
    require_values("attend(q)", "q", q)
    if k.shape[3] != q.shape[3]:
        raise usage_error(
            "attend(k)",
            f"width {k.shape[3]} with {q.shape[3]} in q",
            "queries and keys have one width",
            "project both to the same width",
        )
    if v.shape[1] != k.shape[1]:
        raise usage_error(
            "attend(v)",
            f"{many(v.shape[1], 'head')} with {k.shape[1]} in k",
            "keys and values have the same heads",
            "project both to the same heads",
        )
    if v.shape[2] != k.shape[2]:
        raise usage_error(
            "attend(v)",
            f"length {v.shape[2]} with {k.shape[2]} in k",
            "each key has one value",
            "cut both from the same tokens",
        )
    if q.shape[1] % k.shape[1] != 0:
        raise usage_error(
            "attend(q)",
            f"{many(q.shape[1], 'head')} for {many(k.shape[1], 'key head')}",
            "the query heads are a multiple of the key heads",
            "choose numbers that divide",
        )


def require_finite(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        bad = int((~torch.isfinite(x)).sum())
        if bad:
            raise usage_error(
                f"attend({name}, check_finite=True)",
                f"{bad} of {x.numel()} numbers that are NaN or infinite",
                "every input must be finite when asked to be",
                "look for the operation that made them",
            )


#: positions below it are whole numbers in float32, which rotations, embeddings and sinks compute with
EXACT_IN_FLOAT32 = 2**24
#: positions below it have exact differences in int64 and in float64
EXACT_IN_FLOAT64 = 2**53


def positions(
    name: str, given: Tensor, batch: int, length: int, device: torch.device, *, below: int = EXACT_IN_FLOAT32
) -> Tensor:
    """Positions as ``[B or 1, length]`` in int64, float32 or float64, from ``[length]`` or ``[B, length]``.

    Narrow and unsigned types are widened here, because differences of positions would wrap around in them.
    """
    if not is_number(given):
        got = unusual(given) or str(given.dtype) if isinstance(given, Tensor) else type(given).__name__
        raise usage_error(f"attend({name}=...)", got, "positions are a tensor of numbers", "use torch.arange")
    if not has_shape(given, (length,), (batch, length)):
        raise usage_error(
            f"attend({name}=...)",
            f"shape {shape(given)}",
            f"positions are [{length}] or [{batch}, {length}], one for each token",
            "give one position for each token",
        )
    require_device(name, given, device)
    wide = given.to(torch.promote_types(given.dtype, torch.float32)) if given.is_floating_point() else given.long()
    if readable(wide):
        low, high = (x.item() for x in wide.aminmax())
        if given.dtype == torch.uint64 and low < 0:  # the largest ones wrapped around in int64
            low, high = 0, low + 2**64
        if not low >= 0:  # so written, NaN is refused too
            raise usage_error(
                f"attend({name}=...)",
                f"a position of {low}",
                "positions count from 0",
                "mark left padding with key_mask=..., which numbers the tokens itself",
            )
        if not high < below:
            raise usage_error(
                f"attend({name}=...)",
                f"a position of {high}",
                f"positions stay below {below}, up to which the arithmetic here is exact",
                "subtract the first position of each sequence, or divide by a unit of distance",
            )
    return wide if wide.ndim == 2 else wide[None]


def key_mask(given: Tensor, batch: int, length: int, device: torch.device) -> Tensor:
    """Which keys are real, ``[B, length]`` bool."""
    dense = isinstance(given, Tensor) and unusual(given) is None
    fits = dense and tuple(given.shape) == (batch, length)
    if not fits or given.dtype != torch.bool:
        got = kind_of(given)
        mend = "convert an integer mask with mask.bool()" if fits else "give one for each token of this call"
        raise usage_error(
            "attend(key_mask=...)",
            got,
            f"key_mask is a bool tensor [{batch}, {length}] that is True where a token is real",
            mend,
        )
    require_device("key_mask", given, device)
    return given


def lengths(given: Tensor, batch: int, length: int, device: torch.device) -> Tensor:
    """Lengths ``[B]`` of right-padded sequences, as a bool ``[B, length]`` of real keys."""
    if not is_whole(given) or tuple(given.shape) != (batch,):
        got = kind_of(given)
        raise usage_error(
            "attend(lengths=...)",
            got,
            f"lengths is an integer tensor [{batch}]",
            "give one length for each sequence of the batch",
        )
    require_device("lengths", given, device)
    given = given.long()  # a narrow integer cannot be compared with a long sequence's length
    if readable(given) and bool(((given < 0) | (given > length)).any()):
        raise usage_error(
            "attend(lengths=...)",
            str(given.tolist()),
            f"a length lies between 0 and the {length} keys there are",
            "count the real tokens of each sequence",
        )
    return torch.arange(length, device=device) < given[:, None]


def require_real(asked: str, real: Tensor | None) -> None:
    """Every sequence of ``[B, length]`` has something real in it."""
    if real is None or not readable(real):
        return
    empty = (~real.any(-1)).nonzero().flatten().tolist()
    if empty:
        raise usage_error(
            asked,
            f"lengths or key_mask that leave nothing real in sequence {empty[0]}",
            "weights need at least one real token to lie on",
            "leave such sequences out",
        )


def require_sequences(owner: str, name: str, given: Tensor, layer: nn.Linear) -> None:
    """A tensor ``[B, length, width]`` that a projection can take, with at least one sequence and one token."""
    asked, width = f"{owner}({name})", layer.in_features
    dense = isinstance(given, Tensor) and unusual(given) is None
    if not dense or given.ndim != 3 or given.shape[2] != width or 0 in given.shape:
        raise usage_error(
            asked,
            f"shape {shape(given)}" if dense else described(given),
            f"{name} is a tensor [batch, length, {width}] with at least one token",
            "give it these axes and that width",
        )
    require_like(asked, name, given, layer)


def require_like(asked: str, name: str, given: Tensor, layer: nn.Module) -> None:
    """A tensor of the dtype and on the device of a layer's weight, as far as the layer has one of its own."""
    weight = layer.weight if type(layer) is nn.Linear else None
    fits = weight is None or weight.dtype == given.dtype
    if weight is not None and torch.float64 not in (weight.dtype, given.dtype) and not given.is_meta:
        fits = fits or torch.is_autocast_enabled(given.device.type)  # autocast converts all but float64
    if given.dtype not in FLOATS or not fits:
        wanted = torch.float32 if weight is None else weight.dtype
        raise usage_error(
            asked, f"dtype {given.dtype}", f"{name} has the dtype {wanted} of the layer", f"use {name}.to({wanted})"
        )
    if weight is not None and weight.device != given.device:
        got, rule = f"device {given.device}", f"{name} is on the device {weight.device} of the layer"
        raise usage_error(asked, got, rule, "move one of them with .to(device)")


def described(given: object) -> str:
    """A tensor by its shape and dtype, anything else by its type.

    >>> described(torch.zeros(2, 3)), described(None)
    ('shape [2, 3] of torch.float32', 'NoneType')
    """
    if not isinstance(given, Tensor):
        return type(given).__name__
    return unusual(given) or f"shape {shape(given)} of {given.dtype}"


def kind_of(given: object) -> str:
    """A tensor by its dtype and shape, anything else by its type."""
    if not isinstance(given, Tensor):
        return type(given).__name__
    return unusual(given) or f"{given.dtype} {shape(given)}"


def segment_ids(given: Tensor, batch: int, length: int, device: torch.device) -> Tensor:
    """Document numbers as ``[B or 1, length]``."""
    if not is_whole(given) or not has_shape(given, (length,), (batch, length)):
        got = kind_of(given)
        raise usage_error(
            "attend(segment_ids=...)",
            got,
            f"segment_ids is an integer tensor [{length}] or [{batch}, {length}] with one number for each token",
            "number the documents of a packed row 0, 0, 1, 1, 1 and so on",
        )
    require_device("segment_ids", given, device)
    given = given.long()
    return given if given.ndim == 2 else given[None]


def is_number(given: object) -> TypeGuard[Tensor]:
    """Whether it is a dense tensor of real numbers."""
    return isinstance(given, Tensor) and given.dtype in (*FLOATS, *INTEGERS) and unusual(given) is None


def is_real(given: object) -> TypeGuard[Tensor]:
    """Whether it is a dense tensor of floating point numbers."""
    return isinstance(given, Tensor) and given.dtype in FLOATS and unusual(given) is None


def is_whole(given: object) -> TypeGuard[Tensor]:
    """Whether it is a dense tensor of whole numbers."""
    return isinstance(given, Tensor) and given.dtype in INTEGERS and unusual(given) is None


def require_device(name: str, given: Tensor, device: torch.device) -> None:
    if given.device != device:
        raise usage_error(
            f"attend({name}=...)",
            f"device {given.device} with q on {device}",
            "all tensors share one device",
            "move it with .to(q.device)",
        )


def tracing() -> bool:
    """Whether a compiler or exporter is looking, so that no tensor's numbers may be asked for."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def readable(*tensors: Tensor) -> bool:
    """Whether the values of tensors can be read here: not while tracing, capturing a CUDA graph or inside ``vmap``, and
    not those of meta and fake tensors."""
    if tracing():
        return False
    return not any(
        x.is_meta
        or isinstance(x, FakeTensor)
        or torch._C._functorch.is_batchedtensor(x)
        or (x.is_cuda and torch.cuda.is_current_stream_capturing())
        for x in tensors
    )


def transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode AD is active, for which custom operators have no rule."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def exporting() -> bool:
    """Whether an exporter is looking. The flag is read itself: torch 2.11's compiler takes ``is_exporting()`` for True."""
    return torch.compiler._is_exporting_flag or torch.jit.is_tracing()

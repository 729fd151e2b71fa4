"""Validation of flags, numbers and strings; ``shapes`` validates tensors.

Types are strict. A flag is ``True`` or ``False``, an integer is a Python ``int``, a number is an ``int`` or a ``float``,
a choice is a ``str``. A ``bool`` is not a number. Tensors and NumPy scalars are not accepted, except NumPy's
``float64``, which is a ``float``. Numbers are bounded as well as finite, because a finite number can overflow later.

Every function returns its value, so that a constructor can validate and assign in one line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from whence.errors import usage_error

T = TypeVar("T")

#: the product of two such numbers and the largest distance, 2**53, is finite in float32
LARGEST_NUMBER = 1e10
#: a base is never multiplied by a distance, and long-context models have large ones
LARGEST_BASE = 1e15
#: such a number does not underflow to 0 in float32, nor does the product of two
SMALLEST_NUMBER = 1e-15
#: with larger table entries, scores of usual size would be lost to rounding
LARGEST_STD = 1000
LARGEST_INTEGER = 2**31 - 1
#: slopes and tables are allocated per head, so a mistyped number of heads would exhaust memory
MAX_HEADS = 2**16
LARGEST_DIM = 2**24
#: 64 GiB in float32
LARGEST_TABLE = 2**34


def require_flag(owner: str, name: str, value: bool) -> bool:
    """Require ``True`` or ``False``. Other truthy values are errors, because ``"no"`` is truthy.

    >>> require_flag("attend", "causal", "no")
    Traceback (most recent call last):
    whence.errors.WhenceError: attend(causal=...) got 'no', but causal must be True or False; pass one of them.
    """
    if not isinstance(value, bool):
        raise usage_error(
            f"{owner}({name}=...)", format_value(value), f"{name} must be True or False", "pass one of them"
        )
    return value


def require_integer(
    owner: str,
    name: str,
    value: int,
    *,
    low: int = 1,
    high: int = LARGEST_INTEGER,
    remedy: str = "pass such an integer",
) -> int:
    """Require a Python ``int`` from ``low`` to ``high``.

    >>> require_integer("KVCache", "window", True)
    Traceback (most recent call last):
    whence.errors.WhenceError: KVCache(window=...) got True, but window must be an integer of at least 1; pass such an integer.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise usage_error(
            f"{owner}({name}=...)", format_value(value), f"{name} must be an integer of at least {low}", remedy
        )
    if value > high:
        raise usage_error(
            f"{owner}({name}=...)", format_value(value), f"{name} must be an integer of at most {high}", remedy
        )
    return value


def require_heads(owner: str, heads: int) -> int:
    return require_integer(owner, "heads", heads, high=MAX_HEADS, remedy="pass the number of query heads")


def require_dim(owner: str, name: str, value: int, *, low: int = 1, remedy: str = "pass such an integer") -> int:
    return require_integer(owner, name, value, low=low, high=LARGEST_DIM, remedy=remedy)


def require_even(owner: str, name: str, value: int, *, high: int = LARGEST_DIM, remedy: str) -> int:
    """Require an even integer of at least 2."""
    if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= high or value % 2:
        rule = (
            f"{name} must be an even integer of at least 2"
            if not _exceeds(value, high)
            else f"{name} must be at most {high}"
        )
        raise usage_error(f"{owner}({name}=...)", format_value(value), rule, remedy)
    return value


class Bounds(TypedDict, total=False):
    """The range of a number, and the remedy that an error names."""

    above: float | None  # excluded
    low: float | None  # included
    below: float | None  # excluded
    high: float | None  # included
    largest: float  # largest magnitude, LARGEST_NUMBER by default
    remedy: str


def require_number(owner: str, name: str, value: float, **bounds: Unpack[Bounds]) -> float:
    """Require a finite ``int`` or ``float`` within bounds that neither overflows nor underflows in float32.

    >>> require_number("Alibi", "scale", float("nan"), low=0)
    Traceback (most recent call last):
    whence.errors.WhenceError: Alibi(scale=...) got nan, but scale must be a finite number of at least 0; pass a number inside that range.
    """
    subject = f"{owner}({name}=...)" if owner else f"{name}=..."
    remedy = bounds.get("remedy", "pass a number inside that range")
    above, low, below, high = bounds.get("above"), bounds.get("low"), bounds.get("below"), bounds.get("high")
    largest = bounds.get("largest", LARGEST_NUMBER)
    # comparisons are False for NaN, and a compiler can trace them
    if not (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (-float("inf") < value < float("inf"))
        and (above is None or value > above)
        and (low is None or value >= low)
        and (below is None or value < below)
        and (high is None or value <= high)
    ):
        words = {"above": above, "of at least": low, "below": below, "of at most": high}
        limits = " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)
        raise usage_error(subject, format_value(value), f"{name} must be a finite number {limits}".rstrip(), remedy)
    if value > largest or value < -largest:
        raise usage_error(subject, format_value(value), f"numbers beyond {largest:g} overflow in float32", remedy)
    if above == 0 and value < SMALLEST_NUMBER:
        raise usage_error(subject, format_value(value), f"numbers below {SMALLEST_NUMBER:g} vanish in float32", remedy)
    return value


def require_numbers(
    name: str, value: float | Sequence[float] | Tensor, heads: int | None, **bounds: Unpack[Bounds]
) -> list[float]:
    """Require one finite number, or one per head; return a list of 1 or of ``heads`` numbers.

    >>> require_numbers("Sink.value", "a", None)
    Traceback (most recent call last):
    whence.errors.WhenceError: Sink(value=...) got 'a', but value must be a finite number; pass a number inside that range.
    """
    owner, _, name = name.rpartition(".")
    if isinstance(value, Tensor) and special_layout(value) is None and not value.is_meta and value.ndim <= 1:
        value = value.tolist()
    is_single = not isinstance(value, Sequence) or isinstance(value, str | bytes)
    numbers: Sequence = [value] if is_single else value  # type: ignore[assignment]
    if not is_single and len(numbers) != heads:
        raise usage_error(
            f"{owner}({name}=...)" if owner else f"{name}=...",
            f"{len(numbers)} numbers for heads={heads}",
            "a sequence must have one number per head",
            f"pass {heads} numbers, or one for all heads" if heads else "pass one number, or set heads",
        )
    return [float(require_number(owner, name, number, **bounds)) for number in numbers]


def require_list(owner: str, name: str, value: Iterable[T], *, empty: bool = False, remedy: str) -> list[T]:
    """Require a list, or anything that can be read like one. A text is not one.

    >>> require_list("ScaleChannel", "scales", 0.5, remedy="pass [0.5, 0]")
    Traceback (most recent call last):
    ...
    whence.errors.WhenceError: ScaleChannel(scales=...) got 0.5, but scales must be a list; pass [0.5, 0].
    """
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    entries = list(value) if is_list else []
    if not is_list or (not empty and not entries):
        rule = f"{name} must be a list" + (" with at least one entry" if is_list else "")
        raise usage_error(f"{owner}({name}=...)", format_value(value), rule, remedy)
    return entries


def require_base(owner: str, base: float, *, above: float = 1, remedy: str = "use 10000, as published") -> float:
    """Require a valid base of sinusoid wavelengths."""
    return float(require_number(owner, "base", base, above=above, largest=LARGEST_BASE, remedy=remedy))


def require_std(owner: str, std: float) -> float:
    """Require a valid standard deviation for the initialization of a table."""
    return require_number(owner, "std", std, low=0, high=LARGEST_STD, remedy="use 0.02")


def require_choice(
    owner: str, name: str, value: str, choices: Collection[str], *, remedy: str = "choose one of them"
) -> str:
    """Require one of some strings. Any other value is an error, hashable or not.

    >>> require_choice("Alibi", "form", ["causal"], ("causal", "symmetric"))
    Traceback (most recent call last):
    whence.errors.WhenceError: Alibi(form=...) got ['causal'], but form must be 'causal' or 'symmetric'; choose one of them.
    """
    if not isinstance(value, str) or value not in choices:
        *first, last = (repr(choice) for choice in choices)
        rule = f"{name} must be {', '.join(first)} or {last}" if first else f"{name} must be {last}"
        raise usage_error(f"{owner}({name}=...)", format_value(value), rule, remedy)
    return value


def require_parameters(subject: str, function: Callable[..., object], names: Sequence[str], remedy: str) -> None:
    """Require a function that can be called with so many positional arguments. One without a signature is accepted.

    >>> require_parameters("attend(mask_fn=...)", lambda i, j: i < j, ("q", "k"), "take both")
    """
    try:
        signature = inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*names)
    except TypeError:
        rule = f"it is called with {len(names)} positional arguments ({', '.join(names)})"
        raise usage_error(subject, f"a function of {signature}", rule, remedy) from None


def require_table(owner: str, *sizes: int) -> tuple[int, ...]:
    """Require that a learnable table with these axes fits in memory."""
    total = 1
    for size in sizes:
        total *= size
    if total > LARGEST_TABLE:
        raise usage_error(
            owner,
            f"a table of {' x '.join(str(size) for size in sizes)} entries",
            f"a table may have at most {LARGEST_TABLE} entries",
            "reduce one of the sizes",
        )
    return sizes


def format_value(value: object) -> str:
    """A value in an error text: short, on one line, tensors by shape and dtype.

    >>> import torch
    >>> format_value("x" * 100)[-4:], format_value(torch.ones(2, 3)), format_value(torch.ones(2).to_sparse())
    ('x...', 'a tensor [2, 3] of torch.float32', 'a torch.sparse_coo tensor')
    """
    if isinstance(value, Tensor):
        # a nested tensor has no shape
        return special_layout(value) or f"a tensor [{', '.join(str(n) for n in value.shape)}] of {value.dtype}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # integers of more than 4300 digits, and objects whose repr fails
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def special_layout(x: Tensor) -> str | None:
    """The kind of a tensor that is not dense; None for a dense one."""
    if x.is_nested:
        return "a nested tensor"
    if x.layout != torch.strided:
        return f"a {x.layout} tensor"
    return "a quantized tensor" if x.is_quantized else None


def _exceeds(value: object, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > high

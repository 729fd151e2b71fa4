"""The only validation of flags, numbers and strings; ``shapes`` validates tensors.

The types are strict. A flag is ``True`` or ``False``, an integer is a Python ``int``, a number is an ``int`` or a
``float``, a choice is a ``str``; ``bool`` is no number, and NumPy's scalars and tensors are none of these (NumPy's
``float64`` is a ``float``). Numbers are bounded as well as finite, because a finite number can overflow later.

Every function returns the value it was given, so that a constructor can validate and assign in one line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from whence.errors import usage_error

#: two numbers of this size times the largest distance there can be, 2**53, are still finite in float32
LARGEST_NUMBER = 1e10
#: a base is never multiplied by a distance, and models with a long context have large ones
LARGEST_BASE = 1e15
#: a number above 0 stays above 0 in float32, and so does its product with another such number
SMALLEST_NUMBER = 1e-15
#: scores of a usual size would be lost to rounding beside a table of larger numbers
LARGEST_STD = 1000
LARGEST_INTEGER = 2**31 - 1
#: slopes and tables are made for each head, so a mistyped number of heads would fill the memory
MOST_HEADS = 2**16
LARGEST_WIDTH = 2**24
#: 64 GiB in float32
LARGEST_TABLE = 2**34


def require_flag(owner: str, name: str, value: bool) -> bool:
    """``True`` or ``False``; a truthy value of another type is refused, because ``"no"`` is truthy.

    >>> require_flag("attend", "causal", "no")
    Traceback (most recent call last):
    whence.errors.WhenceError: attend(causal=...) got 'no', but causal is True or False; pass one of them.
    """
    if not isinstance(value, bool):
        raise usage_error(f"{owner}({name}=...)", shown(value), f"{name} is True or False", "pass one of them")
    return value


def require_integer(
    owner: str, name: str, value: int, *, low: int = 1, high: int = LARGEST_INTEGER, remedy: str = "give such a number"
) -> int:
    """A Python ``int`` from ``low`` to ``high``.

    >>> require_integer("KVCache", "window", True)
    Traceback (most recent call last):
    whence.errors.WhenceError: KVCache(window=...) got True, but window is a whole number of at least 1; give such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise usage_error(f"{owner}({name}=...)", shown(value), f"{name} is a whole number of at least {low}", remedy)
    if value > high:
        raise usage_error(f"{owner}({name}=...)", shown(value), f"{name} is a whole number of at most {high}", remedy)
    return value


def require_heads(owner: str, heads: int) -> int:
    return require_integer(owner, "heads", heads, high=MOST_HEADS, remedy="give the number of query heads")


def require_width(owner: str, name: str, value: int, *, low: int = 1, remedy: str = "give such a number") -> int:
    return require_integer(owner, name, value, low=low, high=LARGEST_WIDTH, remedy=remedy)


def require_even(owner: str, name: str, value: int, *, high: int = LARGEST_WIDTH, remedy: str) -> int:
    """An even number of at least 2."""
    if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= high or value % 2:
        rule = f"{name} is an even number of at least 2" if not _beyond(value, high) else f"{name} is at most {high}"
        raise usage_error(f"{owner}({name}=...)", shown(value), rule, remedy)
    return value


def require_number(
    owner: str,
    name: str,
    value: float,
    *,
    above: float | None = None,
    low: float | None = None,
    below: float | None = None,
    high: float | None = None,
    largest: float = LARGEST_NUMBER,
    remedy: str | None = None,
) -> float:
    """A finite ``int`` or ``float`` inside the bounds (``above`` and ``below`` exclude their ends), small enough to be
    multiplied in float32 and, where it is above 0, large enough not to vanish there.

    >>> require_number("Alibi", "scale", float("nan"), low=0)
    Traceback (most recent call last):
    whence.errors.WhenceError: Alibi(scale=...) got nan, but scale is a finite number of at least 0; give a number inside that range.
    """
    asked = f"{owner}({name}=...)" if owner else f"{name}=..."
    remedy = "give a number inside that range" if remedy is None else remedy
    # written as comparisons, which are False for NaN and which a compiler can trace
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not (
        real
        and (-float("inf") < value < float("inf"))
        and (above is None or value > above)
        and (low is None or value >= low)
        and (below is None or value < below)
        and (high is None or value <= high)
    ):
        raise usage_error(asked, shown(value), f"{name} is a finite number{_range(above, low, below, high)}", remedy)
    if value > largest or value < -largest:
        raise usage_error(asked, shown(value), f"numbers beyond {largest:g} overflow in float32", remedy)
    if above == 0 and value < SMALLEST_NUMBER:
        raise usage_error(asked, shown(value), f"numbers below {SMALLEST_NUMBER:g} vanish in float32", remedy)
    return value


def require_base(owner: str, base: float, *, above: float = 1, remedy: str = "use 10000, as published") -> float:
    """The base of the wavelengths of sinusoids."""
    return float(require_number(owner, "base", base, above=above, largest=LARGEST_BASE, remedy=remedy))


def require_std(owner: str, std: float) -> float:
    """The standard deviation of the normal distribution that a table starts from."""
    return require_number(owner, "std", std, low=0, high=LARGEST_STD, remedy="use 0.02")


def require_numbers(
    name: str,
    value: float | Sequence[float] | Tensor,
    heads: int | None,
    *,
    above: float | None = None,
    low: float | None = None,
    below: float | None = None,
    high: float | None = None,
    largest: float = LARGEST_NUMBER,
    remedy: str | None = None,
) -> list[float]:
    """One finite number, or one a head: a list of 1 or of ``heads`` numbers."""
    if isinstance(value, Tensor) and unusual(value) is None and not value.is_meta and value.ndim <= 1:
        value = value.tolist()
    one = not isinstance(value, Sequence) or isinstance(value, str | bytes)
    numbers: Sequence = [value] if one else value  # type: ignore[assignment]
    if not one and len(numbers) != heads:
        raise usage_error(
            f"{name}=...",
            f"{len(numbers)} numbers for heads={heads}",
            "there is one number a head",
            f"give {heads} numbers or one for all" if heads else "give one number, or pass heads too",
        )
    return [
        float(
            require_number(
                "", name, number, above=above, low=low, below=below, high=high, largest=largest, remedy=remedy
            )
        )
        for number in numbers
    ]


def require_choice(
    owner: str, name: str, value: str, choices: Collection[str], *, remedy: str = "choose one of them"
) -> str:
    """One of some strings. Anything else is refused, hashable or not.

    >>> require_choice("Alibi", "form", ["causal"], ("causal", "symmetric"))
    Traceback (most recent call last):
    whence.errors.WhenceError: Alibi(form=...) got ['causal'], but form is 'causal' or 'symmetric'; choose one of them.
    """
    if not isinstance(value, str) or value not in choices:
        *first, last = (repr(choice) for choice in choices)
        rule = f"{name} is {', '.join(first)} or {last}" if first else f"{name} is {last}"
        raise usage_error(f"{owner}({name}=...)", shown(value), rule, remedy)
    return value


def require_table(owner: str, *sizes: int) -> tuple[int, ...]:
    """The axes of a table of learnable numbers, which together must fit a memory."""
    total = 1
    for size in sizes:
        total *= size
    if total > LARGEST_TABLE:
        raise usage_error(
            owner,
            f"sizes that make a table of {' x '.join(str(size) for size in sizes)} numbers",
            f"a table has at most {LARGEST_TABLE} numbers",
            "give smaller sizes",
        )
    return sizes


def shown(value: object) -> str:
    """A value in an error text: short, on one line, tensors by their kind.

    >>> import torch
    >>> shown("x" * 100)[-4:], shown(torch.ones(2, 3)), shown(torch.ones(2).to_sparse())
    ('x...', 'a tensor [2, 3] of torch.float32', 'a torch.sparse_coo tensor')
    """
    if isinstance(value, Tensor):
        # a nested tensor has no shape to show
        return unusual(value) or f"a tensor [{', '.join(str(n) for n in value.shape)}] of {value.dtype}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whole numbers of more than 4300 digits, and objects that cannot show themselves
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def unusual(x: Tensor) -> str | None:
    """What kind of tensor it is, where it is not a plain dense one."""
    if x.is_nested:
        return "a nested tensor"
    if x.layout != torch.strided:
        return f"a {x.layout} tensor"
    return "a quantized tensor" if x.is_quantized else None


def _range(above: float | None, low: float | None, below: float | None, high: float | None) -> str:
    bounds = [
        text
        for bound, text in (
            (above, f"above {above:g}" if above is not None else ""),
            (low, f"of at least {low:g}" if low is not None else ""),
            (below, f"below {below:g}" if below is not None else ""),
            (high, f"of at most {high:g}" if high is not None else ""),
        )
        if bound is not None
    ]
    return " " + " and ".join(bounds) if bounds else ""


def _beyond(value: object, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > high

"""How rotary frequencies change so that a model reads further than it was trained.

Every scaling turns the plain frequencies ``base^(-2i/width)`` into others, and may ask for an attention factor that
multiplies cos and sin (so scores take it squared). ``Linear`` is position interpolation (Chen et al. 2023, arXiv
2306.15595); ``DynamicNtk`` and ``Yarn`` are described by Peng et al. 2023, arXiv 2309.00071; ``LongRope`` by Ding et
al. 2024, arXiv 2402.13753; ``Llama3`` came with Llama 3.1 (Grattafiori et al. 2024, arXiv 2407.21783).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.validation import format_value, require_flag, require_integer, require_number

LARGEST_FACTOR = 1e6


class Scaling(ABC):
    """What ``Rotary`` asks of a scaling."""

    #: whether the frequencies change with a length
    needs_length: ClassVar[bool] = False

    @property
    def attention(self) -> float:
        """What multiplies cos and sin."""
        return 1.0

    @abstractmethod
    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        """Angles per position step, from ``exponent`` = ``2i/width`` ``[width/2]``.

        ``length`` is a number, or a tensor ``[B, 1]``, which gives frequencies ``[B, width/2]``.
        """

    def _require_factor(self, factor: float) -> None:
        remedy = "give the new length over the trained length"
        require_number(type(self).__name__, "factor", factor, low=1, high=LARGEST_FACTOR, remedy=remedy)

    def _require_lengths(self, factor: float, original: int, *, least: int = 1) -> None:
        self._require_factor(factor)
        require_integer(type(self).__name__, "original", original, low=least, remedy="give the trained length")


@dataclass(frozen=True)
class Linear(Scaling):
    """All frequencies divided by ``factor``: positions squeezed into the trained range."""

    factor: float

    def __post_init__(self) -> None:
        self._require_factor(self.factor)

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        return torch.pow(base, -exponent) / self.factor


@dataclass(frozen=True)
class DynamicNtk(Scaling):
    """The base grows once the length exceeds ``original``, so slow frequencies stretch and fast ones hardly do."""

    factor: float
    original: int
    needs_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._require_lengths(self.factor, self.original)

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        rotary_dim = 2 * exponent.shape[-1]
        if rotary_dim < 4:
            got = f"a rotary width of {rotary_dim}"
            raise usage_error("DynamicNtk", got, "it needs two frequencies", "use a width of at least 4")
        longest = length.clamp(min=self.original) if isinstance(length, Tensor) else max(length, self.original)
        stretch = self.factor * longest / self.original - (self.factor - 1)
        return torch.pow(base * stretch ** (rotary_dim / (rotary_dim - 2)), -exponent)


@dataclass(frozen=True)
class Yarn(Scaling):
    """Frequencies that turn often in ``original`` tokens stay, those that turn rarely are divided, with a ramp between.

    Args:
        factor: how many times longer than trained.
        original: the trained length.
        beta_fast: a frequency that turns at least this often stays as it is.
        beta_slow: a frequency that turns at most this often is divided by ``factor``.
        attention_factor: multiplies cos and sin; by default ``0.1 * ln(factor) + 1``.
        mscale, mscale_all_dim: given together, the default becomes the ratio of ``0.1 * m * ln(factor) + 1`` for each.
        truncate: let the ramp start and end at whole columns.
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        self._require_lengths(self.factor, self.original)
        published = "use beta_fast=32 and beta_slow=1, as published"
        require_number("Yarn", "beta_slow", self.beta_slow, above=0, remedy=published)
        require_number("Yarn", "beta_fast", self.beta_fast, low=self.beta_slow, remedy=published)
        optional = (("attention_factor", None), ("mscale", 0), ("mscale_all_dim", 0))
        for name, low in optional:
            value = getattr(self, name)
            if value is not None:
                above = 0 if low is None else None
                require_number("Yarn", name, value, above=above, low=low, remedy="leave it out for the published value")
        require_flag("Yarn", "truncate", self.truncate)

    @property
    def attention(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._warmth(self.mscale) / self._warmth(self.mscale_all_dim)
        return self._warmth(1.0)

    def _warmth(self, strength: float) -> float:
        return 0.1 * strength * math.log(self.factor) + 1.0

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        half = exponent.shape[-1]
        # the (fractional) column whose frequency makes so many turns within the trained length
        turns = (self.original / (2 * math.pi * beta) for beta in (self.beta_fast, self.beta_slow))
        start, end = (half * math.log(n) / math.log(base) for n in turns)
        if self.truncate:
            start, end = math.floor(start), math.ceil(end)
        start, end = max(start, 0), min(end, 2 * half - 1)
        span = end - start if end != start else 0.001  # a step where the ramp has no length
        column = torch.arange(half, dtype=exponent.dtype, device=exponent.device)
        slow = ((column - start) / span).clamp(0, 1)
        plain = torch.pow(base, -exponent)
        return plain / self.factor * slow + plain * (1 - slow)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Wavelengths under ``original/high`` stay, those over ``original/low`` grow ``factor`` times, a blend between."""

    factor: float
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def __post_init__(self) -> None:
        self._require_lengths(self.factor, self.original)
        require_number("Llama3", "low", self.low, above=0, remedy="use low=1 and high=4, as published")
        require_number("Llama3", "high", self.high, above=self.low, remedy="use low=1 and high=4, as published")

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        plain = torch.pow(base, -exponent)
        turns = self.original * plain / (2 * math.pi)
        keep = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return plain / self.factor * (1 - keep) + plain * keep


@dataclass(frozen=True, repr=False)
class LongRope(Scaling):
    """One searched divisor a frequency: ``short`` up to the length ``original``, ``long`` beyond it.

    The attention factor is by default ``sqrt(1 + ln(factor) / ln(original))``, whatever the length.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original: int
    factor: float
    attention_factor: float | None = None
    needs_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("short", "long"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple):
                raise usage_error(
                    f"LongRope({name}=...)", format_value(given), "it is a tuple of numbers", "give width / 2 numbers"
                )
            for value in given:
                require_number("LongRope", name, value, above=0, remedy="give width / 2 numbers above 0")
            object.__setattr__(self, name, tuple(float(v) for v in given))  # lists from a config are frozen too
        self._require_lengths(self.factor, self.original, least=2)
        if self.attention_factor is not None:
            remedy = "leave it out for the published value"
            require_number("LongRope", "attention_factor", self.attention_factor, above=0, remedy=remedy)
        if len(self.short) != len(self.long) or not self.short:
            got = f"{len(self.short)} short and {len(self.long)} long divisors"
            raise usage_error("LongRope", got, "both are equally many numbers above 0", "give width / 2 numbers each")

    @property
    def attention(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original))

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        rotary_dim, count = 2 * exponent.shape[-1], len(self.short)
        if rotary_dim != 2 * count:
            rule = f"its {count} divisors are for a width of {2 * count}"
            raise usage_error("LongRope", f"a rotary width of {rotary_dim}", rule, "give width / 2 numbers")
        short, long = (torch.tensor(v, dtype=exponent.dtype, device=exponent.device) for v in (self.short, self.long))
        if isinstance(length, Tensor):
            return torch.pow(base, -exponent) / torch.where(length > self.original, long, short)
        return torch.pow(base, -exponent) / (long if length > self.original else short)

    def __repr__(self) -> str:
        counts = f"short=<{len(self.short)}>, long=<{len(self.long)}>"
        return f"LongRope({counts}, original={self.original}, factor={self.factor}, attention={self.attention:.6g})"

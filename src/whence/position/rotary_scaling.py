"""Scalings of rotary frequencies, for contexts longer than the trained one.

Every scaling changes the frequencies ``base^(-2i/rotary_dim)`` and may add a factor of cos and sin, whose square
multiplies the scores. ``Linear`` is position interpolation (Chen et al. 2023, arXiv
2306.15595); ``DynamicNtk`` and ``Yarn`` are described by Peng et al. 2023, arXiv 2309.00071; ``LongRope`` by Ding et
al. 2024, arXiv 2402.13753; ``Llama3`` came with Llama 3.1 (Grattafiori et al. 2024, arXiv 2407.21783); ``Proportional``
with Gemma 4, whose code in transformers is its only source.
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
    """Interface of a frequency scaling for ``Rotary``."""

    #: whether the frequencies depend on a length
    needs_length: ClassVar[bool] = False

    @property
    def attention_scaling(self) -> float:
        """The factor of cos and sin."""
        return 1.0

    @abstractmethod
    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        """Angles per position, from ``exponent`` = ``2i/rotary_dim`` ``[rotary_dim/2]``.

        ``length`` is a number, or a tensor ``[B, 1]``, which gives frequencies ``[B, rotary_dim/2]``.
        """

    def _require_factor(self, factor: float) -> None:
        remedy = "pass the new length divided by the trained length"
        require_number(type(self).__name__, "factor", factor, low=1, high=LARGEST_FACTOR, remedy=remedy)

    def _require_lengths(self, factor: float, original: int, *, least: int = 1) -> None:
        self._require_factor(factor)
        require_integer(type(self).__name__, "original", original, low=least, remedy="pass the trained length")


@dataclass(frozen=True)
class Linear(Scaling):
    """All frequencies divided by ``factor``: positions are interpolated into the trained range."""

    factor: float

    def __post_init__(self) -> None:
        self._require_factor(self.factor)

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        return torch.pow(base, -exponent) / self.factor


@dataclass(frozen=True)
class Proportional(Scaling):
    """Proportional rotary: the first pairs rotate with the frequencies of a whole head, the other pairs do not rotate.

        frequency of pair c = base^(-2c/D) / factor        for c < int(share * D // 2), else 0

    D is the head dimension and pairs are columns (c, c + D/2) with ``layout="half"``. The formula is that of Gemma 4's code in
    transformers, its only source, which the test compares: full layers have a share of 0.25 and base 1e6, sliding ones rotate all
    pairs with base 1e4. D = 8 and a share of 0.5 give 1, 0.1, 0, 0.

    ``Rotary(rotary_dim=...)`` rotates as many pairs, but spreads all frequencies over them, down to the lowest ones. Here the
    lowest frequencies are the ones left out.

    Use it where columns that never complete a turn should carry content alone, or to load such a model.

    Args:
        partial_rotary_factor: share of the pairs that rotate, from 0 to 1, rounded down to whole pairs.
        factor: divides all frequencies.
    """

    partial_rotary_factor: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        require_number(
            "Proportional", "partial_rotary_factor", self.partial_rotary_factor, low=0, high=1,
            remedy="use 0.25, as published",
        )  # fmt: skip
        self._require_factor(self.factor)

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        pairs = exponent.shape[-1]
        rotating = int(self.partial_rotary_factor * 2 * pairs // 2)  # in this order, as in transformers
        column = torch.arange(pairs, device=exponent.device)
        return torch.where(column < rotating, torch.pow(base, -exponent), 0.0) / self.factor


@dataclass(frozen=True)
class DynamicNtk(Scaling):
    """The base grows once the length exceeds ``original``: low frequencies are reduced, high ones hardly change."""

    factor: float
    original: int
    needs_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._require_lengths(self.factor, self.original)

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        rotary_dim = 2 * exponent.shape[-1]
        if rotary_dim < 4:
            got = f"rotary_dim {rotary_dim}"
            raise usage_error("DynamicNtk", got, "it needs two frequencies", "use rotary_dim=4 or more")
        longest = length.clamp(min=self.original) if isinstance(length, Tensor) else max(length, self.original)
        stretch = self.factor * longest / self.original - (self.factor - 1)
        return torch.pow(base * stretch ** (rotary_dim / (rotary_dim - 2)), -exponent)


@dataclass(frozen=True)
class Yarn(Scaling):
    """YaRN: high frequencies are unchanged, low frequencies are divided by ``factor``, with a linear ramp between.

        frequency = (1 - r) * base^(-2c/D) + r * base^(-2c/D) / factor        r: from 0 to 1 between the two ends, by c
        end = D * ln(original / (2 pi * beta)) / (2 ln base)                  for beta_fast and for beta_slow

    cos and sin are multiplied by ``attention_factor``. Peng et al. 2023, arXiv 2309.00071; compared with transformers' code, which
    rounds the ends to whole columns (``truncate``).

    Use it to run or to fine-tune a rotary model on inputs several times longer than it was trained on.

    Args:
        factor: new length divided by the trained length.
        original: the trained length.
        beta_fast: frequencies with at least this many rotations in ``original`` tokens are unchanged.
        beta_slow: frequencies with at most this many rotations are divided by ``factor``.
        attention_factor: factor of cos and sin; by default ``0.1 * ln(factor) + 1``.
        mscale, mscale_all_dim: if both are set, the default is the ratio of ``0.1 * m * ln(factor) + 1`` for the two.
        truncate: round the ends of the ramp to whole columns.
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
    def attention_scaling(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._default_factor(self.mscale) / self._default_factor(self.mscale_all_dim)
        return self._default_factor(1.0)

    def _default_factor(self, strength: float) -> float:
        return 0.1 * strength * math.log(self.factor) + 1.0

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        half = exponent.shape[-1]
        # the (fractional) column whose frequency has beta rotations within the trained length
        periods = (self.original / (2 * math.pi * beta) for beta in (self.beta_fast, self.beta_slow))
        start, end = (half * math.log(n) / math.log(base) for n in periods)
        if self.truncate:
            start, end = math.floor(start), math.ceil(end)
        start, end = max(start, 0), min(end, 2 * half - 1)
        span = end - start if end != start else 0.001  # a step function if the ramp has no length
        column = torch.arange(half, dtype=exponent.dtype, device=exponent.device)
        slow = ((column - start) / span).clamp(0, 1)
        unscaled = torch.pow(base, -exponent)
        return unscaled / self.factor * slow + unscaled * (1 - slow)


@dataclass(frozen=True)
class Llama3(Scaling):
    """Wavelengths below ``original/high`` are unchanged, those above ``original/low`` are multiplied by ``factor``, with a
    blend between."""

    factor: float
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def __post_init__(self) -> None:
        self._require_lengths(self.factor, self.original)
        require_number("Llama3", "low", self.low, above=0, remedy="use low=1 and high=4, as published")
        require_number("Llama3", "high", self.high, above=self.low, remedy="use low=1 and high=4, as published")

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        unscaled = torch.pow(base, -exponent)
        rotations = self.original * unscaled / (2 * math.pi)
        keep = ((rotations - self.low) / (self.high - self.low)).clamp(0, 1)
        return unscaled / self.factor * (1 - keep) + unscaled * keep


@dataclass(frozen=True, repr=False)
class LongRope(Scaling):
    """One searched divisor per frequency: ``short`` up to the length ``original``, ``long`` beyond it.

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
            divisors = getattr(self, name)
            if not isinstance(divisors, list | tuple):
                raise usage_error(
                    f"LongRope({name}=...)",
                    format_value(divisors),
                    "it must be a tuple of numbers",
                    "pass rotary_dim / 2 numbers",
                )
            for value in divisors:
                require_number("LongRope", name, value, above=0, remedy="pass rotary_dim / 2 numbers above 0")
            object.__setattr__(self, name, tuple(float(v) for v in divisors))  # lists from a config become tuples
        self._require_lengths(self.factor, self.original, least=2)
        if self.attention_factor is not None:
            remedy = "leave it out for the published value"
            require_number("LongRope", "attention_factor", self.attention_factor, above=0, remedy=remedy)
        if len(self.short) != len(self.long) or not self.short:
            got = f"{len(self.short)} short and {len(self.long)} long divisors"
            raise usage_error(
                "LongRope", got, "both must have the same number of entries", "pass rotary_dim / 2 numbers each"
            )

    @property
    def attention_scaling(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original))

    def frequencies(self, exponent: Tensor, base: float, length: Any) -> Tensor:
        rotary_dim, count = 2 * exponent.shape[-1], len(self.short)
        if rotary_dim != 2 * count:
            rule = f"its {count} divisors are for rotary_dim={2 * count}"
            raise usage_error("LongRope", f"rotary_dim {rotary_dim}", rule, "pass rotary_dim / 2 numbers")
        short, long = (torch.tensor(v, dtype=exponent.dtype, device=exponent.device) for v in (self.short, self.long))
        if isinstance(length, Tensor):
            return torch.pow(base, -exponent) / torch.where(length > self.original, long, short)
        return torch.pow(base, -exponent) / (long if length > self.original else short)

    def __repr__(self) -> str:
        counts = f"short=<{len(self.short)}>, long=<{len(self.long)}>"
        return f"LongRope({counts}, original={self.original}, factor={self.factor}, attention_scaling={self.attention_scaling:.6g})"

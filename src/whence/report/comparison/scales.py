"""From values to places on an axis: linear, logarithmic, or logarithmic with a zero, each with ticks a reader likes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from whence.report.comparison.numbers import tick


@dataclass(frozen=True)
class Scale:
    """A monotone map from [low, high] to [start, end]; values outside are held at the ends."""

    warp: Callable[[float], float]
    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        left, right = self.warp(self.low), self.warp(self.high)
        share = (self.warp(value) - left) / (right - left) if right > left else 0.5
        return self.start + share * (self.end - self.start)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def linear(values: Iterable[float], start: float, end: float, *, most: int = 6, zero: bool = False) -> Scale:
    """A linear axis over all values, opened to whole ticks.

    >>> [text for _, text in linear([0.12, 0.97], 0, 100).ticks]
    ['0', '0.2', '0.4', '0.6', '0.8', '1']
    """
    low, high = _ends(values)
    low = min(0.0, low) if zero else low
    if low == high:
        low, high = low - (abs(low) or 1) * 0.05, high + (abs(high) or 1) * 0.05
    step = _step((high - low) / (most - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    at = [index * step for index in range(first, last + 1)]
    return Scale(float, at[0], at[-1], start, end, tuple((value, tick(value)) for value in at))


def logarithmic(values: Iterable[float], start: float, end: float, *, most: int = 6) -> Scale:
    """A logarithmic axis over all positive values. Its ticks are of the form 1, 2, 5 until those are too many.

    >>> [text for _, text in logarithmic([12.0, 900.0], 0, 100).ticks]
    ['20', '50', '100', '200', '500']
    """
    low, high = _ends(value for value in values if value > 0)
    low, high = (low / 1.06, high * 1.06) if low > 0 else (0.5, 2.0)
    lowest, highest = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits: tuple[float, ...]
    for digits in ((1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1,)):
        at = [digit * 10.0**power for power in range(lowest, highest + 1) for digit in digits]
        at = [value for value in at if low <= value <= high]
        if len(at) <= most:
            break
    at = at[:: math.ceil(len(at) / most)] if at else []
    return Scale(math.log, low, high, start, end, tuple((value, tick(value)) for value in at))


def lengths(values: Iterable[int], start: float, end: float) -> Scale:
    """Lengths in tokens at equal steps for each doubling, with a tick at every one of them."""
    at = sorted(set(values))
    return Scale(math.log2, at[0], at[-1], start, end, tuple((value, tick(value)) for value in at))


def distances(values: Iterable[int], start: float, end: float) -> Scale:
    """Distances in tokens: logarithmic, yet with a place for distance 0, a token's attention to itself.

    >>> [text for _, text in distances(range(24), 0, 100).ticks]
    ['0', '1', '2', '4', '8', '16']
    """
    high = max(values, default=1)
    at = [0] + [2**power for power in range(31) if 2**power <= high]
    if len(at) > 7:
        at = at[:2] + at[2::2]
    return Scale(lambda d: math.log2(1 + d), 0, max(high, 1), start, end, tuple((d, tick(d)) for d in at))


def _ends(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return (min(known), max(known)) if known else (0.0, 1.0)


def _step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(nice * power for nice in (1, 2, 2.5, 5, 10) if nice * power >= raw * (1 - 1e-9))

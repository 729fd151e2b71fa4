"""Numbers as texts: as many digits as the spread between seeds supports, and never a NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

NOTHING = "–"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it can be drawn: JSON from elsewhere may hold null, NaN or an infinity where a run diverged."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)


def decimals(spreads: Iterable[float | None], values: Iterable[float]) -> int:
    """Decimals that show two digits of the smallest spread; without any spread, four digits of the largest value.

    >>> decimals([0.0123, 0.2], [0.9]), decimals([], [0.9]), decimals([3.0], [250.0])
    (3, 4, 1)
    """
    known = [abs(spread) for spread in spreads if is_number(spread) and spread != 0]
    if known:
        return _bounded(1 - math.floor(math.log10(min(known))))
    largest = max((abs(value) for value in values if is_number(value)), default=0.0)
    return _bounded(3 - math.floor(math.log10(largest))) if largest else 3


def _bounded(places: int) -> int:
    return min(4, max(0, places))


def number(value: Any, places: int) -> str:
    """A number with so many decimals, a real minus sign, and powers of ten where digits would mean nothing.

    >>> number(-0.12345, 3), number(1234567.0, 2), number(12345.678, 1), number(float("nan"), 2)
    ('−0.123', '1.2 × 10⁶', '12,345.7', '–')
    """
    if not is_number(value):
        return NOTHING
    if abs(value) >= 1e6:
        digits, power = f"{value:.1e}".split("e")
        text = f"{digits} × 10{str(int(power)).translate(SUPERSCRIPTS)}"
    else:
        text = f"{value:,.{places}f}"
        if float(text.replace(",", "")) == 0:
            text = text.lstrip("-")
    return text.replace("-", "−")


def signed(value: Any, places: int) -> str:
    """A difference: its sign is always said.

    >>> signed(0.5, 1), signed(-0.5, 1), signed(0.01, 1)
    ('+0.5', '−0.5', '0.0')
    """
    text = number(value, places)
    return f"+{text}" if is_number(value) and value > 0 and any(c in "123456789" for c in text) else text


def interval(ends: dict[str, Any] | None, places: int) -> str:
    """Both ends, or a dash where there is no interval."""
    if ends is None or not (is_number(ends["low"]) and is_number(ends["high"])):
        return NOTHING
    return f"{number(ends['low'], places)} to {number(ends['high'], places)}"


def probability(p: Any) -> str:
    """A p value in two digits.

    >>> probability(0.01234), probability(0.00001), probability(1.0), probability(None)
    ('0.012', '< 0.0001', '1', '–')
    """
    if not is_number(p):
        return NOTHING
    if p < 0.0001:
        return "< 0.0001"
    return f"{p:.2g}" if p >= 0.001 else f"{p:.1g}"


def whole(count: Any) -> str:
    """A count with its thousands apart."""
    return f"{count:,.0f}" if is_number(count) else NOTHING


def seconds(value: Any) -> str:
    """A duration: tenths only where they matter."""
    if not is_number(value):
        return NOTHING
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def tick(value: float) -> str:
    """A number on an axis, as short as it can be.

    >>> tick(0.30000000000000004), tick(2000), tick(5e7), tick(0.0002)
    ('0.3', '2,000', '5 × 10⁷', '0.0002')
    """
    if abs(value) >= 1e6:
        digits, power = f"{value:.0e}".split("e")
        power = f"10{str(int(power)).translate(SUPERSCRIPTS)}"
        return power if digits == "1" else f"{digits.replace('-', '−')} × {power}"
    if value == 0:
        return "0"
    places = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{places}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")

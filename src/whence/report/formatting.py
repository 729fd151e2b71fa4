"""Numbers as text: as many digits as the variance between seeds supports, and never NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

from whence.statistics.number_texts import LARGE, SUPERSCRIPTS, format_power

NO_VALUE = "–"


def is_finite_number(value: Any) -> TypeGuard[float]:
    """Whether a value can be plotted. JSON may hold null, NaN or infinity where a run diverged."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def choose_decimals(deviations: Iterable[float | None], values: Iterable[float]) -> int:
    """Decimals that show two digits of the smallest deviation; without one, four digits of the largest value.

    >>> choose_decimals([0.0123, 0.2], [0.9]), choose_decimals([], [0.9]), choose_decimals([3.0], [250.0])
    (3, 4, 1)
    """
    nonzero = [abs(deviation) for deviation in deviations if is_finite_number(deviation) and deviation != 0]
    if nonzero:
        return _clamp_decimals(1 - math.floor(math.log10(min(nonzero))))
    largest = max((abs(value) for value in values if is_finite_number(value)), default=0.0)
    return _clamp_decimals(3 - math.floor(math.log10(largest))) if largest else 3


def _clamp_decimals(decimals: int) -> int:
    return min(4, max(0, decimals))


def format_number(value: Any, decimals: int) -> str:
    """A number with a typographic minus sign, in powers of ten from a million.

    >>> format_number(-0.12345, 3), format_number(1234567.0, 2), format_number(12345.678, 1)
    ('−0.123', '1.2 × 10⁶', '12,345.7')
    >>> format_number(float("nan"), 2)
    '–'
    """
    if not is_finite_number(value):
        return NO_VALUE
    if abs(value) >= LARGE:
        text = format_power(value)
    else:
        text = f"{value:,.{decimals}f}"
        if float(text.replace(",", "")) == 0:
            text = text.lstrip("-")
    return text.replace("-", "−")


def format_exact(value: Any, decimals: int) -> str:
    """A number without trailing zeros, such as the accuracy of chance; with one decimal more if it is exact then.

    >>> format_exact(25.0, 2), format_exact(6.25, 1), format_exact(69.128, 1), format_exact(1000.0, 0)
    ('25', '6.25', '69.1', '1,000')
    """
    if is_finite_number(value) and math.isclose(value, round(value, decimals + 1), rel_tol=1e-12):
        decimals += 1
    text = format_number(value, decimals)
    return text.rstrip("0").rstrip(".") if "." in text and "×" not in text else text


def format_signed(value: Any, decimals: int) -> str:
    """A difference, with its sign unless it rounds to zero.

    >>> format_signed(0.5, 1), format_signed(-0.5, 1), format_signed(0.01, 1)
    ('+0.5', '−0.5', '0.0')
    """
    text = format_number(value, decimals)
    return f"+{text}" if is_finite_number(value) and value > 0 and any(c in "123456789" for c in text) else text


def format_interval(interval: dict[str, Any] | None, decimals: int) -> str:
    """Both ends of an interval, or a dash if there is none."""
    if interval is None or not (is_finite_number(interval["low"]) and is_finite_number(interval["high"])):
        return NO_VALUE
    return f"{format_number(interval['low'], decimals)} to {format_number(interval['high'], decimals)}"


def format_p(p: Any) -> str:
    """A p value with two digits.

    >>> format_p(0.01234), format_p(0.00001), format_p(1.0), format_p(None)
    ('0.012', '< 0.0001', '1', '–')
    """
    if not is_finite_number(p):
        return NO_VALUE
    if p < 0.0001:
        return "< 0.0001"
    return f"{p:.2g}" if p >= 0.001 else f"{p:.1g}"


def format_count(count: Any) -> str:
    """A count with thousands separators."""
    return f"{count:,.0f}" if is_finite_number(count) else NO_VALUE


def format_seconds(value: Any) -> str:
    """A duration in seconds, with tenths below ten seconds."""
    if not is_finite_number(value):
        return NO_VALUE
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def format_tick(value: float) -> str:
    """A number on an axis, without trailing zeros.

    >>> format_tick(0.30000000000000004), format_tick(2000), format_tick(5e7), format_tick(0.0002)
    ('0.3', '2,000', '5 × 10⁷', '0.0002')
    """
    if abs(value) >= LARGE:
        digits, power = f"{value:.0e}".split("e")
        power = f"10{str(int(power)).translate(SUPERSCRIPTS)}"
        return power if digits == "1" else f"{digits.replace('-', '−')} × {power}"
    if value == 0:
        return "0"
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")

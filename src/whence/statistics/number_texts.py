"""Numbers as text, in the same powers of ten for sentences and for tables."""

from __future__ import annotations

import math

LARGE = 1e6  # from it on, numbers are shown in powers of ten
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_power(value: float) -> str:
    """A large number with two digits.

    >>> format_power(1.35e36)
    '1.4 × 10³⁶'
    """
    digits, power = f"{value:.1e}".split("e")
    return f"{digits} × 10{str(int(power)).translate(SUPERSCRIPTS)}"


def format_size(value: float) -> str:
    """A number with three digits; from a million on with two, as in tables.

    >>> format_size(9.7561), format_size(-12345.6), format_size(1.35e36), format_size(1e-5)
    ('9.76', '-12,300', '1.4 × 10³⁶', '1e-05')
    """
    rounded = float(f"{value:.3g}")
    return format_power(value) if LARGE <= abs(rounded) < math.inf else f"{rounded:,g}"

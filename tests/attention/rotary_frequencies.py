"""The frequencies of rotary embeddings and of their scalings, from the papers' formulas.

Nothing here comes from the package.
"""

import math


def plain_frequencies(width, base):
    return [base ** (-2 * i / width) for i in range(width // 2)]


def linear_frequencies(width, base, factor):
    """Chen et al. 2023, position interpolation: position p / factor."""
    return [f / factor for f in plain_frequencies(width, base)]


def ntk_frequencies(width, base, factor, original, length):
    """Dynamic NTK (Peng et al. 2023): the base grows with the length beyond the trained one."""
    stretch = factor * max(length, original) / original - (factor - 1)
    return plain_frequencies(width, base * stretch ** (width / (width - 2)))


def yarn_frequencies(width, base, factor, original, fast=32.0, slow=1.0, truncate=True):
    """YaRN (Peng et al. 2023): pairs that turn often keep their frequency, others are interpolated, a ramp between."""

    def pair_that_turns(times):
        return width * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if high == low else high
    result = []
    for i, plain in enumerate(plain_frequencies(width, base)):
        interpolated = min(max((i - low) / (high - low), 0.0), 1.0)
        result.append(interpolated * plain / factor + (1 - interpolated) * plain)
    return result


def llama3_frequencies(width, base, factor, low, high, original):
    """Llama 3.1: wavelengths above original/low are stretched, those under original/high are kept, a blend between."""
    result = []
    for plain in plain_frequencies(width, base):
        wavelength = 2 * math.pi / plain
        if wavelength < original / high:
            result.append(plain)
        elif wavelength > original / low:
            result.append(plain / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            result.append((1 - smooth) * plain / factor + smooth * plain)
    return result


def longrope_frequencies(width, base, short, long, original, length):
    """LongRoPE (Ding et al. 2024): a divisor for each pair, one set within the trained length and one beyond it."""
    divisors = long if length > original else short
    return [plain / divisor for plain, divisor in zip(plain_frequencies(width, base), divisors, strict=True)]

"""Colors of the arms are distinguishable with color blindness and have enough contrast."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from whence.report.html_page import read_asset

# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB
COLOR_VISION = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
LAB = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def linear(color: str) -> list[float]:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def times(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [min(1.0, max(0.0, sum(a * b for a, b in zip(row, vector, strict=True)))) for row in matrix]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(a * b for a, b in zip(row, rgb, strict=True)) / w for row, w in zip(LAB, white, strict=True)]
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def palettes() -> dict[str, tuple[list[str], str]]:
    style = read_asset("style.css")
    hues, pages = re.findall(r"--hue\d: (#\w{6})", style), re.findall(r"--page: (#\w{6})", style)
    return {"light": (hues[:7], pages[0]), "dark": (hues[7:], pages[1])}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_arm_colors_are_distinct_and_readable(scheme: str) -> None:
    hues, page = palettes()[scheme]
    assert len(hues) == len(set(hues)) == 7
    for vision, matrix in COLOR_VISION.items():
        seen = [lab(times(matrix, linear(hue))) for hue in hues]
        nearest = min(math.dist(a, b) for a, b in itertools.combinations(seen, 2))
        assert nearest > 15, f"{vision}: two arms are {nearest:.1f} apart"
    for hue in hues:
        light, dark = sorted((times((LAB[1],), linear(one))[0] for one in (hue, page)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 3  # what WCAG 2.1 asks of graphics

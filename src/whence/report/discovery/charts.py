"""Curves over distance: the seeds, their mean with its band, and the formula over them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from whence.report.comparison.arm_style import ArmStyle
from whence.report.comparison.svg import HEIGHT, Point, Scale, Series, distance_chart

LEARNED, FORMULA, CHALLENGER = (
    ArmStyle("learned", 0, 0, 0),
    ArmStyle("formula", 1, 1, 0),
    ArmStyle("gplearn", 2, 2, 1),
)
STYLES = (LEARNED, FORMULA, CHALLENGER)
SMALL_HEIGHT = 180
SPREAD = 2.0  # standard errors on each side of the mean


def head_chart(
    hook: str,
    curves: dict[str, Any],
    kind: dict[str, Any],
    head: int,
    title: str,
    *,
    small: bool = False,
    challenger: bool = False,
) -> str:
    """The curve of one head with its band over seeds, the formula of its kind, and on request the challenger."""
    distances, row = curves["distances"], kind["heads"].index(head)
    mean, error = curves["mean"][head], curves["standard_error"][head]
    seeds = [list(zip(distances, seed[head], strict=True)) for seed in curves["values"]]
    fitted = list(zip(kind["fitted"]["distances"], kind["fitted"]["values"][row], strict=True))
    series = [Series(LEARNED, seeds, list(zip(distances, mean, strict=True))), Series(FORMULA, [], fitted)]
    if challenger and kind.get("challenger", {}).get("head") == head:
        curve = kind["challenger"]["curve"]
        series.append(Series(CHALLENGER, [], list(zip(distances, curve, strict=True))))
    shown = [value for one in series[:2] for _, value in one.all_points]
    low = [(d, m - SPREAD * e) for d, m, e in zip(distances, mean, error, strict=True)]
    high = [(d, m + SPREAD * e) for d, m, e in zip(distances, mean, error, strict=True)]
    description = f"{title}: learned {hook} over distance from {mean[0]:.3g} at 0 to {mean[-1]:.3g} at {distances[-1]:g}; formula {kind['name']}."
    return distance_chart(
        series, [round(distances[-1])], shown, title, description, background=partial(_band, low, high),
        height=SMALL_HEIGHT if small else HEIGHT, label_lines=not small,
    )  # fmt: skip


def _band(low: Sequence[Point], high: Sequence[Point], x: Scale, y: Scale) -> str:
    """The area between two lines; what lies outside the axis is cut off."""
    points = " ".join(f"{x(d):.1f},{y(value):.1f}" for d, value in [*high, *reversed(low)])
    return f'{LEARNED.open_group()}<polygon class="band" points="{points}"></polygon></g>'

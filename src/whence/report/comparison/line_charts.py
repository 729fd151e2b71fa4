"""Line charts of a study: training curves, the metric by length, attention by distance, and a task's own charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from whence.report.comparison.arm_style import ArmStyle
from whence.report.comparison.baseline_lines import (
    baseline_losses,
    choose_baselines,
    choose_near,
    horizontal_line,
    near_values,
)
from whence.report.comparison.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    TOP,
    Point,
    Scale,
    Series,
    distance_chart,
    length_scale,
    line_chart,
    linear_scale,
    log_scale,
    right_edge,
)
from whence.report.comparison.units import Units, values_of
from whence.report.formatting import format_number, is_finite_number, mean

MAX_POINTS = 160  # per line
SMALL_HEIGHT = 220  # of the charts of attention by distance


def loss_chart(study: dict[str, Any], styles: Mapping[str, ArmStyle]) -> str:
    """Training loss over steps, with the loss of the task's baselines; empty if no losses were recorded."""
    series = _seed_series(study, styles, lambda curve: ((row["step"], row["loss"]) for row in curve["losses"]))
    levels = baseline_losses(study)
    return _chart_over_steps(series, "training loss (nats)", False, "Training loss over steps", levels)


def evaluation_chart(study: dict[str, Any], units: Units, styles: Mapping[str, ArmStyle]) -> str:
    """The metric on the deciding split over steps; empty if it was not evaluated during training."""

    def points(curve: dict[str, Any]) -> Iterable[tuple[int, Any]]:
        for row in curve["evaluations"]:
            value = row["splits"].get(study["split"])
            yield row["step"], value * units.value_factor if is_finite_number(value) else None

    series = _seed_series(study, styles, points, units.average)
    levels = {line.name: line.values[study["split"]] for line in choose_baselines(study, units)}
    return _chart_over_steps(series, units.axis_label, units.is_log, f"{units.label} over steps", levels)


def length_chart(study: dict[str, Any], units: Units, styles: Mapping[str, ArmStyle]) -> str:
    """The metric by input length; empty if there is only one length."""
    splits = _split_by_length(study)
    if len(splits) < 2:
        return ""
    series = []
    for arm in study["arms"]:
        by_length = {n: values_of(study, arm["name"], split, units.value_factor) for n, split in splits.items()}
        seeds = sorted({seed for row in by_length.values() for seed in row}, key=_seed_order)
        seed_lines = [[(n, row[seed]) for n, row in by_length.items() if seed in row] for seed in seeds]
        mean_line = [(n, units.average(row.values())) for n, row in by_length.items() if row]
        tooltips = [f"{arm['name']} at {n} tokens: {format_number(v, units.decimals)}" for n, v in mean_line]
        if mean_line:
            style = styles[arm["name"]]
            series.append(Series(style, seed_lines if len(seeds) > 1 else [], mean_line, True, tooltips))
    if not series:
        return ""
    x = length_scale(splits, LEFT + 10, right_edge(series) - 8)
    levels = choose_baselines(study, units)
    own = [value for one in series for _, value in one.all_points]
    near = [value for split in splits.values() for value in near_values(levels, split, own)]
    y = _y_scale(series, units.is_log, near)
    description = f"{units.label} by input length, from {min(splits)} to {max(splits)} tokens. " + "; ".join(
        f"{one.style.name} ends at {format_number(one.mean_line[-1][1], units.decimals)}" for one in series
    )
    background = _training_length_line(study["trained_length"], x, y)
    for line in levels:
        points = [(n, line.values[split]) for n, split in splits.items() if split in line.values]
        background += horizontal_line(line.name, points, x, y)
    return line_chart(
        series, x, y, "input length (tokens, log scale)", units.axis_label, description, background=background
    )


def attention_by_distance_charts(study: dict[str, Any], styles: Mapping[str, ArmStyle]) -> list[str]:
    """Mean attention by distance: one small chart per layer, all on the same scale."""
    observed = {name: seen["mass"] for name, seen in (study.get("observations") or {}).items() if seen.get("mass")}
    layers = max((len(mass["by_layer"]) for mass in observed.values()), default=0)
    if not layers:
        return []
    distances = [distance for mass in observed.values() for distance in mass["distance"]]
    values = [v for mass in observed.values() for row in mass["by_layer"] for v in row if is_finite_number(v)]
    charts = []
    for layer in range(layers):
        series = []
        for name, mass in observed.items():
            row = mass["by_layer"][layer] if layer < len(mass["by_layer"]) else []
            points = [(d, value) for d, value in zip(mass["distance"], row, strict=False) if is_finite_number(value)]
            if points:
                series.append(Series(styles[name], [], points))
        chart = distance_chart(
            series, distances, values, f"layer {layer + 1}: share of attention", f"Attention by distance in layer {layer + 1}.",
            height=SMALL_HEIGHT, include_zero=True,
            label_lines=False,  # all lines end near zero, where names would overlap
        )  # fmt: skip
        charts.append(chart)
    return charts


def panel_chart(panel: dict[str, Any], styles: Mapping[str, ArmStyle]) -> str:
    """A chart that the task supplies: for each arm and seed, points of x and y."""
    series = []
    for arm, seeds in panel["lines"].items():
        seed_lines = [[(x, y) for x, y in points] for points in seeds.values()]
        series.append(Series(styles[arm], seed_lines if len(seeds) > 1 else [], _mean_by_x(seed_lines)))
    x = _x_scale([x for one in series for x, _ in one.mean_line], series)
    return line_chart(series, x, _y_scale(series, False), panel["x"], panel["y"], panel["title"])


def _seed_series(
    study: dict[str, Any],
    styles: Mapping[str, ArmStyle],
    points: Callable[[dict[str, Any]], Iterable[tuple[int, Any]]],
    average: Callable[[Iterable[float]], float] = mean,
) -> list[Series]:
    """The lines of all arms, from the points of each seed's curve."""
    series = []
    for arm in study["arms"]:
        seeds = {seed: [p for p in points(curve) if is_finite_number(p[1])] for seed, curve in arm["curves"].items()}
        diverged = {str(failure["seed"]) for failure in arm["diverged"]}
        complete = [line for seed, line in seeds.items() if seed not in diverged and line]
        seed_lines = [_downsample(line) for line in seeds.values() if line]
        if seed_lines:
            # a diverged seed would bend the mean where it ends, so it has only its own line
            mean_line = _downsample(_mean_by_x(complete or [*seeds.values()], average))
            series.append(Series(styles[arm["name"]], seed_lines if len(seed_lines) > 1 else [], mean_line))
    return series


def _mean_by_x(lines: Iterable[Sequence[Point]], average: Callable[[Iterable[float]], float] = mean) -> list[Point]:
    by_x: dict[float, list[float]] = {}
    for line in lines:
        for x, y in line:
            by_x.setdefault(x, []).append(y)
    return [(x, average(values)) for x, values in sorted(by_x.items())]


def _downsample(points: Sequence[Point]) -> list[Point]:
    """At most ``MAX_POINTS`` points, each the mean of consecutive ones."""
    size = math.ceil(len(points) / MAX_POINTS)
    groups = [points[at : at + size] for at in range(0, len(points), size)] if size > 1 else [[p] for p in points]
    return [(group[-1][0], mean(value for _, value in group)) for group in groups]


def _chart_over_steps(
    series: list[Series], y_label: str, log: bool, description: str, levels: Mapping[str, float] | None = None
) -> str:
    # a line needs two points of one run; with early stopping each run has one test value, at its own step
    if not any(len(line) > 1 for one in series for line in one.seed_lines or [one.mean_line]):
        return ""
    x = _x_scale([0, *(step for one in series for step, _ in one.all_points)], series)
    levels = levels or {}
    own = [value for one in series for _, value in one.all_points]
    y = _y_scale(series, log, choose_near(levels.values(), own))
    background = "".join(
        horizontal_line(name, [(x.low, value), (x.high, value)], x, y) for name, value in levels.items()
    )
    return line_chart(series, x, y, "training step", y_label, description, background=background)


def _x_scale(values: Sequence[float], series: Sequence[Series]) -> Scale:
    """A linear axis that ends at the last value, so that lines end where their names are."""
    x = linear_scale(values, LEFT, right_edge(series))
    last = max(values, default=x.high)
    return Scale(x.transform, x.low, last, x.start, x.end, tuple((at, text) for at, text in x.ticks if at <= last))


def _y_scale(series: Iterable[Series], log: bool, further: Iterable[float] = ()) -> Scale:
    values = [*further, *(value for one in series for _, value in one.all_points)]
    return (log_scale if log else linear_scale)(values, HEIGHT - BOTTOM, TOP)


def _split_by_length(study: dict[str, Any]) -> dict[int, str]:
    """One split per length, in order of length; the deciding split if several have the same length."""
    splits: dict[int, str] = {}
    for split, length in study["lengths"].items():
        if length not in splits or split == study["split"]:
            splits[length] = split
    return dict(sorted(splits.items()))


def _training_length_line(length: int, x: Scale, y: Scale) -> str:
    if not x.contains(length):
        return ""
    at = x(length)
    near_right = at > (x.start + x.end) / 2
    return (
        f'<line class="reference" x1="{at:.1f}" x2="{at:.1f}" y1="{y.end - 8:g}" y2="{y.start:g}"></line>'
        f'<text class="tick" x="{at + (-5 if near_right else 5):.1f}" y="{y.end - 4:g}" '
        f'text-anchor="{"end" if near_right else "start"}">trained at {length} tokens</text>'
    )


def _seed_order(seed: str) -> tuple[int, str]:
    return (int(seed), "") if seed.lstrip("-").isdigit() else (0, seed)

"""What is drawn as lines: training, value against length, and attention against distance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from whence.report.comparison.chart import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, Point, Series, lines, right_edge
from whence.report.comparison.numbers import is_number, mean, number
from whence.report.comparison.scales import Scale, distances, lengths, linear, logarithmic
from whence.report.comparison.style import Look
from whence.report.comparison.units import Units, values_of

MOST_POINTS = 160  # more than a line in such a picture can show
SMALL = 220  # the height of a small multiple


def loss_curves(study: dict[str, Any], looks: Mapping[str, Look]) -> str:
    """Training loss over steps; empty when no losses were recorded."""
    series = _seeds(study, looks, lambda curve: ((row["step"], row["loss"]) for row in curve["losses"]))
    return _over_steps(series, "training loss (nats)", False, "Training loss over steps")


def evaluation_curves(study: dict[str, Any], units: Units, looks: Mapping[str, Look]) -> str:
    """The metric on the deciding split over steps; empty when it was evaluated nowhere."""

    def points(curve: dict[str, Any]) -> Iterable[tuple[int, Any]]:
        for row in curve["evaluations"]:
            value = row["splits"].get(study["split"])
            yield row["step"], value * units.value_factor if is_number(value) else None

    return _over_steps(_seeds(study, looks, points), units.label, units.logarithmic, f"{units.label} over steps")


def by_length(study: dict[str, Any], units: Units, looks: Mapping[str, Look]) -> str:
    """The metric at each length of input; empty where there is one length only."""
    splits = _one_split_a_length(study)
    if len(splits) < 2:
        return ""
    series = []
    for arm in study["arms"]:
        found = {n: values_of(study, arm["name"], split, units.value_factor) for n, split in splits.items()}
        seeds = sorted({seed for row in found.values() for seed in row}, key=_seed_order)
        thin = [[(n, row[seed]) for n, row in found.items() if seed in row] for seed in seeds]
        thick = [(n, mean(row.values())) for n, row in found.items() if row]
        each = [f"{arm['name']} at {n} tokens: {number(value, units.places)}" for n, value in thick]
        if thick:
            series.append(Series(looks[arm["name"]], thin if len(seeds) > 1 else [], thick, True, each))
    if not series:
        return ""
    x = lengths(splits, LEFT + 10, right_edge(series) - 8)
    y = _upright(_all_values(series), units.logarithmic)
    extra = _trained_at(study["trained_length"], x, y)
    told = f"{units.label} against the length of the input, from {min(splits)} to {max(splits)} tokens. " + "; ".join(
        f"{one.look.name} ends at {number(one.thick[-1][1], units.places)}" for one in series
    )
    return lines(series, x, y, "length of the input (tokens, each step doubles)", _named(units), told, extra)


def mass_by_distance(study: dict[str, Any], looks: Mapping[str, Look]) -> list[str]:
    """A small chart for each layer, all with one scale."""
    observed = {name: seen["mass"] for name, seen in (study.get("observations") or {}).items() if seen.get("mass")}
    layers = max((len(mass["by_layer"]) for mass in observed.values()), default=0)
    if not layers:
        return []
    far = [distance for mass in observed.values() for distance in mass["distance"]]
    every = [v for mass in observed.values() for row in mass["by_layer"] for v in row if is_number(v)]
    charts = []
    for layer in range(layers):
        series = []
        for name, mass in observed.items():
            row = mass["by_layer"][layer] if layer < len(mass["by_layer"]) else []
            points = [(d, value) for d, value in zip(mass["distance"], row, strict=False) if is_number(value)]
            if points:
                series.append(Series(looks[name], [], points))
        x = distances(far, LEFT, WIDTH - 14)  # all lines end near zero, where names would only pile up
        y = linear(every, SMALL - BOTTOM, TOP, most=4, zero=True)
        told = f"Attention mass by distance in layer {layer + 1}."
        label = f"layer {layer + 1}: share of attention"
        charts.append(
            lines(series, x, y, "distance between query and key (tokens, log)", label, told, height=SMALL, named=False)
        )
    return charts


def _seeds(study: dict[str, Any], looks: Mapping[str, Look], points: Any) -> list[Series]:
    found = []
    for arm in study["arms"]:
        seeds = {seed: [p for p in points(curve) if is_number(p[1])] for seed, curve in arm["curves"].items()}
        lost = {str(lost["seed"]) for lost in arm["diverged"]}
        whole = [row for seed, row in seeds.items() if seed not in lost and row]
        thin = [_thinned(row) for row in seeds.values() if row]
        if thin:
            # a seed that ended early would bend the mean where it ends, so it has its thin line only
            found.append(
                Series(looks[arm["name"]], thin if len(thin) > 1 else [], _thinned(_means(whole or [*seeds.values()])))
            )
    return found


def _means(seeds: Sequence[Sequence[Point]]) -> list[Point]:
    at: dict[float, list[float]] = {}
    for row in seeds:
        for step, value in row:
            at.setdefault(step, []).append(value)
    return [(step, mean(values)) for step, values in sorted(at.items())]


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most so many points, each the mean of a run of neighbours."""
    run = math.ceil(len(points) / MOST_POINTS)
    groups = [points[first : first + run] for first in range(0, len(points), run)] if run > 1 else [[p] for p in points]
    return [(group[-1][0], mean(value for _, value in group)) for group in groups]


def _over_steps(series: list[Series], label: str, log: bool, told: str) -> str:
    # a line needs two points of one run: weights kept by validation have one test value, each at a step of its own
    if not any(len(row) > 1 for one in series for row in one.thin or [one.thick]):
        return ""
    steps = [step for one in series for row in (one.thick, *one.thin) for step, _ in row]
    last = max(steps)
    x = linear([0, last], LEFT, right_edge(series))
    x = Scale(x.warp, 0, last, x.start, x.end, tuple((v, text) for v, text in x.ticks if v <= last))
    return lines(
        series, x, _upright(_all_values(series), log), "training step", f"{label}{', log scale' if log else ''}", told
    )


def _all_values(series: Iterable[Series]) -> list[float]:
    return [value for one in series for row in (one.thick, *one.thin) for _, value in row]


def _upright(values: list[float], log: bool) -> Scale:
    return (logarithmic if log else linear)(values, HEIGHT - BOTTOM, TOP)


def _named(units: Units) -> str:
    return f"{units.label}{', log scale' if units.logarithmic else ''}"


def _one_split_a_length(study: dict[str, Any]) -> dict[int, str]:
    """Lengths in order, each with its split; the deciding split is preferred where several have one length."""
    found: dict[int, str] = {}
    for split, length in study["lengths"].items():
        if length not in found or split == study["split"]:
            found[length] = split
    return dict(sorted(found.items()))


def _trained_at(length: int, x: Scale, y: Scale) -> str:
    if not x.holds(length):
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

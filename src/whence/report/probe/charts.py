"""The charts of a probe: measures by the slot of the gold, attention by slot and distance, heads as a grid, layers as lines."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from whence.probe.curves import leading
from whence.report.comparison.chart import (
    BOTTOM,
    HEIGHT,
    LABEL_ROOM,
    LEFT,
    TOP,
    WIDTH,
    Point,
    Series,
    lines,
    right_edge,
    svg,
)
from whence.report.comparison.numbers import number, tick
from whence.report.comparison.scales import Scale, distances, linear
from whence.report.comparison.style import MARKERS, Look
from whence.report.probe.sentences import SCORES, SHORT, between, counted, percent

CELL, GAP, GRID_LEFT, GRID_TOP = 13, 1, 46, 34
ASIDE = 0.35
LETTER, CLEAR = 6.4, 14  # pixels: the width of a letter, and the room a name needs
TOGETHER = 0.07  # levels nearer than this have one line of names
SCALES = {"probability": 100, "gold_attention": 1000}


def look(name: str, place: int) -> Look:
    """A hue and a marker of its own for each line of a chart; a dash too, so that grey paper tells them apart."""
    return Look(name, place, place + 1, place % len(MARKERS))


def gold_curve(task: dict[str, Any]) -> str:
    """Every measure by the slot of the gold, with intervals; the baselines are those of the leading measure."""
    levels = {name: point["mean"] for name, point in leading(task)["baselines"].items()} | {"chance": task["chance"]}
    named = [(SHORT[curve["score"]], SCORES[curve["score"]], curve) for curve in task["curves"]]
    heard = f"{task['name']}: accuracy and probability of the answer by the slot of the gold"
    return by_slot(named, task["slots"], levels, "accuracy or probability (%)", heard)


def by_slot(
    named: Sequence[tuple[str, str, dict[str, Any]]], slots: int, levels: Mapping[str, float], label: str, heard: str
) -> str:
    """Curves by slot with their intervals; each comes with a short name for its line and a long one for readers."""
    series, whiskers = [], []
    x = _slots(slots, WIDTH - LABEL_ROOM)
    y = linear([0, 100], HEIGHT - BOTTOM, TOP, most=6)
    for index, (short, long, curve) in enumerate(named):
        aside = _beside(index, len(named), slots)
        at = [point["slot"] + 1 + aside for point in curve["points"]]
        told = [
            f"{long}, slot {point['slot'] + 1}: {percent(point['mean'])}, 95% interval {between(point['interval'])}, "
            f"{counted(point['n'], 'item')}"
            for point in curve["points"]
        ]
        means = [100 * point["mean"] for point in curve["points"]]
        one = Series(look(short, index), [], list(zip(at, means, strict=True)), True, told)
        bars = "".join(_whisker(point, place, x, y) for point, place in zip(curve["points"], at, strict=True))
        series.append(one)
        whiskers.append(f"{one.look.opened()}{bars}</g>")
    drawn, names = _levels(levels, x, y, [one.thick for one in series])
    spoken = "; ".join(
        f"{long}: " + ", ".join(f"slot {p['slot'] + 1} {percent(p['mean'])}" for p in curve["points"])
        for _, long, curve in named
    )
    below = drawn + "".join(whiskers)
    return lines(series, x, y, "slot of the gold", label, f"{heard}. {spoken}", below, above=names)


def slot_attention(task: dict[str, Any], attention: dict[str, Any], content_free: Any) -> str:
    """Mean attention a token to the gold as it moves, to each slot otherwise, and where all slots are the same."""
    rows = {
        "to the gold": [
            (p + 1, v) for p, v in zip(attention["gold_slots"], over_heads(attention["gold"]), strict=True)
        ],
        "to others": list(enumerate(over_heads(attention["profile"]), 1)),
    }
    if content_free:
        rows["all alike"] = list(enumerate(over_heads(content_free), 1))
    series = [
        Series(look(name, index), [], [(at, 1000 * value) for at, value in points], True)
        for index, (name, points) in enumerate(rows.items())
    ]
    x = _slots(task["slots"], right_edge(series))
    y = linear([v for one in series for _, v in one.thick], HEIGHT - BOTTOM, TOP, zero=True)
    told = f"{task['name']}: attention of the answering token to each slot."
    return lines(series, x, y, "slot", "attention a token (thousandths)", told)


def by_distance(found: dict[str, Any]) -> str:
    """Mean attention at each distance, for three thirds of the layers, and for all without an encoding of position."""
    far = [(near + end - 1) / 2 for near, end in found["ranges"]]
    layers, alone = (
        [[sum(values) / len(values) for values in zip(*heads, strict=True)] for heads in found.get(arm, [])]
        for arm in ("attention", "one_position")
    )
    series = []
    for index, (name, part) in enumerate([*thirds(layers), *([("one position", alone)] if alone else [])]):
        means = [sum(values) / len(values) for values in zip(*part, strict=True)]
        series.append(Series(look(name, index), [], list(zip(far, [100 * m for m in means], strict=True)), True))
    x = distances([int(d) + 1 for d in far], LEFT, right_edge(series))
    y = linear([v for one in series for _, v in one.thick], HEIGHT - BOTTOM, TOP, zero=True)
    told = "Mean attention to a token by its distance from the query."
    return lines(series, x, y, "distance between query and key (tokens, log)", "attention a token (%)", told)


def ablated(found: dict[str, Any], slots: int, measure: str, label: str, told: str) -> str:
    """One measure by the place of the gold, a line for each arm."""
    series = [
        Series(
            look(name, index), [], [(p + 1, v) for p, v in zip(found["gold_slots"], arm[measure], strict=True)], True
        )
        for index, (name, arm) in enumerate(found["arms"].items())
    ]
    series = [replace(one, thick=[(at, v * SCALES[measure]) for at, v in one.thick]) for one in series]
    x = _slots(slots, right_edge(series))
    y = linear([v for one in series for _, v in one.thick], HEIGHT - BOTTOM, TOP, zero=True)
    return lines(series, x, y, "slot of the gold", label, told)


def over_layers(rows: Mapping[str, Sequence[float]], label: str, told: str) -> str:
    """Lines over the layers."""
    series = [
        Series(look(name, index), [], list(enumerate(values)), len(values) < 40)
        for index, (name, values) in enumerate(rows.items())
    ]
    count = max(len(values) for values in rows.values())
    step = max(1, count // 6)
    ticks = tuple((layer, tick(layer)) for layer in range(0, count, step))
    x = Scale(float, 0, max(1, count - 1), LEFT, right_edge(series), ticks)
    y = linear([v for one in series for _, v in one.thick], HEIGHT - BOTTOM, TOP, zero=True)
    return lines(series, x, y, "layer", label, told)


def channel_curve(curve: dict[str, Any]) -> str:
    """Without the first tenth: the values of sinks would press all others onto the axis."""
    end = len(curve["values"])
    points: list[Point] = [(at, value) for at, value in enumerate(curve["values"]) if at >= max(1, end // 10)]
    series = [Series(look(f"channel {curve['channel']}", 0), [], points)]
    x = linear([0, end], LEFT, right_edge(series))
    x = Scale(x.warp, 0, end, x.start, x.end, tuple((v, text) for v, text in x.ticks if v <= end))
    y = linear([value for _, value in points], HEIGHT - BOTTOM, TOP)
    told = f"The mean of channel {curve['channel']} in layer {curve['layer']} along random texts."
    return lines(series, x, y, "position (tokens)", f"mean over texts, layer {curve['layer']}", told)


def head_grid(values: list[list[float]], title: str, chosen: Sequence[int] | None = None) -> str:
    """A square for each head, a row for each layer: the darker, the larger its share. ``chosen`` numbers the rows."""
    layers, heads = len(values), max(map(len, values))
    numbers = range(layers) if chosen is None else chosen
    parts = [f'<text class="label" x="2" y="14">{html.escape(title)}, from 0 (pale) to 100%</text>']
    for index, (layer, row) in enumerate(zip(numbers, values, strict=True)):
        top = GRID_TOP + index * (CELL + GAP)
        if index % 5 == 0:
            parts.append(f'<text class="tick" x="{GRID_LEFT - 7}" y="{top + 10}" text-anchor="end">{layer}</text>')
        for head, value in enumerate(row):
            shade = min(1.0, max(0.0, value))
            parts.append(
                f'<rect class="dot hue1" x="{GRID_LEFT + head * (CELL + GAP)}" y="{top}" width="{CELL}" height="{CELL}" '
                f'style="fill-opacity:{0.04 + 0.96 * shade:.3f}"><title>layer {layer}, head {head}: '
                f"{number(100 * value, 1)}%</title></rect>"
            )
    bottom = GRID_TOP + layers * (CELL + GAP)
    rows = f"layers 0 to {layers - 1}" if chosen is None else f"layers {', '.join(map(str, chosen))}"
    under = f"{rows} downwards, heads 0 to {heads - 1} across"
    parts.append(f'<text class="label" x="{GRID_LEFT}" y="{bottom + 16}">{under}</text>')
    told = f"{title}, for {layers} layers of {heads} heads."
    return svg("".join(parts), told, max(WIDTH, GRID_LEFT + heads * (CELL + GAP) + 10), bottom + 24)


def _slots(count: int, end: float) -> Scale:
    """Slots counted from 1, with room beside the outermost for several curves next to each other."""
    step = max(1, round(count / 8))
    at = sorted({1, count, *range(1 + step, count - step // 2, step)})
    return Scale(float, 1 - ASIDE, count + ASIDE, LEFT, end, tuple((value, tick(value)) for value in at))


def _beside(index: int, curves: int, slots: int) -> float:
    """How far a curve stands beside the slot, so that the intervals of several do not cover each other."""
    return (index - (curves - 1) / 2) * 0.012 * slots


def _whisker(point: dict[str, Any], at: float, x: Scale, y: Scale) -> str:
    ends = point["interval"]
    if ends is None:
        return ""
    return (
        f'<line class="whisker" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y(100 * ends["low"]):.1f}" '
        f'y2="{y(100 * ends["high"]):.1f}"></line>'
    )


def _levels(found: Mapping[str, float], x: Scale, y: Scale, curves: Sequence[Sequence[Point]]) -> tuple[str, str]:
    """Dotted lines at some levels, and their names, which are drawn above the curves; near levels share a line of names."""
    drawn = "".join(
        f'<line class="reference" x1="{x.start:g}" x2="{x.end:g}" y1="{y(100 * share):.1f}" y2="{y(100 * share):.1f}"></line>'
        for share in found.values()
    )
    groups: list[list[tuple[str, float]]] = []
    for name, share in sorted(found.items(), key=lambda item: item[1]):
        if groups and share - groups[-1][-1][1] < TOGETHER:
            groups[-1].append((name, share))
        else:
            groups.append([(name, share)])
    above = ""
    for group in groups:
        name, clear = _level_name(group, x, y, curves)
        if clear:
            above += name
        else:  # below the curves, so that the name hides none of them
            drawn += name
    return drawn, above


def _level_name(
    group: list[tuple[str, float]], x: Scale, y: Scale, curves: Sequence[Sequence[Point]]
) -> tuple[str, bool]:
    """The names of near levels, at the left, in the middle or at the right: where the curves leave most room, and whether
    that is enough."""
    words = ", ".join(f"{name} {percent(share)}" for name, share in group)
    top, width = y(100 * group[-1][1]) - 4, LETTER * len(words)
    starts = [x(1) + 6, (x.start + x.end - width) / 2, x.end - width - 6]

    def room(start: float) -> float:
        across = [start + width * step / 6 for step in range(7)]
        return min((abs(_height(curve, at, x, y) - top + 4) for curve in curves for at in across), default=0.0)

    start = max(starts, key=lambda one: min(room(one), CLEAR))  # the first that is clear
    drawn = f'<text class="tick" x="{start:.1f}" y="{top:.1f}">{html.escape(words)}</text>'
    return drawn, room(start) >= CLEAR / 2


def _height(curve: Sequence[Point], at: float, x: Scale, y: Scale) -> float:
    """Where a line is drawn above a place on the page, between its points."""
    drawn = [(x(px), y(py)) for px, py in curve]
    for (left, low), (right, high) in pairwise(drawn):
        if left <= at <= right and right > left:
            return low + (high - low) * (at - left) / (right - left)
    return drawn[0][1] if at < drawn[0][0] else drawn[-1][1]


def over_heads(values: list[list[list[float]]]) -> list[float]:
    """The mean over layers and heads: ``[layers, heads, n]`` to ``[n]``."""
    rows = [row for layer in values for row in layer]
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def thirds(layers: list[list[float]]) -> list[tuple[str, list[list[float]]]]:
    count = len(layers)
    cuts = [0, max(1, count // 3), max(2, 2 * count // 3), count]
    names = ("first layers", "middle layers", "last layers")
    return [(name, layers[a:b]) for name, a, b in zip(names, cuts, cuts[1:], strict=False) if layers[a:b]]

"""The tables of the gallery: a mechanism's numbers at a grid of slider settings, fine enough to interpolate linearly.

A page that shows a setting between exported ones interpolates each number linearly along every slider. Stops of a
slider are exported until the middle of every interval is within ``TOLERANCE`` of the mechanism's own values, as a share
of the axis that the page draws. For a smooth function the middle has the largest error of a linear interpolation, and
the errors of several sliders add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor

from whence.plotting.effects import (
    PlotInputs,
    build_plot_inputs,
    compute_attention,
    compute_effect,
    compute_sink,
    compute_weight_ratio,
)
from whence.report.gallery.exhibits import LENGTH, Exhibit

TOLERANCE = 0.025
#: what the page draws of a table; numbers outside are drawn at the nearer end
DRAWN = {"attention": (-3.0, 0.0), "ratio": (-4.0, 4.0)}
#: what is exported of it: more, because interpolation between drawn and other numbers must not bend
EXPORTED = {"attention": (-8.0, 0.0), "ratio": (-12.0, 12.0)}
#: the shortest axis that the page draws for each table, in the table's unit
SHORTEST_AXIS = {"effect": 0.2, "matrix": 0.2, "attention": 3.0, "ratio": 0.2, "sink": 0.2}

Stops = tuple[int, ...]
Sample = dict[str, Tensor]


@dataclass(frozen=True)
class GridTables:
    """The tables of one exhibit, with one row per setting; the last slider is the fastest.

    Tables by name, without the leading dimension of settings:

    - ``effect``: ``[H or 1, distances]``, absent if the mechanism is a sink only
    - ``matrix``: ``[T * T]``, absent if ``effect`` gives it by the distance of query and key
    - ``attention``: log10 of the weights of query 0, query 1, ..., each with its visible keys
    - ``ratio``: log10, ``[H or 1, T // 2]``
    - ``sink``: ``[H or 1, T]``, the sink's share by query, absent without a sink
    """

    exhibit: Exhibit
    knots: tuple[Stops, ...]  # exported stops of each slider
    tables: Mapping[str, Tensor]
    causal: bool  # whether the matrix ends at the diagonal
    label: str  # what the effect is
    first_distance: int  # of the effect; further ones are 1 apart
    query: int | None  # the query of the effect over distance; None if the effect depends on the distance alone
    head: int | None  # the head of the matrix and of the attention pattern; None if all heads are the same


def compute_tables(exhibit: Exhibit) -> GridTables:
    """Choose the exported stops and evaluate the mechanism at all combinations of them."""
    samples: dict[Stops, Sample] = {}
    with torch.no_grad():
        inputs = build_inputs(exhibit, exhibit.start)
        head = choose_head(inputs)

        def sample(stops: Stops) -> Sample:
            if stops not in samples:
                samples[stops] = compute_sample(build_inputs(exhibit, stops), head)
            return samples[stops]

        knots = tuple(_choose_knots(exhibit, axis, sample) for axis in range(len(exhibit.sliders)))
        rows = [sample(stops) for stops in product(*knots)]
        tables = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        effect = compute_effect(inputs)
    shared = {name: _is_shared(table) for name, table in tables.items() if table.ndim == 3}
    tables = {name: table[:, :1] if shared.get(name) else table for name, table in tables.items()}
    has_sink_only = "effect" not in tables
    return GridTables(
        exhibit,
        knots,
        tables,
        causal=inputs.causal or has_sink_only,
        label="factor on the weight" if has_sink_only else effect.label.replace("\n", " "),
        first_distance=_choose_distances(inputs)[0],
        query=None if inputs.by_distance or has_sink_only else choose_query(inputs),
        head=None if shared["ratio"] else head,
    )


def build_inputs(exhibit: Exhibit, stops: Stops) -> PlotInputs:
    """The mechanism at a setting and the content of ``show``."""
    return build_plot_inputs(exhibit.build(stops), LENGTH, None, None, 0)


def choose_head(inputs: PlotInputs) -> int:
    """The head of the matrix and of the attention pattern."""
    if inputs.position.effects == {"sink"}:
        return compute_sink(inputs).key_share.median_head
    return compute_effect(inputs).median_head


def choose_query(inputs: PlotInputs) -> int:
    """The query whose keys the effect over distance shows, if that depends on the query."""
    return inputs.length - 1 if inputs.causal else inputs.length // 2


def _choose_distances(inputs: PlotInputs) -> tuple[int, int]:
    """First and last distance of the effect."""
    if not inputs.by_distance:
        query = choose_query(inputs)
        return query - (query if inputs.causal else inputs.length - 1), query
    return 0 if inputs.causal else 1 - inputs.length, inputs.length - 1


def compute_sample(inputs: PlotInputs, head: int) -> Sample:
    """One setting's rows of the tables; see ``GridTables``."""
    sample: Sample = {}
    if inputs.position.effects == {"sink"}:
        sample["matrix"] = compute_sink(inputs).key_share.values[head].nan_to_num(0.0).flatten()
    else:
        values = compute_effect(inputs).values
        first, last = _choose_distances(inputs)
        distance = torch.arange(first, last + 1)
        if inputs.by_distance:  # each distance occurs in the first row or the first column
            sample["effect"] = values[:, distance.clamp(min=0), (-distance).clamp(min=0)]
        else:
            query = choose_query(inputs)
            sample["effect"] = values[:, query, query - distance]
            sample["matrix"] = values[head].nan_to_num(0.0).flatten()
    without, weights = compute_attention(inputs)
    query, key = torch.tril_indices(inputs.length, inputs.length)
    sample["attention"] = weights[head, query, key].log10()
    sample["ratio"] = compute_weight_ratio(without, weights).log10()
    if "sink" in inputs.position.effects:
        sample["sink"] = compute_sink(inputs).share
    return {name: values.clamp(*EXPORTED[name]) if name in EXPORTED else values for name, values in sample.items()}


def _is_shared(table: Tensor) -> bool:
    """Whether all heads have the same numbers, for ``[settings, H, n]``."""
    return bool(torch.allclose(table, table[:, :1], rtol=1e-9, atol=1e-9))


def _choose_knots(exhibit: Exhibit, axis: int, sample: Callable[[Stops], Sample]) -> Stops:
    """Stops of a slider, so that linear interpolation between them is accurate.

    The other sliders stand at their ends and at their defaults, in all combinations.
    """
    sliders = exhibit.sliders
    last = len(sliders[axis].stops) - 1
    if sliders[axis].discrete:
        return tuple(range(last + 1))
    ends = [
        sorted({0, slider.start, len(slider.stops) - 1}) if other != axis else [0]
        for other, slider in enumerate(sliders)
    ]
    lines = [lambda stop, at=at: sample((*at[:axis], stop, *at[axis + 1 :])) for at in product(*ends)]
    default = sample(exhibit.start)
    knots = sorted({0, sliders[axis].start, last})
    while True:
        added = [
            (low + high) // 2
            for low, high in pairwise(knots)
            if high - low > 1
            and any(_relative_error(line, low, (low + high) // 2, high, default) > TOLERANCE for line in lines)
        ]
        if not added:
            return tuple(knots)
        knots = sorted((*knots, *added))


def _relative_error(line: Callable[[int], Sample], low: int, middle: int, high: int, default: Sample) -> float:
    """The error of interpolation at ``middle``, as a share of the axis that holds this setting and the default."""
    lower, exact, upper, share = line(low), line(middle), line(high), (middle - low) / (high - low)
    return max(
        measure_error(name, torch.lerp(lower[name], upper[name], share), exact[name], default[name]) for name in exact
    )


def measure_error(name: str, values: Tensor, exact: Tensor, default: Tensor) -> float:
    """The largest error of a table's row, as a share of the axis on which the page draws it together with the default."""
    values, exact, default = (one.clamp(*DRAWN[name]) if name in DRAWN else one for one in (values, exact, default))
    axis = max(float(exact.max()), float(default.max())) - min(float(exact.min()), float(default.min()))
    return float((values - exact).abs().max()) / max(SHORTEST_AXIS[name], axis)

"""The figure of the prior: loss curves, perplexity beyond the trained length, and the learned alpha and beta of every head."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from whence.records import RecordFolder
from whence_papers.figure_style import SeriesStyle, label, legend_above, letters, save, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {
    "rotary": SeriesStyle("black", "o", "-"),
    "rotary + prior": SeriesStyle("#08519c", "s", "-"),
    "rotary + wide prior": SeriesStyle("#6baed6", "s", (0, (5, 2)), filled=False),
    "prior": SeriesStyle("#a63603", "^", "-"),
    "wide prior": SeriesStyle("#e07b1a", "^", (0, (5, 2)), filled=False),
    "none": SeriesStyle("0.55", "x", (0, (1, 1))),
    "ALiBi": SeriesStyle("#1b7837", "D", (0, (3, 2))),
    "EPAR": SeriesStyle("#762a83", "v", (0, (5, 1, 1, 1))),
}
#: the reference of the source, in nats; on another text with another tokenizer
PUBLISHED_LOSS = 4.9266
#: the leading numbers of the ticks of a logarithmic axis, from many ticks to few
TICK_STEPS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
MAX_TICKS = 10
#: space beyond the first and the last tick, for the marks
MARGIN = 1.03


def read_runs(records: RecordFolder) -> list[dict[str, Any]]:
    """The records of the runs of a study."""
    return [records.read(name) for name in records.names() if "-seed" in name and ".failure" not in name]


def draw_prior(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the records of the runs of one study.

    Args:
        runs: records of runs that ended; diverged ones are left out.
        path: the image to write.
    """
    figure, panels = sheet(2, 2, 10, 7)  # before matplotlib is imported here, since it names the extra
    from matplotlib.ticker import NullFormatter

    spec = runs[0]["spec"]
    done = [run for run in runs if run["result"]["status"] == "done"]
    by_arm = {arm["name"]: [run for run in done if run["arm"] == arm["name"]] for arm in spec["arms"]}
    by_arm = {arm: own for arm, own in by_arm.items() if own}
    step_tokens = spec["budget"]["batch_size"] * runs[0]["task"]["context"]
    panels[1].set_xscale("log", base=2)
    for axes in (panels[1], panels[2]):
        axes.set_yscale("log")
    for arm, own in by_arm.items():
        style = STYLES.get(arm, SeriesStyle("0.3", ".", "-"))
        _draw_losses(panels[0], arm, own, style, step_tokens)
        _draw_lengths(panels[1], own, style)
    priors = {arm: own for arm, own in by_arm.items() if own[0]["notes"]["prior"]}
    for axes, name in ((panels[2], "alpha"), (panels[3], "beta")):
        for number, (arm, own) in enumerate(priors.items()):
            shift = 0.7 * ((number + 0.5) / len(priors) - 0.5)
            _draw_parameter(axes, name, own[0], STYLES[arm], shift)
        axes.axhline(1.0, color="0.7", linewidth=0.8, zorder=1)
    label(
        panels[0],
        "validation loss, and training loss as faint lines",
        "training tokens (millions)",
        "cross-entropy (nats)",
    )
    label(panels[1], "beyond the trained length", "length over trained length", "perplexity")
    label(panels[2], "learned alpha", "layer", "|alpha|")
    label(panels[3], "learned beta", "layer", "beta")
    _set_ticks(panels[1])
    panels[2].yaxis.set_major_formatter("{x:g}")
    panels[2].yaxis.set_minor_formatter(NullFormatter())
    legend_above(figure, panels[0], 4)
    letters(panels)
    counts = sorted({len(own) for own in by_arm.values()})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seeds"
    shown = "one seed" if counts == [1] else f"mean of {seeds}"
    vocab_size = runs[0]["task"]["vocab_size"]
    unused = (spec["model"].get("vocab_size", vocab_size) - vocab_size) * spec["model"]["embed_dim"]
    idle = f" ({unused:,} of them embed tokens that the text does not have)" if unused > 0 else ""
    note = (
        f"{spec['name']}: {runs[0]['notes']['parameters']:,} parameters for {runs[0]['arm']}{idle}, {spec['budget']['steps']:,} steps of "
        f"{step_tokens:,} tokens. a and b: {shown}; the training loss is the mean since the last evaluation; the same tokens are scored at every "
        f"length. c and d: one mark for each head of the first seed; the line is the start of the source, 1; the wide start has alpha 0.1 and beta 1. The source prints a loss of "
        f"{PUBLISHED_LOSS} on another text with another tokenizer, so it is not drawn."
    )
    save(figure, path, {"quick": False}, note)


def _draw_losses(axes: Axes, arm: str, runs: Sequence[Mapping[str, Any]], style: SeriesStyle, step_tokens: int) -> None:
    validation: dict[int, list[float]] = defaultdict(list)
    training: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for evaluation in run["result"]["evaluations"]:
            validation[evaluation["step"]].append(evaluation["splits"]["validation"]["cross_entropy"])
        for loss in run["result"]["losses"]:
            training[loss["step"]].append(loss["loss"])
    for curve, looks in ((validation, style.line() | style.points(3.5)), (training, style.line() | {"alpha": 0.3})):
        steps = sorted(curve)
        tokens = [step * step_tokens / 1e6 for step in steps]
        axes.plot(tokens, [mean(curve[step]) for step in steps], **looks, label=arm if curve is validation else None)


def _draw_lengths(axes: Axes, runs: Sequence[Mapping[str, Any]], style: SeriesStyle) -> None:
    from matplotlib.ticker import NullLocator

    last = [run["result"]["evaluations"][-1]["splits"] for run in runs]
    splits = {1 if split == "test" else int(split[:-1]): split for split in last[0] if split != "validation"}
    multiples = sorted(splits)
    values = [mean(one[splits[multiple]]["value"] for one in last) for multiple in multiples]
    axes.plot(multiples, values, **style.line() | style.points(4))
    axes.set_xticks(multiples, [f"{multiple}x" for multiple in multiples])
    axes.xaxis.set_minor_locator(NullLocator())


def _set_ticks(axes: Axes) -> None:
    """Labelled ticks on a logarithmic axis, from one at or below the smallest value to one at or above the largest."""
    from matplotlib.ticker import NullLocator

    ticks = choose_ticks(*axes.dataLim.intervaly)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(ticks[0] / MARGIN, ticks[-1] * MARGIN)


def choose_ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose a range of positive values; at most ``MAX_TICKS`` if the range allows it.

    >>> choose_ticks(53.7, 186.0), choose_ticks(8.0, 2500.0)
    ([50.0, 60.0, 80.0, 100.0, 120.0, 150.0, 200.0], [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in TICK_STEPS:
        every = [float(f"{step}e{decade}") for decade in decades for step in steps]
        first = max(index for index, tick in enumerate(every) if tick <= low)
        last = min(index for index, tick in enumerate(every) if tick >= high)
        if last - first < MAX_TICKS:
            break
    return every[first : last + 1]


def _draw_parameter(axes: Axes, name: str, run: Mapping[str, Any], style: SeriesStyle, shift: float) -> None:
    layers = run["notes"]["prior"]
    for number, layer in enumerate(layers, 1):
        values = [abs(value) for value in layer[name]]
        axes.plot([number + shift] * len(values), values, linestyle="none", **style.points(3.5))
    axes.set_xticks(range(1, len(layers) + 1, max(1, len(layers) // 9)))

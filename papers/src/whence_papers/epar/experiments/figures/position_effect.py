"""The figures of experiment 1, written to ``output/position/``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.figures.labels import (
    FORMS,
    SHORT,
    WEIGHTS,
    form_style,
    interval_note,
    parameter_note,
)
from whence_papers.figure_style import (
    SERIES_STYLES,
    TRUTH,
    band,
    heat,
    label,
    legend,
    legend_above,
    letters,
    point,
    save,
    sheet,
)

Record = dict[str, Any]


def draw(record: Record, folder: Path) -> None:
    draw_attention_weights(record, folder / "attention_weights_heatmap.png")
    draw_position_correlation(record, folder / "position_correlation.png")
    draw_average_attention(record, folder / "average_attention_distribution.png")
    draw_importance(record, folder / "information_importance_distribution.png")
    draw_position_score(record, folder / "position_score_distribution.png")
    draw_statistics(record, folder / "attention_statistics.png")
    draw_effect_matrix(record, folder / "position_effect_matrix.png")
    draw_effect_analysis(record, folder / "position_effect_analysis.png")
    draw_attention_analysis(record, folder / "position_attention_analysis.png")


def cells() -> Iterator[tuple[str, str]]:
    for weights in ("random", "trained"):
        for form in FORMS:
            yield weights, form


def draw_attention_weights(record: Record, path: Path) -> None:
    from matplotlib.colors import LogNorm

    maps, spec = record["results"]["maps"], record["spec"]
    figure, panels = sheet(2, 4, 10.5, 5.6)
    length, size = spec["length"], spec["length"] // spec["blocks"]
    untrained, trained = panels[:3], panels[4:7]
    squares = [maps[weights][form] for weights, form in cells()] + [maps["wanted"]]
    biggest = max(max(map(max, square)) for square in squares)
    shared = {"norm": LogNorm(size / length / 10, biggest), "cmap": "cividis"}
    name = f"attention of a query to {size} neighbouring keys" if size > 1 else "attention weight"
    heat([*untrained, *trained, panels[7]], squares, name, extent=(0, length, length, 0), **shared)
    for axes, (weights, form) in zip([*untrained, *trained], cells(), strict=True):
        label(axes, f"{WEIGHTS[weights]}, {SHORT[form]}", "key (token)", "query (token)")
    label(panels[7], "target attention", "key (token)", "query (token)")
    panels[3].step(range(length), maps["importance"], where="mid", color="0.25", linewidth=1)
    panels[3].set_xlim(0, length)
    label(panels[3], "the sequence", "key (token)", "importance I")
    letters(panels)
    for axes in [*untrained, *trained, panels[7]]:
        axes.label_outer()
    note = (
        f"One sequence of the pattern '{spec['example_pattern']}', head of seed {spec['seeds'][0]}; {size} queries are averaged and "
        f"{size} keys summed to a square; logarithmic. {parameter_note(spec)}"
    )
    save(figure, path, record, note)


def draw_position_correlation(record: Record, path: Path) -> None:
    correlations, spec = record["results"]["correlation"], record["spec"]
    figure, panels = sheet(2, 3, 9, 5.8, sharex=True, sharey=True)
    squares = [correlations[weights][form] for weights, form in cells()]
    length = spec["length"]
    heat(
        panels, squares, "correlation of two positions' attention", extent=(0, length, length, 0),
        cmap="cividis", vmin=min(0, *(min(map(min, square)) for square in squares)), vmax=1,
    )  # fmt: skip
    for axes, (weights, form) in zip(panels, cells(), strict=True):
        label(axes, f"{WEIGHTS[weights]}, {SHORT[form]}", "position (token)", "position (token)")
        axes.label_outer()
    letters(panels)
    note = (
        f"Pearson's correlation of the attention rows of two positions, mean over {spec['runs']} sequences of the pattern "
        f"'{spec['plain']}' and {length // spec['blocks']} x {length // spec['blocks']} positions. {parameter_note(spec)}"
    )
    save(figure, path, record, note)


def draw_average_attention(record: Record, path: Path) -> None:
    received, spec = record["results"]["received"], record["spec"]
    figure, panels = sheet(1, 2, 9, 3.4)
    for axes, weights in zip(panels, ("random", "trained"), strict=True):
        axes.axhline(1, color="black", linewidth=0.8)
        for form, name in FORMS.items():
            size = max(1, spec["length"] // 32)  # mean over blocks of tokens
            smooth = [_blocked(row, size) for row in received[weights][form]]
            band(axes, [size * (n + 0.5) for n in range(len(smooth[0]))], smooth, SERIES_STYLES[form], name)
        label(axes, f"{WEIGHTS[weights]} heads", "key (token)", "attention received x L")
    letters(panels)
    legend_above(figure, panels[0], 3)
    note = (
        f"Mean over queries and {spec['runs']} sequences of the pattern '{spec['plain']}', in which no position is special; "
        f"means of {max(1, spec['length'] // 32)} tokens. The two axes differ. {parameter_note(spec)} {interval_note(spec)}"
    )
    save(figure, path, record, note)


def _blocked(row: list[float], size: int) -> list[float]:
    return [sum(row[n : n + size]) / size for n in range(0, len(row), size)]


def draw_importance(record: Record, path: Path) -> None:
    patterns, spec = record["results"]["patterns"], record["spec"]
    figure, panels = sheet(2, len(patterns), 10.5, 4.2, sharey="row", sharex="row")
    for column, (name, pattern) in enumerate(patterns.items()):
        above, below = panels[column], panels[len(patterns) + column]
        above.fill_between(range(spec["length"]), pattern["example"], step="mid", color="0.75")
        above.step(range(spec["length"]), pattern["example"], where="mid", color="0.25", linewidth=0.8)
        above.set_ylim(0, 1.05)
        label(above, name, "position (token)", "importance I" if column == 0 else "")
        shares = pattern["share_by_bin"]
        below.bar(
            [(n + 0.5) / len(shares) for n in range(len(shares))],
            shares,
            1 / len(shares),
            color=SERIES_STYLES["basic"].colour,
        )
        label(below, "", "importance I", f"share of positions\n(log scale, {len(shares)} bins)" if column == 0 else "")
        below.set_yscale("log")
        below.set_ylim(0.002, 1.3)
    letters(panels[: len(patterns)])
    note = (
        f"Above: the first sequence; below: all {spec['runs']} sequences of a pattern. Each sequence is rescaled to the range "
        "0 to 1, which makes 'dense' (uniform over 0.7 to 1) the same as 'random' (uniform over 0 to 1). 'structured' is "
        "deterministic."
    )
    save(figure, path, record, note)


def draw_position_score(record: Record, path: Path) -> None:
    results, spec = record["results"], record["spec"]
    names = list(results["patterns"])
    figure, panels = sheet(1, 2, 9, 3.6, sharey=True)
    for axes, weights in zip(panels, ("random", "trained"), strict=True):
        for row, pattern in enumerate(names):
            _quantiles(
                axes, row - 0.27, results["patterns"][pattern]["quantiles"], TRUTH, "importance I" if row == 0 else None
            )
            for shift, form in zip((-0.09, 0.09, 0.27), FORMS, strict=True):
                style = form_style(weights, form)
                values = results["position_value"][weights][form][pattern]
                _quantiles(axes, row + shift, values, style, f"V, {FORMS[form]}" if row == 0 else None)
        axes.set_yticks(range(len(names)), names)
        axes.set_xlim(-0.02, 1.02)
        label(axes, f"{WEIGHTS[weights]} heads", "importance I, position value V", "")
        axes.grid(axis="x", color="0.9", linewidth=0.6)
    panels[0].invert_yaxis()
    letters(panels)
    legend_above(figure, panels[0], 4)
    low, high = spec["quantiles"][0], spec["quantiles"][-1]
    note = (
        f"Thin line: quantiles {low:g} to {high:g} over all positions, sequences and heads; thick: the middle half; mark: "
        f"the median. V is a mean of I weighted by attention. {parameter_note(spec)}"
    )
    save(figure, path, record, note)


def _quantiles(axes: Any, y: float, values: list[float], style: Any, name: str | None) -> None:
    axes.plot([values[0], values[-1]], [y, y], color=style.colour, linewidth=0.9, zorder=2)
    axes.plot([values[1], values[-2]], [y, y], color=style.colour, linewidth=3, zorder=2, alpha=0.55)
    axes.plot([values[2]], [y], linestyle="none", **style.points(4), label=name, zorder=3)


def draw_statistics(record: Record, path: Path) -> None:
    statistics, spec = record["results"]["statistics"], record["spec"]
    units = {
        "entropy": "entropy of a row (nats)",
        "largest weight": "largest weight of a row",
        "mean distance": "mean distance attended to (tokens)",
        "near share": f"share of attention within {spec['length'] // 8} tokens",
    }
    figure, panels = sheet(1, 4, 10.5, 3.3)
    for axes, (what, unit) in zip(panels, units.items(), strict=True):
        for group, weights in enumerate(("random", "trained")):
            for shift, form in zip((-0.22, 0, 0.22), FORMS, strict=True):
                style = form_style(weights, form)
                by_head = [sum(runs) / len(runs) for runs in statistics[weights][form][what]]
                point(axes, group + shift, by_head, style, FORMS[form] if group == 1 else None)
        axes.set_xticks([0, 1], ["untrained", "trained"])
        axes.set_xlim(-0.5, 1.5)
        label(axes, what, "", unit)
    letters(panels)
    legend_above(figure, panels[0], 3)
    note = (
        f"Means over rows and {spec['runs']} sequences of each of five patterns. {parameter_note(spec)} Hollow: untrained. "
        f"{interval_note(spec)}"
    )
    save(figure, path, record, note)


def draw_effect_matrix(record: Record, path: Path) -> None:
    factors, length = record["results"]["factor"], record["spec"]["length"]
    figure, panels = sheet(1, len(factors), 9.5, 3.3, sharey=True)
    squares = [[[one["factor"][abs(i - j)] for j in range(length)] for i in range(length)] for one in factors.values()]
    heat(panels, squares, "factor on the score", extent=(0, length, length, 0), cmap="viridis", vmin=0, vmax=1)
    for axes, (name, one) in zip(panels, factors.items(), strict=True):
        label(axes, name, "key (token)", "query (token)")
        corner, floor = one["factor"][length - 1], one["floor"]
        axes.text(
            0.97, 0.95, f"corner {corner:.3f}\nfloor {floor:.3f}", transform=axes.transAxes, ha="right", va="top", fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
        )  # fmt: skip
        axes.label_outer()
    letters(panels)
    settings = "; ".join(f"{name}: {one['setting']}" for name, one in factors.items())
    save(figure, path, record, f"L = {length}; {settings}. Corner: the factor at the greatest distance of two tokens.")


def draw_effect_analysis(record: Record, path: Path) -> None:
    results, spec = record["results"], record["spec"]
    figure, (curve, kink, retention, region) = sheet(2, 2, 9, 6.4)
    length = spec["length"]
    for form in ("basic", "enhanced"):
        one, style = results["factor"][form], SERIES_STYLES[form]
        shares = [d / length for d in range(len(one["factor"]))]
        curve.plot(shares, one["factor"], **style.line(), label=form)
        curve.axhline(one["floor"], color=style.colour, linewidth=0.8, linestyle=":")
        curve.annotate(f"floor {one['floor']:.3f}", (1.0, one["floor"]), xytext=(0, 3 if form == "basic" else -10),
                       textcoords="offset points", ha="left", fontsize=7.5, color=style.colour)  # fmt: skip
        steps = range(-8, 9)
        kink.plot(steps, [one["factor"][abs(d)] for d in steps], **style.line(), label=form)
        retention.plot(
            results["retention"]["share"], results["retention"][form], **style.line(), label=f"{form}, computed"
        )
    curve.set_ylim(0, 1.03)
    label(curve, "decreases with distance to a floor", "distance / L", "factor on the score")
    legend(curve)
    label(kink, "no derivative at 0", "signed distance (tokens)", "factor on the score")
    slopes = {form: results["factor"][form]["slope_right_of_0"] for form in ("basic", "enhanced")}
    slope_text = "\n".join(f"{form}: slope ±{abs(slope):.2g} per token" for form, slope in slopes.items())
    kink.text(0.5, 0.06, slope_text, transform=kink.transAxes, ha="center", fontsize=7.5)
    _retention(retention, results["retention"])
    _region(region, results["region"])
    letters([curve, kink, retention, region])
    save(
        figure,
        path,
        record,
        f"{parameter_note(spec)} d: scores of a key at distance 0 and of one at distance {length - 1}.",
    )


def _retention(axes: Any, retention: dict[str, Any]) -> None:
    source = retention["source"]
    for form, style in (("basic", SERIES_STYLES["basic"]), ("enhanced", SERIES_STYLES["enhanced"])):
        axes.plot([1], [source[f"{form}_far"]], linestyle="none", marker="x", markersize=8, markeredgewidth=2,
                  color=style.colour, label=f"{form}, the source's figure", clip_on=False)  # fmt: skip
    gains = f"gain at L: {retention['gain'][-1]:.2f}x (source {source['gain_far']:g}x)\n"
    gains += f"gain at L/2: {retention['gain'][len(retention['gain']) // 2]:.2f}x (source {source['gain_medium']:g}x)"
    axes.text(0.03, 0.30, gains, transform=axes.transAxes, fontsize=7.5, va="top")
    axes.set_ylim(0, 1.03)
    label(axes, "retention of a score", "distance / L", "factor / factor at 0")
    legend(axes, loc="lower left", bbox_to_anchor=(0.0, 0.3), ncols=1)


def _region(axes: Any, regions: dict[str, Any]) -> None:
    low, high = -4.0, 4.0
    for form in ("basic", "enhanced"):
        style, slope = SERIES_STYLES[form], regions[form]["boundary"]
        ends = [low * slope, high * slope]
        axes.plot([low, high], ends, **style.line(), label=f"equal weights, {form}")
        axes.fill_between([low, high], ends, [max(high, ends[1])] * 2, color=style.colour, alpha=0.12, linewidth=0)
    axes.plot([low, high], [low, high], color="0.5", linewidth=0.9, label="equal scores")
    axes.text(-3.8, 3.7, "above a line the far key\ngets more weight", fontsize=7.5, va="top")
    axes.annotate("equal scores below 0:\nthe far key gets more", (-2.5, -2.5), xytext=(0.4, -3.2), fontsize=7.5, va="center",
                  arrowprops={"arrowstyle": "->", "linewidth": 0.7})  # fmt: skip
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    label(axes, "attention can increase with distance", "score of the near key", "score of the far key")
    legend(axes, loc="upper left", bbox_to_anchor=(0.0, 0.86))


def draw_attention_analysis(record: Record, path: Path) -> None:
    results, spec = record["results"], record["spec"]
    figure, panels = sheet(2, 2, 9, 6.2)
    from matplotlib import colormaps

    levels = spec["levels"]
    shades = colormaps["viridis"]([0.9 * n / max(1, len(levels) - 1) for n in range(len(levels))])
    fingerprints = ["v", "s", "o", "D", "^"]
    for axes, form in zip(panels[:2], ("basic", "enhanced"), strict=True):
        axes.axhline(1, color="0.7", linewidth=0.8)
        for shade, level, weights, mark in zip(
            shades, levels, results["equal_scores"][form], fingerprints, strict=False
        ):
            every = max(1, len(weights) // 8)
            axes.plot(range(len(weights)), weights, color=shade, linewidth=1.5, marker=mark, markevery=every, markersize=4,
                      label=f"{level:g}")  # fmt: skip
        axes.set_yscale("log")
        axes.set_yticks([0.2, 0.5, 1, 2, 3], ["0.2", "0.5", "1", "2", "3"])
        axes.minorticks_off()
        label(axes, f"all keys with one score, {form}", "distance (tokens)", "weight / fair share")
    panels[1].sharey(panels[0])
    legend(panels[1], title="score", title_fontsize=7.5, ncols=1, loc="upper left", bbox_to_anchor=(1, 1))
    for axes, weights in zip(panels[2:], ("random", "trained"), strict=True):
        for form, name in FORMS.items():
            band(axes, list(range(spec["length"])), results["by_distance"][weights][form], SERIES_STYLES[form], name)
        if weights == "trained":
            band(axes, list(range(spec["length"])), results["by_distance"]["wanted"], TRUTH, "target attention")
        label(axes, f"{WEIGHTS[weights]} heads", "distance (tokens)", "mean weight / fair share")
    legend(panels[3], loc="upper left", bbox_to_anchor=(1, 1))
    letters(panels)
    note = (
        f"a, b: one query, {spec['length']} keys of equal score; below 0 the weight INCREASES with distance. c, d: heads on the "
        f"pattern '{spec['plain']}'; the axes differ. {parameter_note(spec)} {interval_note(spec)}"
    )
    save(figure, path, record, note)

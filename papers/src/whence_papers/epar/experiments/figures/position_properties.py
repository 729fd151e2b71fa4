"""The pictures of experiment 1 that show the factor itself and what it can and cannot do to attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.figures.words import FORMS, WEIGHTS, numbers, over_heads
from whence_papers.figure_style import LOOKS, TRUTH, band, heat, label, legend, letters, save, sheet

Record = dict[str, Any]


def effect_matrix(record: Record, path: Path) -> None:
    found, length = record["results"]["factor"], record["spec"]["length"]
    figure, panels = sheet(1, len(found), 9.5, 3.3, sharey=True)
    squares = [[[one["factor"][abs(i - j)] for j in range(length)] for i in range(length)] for one in found.values()]
    heat(panels, squares, "factor on the score", extent=(0, length, length, 0), cmap="viridis", vmin=0, vmax=1)
    for axes, (name, one) in zip(panels, found.items(), strict=True):
        label(axes, name, "key (token)", "query (token)")
        corner, floor = one["factor"][length - 1], one["floor"]
        axes.text(
            0.97, 0.95, f"corner {corner:.3f}\nfloor {floor:.3f}", transform=axes.transAxes, ha="right", va="top", fontsize=7.5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2},
        )  # fmt: skip
        axes.label_outer()
    letters(panels)
    shown = "; ".join(f"{name}: {one['setting']}" for name, one in found.items())
    save(figure, path, record, f"L = {length}; {shown}. Corner: the factor at the greatest distance of two tokens.")


def effect_analysis(record: Record, path: Path) -> None:
    results, spec = record["results"], record["spec"]
    figure, (curve, kink, kept, region) = sheet(2, 2, 9, 6.4)
    length = spec["length"]
    for form in ("basic", "enhanced"):
        one, look = results["factor"][form], LOOKS[form]
        shares = [d / length for d in range(len(one["factor"]))]
        curve.plot(shares, one["factor"], **look.line(), label=form)
        curve.axhline(one["floor"], color=look.colour, linewidth=0.8, linestyle=":")
        curve.annotate(f"floor {one['floor']:.3f}", (1.0, one["floor"]), xytext=(0, 3 if form == "basic" else -10),
                       textcoords="offset points", ha="left", fontsize=7.5, color=look.colour)  # fmt: skip
        steps = range(-8, 9)
        kink.plot(steps, [one["factor"][abs(d)] for d in steps], **look.line(), label=form)
        kept.plot(results["retention"]["share"], results["retention"][form], **look.line(), label=f"{form}, computed")
    curve.set_ylim(0, 1.03)
    label(curve, "falls with distance, to a floor", "distance / L", "factor on the score")
    legend(curve)
    label(kink, "no derivative at 0", "signed distance (tokens)", "factor on the score")
    slopes = {form: results["factor"][form]["slope_right_of_0"] for form in ("basic", "enhanced")}
    said = "\n".join(f"{form}: slope ±{abs(slope):.2g} a token" for form, slope in slopes.items())
    kink.text(0.5, 0.06, said, transform=kink.transAxes, ha="center", fontsize=7.5)
    _retention(kept, results["retention"])
    _region(region, results["region"])
    letters([curve, kink, kept, region])
    save(figure, path, record, f"{numbers(spec)} d: scores of a key at distance 0 and of one at distance {length - 1}.")


def _retention(axes: Any, found: dict[str, Any]) -> None:
    source = found["source"]
    for form, look in (("basic", LOOKS["basic"]), ("enhanced", LOOKS["enhanced"])):
        axes.plot([1], [source[f"{form}_far"]], linestyle="none", marker="x", markersize=8, markeredgewidth=2,
                  color=look.colour, label=f"{form}, the source's figure", clip_on=False)  # fmt: skip
    gains = f"gain at L: {found['gain'][-1]:.2f}x (source {source['gain_far']:g}x)\n"
    gains += f"gain at L/2: {found['gain'][len(found['gain']) // 2]:.2f}x (source {source['gain_medium']:g}x)"
    axes.text(0.03, 0.30, gains, transform=axes.transAxes, fontsize=7.5, va="top")
    axes.set_ylim(0, 1.03)
    label(axes, "what is kept of a score", "distance / L", "factor / factor at 0")
    legend(axes, loc="lower left", bbox_to_anchor=(0.0, 0.3), ncols=1)


def _region(axes: Any, found: dict[str, Any]) -> None:
    low, high = -4.0, 4.0
    for form in ("basic", "enhanced"):
        look, slope = LOOKS[form], found[form]["boundary"]
        ends = [low * slope, high * slope]
        axes.plot([low, high], ends, **look.line(), label=f"equal weights, {form}")
        axes.fill_between([low, high], ends, [max(high, ends[1])] * 2, color=look.colour, alpha=0.12, linewidth=0)
    axes.plot([low, high], [low, high], color="0.5", linewidth=0.9, label="equal scores")
    axes.text(-3.8, 3.7, "above a line the far key\ngets more weight", fontsize=7.5, va="top")
    axes.annotate("equal scores below 0:\nthe far key gets more", (-2.5, -2.5), xytext=(0.4, -3.2), fontsize=7.5, va="center",
                  arrowprops={"arrowstyle": "->", "linewidth": 0.7})  # fmt: skip
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    label(axes, "attention need not fall with distance", "score of the near key", "score of the far key")
    legend(axes, loc="upper left", bbox_to_anchor=(0.0, 0.86))


def attention_analysis(record: Record, path: Path) -> None:
    results, spec = record["results"], record["spec"]
    figure, panels = sheet(2, 2, 9, 6.2)
    from matplotlib import colormaps

    levels = spec["levels"]
    shades = colormaps["viridis"]([0.9 * n / max(1, len(levels) - 1) for n in range(len(levels))])
    marks = ["v", "s", "o", "D", "^"]
    for axes, form in zip(panels[:2], ("basic", "enhanced"), strict=True):
        axes.axhline(1, color="0.7", linewidth=0.8)
        for shade, level, weights, mark in zip(shades, levels, results["equal_scores"][form], marks, strict=False):
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
            band(axes, list(range(spec["length"])), results["by_distance"][weights][form], LOOKS[form], name)
        if weights == "trained":
            band(axes, list(range(spec["length"])), results["by_distance"]["wanted"], TRUTH, "what the task wants")
        label(axes, f"{WEIGHTS[weights]} heads", "distance (tokens)", "mean weight / fair share")
    legend(panels[3], loc="upper left", bbox_to_anchor=(1, 1))
    letters(panels)
    note = (
        f"a, b: one query, {spec['length']} keys of equal score; below 0 the weight RISES with distance. c, d: heads on the "
        f"pattern '{spec['plain']}'; the axes differ. {numbers(spec)} {over_heads(spec)}"
    )
    save(figure, path, record, note)

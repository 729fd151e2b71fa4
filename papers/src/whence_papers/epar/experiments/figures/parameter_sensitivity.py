"""The figures of experiment 3, written to ``output/parameter/``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.figures.labels import FORMS, WEIGHTS, form_style, interval_note, parameter_note
from whence_papers.figure_style import (
    NONE,
    SERIES_STYLES,
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
from whence_papers.intervals import CORRELATION, SHARE, mean_and_interval

Record = dict[str, Any]
MEASURES = {
    "consistency": "two-part consistency",
    "ranking": "ranking: Spearman(V, I)",
    "true_ranking": "Spearman(V, target V)",
    "entropy": "entropy of a row (nats)",
    "error": "task error",
}

RANGES = {
    "consistency": SHARE, "ranking": CORRELATION, "true_ranking": CORRELATION, "entropy": (0, math.inf), "error": (0, math.inf)
}  # fmt: skip


def draw(record: Record, folder: Path) -> None:
    for number in ("alpha", "beta"):
        draw_parameter(record, number, folder / f"{number}_parameter_sensitivity.png")
    draw_combined(record, folder / "combined_parameter_sensitivity.png")
    draw_combinations(record, folder / "parameter_combination_heatmap.png")
    draw_enhanced(record, folder / "enhanced_performance_analysis.png")
    draw_correlations(record, folder / "position_correlation_comparison.png")


def plot_curves(record: Record, axes: Any, number: str, measure: str) -> None:
    """Plot a measure over one parameter, for both kinds of weights and every form that has the parameter."""
    sweep = record["results"]["sweeps"][number]
    for weights in ("random", "trained"):
        for form, by_measure in sweep[weights].items():
            style = form_style(weights, form)
            name = f"{WEIGHTS[weights]}, {form}"
            band(axes, sweep["at"], list(zip(*by_measure[measure], strict=True)), style, name, RANGES[measure])
    axes.axvline(record["spec"][number], color="0.6", linewidth=0.9, linestyle=":", zorder=0)
    if number == "alpha":
        axes.set_xscale("log")
        ticks = [x for x in (0.1, 0.25, 0.5, 1, 2, 4) if min(sweep["at"]) <= x <= max(sweep["at"])]
    else:
        axes.set_xscale("symlog", linthresh=0.25, linscale=0.5)
        axes.set_xlim(-0.02, 1.15 * max(sweep["at"]))
        ticks = [x for x in (0, 0.25, 0.5, 1, 2, 4, 8) if x <= max(sweep["at"])]
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.xaxis.minorticks_off()
    if measure == "error":
        set_plain_log_scale(axes)
    label(axes, "", number, MEASURES[measure])


def set_plain_log_scale(axes: Any) -> None:
    """Set a logarithmic vertical axis with plain numbers as tick labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_parameter(record: Record, number: str, path: Path) -> None:
    spec = record["spec"]
    figure, panels = sheet(2, 3, 10.5, 5.8)
    for axes, measure in zip(panels, MEASURES, strict=False):
        plot_curves(record, axes, number, measure)
    panels[5].set_visible(False)
    letters(panels[:5])
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="center", bbox_to_anchor=(0.85, 0.3), fontsize=8.5, frameon=False
    )
    note = (
        f"{number} is changed in heads that keep their weights; dotted: the value they were trained with. Each point: "
        f"{spec['runs']} sequences of each of five patterns. Task error: squared difference from the target attention divided by its "
        f"square. Otherwise {parameter_note(spec)} {interval_note(spec)}"
    )
    save(figure, path, record, note)


def draw_combined(record: Record, path: Path) -> None:
    spec, elasticities = record["spec"], record["results"]["elasticities"]["by"]
    figure, panels = sheet(2, 3, 10.5, 5.8)
    for axes, number in zip(panels[:3], ("alpha", "beta", "gamma"), strict=True):
        plot_curves(record, axes, number, "true_ranking")
        axes.set_ylim(-1, 1.05)
        axes.set_title(f"over {number}", loc="left")
    for axes, (measure, by_number) in zip(panels[3:], elasticities.items(), strict=True):
        axes.axhline(0, color="0.6", linewidth=0.8)
        for place, (_, values) in enumerate(by_number.items()):
            point(axes, place, values, SERIES_STYLES["enhanced"])
        axes.set_xticks(range(len(by_number)), list(by_number))
        axes.set_xlim(-0.6, len(by_number) - 0.4)
        label(axes, f"elasticity of {'the error' if measure == 'error' else measure}", "", "% change for + 1 %")
    letters(panels)
    legend_above(figure, panels[0], 4)
    difference = record["results"]["elasticities"]["autograd_against_differences"]
    note = (
        f"a to c: agreement with the answer of the task. d to f: trained enhanced heads, the effect of 1 % more of a parameter, by autograd (central "
        f"differences agree to {difference:.0e}). {parameter_note(spec)} {interval_note(spec)}"
    )
    save(figure, path, record, note)


def draw_combinations(record: Record, path: Path) -> None:
    from matplotlib.colors import LogNorm

    results, spec = record["results"], record["spec"]
    figure, panels = sheet(1, 2, 10, 4.4)
    tables = {
        pair: [[sum(cell) / len(cell) for cell in row] for row in table]
        for pair, table in results["combinations"].items()
    }
    low = min(min(map(min, table)) for table in tables.values())
    high = max(max(map(max, table)) for table in tables.values())
    heat(
        panels,
        list(tables.values()),
        "task error (log scale)",
        cmap="cividis_r",
        norm=LogNorm(low, high),
        origin="lower",
    )
    for axes, (pair, table) in zip(panels, tables.items(), strict=True):
        first, second = pair.split(", ")
        rows, columns = results["sweeps"][first]["at"], results["sweeps"][second]["at"]
        axes.set_yticks(range(len(rows)), [f"{x:g}" for x in rows])
        axes.set_xticks(range(len(columns)), [f"{x:g}" for x in columns])
        least = min((value, r, c) for r, row in enumerate(table) for c, value in enumerate(row))
        for r, row in enumerate(table):
            for c, value in enumerate(row):
                dark = value > (low * high) ** 0.5  # the color map is reversed: a large error is dark
                axes.text(c, r, f"{value:.2g}", ha="center", va="center", fontsize=6.5, color="white" if dark else "black",
                          fontweight="bold" if (value, r, c) == least else "normal")  # fmt: skip
        if spec[first] in rows and spec[second] in columns:
            _frame(axes, columns.index(spec[second]), rows.index(spec[first]), "white", "-")
        _frame(axes, least[2], least[1], "black", "--")
        label(axes, f"{first} and {second}", second, first)
    letters(panels)
    gradient = [head["by_gradient"] for head in results["best"]["task"]]
    best = ", ".join(
        f"{n} {mean_and_interval([one[n] for one in gradient])[0]:.2f}" for n in ("alpha", "beta", "gamma")
    )
    ends = sorted({n for one in gradient for n in one["at_bounds"]})
    note = (
        f"Trained enhanced heads with their weights kept, mean over {len(spec['seeds'])} heads and one sequence per pattern. White "
        f"frame: the source's parameters; dashed: smallest error on the grid. By gradient over all three: {best} on average"
        f"{' (' + ', '.join(ends) + ' on the bound of the search)' if ends else ''}, error "
        f"{mean_and_interval([one['error'] for one in gradient])[0]:.3f}. Third parameter: {parameter_note(spec)}"
    )
    save(figure, path, record, note)


def _frame(axes: Any, x: int, y: int, colour: str, dash: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=1.8, linestyle=dash))


def draw_enhanced(record: Record, path: Path) -> None:
    spec, sweeps = record["spec"], record["results"]["sweeps"]
    figure, panels = sheet(2, 3, 10.5, 5.8)
    default = sweeps["beta"]["at"].index(spec["beta"]) if spec["beta"] in sweeps["beta"]["at"] else 0
    for axes, measure in zip(panels, MEASURES, strict=False):
        plot_curves(record, axes, "gamma", measure)
        for weights, dash in (("random", ":"), ("trained", (0, (5, 2)))):
            mean, low, high = mean_and_interval(sweeps["beta"][weights]["basic"][measure][default], RANGES[measure])
            axes.axhline(
                mean,
                color=SERIES_STYLES["basic"].colour,
                linestyle=dash,
                linewidth=1.4,
                label=f"{WEIGHTS[weights]}, basic",
            )
            axes.axhspan(low, high, color=SERIES_STYLES["basic"].colour, alpha=0.12, linewidth=0)
    errors = panels[5]
    names = {"none": "none", "basic": "basic", "enhanced": "enhanced", "learned": "enhanced,\nlearned"}
    for place, (form, values) in enumerate(record["results"]["trained_errors"].items()):
        point(errors, place, values, SERIES_STYLES[form])
    errors.set_xticks(range(4), list(names.values()))
    set_plain_log_scale(errors)
    errors.set_xlim(-0.5, 3.5)
    label(errors, "", "trained with", "error at the end of training")
    letters(panels)
    legend_above(figure, panels[0], 4)
    note = (
        "a to e: gamma is changed in heads that keep their weights; gamma = 0 has no position effect, and the enhanced form tends "
        f"to the basic one as gamma grows. The basic heads were trained as such. f: mean error of the last ten steps. {parameter_note(spec)} "
        f"{interval_note(spec)}"
    )
    save(figure, path, record, note)


def draw_correlations(record: Record, path: Path) -> None:
    correlations, spec = record["results"]["correlation"], record["spec"]
    figure, panels = sheet(1, 2, 9, 3.4, sharey=True)
    for axes, weights in zip(panels, ("random", "trained"), strict=True):
        for form, name in FORMS.items():
            band(axes, list(range(spec["length"])), correlations[weights][form], SERIES_STYLES[form], name)
        axes.axhline(0, color=NONE, linewidth=0.6)
        label(axes, f"{WEIGHTS[weights]} heads", "distance of two positions (tokens)", "correlation of their attention")
        axes.label_outer()
    letters(panels)
    legend(panels[0], loc="center left")
    note = f"Pearson's correlation of two positions' attention rows, pattern 'random'. {parameter_note(spec)} {interval_note(spec)}"
    save(figure, path, record, note)

"""The figures of experiment 2, written to ``output/optimal/``."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.figures.labels import FORMS, WEIGHTS, form_style, interval_note, parameter_note
from whence_papers.epar.experiments.published import CONSISTENCY, RANKING
from whence_papers.epar.experiments.tables import head_means, head_runs, patterns
from whence_papers.figure_style import (
    SERIES_STYLES,
    TRUTH,
    SeriesStyle,
    label,
    legend_above,
    letters,
    point,
    save,
    sheet,
)
from whence_papers.intervals import CORRELATION, SHARE, mean_and_interval

Record = dict[str, Any]


def draw(record: Record, folder: Path) -> None:
    draw_verification(record, folder / "verification_results.png")
    draw_consistency(record, folder / "consistency_verification.png")
    draw_score_analysis(record, folder / "position_score_analysis.png")
    draw_comprehensive(record, folder / "comprehensive_performance_score.png")
    draw_consistency_and_ranking(record, folder / "consistency_vs_ranking_correlation.png")
    draw_radar(record, folder / "information_type_radar_comparison.png")
    draw_deviations(record, folder / "standard_deviation_analysis.png")


def plot_groups(record: Record, axes: Any, weights: str, measure: str) -> None:
    """Plot one group per pattern and one point per form."""
    for group, pattern in enumerate(patterns(record)):
        for shift, form in zip((-0.24, 0, 0.24), FORMS, strict=True):
            name = FORMS[form] if group == 0 else None
            values = head_means(record, weights, form, pattern, measure)
            within = CORRELATION if measure == "ranking" else SHARE
            point(axes, group + shift, values, form_style(weights, form), name, within)
    axes.set_xticks(range(len(patterns(record))), patterns(record), fontsize=7.5)
    axes.grid(axis="y", color="0.92", linewidth=0.6)


def draw_verification(record: Record, path: Path) -> None:
    spec = record["spec"]
    rows = {"consistency": ("two-part consistency", CONSISTENCY), "ranking": ("ranking: Spearman(V, I)", RANKING)}
    figure, panels = sheet(2, 3, 11, 6.0, sharey="row")
    for row, (measure, (unit, source)) in enumerate(rows.items()):
        for axes, weights in zip(panels[3 * row : 3 * row + 3], WEIGHTS, strict=True):
            if measure == "consistency":
                for group, pattern in enumerate(patterns(record)):
                    level = sum(head_means(record, weights, "enhanced", pattern, "guess")) / len(spec["seeds"])
                    axes.plot([group - 0.38, group + 0.38], [level, level], color="black", linewidth=1.1, zorder=1,
                              label="a random guess" if group == 0 else None)  # fmt: skip
            else:
                axes.axhline(0, color="0.6", linewidth=0.8)
            plot_groups(record, axes, weights, measure)
            for pattern, (basic, enhanced) in source.items():
                at = patterns(record).index(pattern)
                for shift, value, form in ((0.08, basic, "basic"), (0.32, enhanced, "enhanced")):
                    axes.plot([at + shift], [value], linestyle="none", marker="x", markersize=6, markeredgewidth=1.6,
                              color=SERIES_STYLES[form].colour, zorder=4,
                              label=f"the source's {form}" if at == 1 else None)  # fmt: skip
            label(axes, WEIGHTS[weights] if row == 0 else "", "information pattern" if row else "", unit)
            axes.label_outer()
    letters(panels)
    legend_above(figure, panels[2], 6)
    note = (
        f"{spec['runs']} runs per pattern, {spec['runs'] // len(spec['seeds'])} per head. Consistency: "
        "(value part + position part) / 2 of the source's prediction argmax_i(row mean of A x I), which is argmax I. "
        f"{parameter_note(spec)} {interval_note(spec)}"
    )
    save(figure, path, record, note)


def draw_consistency(record: Record, path: Path) -> None:
    spec = record["spec"]
    measures = {
        "value_part": "value part: 1 - |V(p*) - V(p)| / V(p*)",
        "position_part": "plain distance form: 1 - |p* - p| / L",
        "true_position": "against the task: 1 - |p* - p'| / L",
    }
    figure, panels = sheet(2, 3, 11, 5.8, sharey="col", sharex=True)
    for row, weights in enumerate(("random", "trained")):
        for axes, (measure, unit) in zip(panels[3 * row : 3 * row + 3], measures.items(), strict=True):
            plot_groups(record, axes, weights, measure)
            if measure != "value_part":
                axes.axhline(2 / 3, color="black", linewidth=0.9, linestyle=":", label="two random positions")
            label(axes, f"{WEIGHTS[weights]}", "information pattern" if row else "", unit)
    letters(panels)
    legend_above(figure, panels[1], 4)
    note = (
        "p* = argmax V; p: the source's prediction; p': the best position under the target attention. The value "
        "part is at least 1 - (max V - min V) / max V for every prediction; the mean of that bound is "
        f"{_least(record, 'random'):.3f} untrained and {_least(record, 'trained'):.3f} trained. {parameter_note(spec)} {interval_note(spec)}"
    )
    save(figure, path, record, note)


def _least(record: Record, weights: str) -> float:
    """The smallest V of a sequence divided by the largest: the mean over both forms, all patterns and runs."""
    cells = [
        head_means(record, weights, form, name, "spread") for form in ("basic", "enhanced") for name in patterns(record)
    ]
    return 1 - sum(sum(cell) / len(cell) for cell in cells) / len(cells)


def draw_score_analysis(record: Record, path: Path) -> None:
    examples, spec = record["results"]["examples"], record["spec"]
    figure, panels = sheet(2, len(examples), 12, 5.0, sharex=True, sharey=True)
    for column, (pattern, one) in enumerate(examples.items()):
        for row, weights in enumerate(("random", "trained")):
            axes = panels[row * len(examples) + column]
            axes.fill_between(range(spec["length"]), one["importance"], step="mid", color="0.88", label="importance I")
            for curve, style, name in _curves(weights):
                values = one["values"][curve]
                axes.plot(range(spec["length"]), values, **style.line(), label=name)
                best = one["best"][curve][0]
                axes.plot(
                    [best], [values[best]], linestyle="none", **style.points(8 if style is TRUTH else 6), zorder=4
                )
            axes.set_ylim(0, 1.08)
            title = pattern if row == 0 else ""
            label(
                axes, title, "position (token)" if row else "", f"{WEIGHTS[weights]}\nI and V(i)" if column == 0 else ""
            )
    letters(panels[: len(examples)])
    legend_above(figure, panels[len(examples)], 4)
    note = (
        f"One sequence per pattern, head of seed {spec['seeds'][0]}; marks: the position of maximum benefit of each curve. Over "
        f"all runs the smallest V is {_least(record, 'random'):.3f} of the largest with untrained weights, "
        f"{_least(record, 'trained'):.3f} with trained ones. {parameter_note(spec)}"
    )
    save(figure, path, record, note)


def _curves(weights: str) -> Iterator[tuple[str, SeriesStyle, str]]:
    yield "wanted", TRUTH, "V under the target attention"
    for form in ("basic", "enhanced"):
        yield f"{weights}, {form}", form_style(weights, form), f"V, {form}"


def score(record: Record, weights: str, form: str, pattern: str, true: bool) -> list[float]:
    """The mean of a position agreement and a ranking correlation, for every head."""
    first, second = ("true_position", "true_ranking") if true else ("consistency", "ranking")
    one, other = (head_means(record, weights, form, pattern, measure) for measure in (first, second))
    return [(a + b) / 2 for a, b in zip(one, other, strict=True)]


def draw_comprehensive(record: Record, path: Path) -> None:
    spec = record["spec"]
    figure, panels = sheet(1, 2, 10, 3.6, sharey=True)
    titles = ("by the source's measures", "against the answer of the task")
    for axes, true, title in zip(panels, (False, True), titles, strict=True):
        axes.axhline(0, color="0.6", linewidth=0.8)
        for group, pattern in enumerate(patterns(record)):
            cells = [(weights, form) for weights in ("random", "trained") for form in FORMS]
            for number, (weights, form) in enumerate(cells):
                name = f"{WEIGHTS[weights]}, {FORMS[form]}" if group == 0 else None
                values = score(record, weights, form, pattern, true)
                point(axes, group + (number - 2.5) * 0.13, values, form_style(weights, form), name, (-0.5, 1.0))
        axes.set_xticks(range(len(patterns(record))), patterns(record))
        axes.grid(axis="y", color="0.92", linewidth=0.6)
        label(axes, title, "information pattern", "score" if not true else "")
    letters(panels)
    legend_above(figure, panels[0], 3)
    note = (
        "The source does not define its score. a: mean of two-part consistency and Spearman(V, I); b: mean of 1 - |p* - p'| / L "
        "(p': the best position under the target attention) and Spearman(V, V of the target attention). "
        f"{parameter_note(spec)} {interval_note(spec)}"
    )
    save(figure, path, record, note)


def draw_consistency_and_ranking(record: Record, path: Path) -> None:
    spec = record["spec"]
    figure, panels = sheet(1, 3, 11, 3.8, sharex=True, sharey=True)
    markers = dict(zip(patterns(record), "osD^v", strict=True))
    for axes, weights in zip(panels, WEIGHTS, strict=True):
        for form in FORMS:
            style = form_style(weights, form)
            for pattern, marker in markers.items():
                x = head_means(record, weights, form, pattern, "ranking")
                y = head_means(record, weights, form, pattern, "consistency")
                kind = SeriesStyle(style.colour, marker, style.dash, style.filled)
                axes.plot(
                    x, y, linestyle="none", marker=".", markersize=4, markeredgewidth=0, color=style.colour, alpha=0.45
                )
                (mean_x, low_x, high_x), (mean_y, low_y, high_y) = (
                    mean_and_interval(x, CORRELATION),
                    mean_and_interval(y, SHARE),
                )
                axes.plot([low_x, high_x], [mean_y, mean_y], color=style.colour, linewidth=0.8, alpha=0.45, zorder=1)
                axes.plot([mean_x, mean_x], [low_y, high_y], color=style.colour, linewidth=0.8, alpha=0.45, zorder=1)
                axes.plot([mean_x], [mean_y], linestyle="none", **kind.points(), zorder=3)
        axes.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        label(axes, WEIGHTS[weights], "ranking: Spearman(V, I)", "two-part consistency" if weights == "random" else "")
    for pattern, marker in markers.items():
        panels[2].plot([], [], linestyle="none", marker=marker, color="black", markersize=5, label=pattern)
    for form, name in FORMS.items():
        panels[2].plot([], [], color=SERIES_STYLES[form].colour, linewidth=4, label=name)
    letters(panels)
    legend_above(figure, panels[2], 8)
    note = f"One marker per pattern and form; bars: 95 % t-intervals over {len(spec['seeds'])} heads; dots: each head. {parameter_note(spec)}"
    save(figure, path, record, note)


def draw_radar(record: Record, path: Path) -> None:
    spec, names = record["spec"], patterns(record)
    figure, polar = sheet(1, 2, 9.5, 4.6, subplot_kw={"projection": "polar"})
    panels: list[Any] = list(polar)
    angles = [2 * math.pi * n / len(names) for n in range(len(names))]
    for axes, measure, title in zip(
        panels,
        ("consistency", "true_position"),
        ("two-part consistency", "position against the task's answer"),
        strict=True,
    ):
        for weights, form in (
            ("random", "basic"),
            ("random", "enhanced"),
            ("trained", "basic"),
            ("trained", "enhanced"),
        ):
            values = [mean_and_interval(head_means(record, weights, form, name, measure))[0] for name in names]
            style = form_style(weights, form)
            line = style.line() | {"linewidth": 1.6 if weights == "trained" else 0.9}
            axes.plot(
                [*angles, angles[0]],
                [*values, values[0]],
                **line | style.points(5),
                label=f"{WEIGHTS[weights]}, {form}",
            )
        if measure == "consistency":
            guess = [
                sum(x) / len(x) for x in (head_means(record, "trained", "enhanced", name, "guess") for name in names)
            ]  # fmt: skip
            axes.plot(
                [*angles, angles[0]],
                [*guess, guess[0]],
                color="black",
                linewidth=1,
                linestyle=":",
                label="a random guess",
            )
        axes.set_theta_offset(math.pi / 2)
        axes.set_theta_direction(-1)
        axes.set_xticks(angles, names, fontsize=8.5)
        axes.set_ylim(0, 1)
        axes.set_yticks([0.25, 0.5, 0.75, 1.0], ["0.25", "0.5", "0.75", "1"], fontsize=7, color="0.35")
        axes.tick_params(axis="x", pad=7)
        for name, angle in zip(axes.get_xticklabels(), angles, strict=True):  # labels do not overlap the rim
            side = math.sin(angle)
            name.set_horizontalalignment("center" if abs(side) < 0.1 else "left" if side > 0 else "right")
        axes.set_rlabel_position(36)
        axes.grid(color="0.88", linewidth=0.6)
        axes.set_title(title, fontsize=9, fontweight="bold", pad=14)
    legend_above(figure, panels[0], 5)
    note = (
        "From 0 at the centre to 1 at the rim; means over heads. Order and area have no meaning; the same values with intervals "
        f"are in verification_results.png and consistency_verification.png. {parameter_note(spec)}"
    )
    save(figure, path, record, note)


def draw_deviations(record: Record, path: Path) -> None:
    spec = record["spec"]
    figure, panels = sheet(1, 2, 10, 3.5)
    for axes, measure in zip(panels, ("consistency", "ranking"), strict=True):
        for group, pattern in enumerate(patterns(record)):
            cells = [(weights, form) for weights in ("random", "trained") for form in ("basic", "enhanced")]
            for number, (weights, form) in enumerate(cells):
                heads = head_runs(record, weights, form, pattern, measure)
                around = [x - sum(runs) / len(runs) for runs in heads for x in runs]
                low, middle, high = bootstrap_rms(around)
                style = form_style(weights, form)
                axes.errorbar(
                    [group + (number - 1.5) * 0.18], [middle], yerr=[[middle - low], [high - middle]], ecolor=style.colour,
                    elinewidth=1.2, capsize=2.5, linestyle="none", **style.points(),
                    label=f"{WEIGHTS[weights]}, {form}" if group == 0 else None,
                )  # fmt: skip
        axes.set_xticks(range(len(patterns(record))), patterns(record))
        axes.set_ylim(-0.03 * axes.get_ylim()[1], None)
        axes.grid(axis="y", color="0.92", linewidth=0.6)
        name = "two-part consistency" if measure == "consistency" else "ranking"
        label(axes, name, "information pattern", "standard deviation over runs")
    letters(panels)
    legend_above(figure, panels[0], 4)
    note = (
        f"Standard deviation of {spec['runs']} runs around their head's mean; bars: 95 % bootstrap intervals (2000 draws of "
        f"runs). {parameter_note(spec)}"
    )
    save(figure, path, record, note)


def bootstrap_rms(differences: list[float], draws: int = 2000) -> tuple[float, float, float]:
    """The root mean square of differences and its percentile bootstrap interval, with fixed draws."""
    generator, n = random.Random(0), len(differences)
    squares = [x * x for x in differences]
    resampled = sorted(math.sqrt(sum(generator.choices(squares, k=n)) / n) for _ in range(draws))
    middle = math.sqrt(sum(squares) / n)
    return min(resampled[draws // 40], middle), middle, max(resampled[-draws // 40 - 1], middle)

"""The pictures of experiment 2: ``output/optimal/``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.cells import by_head, patterns
from whence_papers.epar.experiments.figures import optimal_scores
from whence_papers.epar.experiments.figures.words import FORMS, WEIGHTS, numbers, over_heads, shown
from whence_papers.epar.experiments.source import CONSISTENCY, RANKING
from whence_papers.figure_style import LOOKS, TRUTH, Look, label, legend_above, letters, point, save, sheet
from whence_papers.intervals import CORRELATION, SHARE

Record = dict[str, Any]


def draw(record: Record, folder: Path) -> None:
    verification(record, folder / "verification_results.png")
    consistency(record, folder / "consistency_verification.png")
    score_analysis(record, folder / "position_score_analysis.png")
    optimal_scores.comprehensive(record, folder / "comprehensive_performance_score.png")
    optimal_scores.against_ranking(record, folder / "consistency_vs_ranking_correlation.png")
    optimal_scores.radar(record, folder / "information_type_radar_comparison.png")
    optimal_scores.deviations(record, folder / "standard_deviation_analysis.png")


def grouped(record: Record, axes: Any, weights: str, measure: str) -> None:
    """One group a pattern, one point a form."""
    for group, pattern in enumerate(patterns(record)):
        for shift, form in zip((-0.24, 0, 0.24), FORMS, strict=True):
            name = FORMS[form] if group == 0 else None
            values = by_head(record, weights, form, pattern, measure)
            within = CORRELATION if measure == "ranking" else SHARE
            point(axes, group + shift, values, shown(weights, form), name, within)
    axes.set_xticks(range(len(patterns(record))), patterns(record), fontsize=7.5)
    axes.grid(axis="y", color="0.92", linewidth=0.6)


def verification(record: Record, path: Path) -> None:
    spec = record["spec"]
    rows = {"consistency": ("two-part consistency", CONSISTENCY), "ranking": ("ranking: Spearman(V, I)", RANKING)}
    figure, panels = sheet(2, 3, 11, 6.0, sharey="row")
    for row, (measure, (unit, source)) in enumerate(rows.items()):
        for axes, weights in zip(panels[3 * row : 3 * row + 3], WEIGHTS, strict=True):
            if measure == "consistency":
                for group, pattern in enumerate(patterns(record)):
                    level = sum(by_head(record, weights, "enhanced", pattern, "guess")) / len(spec["seeds"])
                    axes.plot([group - 0.38, group + 0.38], [level, level], color="black", linewidth=1.1, zorder=1,
                              label="a random guess" if group == 0 else None)  # fmt: skip
            else:
                axes.axhline(0, color="0.6", linewidth=0.8)
            grouped(record, axes, weights, measure)
            for pattern, (basic, enhanced) in source.items():
                at = patterns(record).index(pattern)
                for shift, value, form in ((0.08, basic, "basic"), (0.32, enhanced, "enhanced")):
                    axes.plot([at + shift], [value], linestyle="none", marker="x", markersize=6, markeredgewidth=1.6,
                              color=LOOKS[form].colour, zorder=4,
                              label=f"the source's {form}" if at == 1 else None)  # fmt: skip
            label(axes, WEIGHTS[weights] if row == 0 else "", "information pattern" if row else "", unit)
            axes.label_outer()
    letters(panels)
    legend_above(figure, panels[2], 6)
    note = (
        f"{spec['runs']} runs a pattern, {spec['runs'] // len(spec['seeds'])} for each head. Consistency: "
        "(value part + place part) / 2 of the source's prediction argmax_i(row mean of A x I), which is argmax I. "
        f"{numbers(spec)} {over_heads(spec)}"
    )
    save(figure, path, record, note)


def consistency(record: Record, path: Path) -> None:
    spec = record["spec"]
    measures = {
        "value_part": "value part: 1 - |V(p*) - V(p)| / V(p*)",
        "place_part": "plain distance form: 1 - |p* - p| / L",
        "true_place": "against the task: 1 - |p* - p'| / L",
    }
    figure, panels = sheet(2, 3, 11, 5.8, sharey="col", sharex=True)
    for row, weights in enumerate(("random", "trained")):
        for axes, (measure, unit) in zip(panels[3 * row : 3 * row + 3], measures.items(), strict=True):
            grouped(record, axes, weights, measure)
            if measure != "value_part":
                axes.axhline(2 / 3, color="black", linewidth=0.9, linestyle=":", label="two random positions")
            label(axes, f"{WEIGHTS[weights]}", "information pattern" if row else "", unit)
    letters(panels)
    legend_above(figure, panels[1], 4)
    note = (
        "p* = argmax V; p: the source's prediction; p': the best position under the attention that the task wants. The value "
        "part cannot fall below 1 - (max V - min V) / max V, whatever is predicted; on average that is "
        f"{_least(record, 'random'):.3f} untrained and {_least(record, 'trained'):.3f} trained. {numbers(spec)} {over_heads(spec)}"
    )
    save(figure, path, record, note)


def _least(record: Record, weights: str) -> float:
    """The least V over the greatest of a sequence: the mean over both forms, all patterns and runs."""
    cells = [
        by_head(record, weights, form, name, "spread") for form in ("basic", "enhanced") for name in patterns(record)
    ]
    return 1 - sum(sum(cell) / len(cell) for cell in cells) / len(cells)


def score_analysis(record: Record, path: Path) -> None:
    examples, spec = record["results"]["examples"], record["spec"]
    figure, panels = sheet(2, len(examples), 12, 5.0, sharex=True, sharey=True)
    for column, (pattern, one) in enumerate(examples.items()):
        for row, weights in enumerate(("random", "trained")):
            axes = panels[row * len(examples) + column]
            axes.fill_between(range(spec["length"]), one["importance"], step="mid", color="0.88", label="importance I")
            for curve, look, name in _curves(weights):
                values = one["values"][curve]
                axes.plot(range(spec["length"]), values, **look.line(), label=name)
                best = one["best"][curve][0]
                axes.plot([best], [values[best]], linestyle="none", **look.points(8 if look is TRUTH else 6), zorder=4)
            axes.set_ylim(0, 1.08)
            title = pattern if row == 0 else ""
            label(
                axes, title, "position (token)" if row else "", f"{WEIGHTS[weights]}\nI and V(i)" if column == 0 else ""
            )
    letters(panels[: len(examples)])
    legend_above(figure, panels[len(examples)], 4)
    note = (
        f"One sequence a pattern, head of seed {spec['seeds'][0]}; marks: the position of maximum benefit of each curve. Over "
        f"all runs the least V is {_least(record, 'random'):.3f} of the greatest with untrained weights, "
        f"{_least(record, 'trained'):.3f} with trained ones. {numbers(spec)}"
    )
    save(figure, path, record, note)


def _curves(weights: str) -> Iterator[tuple[str, Look, str]]:
    yield "wanted", TRUTH, "V under the wanted attention"
    for form in ("basic", "enhanced"):
        yield f"{weights}, {form}", shown(weights, form), f"V, {form}"

"""The text report of experiment 1: what the source's Theorem 1 says, tried, and its retention figures, recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.tables.writing import paragraph, said, section, table, write_report


def write(record: dict[str, Any], folder: Path) -> None:
    parts = [properties(record), retention(record), attention(record)]
    write_report(folder / "position_effect_report.txt", record, "Experiment 1: the position effect", parts)


def properties(record: dict[str, Any]) -> str:
    lines = []
    for one in record["results"]["evidence"]:
        found = "holds" if one["holds"] else f"FAILS, by {one['violation']:.3g}"
        lines.append(
            paragraph(f"{one['form']}: {one['statement']}: {found} ({one['checked']} checks: {one['where']}).")
        )
        if one["counter_example"]:
            shown = ", ".join(f"{name} {value:.4g}" for name, value in one["counter_example"].items())
            lines.append(paragraph(f"    for example: {shown}"))
    return section("Theorem 1 and the bound, each tried on a grid", *lines)


def retention(record: dict[str, Any]) -> str:
    found = record["results"]["retention"]
    source, half = found["source"], len(found["share"]) // 2
    rows = [
        ["kept of a score", "computed", "the source"],
        ["basic, at L", f"{found['basic'][-1]:.3f}", f"{source['basic_far']:.3f}"],
        ["enhanced, at L", f"{found['enhanced'][-1]:.3f}", f"{source['enhanced_far']:.3f}"],
        ["gain at L", f"{found['gain'][-1]:.2f}x", f"{source['gain_far']:g}x"],
        ["gain at L/2", f"{found['gain'][half]:.2f}x", f"{source['gain_medium']:g}x"],
    ]
    beta = found["beta_of_the_source's_basic_figure"]
    there = (
        f"The source's basic figure needs beta = {beta:.3f}; with that beta the enhanced form keeps "
        f"{found['enhanced_at_that_beta'][-1]:.3f} at L, a gain of {found['gain_at_that_beta'][-1]:.1f}x "
        f"({found['gain_at_that_beta'][0]:.1f}x at L/2)."
    )
    agree = found["figures_agree"]
    verdict = "agree" if agree["holds"] else f"do not agree (gain at L/2 off by {agree['violation']:.3g})"
    return section("Information retention", table(rows), paragraph(f"{there} The source's three figures {verdict}."))


def attention(record: dict[str, Any]) -> str:
    found = record["results"]["statistics"]
    rows = [["mean [95 % interval over heads]", *next(iter(found["random"].values()))]]
    for weights, forms in found.items():
        for form, measured in forms.items():
            cells = [said([sum(runs) / len(runs) for runs in by_head]) for by_head in measured.values()]
            rows.append([f"{weights} weights, {form}", *cells])
    return section("Attention of heads, all five patterns", table(rows))

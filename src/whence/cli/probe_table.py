"""The table that ``whence probe`` prints, and the answers under it."""

from __future__ import annotations

from typing import Any

CAPTION = (
    "Slots count from 1. Choice: % of items whose answer is more likely than every rival. Probability: mean probability of "
    "the answer among the answer and its rivals, in %. Generation: % of items with the answer in the generated text. p: permutation test of "
    "the gap between best and worst slot, Holm-corrected over all rows."
)


def print_table(told: dict[str, Any]) -> None:
    """A row for every task and measure, then one sentence for each task and one for all of them."""
    from rich.console import Console
    from rich.table import Table

    from whence.report.probe.sentences import SHORT, headline, section_answer, too_few

    table = Table(title=told["title"], title_justify="left", caption=CAPTION, caption_justify="left", box=None,
                  padding=(0, 1, 0, 0))  # fmt: skip
    for name in ("task", "measure", "% by slot", "mean", "gap", "p", "worst", "closed", "oracle"):
        curve = name == "% by slot"
        table.add_column(name, no_wrap=not curve, min_width=13 if curve else None)
    for task in told["tasks"]:
        for number, curve in enumerate(task["curves"]):
            lines = (curve["baselines"].get(name) for name in ("closed book", "oracle"))
            table.add_row(
                ("" if number else task["task"]),
                SHORT[curve["score"]],
                " ".join(f"{p['slot'] + 1}:{100 * p['mean']:.0f}" for p in curve["points"]),
                f"{100 * curve['average']:.0f}",
                f"{100 * curve['gap']:.0f}",
                f"{curve['corrected_p']:.1g}",
                str(curve["worst"] + 1) if curve["gap"] else "-",
                *(f"{100 * line['mean']:.0f}" if line else "-" for line in lines),
            )
    console = Console(highlight=False)
    console.print(table)
    for task in told["tasks"]:
        few = too_few(task["items"])
        console.print(f"{task['task']}: {headline(task)}" + (f" {few}" if few else ""), markup=False)
    console.print(section_answer(told), markup=False, style="bold")
    if told["missing"]:
        print(f"not measured yet: {', '.join(told['missing'])}")

"""``whence probe``"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.errors import refusal

if TYPE_CHECKING:
    from whence.bias.plan import Plan

HELP = "See a pretrained model's positional bias, and where it comes from; write a report to send on."
EXAMPLES = """Examples:

whence probe smollm2

whence probe --quick

whence probe smollm2 --task key-value --items 40 --score generation

whence probe smollm2 --full --doubts --device cuda"""


def probe(
    model: Annotated[str, typer.Argument(help="smollm2, a folder, a GGUF file or a name on the hub")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="a tiny random model, in seconds")] = False,
    full: Annotated[bool, typer.Option("--full", help="enough items for +-5 points; for a GPU")] = False,
    task: Annotated[list[str] | None, typer.Option(help="only this task of the plan; again for more")] = None,
    items: Annotated[int | None, typer.Option(help="items of each task", min=1)] = None,
    score: Annotated[list[str] | None, typer.Option(help="likelihood or generation; again for both")] = None,
    doubts: Annotated[bool, typer.Option("--doubts", help="test three doubts about positional channels too")] = False,
    device: Annotated[str, typer.Option(help="where the model runs")] = "cpu",
    out: Annotated[Path, typer.Option(help="folder for records and the report")] = Path("build/probe"),
) -> None:
    from whence.bias import doubts as doubting
    from whence.bias import explaining, measuring, subject
    from whence.bias.findings import findings

    plan, size = planned(model, quick, full, task, items, score)
    for one in plan.asked:
        one.made()  # what cannot be asked is refused before a model is loaded
    asked = subject.load(plan.model, device)
    with progress() as notify:
        folder, found = measuring.measure(asked, plan, out, notify)
        explanation = explaining.explain(asked, plan, folder, found, notify)
        tested = doubting.write_all(asked, folder, doubting.SIZES[size], notify) if doubts else []
    told = findings(plan, folder, found, explanation, tested, " ".join(["whence", *sys.argv[1:]]))
    print_table(told)
    print(f"report: {write_page(told, folder / 'report.html')}")


def planned(
    model: str, quick: bool, full: bool, tasks: list[str] | None, items: int | None, scores: list[str] | None
) -> tuple[Plan, str]:
    """The plan that the options ask for, and the name of its size."""
    import dataclasses

    from whence.bias import plan as plans

    if quick and (full or model):
        raise refusal("whence probe --quick", "another model or size", "it has its own", "leave the others out")
    if not quick and not model:
        raise refusal("whence probe", "no model", "it looks into one", "name one, such as smollm2, or add --quick")
    made = plans.quick() if quick else plans.full(model) if full else plans.usual(model, documents=documents_there())
    asked = made.asked
    if tasks:
        known = {one.task: one for one in asked}
        unknown = [name for name in tasks if name not in known]
        if unknown:
            raise refusal(
                "whence probe --task", ", ".join(unknown), f"this plan has {', '.join(known)}", "name one of them"
            )
        asked = tuple(known[name] for name in tasks)
    if items:
        asked = tuple(dataclasses.replace(one, items=items) for one in asked)
    made = dataclasses.replace(made, asked=asked, scores=tuple(scores or made.scores))
    return made, "quick" if quick else "full" if full else "usual"


def documents_there() -> bool:
    """Whether the published passages are in the data folder; without them the plan has one task less, and says so."""
    from whence.bias.tasks.documents import FILE

    there = (Path(os.environ.get("WHENCE_DATA", "")) / FILE).is_file()
    if not there:
        print("no questions over documents: WHENCE_DATA names no folder with lost_in_the_middle", file=sys.stderr)
    return there


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """One bar for each kind of work on a terminal, one line a piece of it elsewhere; both say how long is left."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bars:
            bar = bars.add_task("probe", total=None)

            def notify(done: int, total: int, words: str) -> None:
                if done == 1:
                    bars.reset(bar)
                bars.update(bar, total=total, completed=done, description=words)

            yield notify
        return
    began = [time.monotonic()]

    def say(done: int, total: int, words: str) -> None:
        if done == 1:
            began[0] = time.monotonic()
        left = (time.monotonic() - began[0]) / max(1, done - 1) * (total - done)
        print(f"{done} of {total}, {words}" + (f"; about {left:.0f} s left" if done > 1 else ""), file=sys.stderr)

    yield say


def print_table(told: dict[str, Any]) -> None:
    """The curves on the terminal."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=told["title"], title_justify="left", caption="right answers in %; slots counted from 1", box=SIMPLE
    )
    for name in ("task", "score", "right by slot", "mean", "gap (p)", "worst", "closed", "oracle"):
        table.add_column(name, no_wrap=name != "right by slot")
    for task in told["tasks"]:
        for curve in (curve for curve in task["curves"] if curve["score"] != "share"):
            table.add_row(
                task["task"],
                curve["score"],
                " ".join(f"{p['place'] + 1}:{100 * p['mean']:.0f}" for p in curve["places"]),
                f"{100 * curve['average']:.0f}",
                f"{100 * curve['gap']:.0f} ({curve['gap_p']:.2g})",
                str(curve["worst"] + 1) if curve["gap"] else "-",
                *(f"{100 * curve['lines'][name]['mean']:.0f}" for name in ("closed book", "oracle")),
            )
    Console().print(table)


def write_page(told: dict[str, Any], path: Path) -> Path:
    """The page, whole or not at all."""
    from whence import records
    from whence.report.probe import page

    records.write_text(path, page(told))
    return path

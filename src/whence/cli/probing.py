"""``whence probe``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from whence.errors import MissingExtra, refusal

HELP = "See a pretrained model's positional bias, and where it comes from; write a report to send on."
EXAMPLES = """Examples:

whence probe smollm2

whence probe --quick

whence probe smollm2 --task key-value --items 40 --score generation

whence probe smollm2 --task key-value --length 4 --length 8 --length 16

whence probe smollm2 --full --doubts --device cuda

whence probe smollm2 --full --device cuda --only ask --minutes 8"""

PARTS = ("ask", "explain", "doubts")


def probe(
    model: Annotated[str, typer.Argument(help="smollm2, a folder, a GGUF file or a name on the hub")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="a tiny random model, in seconds")] = False,
    full: Annotated[bool, typer.Option("--full", help="enough items for +-5 points; for a GPU")] = False,
    task: Annotated[list[str] | None, typer.Option(help="only this task of the plan; again for more")] = None,
    items: Annotated[int | None, typer.Option(help="items of each task", min=1)] = None,
    score: Annotated[list[str] | None, typer.Option(help="likelihood or generation; again for both")] = None,
    doubts: Annotated[bool, typer.Option("--doubts", help="test three doubts about positional channels too")] = False,
    length: Annotated[
        list[int] | None, typer.Option(help="slots of every task; again for curves of several lengths", min=2)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="do this part and write no report: ask, explain, doubts")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="stop after these; the same command goes on", min=0)] = None,
    dtype: Annotated[
        str | None, typer.Option(help="of the model while it is asked: float32, bfloat16, float16")
    ] = None,
    device: Annotated[str, typer.Option(help="where the model runs")] = "cpu",
    out: Annotated[Path, typer.Option(help="folder for records and the report")] = Path("build/probe"),
) -> None:
    from whence.bias import doubts as doubting
    from whence.bias import explaining, kept, measuring, subject
    from whence.cli.probe_plans import planned
    from whence.cli.progress import OutOfTime, probe_progress

    plan, size = planned(model, quick, full, task, items, score, dtype, length)
    parts = chosen_parts(only, doubts)
    tasks = [one.made() for one in plan.asked]  # what cannot be asked is refused before a model is loaded
    asked = subject.load(plan.model, device, plan.dtype)
    # what is measured inside a model is small beside the rounding of short numbers
    exact = asked if plan.dtype == "float32" or parts == {"ask"} else subject.load(plan.model, device)
    folder = kept.begun(asked, plan, out, tasks)
    try:
        with probe_progress(minutes) as notify:
            if "ask" in parts:
                measuring.measure(asked, plan, out, notify)
            if "explain" in parts:
                explaining.explain(exact, plan, folder, notify)
            if "doubts" in parts:
                doubting.write_all(exact, folder, doubting.SIZES[size], notify)
    except OutOfTime:
        print(f"stopped after {minutes:g} minutes; run the same command to resume. Records: {folder}")
        return
    if only:
        print(f"done: {', '.join(sorted(parts))}; without --only a report is written. Records: {folder}")
        return
    print(f"report: {write_report(folder)}")


def write_report(folder: Path, out: Path | None = None) -> Path:
    """The table on the terminal and the page, from the records of a probe alone."""
    from whence.bias import kept
    from whence.bias.findings import findings
    from whence.cli.probe_plans import command
    from whence.cli.probe_table import print_table

    told = findings(folder, "")
    device = "cuda" if any(place["environment"]["machine"].get("accelerator") for place in told["ran"]) else "cpu"
    told["command"] = command(kept.plan_in(folder)[0], bool(told["doubts"]), device) or f"whence report {folder}"
    print_table(told)
    page = write_page(told, out or folder / "report.html")
    write_pictures(told, page.parent)
    return page


def write_pictures(told: dict[str, Any], folder: Path) -> None:
    """The curves as a picture, and their explanations as another; the page is there without them too."""
    from whence.report.png import write_png
    from whence.report.probe.picture import curves_picture
    from whence.report.probe.why import why_picture

    drawings = {"curves": curves_picture}
    if any(told["explanation"].values()):
        drawings["explanations"] = why_picture
    for name, drawing in drawings.items():
        try:
            write_png(drawing(told), folder / f"{name}.png")
        except MissingExtra as missing:
            print(f"no picture of the {name}: {missing}", file=sys.stderr)
        else:
            print(f"{name}: {folder / f'{name}.png'}")


def chosen_parts(only: list[str] | None, doubts: bool) -> set[str]:
    """The parts of a probe that are worked on."""
    unknown = [name for name in only or () if name not in PARTS]
    if unknown:
        raise refusal(
            "whence probe --only", ", ".join(unknown), f"the parts are {', '.join(PARTS)}", "name one of them"
        )
    return set(only) if only else {"ask", "explain", *(["doubts"] if doubts else [])}


def write_page(told: dict[str, Any], path: Path) -> Path:
    """The page, whole or not at all."""
    from whence import records
    from whence.report.probe import page

    records.write_text(path, page(told))
    return path

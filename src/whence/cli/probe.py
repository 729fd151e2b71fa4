"""``whence probe``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from whence.errors import MissingExtra, usage_error

HELP = "See a pretrained model's positional bias, and where it comes from; write a report to send on."
EXAMPLES = """Examples:

whence probe smollm2

whence probe --quick

whence probe smollm2 --task key-value --items 40 --score generation

whence probe smollm2 --task key-value --length 4 --length 8 --length 16

whence probe smollm2 --items my_items.jsonl --slots 1,3,5 --chat

whence probe smollm2 --task "./my_task.py:MyTask(words=30)"

whence probe my-model --endpoint http://localhost:8000/v1 --chat

whence probe smollm2 --full --device cuda

whence probe smollm2 --full --device cuda --only ask --minutes 8

A line of my_items.jsonl: {"question": "...", "gold": "...", "others": ["...", "..."], "answers": ["..."]}"""

PARTS = ("ask", "explain")


def probe(
    model: Annotated[str, typer.Argument(help="smollm2, a folder, a GGUF file or a name on the hub")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Smoke test with a tiny random model, in seconds.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Enough items for +-5 points; for a GPU.")] = False,
    task: Annotated[
        list[str] | None, typer.Option(help="A task of the plan, module:Name or ./file.py:Name. Repeat for more.")
    ] = None,
    items: Annotated[
        list[str] | None, typer.Option(help="Items of each task, or a JSONL file of your own. Repeat for both.")
    ] = None,
    score: Annotated[list[str] | None, typer.Option(help="likelihood or generation. Repeat for both.")] = None,
    length: Annotated[
        list[int] | None, typer.Option(help="Slots of every task. Repeat for curves of several lengths.", min=2)
    ] = None,
    slots: Annotated[
        str | None, typer.Option(help="Slots for the gold: a count, or a list from 1 such as 1,5,10.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the tokenizer's chat template. Default: raw text.")
    ] = False,
    layers: Annotated[str | None, typer.Option(help="Layers to look at, counted from 0, such as 1,3,5.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Do this part and write no report: ask, explain.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time limit in minutes. Rerun to resume.", min=0)] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the model for answers: float32, bfloat16, float16.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device of the model.")] = "cpu",
    device_map: Annotated[
        str | None, typer.Option(help="Device map of accelerate, such as auto. Overrides --device.")
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens in one batch.", min=1)] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="OpenAI-compatible URL up to /v1. Generation scores only.")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable with the endpoint's API key.")
    ] = "OPENAI_API_KEY",
    timeout: Annotated[
        float, typer.Option(help="Time limit of one request to the endpoint, in seconds.", min=0.1)
    ] = 120,
    out: Annotated[Path, typer.Option(help="Folder for records and the report.")] = Path("build/probe"),
) -> None:
    from whence.cli.probe_plans import parse_numbers, plan_from_options, split_items_option
    from whence.cli.progress import OutOfTime, probe_progress
    from whence.probe import analyses, measurement, probed_model, run_folder
    from whence.probe.endpoint import Endpoint
    from whence.probe.identity import identify
    from whence.probe.tasks import ITEMS
    from whence.probe.tasks.user_tasks import describe_suspect_items

    count, files = split_items_option(items)
    plan, _ = plan_from_options(
        model, quick, full, task, count, score, dtype, length, files=files, slots=slots, chat=chat,
        layers=None if layers is None else parse_numbers("--layers", layers, 0), revision=revision, endpoint=endpoint,
    )  # fmt: skip
    parts = chosen_parts(only)
    tasks = measurement.build_tasks(plan)  # what cannot be lm is refused before a model is loaded
    for own in (made for one, made in zip(plan.tasks, tasks, strict=True) if one.task == ITEMS):
        if doubtful := describe_suspect_items(own.items):
            print(f"warning: {own.name}:{doubtful}", file=sys.stderr)
    options: dict[str, Any] = {
        "revision": revision, "device_map": device_map, "chat": chat, "layers": plan.layers, "batch_tokens": batch_tokens,
    }  # fmt: skip
    lm: probed_model.ProbedModel | Endpoint
    if plan.endpoint is not None:
        lm = Endpoint(plan.model, plan.endpoint, plan.chat, api_key_env, timeout)
    else:
        lm = probed_model.load(plan.model, device, plan.dtype, **options)
    if lm.capture_error:
        if parts - {"ask"}:
            print(f"curves only, no explanations: {lm.capture_error}", file=sys.stderr)
        parts &= {"ask"}
    plan = run_folder.with_identity(plan, identify(lm))
    folder = run_folder.open_folder(lm, plan, out, tasks)
    try:
        with probe_progress(minutes) as notify:
            if "ask" in parts:
                measurement.measure(lm, plan, out, notify)
            if isinstance(lm, probed_model.ProbedModel) and parts - {"ask"}:
                # what is measured inside a model is small beside the rounding of short numbers
                exact = lm if plan.dtype == "float32" else probed_model.load(plan.model, device, **options)
                analyses.explain(exact, plan, folder, notify)
    except OutOfTime:
        print(f"stopped after {minutes:g} minutes; run the same command to resume. Records: {folder}")
        return
    if only:
        print(f"done: {', '.join(sorted(parts))}; without --only a report is written. Records: {folder}")
        return
    print(f"report: {write_report(folder)}")


def write_report(folder: Path, out: Path | None = None) -> Path:
    """The table on the terminal and the page, from the records of a probe alone."""
    from whence.cli.probe_plans import rerun_command
    from whence.cli.probe_table import print_table
    from whence.probe import run_folder
    from whence.probe.findings import findings

    told = findings(folder, "")
    device = "cuda" if any(place["environment"]["machine"].get("accelerator") for place in told["ran"]) else "cpu"
    told["command"] = rerun_command(run_folder.load_plan(folder)[0], device) or f"whence report {folder}"
    print_table(told)
    page = write_page(told, out or folder / "report.html")
    write_pictures(told, page.parent)
    return page


def write_pictures(told: dict[str, Any], folder: Path) -> None:
    """The curves as a picture, and their explanations as another; the page is there without them too."""
    from whence.report.png import write_png
    from whence.report.probe.figures import curves_figure, explanations_figure

    drawings = {"curves": curves_figure}
    if any(told["explanation"].values()):
        drawings["explanations"] = explanations_figure
    for name, drawing in drawings.items():
        try:
            write_png(drawing(told), folder / f"{name}.png")
        except MissingExtra as missing:
            print(f"no picture of the {name}: {missing}", file=sys.stderr)
        else:
            print(f"{name}: {folder / f'{name}.png'}")


def chosen_parts(only: list[str] | None) -> set[str]:
    """The parts of a probe that are worked on."""
    unknown = [name for name in only or () if name not in PARTS]
    if unknown:
        raise usage_error(
            "whence probe --only", ", ".join(unknown), f"the parts are {', '.join(PARTS)}", "name one of them"
        )
    return set(only) if only else {"ask", "explain"}


def write_page(told: dict[str, Any], path: Path) -> Path:
    """The page, whole or not at all."""
    from whence import records
    from whence.report.probe import page

    records.write_text(path, page(told))
    return path

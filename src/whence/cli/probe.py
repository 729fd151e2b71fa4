"""``whence probe``"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli.json_output import JsonOption, json_document
from whence.cli.model_options import (
    BatchTokens,
    Chat,
    Device,
    DeviceMap,
    InterventionName,
    Items,
    KeepRotary,
    PositionName,
    Revision,
    Slots,
    TaskNames,
)
from whence.errors import usage_error

if TYPE_CHECKING:
    from whence.probe.endpoint import Endpoint
    from whence.probe.probed_model import ProbedModel

HELP = "Measure the positional bias of a pretrained model and where it comes from. Write a self-contained HTML report."
EXAMPLES = """Examples:

whence probe smollm2

whence probe --quick

whence probe smollm2 --task key-value --items 40 --score generation

whence probe smollm2 --task key-value --length 4 --length 8 --length 16

whence probe smollm2 --items my_items.jsonl --slots 1,3,5 --chat

whence probe smollm2 --task "./my_task.py:MyTask(words=30)"

whence probe smollm2 --position ./bell.py:Bell

whence probe smollm2 --position "Rotary(base=50000)" --replace-rotary

whence probe smollm2 --intervention "attention-temperature(temperature=1.5)"

whence probe my-model --endpoint http://localhost:8000/v1 --chat

whence probe smollm2 --full --device cuda

whence probe smollm2 --full --device cuda --only measure --minutes 8

A line of my_items.jsonl: {"question": "...", "gold": "...", "others": ["...", "..."], "answers": ["..."]}"""

PARTS = ("measure", "explain")


def probe(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="smollm2, a folder, a GGUF file or a name on the hub.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Smoke test with a tiny random model, in seconds.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Enough items for intervals of +-5 points. Use a GPU.")] = False,
    task: TaskNames = None,
    items: Items = None,
    score: Annotated[list[str] | None, typer.Option(help="Score: likelihood or generation. Repeat for both.")] = None,
    length: Annotated[
        list[int] | None, typer.Option(help="Slots of every task. Repeat for curves of several lengths.", min=2)
    ] = None,
    slots: Slots = None,
    chat: Chat = False,
    layers: Annotated[
        str | None, typer.Option(help="Layers whose attention is captured, counted from 0, such as 1,3,5.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this part and write no report: measure or explain.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Time limit in minutes. Rerun to resume.", min=0)] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the model: float32, bfloat16, float16. Analyses use float32.")
    ] = None,
    device: Device = "cpu",
    device_map: DeviceMap = None,
    revision: Revision = None,
    batch_tokens: BatchTokens = None,
    position: PositionName = None,
    keep_rotary: KeepRotary = True,
    intervention: InterventionName = None,
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
    as_json: JsonOption = False,
) -> None:
    from whence.cli.probe_options import parse_numbers, plan_from_options, print_warnings, split_items_option
    from whence.cli.probe_report import summarize_probe, write_report
    from whence.cli.progress import OutOfTime, probe_progress
    from whence.probe import analyses, measurement, probed_model, run_folder
    from whence.probe.endpoint import Endpoint
    from whence.probe.identity import identify
    from whence.probe.probed_model import ProbedModel
    from whence.records import require_output_folder

    results = ctx.with_resource(json_document("probe", as_json))
    require_output_folder("whence probe --out", out)
    count, files = split_items_option(items)
    plan, _ = plan_from_options(
        model, quick, full, task, count, score, dtype, length, files=files, slots=slots, chat=chat,
        layers=None if layers is None else parse_numbers("--layers", layers, 0), revision=revision, endpoint=endpoint,
        position=position, keep_rotary=keep_rotary, intervention=intervention,
    )  # fmt: skip
    parts = select_parts(only)
    tasks = measurement.build_tasks(plan)  # errors in tasks are raised before a model is loaded
    print_warnings(plan.tasks, tasks, slots)
    options: dict[str, Any] = {
        "revision": revision, "device_map": device_map, "chat": chat, "layers": plan.layers, "batch_tokens": batch_tokens,
        "position": position, "keep_rotary": keep_rotary,
    }  # fmt: skip
    lm: ProbedModel | Endpoint
    if plan.endpoint is not None:
        lm = Endpoint(plan.model, plan.endpoint, plan.chat, api_key_env, timeout)
    else:
        lm = probed_model.load(plan.model, device, plan.dtype, **options)
    if lm.capture_error:
        if parts - {"measure"}:
            print(f"curves only, no explanations: {lm.capture_error}", file=sys.stderr)
        parts &= {"measure"}
    try:
        with probe_progress(minutes) as notify:
            with apply_intervention(lm, intervention) as changed:
                plan = run_folder.with_identity(plan, identify(changed))
                folder = run_folder.open_folder(changed, plan, out, tasks)
                if "measure" in parts:
                    measurement.measure(changed, plan, out, notify)
            if isinstance(lm, ProbedModel) and parts - {"measure"}:
                # analyses run in float32, because their effects are small compared with the rounding of short dtypes
                exact = lm if plan.dtype == "float32" else probed_model.load(plan.model, device, **options)
                with apply_intervention(exact, intervention) as changed:
                    assert isinstance(changed, ProbedModel)
                    analyses.explain(changed, plan, folder, notify)
    except OutOfTime:
        results.update(folder=folder, report=None)
        print(f"stopped after {minutes:g} minutes; run the same command to resume. Records: {folder}")
        return
    if only:
        results.update(folder=folder, report=None)
        print(f"done: {', '.join(sorted(parts))}; without --only a report is written. Records: {folder}")
        return
    page, findings = write_report(folder)
    print(f"report: {page}")
    results.update(folder=folder, report=page, **summarize_probe(findings))


@contextmanager
def apply_intervention(lm: ProbedModel | Endpoint, text: str | None) -> Iterator[ProbedModel | Endpoint]:
    """The model with an intervention applied, which its identity then names; the model itself without one."""
    from whence.mend import identify_intervention, load_intervention
    from whence.probe.probed_model import ProbedModel

    if text is None or not isinstance(lm, ProbedModel):
        yield lm
        return
    intervention = load_intervention(text)
    with intervention.apply(lm.model):
        yield replace(lm, intervention=identify_intervention(intervention))


def select_parts(only: list[str] | None) -> set[str]:
    """The parts of a probe to run."""
    unknown = [name for name in only or () if name not in PARTS]
    if unknown:
        raise usage_error(
            "whence probe --only", ", ".join(unknown), f"the parts are {', '.join(PARTS)}", "name one of them"
        )
    return set(only) if only else set(PARTS)

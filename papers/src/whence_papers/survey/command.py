"""``whence hypotheses``"""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from whence.cli.json_output import JsonOption, json_document, select
from whence.errors import usage_error


def hypotheses(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="smollm2, a folder, a GGUF file or a name on the hub.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Smoke test with a tiny random model, in seconds.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Full size, enough for a verdict; needs a GPU.")] = False,
    minutes: Annotated[float | None, typer.Option(help="Time limit in minutes. Rerun to resume.", min=0)] = None,
    device: Annotated[str, typer.Option(help="Device, such as cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("build/hypotheses"),
    as_json: JsonOption = False,
) -> None:
    """Test three hypotheses about positional channels on a model.

    Examples:

    whence hypotheses --quick

    whence hypotheses smollm2 --full --device cuda
    """
    from whence.cli.progress import OutOfTime, probe_progress
    from whence.probe import probed_model
    from whence.records import require_output_folder
    from whence_papers.survey import hypotheses as experiments
    from whence_papers.survey.record import describe_result

    if quick == bool(model):
        raise usage_error(
            "whence hypotheses",
            "both a model and --quick" if quick else "no model",
            "exactly one of them is needed",
            "pass a model or --quick",
        )
    results = ctx.with_resource(json_document("hypotheses", as_json))
    require_output_folder("whence hypotheses --out", out)
    lm = probed_model.load(model, device) if model else probed_model.tiny_random_model()
    size = "quick" if quick else "full" if full else "usual"
    folder = out / lm.name.replace("/", "--")
    results.update(folder=folder, complete=False, hypotheses=[])
    try:
        with probe_progress(minutes) as notify:
            records = experiments.write_all(lm, folder, experiments.SIZES[size], notify)
    except OutOfTime:
        print(f"stopped after {minutes:g} minutes; run the same command to resume. Records: {out}")
        return
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    results["complete"] = True
    for record in records:
        answer = {True: "supported", False: "not supported", None: "undecided"}[record["answer"]]
        results["hypotheses"].append(
            {
                **select(record, "hypothesis", "claim", "rule", "numbers"),
                "answer": answer,
                "result": describe_result(record),
            }
        )
        for line, indent in ((f"{answer}: {record['claim']}", ""), (describe_result(record), "  ")):
            print(textwrap.fill(line, width, initial_indent=indent, subsequent_indent="  "))
    print(f"records: {out}")

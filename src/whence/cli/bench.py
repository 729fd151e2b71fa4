"""``whence bench``"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence.cli.json_output import JsonOption, json_document
from whence.cli.model_options import (
    Chat,
    Device,
    DeviceMap,
    Dtype,
    InterventionName,
    KeepRotary,
    PositionName,
    Revision,
)
from whence.errors import usage_error

if TYPE_CHECKING:
    from whence.bench.harness import BenchTask, Settings
    from whence.probe.probed_model import ProbedModel

COMMAND = "whence bench"
HELP = (
    "Score a pretrained model on benchmarks through lm-evaluation-harness, from local files. Compare two models, or one "
    "before and after a change, item by item. Write a self-contained HTML report."
)
EXAMPLES = """Examples:

whence bench --quick --benchmark squad

whence bench smollm2 --benchmark glue --benchmark squad --items 200

whence bench smollm2 --benchmark longbench --subset trec --subset samsum

whence bench smollm2 --benchmark longbench --recipe recipe.json --compare smollm2

whence bench smollm2 --benchmark wmt --position "Alibi(scale=2)" --compare build/bench/smollm2-0123456789abcdef

whence bench smollm2 --task ./task.yaml

whence bench smollm2 --task hellaswag --items 100

Benchmarks: longbench, scrolls, wmt, codexglue, glue, squad. Their files are read from the folder of WHENCE_DATA or --data."""

QUICK_ITEMS, QUICK_LENGTH, QUICK_TOKENS = 3, 512, 16


def bench(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(help="smollm2, a folder, a GGUF file, a name on the hub, or quick for a tiny random model.")
    ] = "",
    benchmark: Annotated[
        list[str] | None,
        typer.Option(help="Benchmark: longbench, scrolls, wmt, codexglue, glue or squad. Repeatable."),
    ] = None,
    subset: Annotated[
        list[str] | None, typer.Option(help="Subset of the benchmarks. Repeatable. Default: all whose files exist.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="Task of lm-evaluation-harness: a name or a YAML file. Repeatable.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smoke test: 3 items of each task, short prompts and answers.")
    ] = False,
    items: Annotated[int | None, typer.Option(help="Number of items of each task. Default: all.", min=1)] = None,
    shots: Annotated[int, typer.Option(help="Examples before each question.", min=0)] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(help="Tokens of a prompt and its answer. Default: the model's positions.", min=8),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the files. Default: the folder of WHENCE_DATA.")
    ] = None,
    chat: Chat = False,
    position: PositionName = None,
    keep_rotary: KeepRotary = True,
    intervention: InterventionName = None,
    recipe: Annotated[Path | None, typer.Option(help="Recipe of whence mend to apply.")] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="What the model is compared with: a folder of whence bench, or a model to run as well."),
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Difference below which two models are equivalent, in points.", min=0.01)
    ] = 2.0,
    budget: Annotated[str | None, typer.Option(help="Time limit, such as 20m or 2h. Rerun to resume.")] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts in one batch.", min=1)] = 1,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    device_map: DeviceMap = None,
    revision: Revision = None,
    out: Annotated[Path, typer.Option(help="Folder for records, results and reports.")] = Path("build/bench"),
    as_json: JsonOption = False,
) -> None:
    from whence.bench.harness import Settings
    from whence.cli.bench_report import summarize_benchmarks, write_bench_comparison, write_bench_report
    from whence.cli.progress import OutOfTime
    from whence.cli.training_options import parse_duration
    from whence.probe.probed_model import QUICK, require_dtype
    from whence.records import require_output_folder

    results = ctx.with_resource(json_document("bench", as_json))
    require_output_folder(f"{COMMAND} --out", out)
    if not model and not quick:
        raise usage_error(COMMAND, "no model", "it needs one", "name a model such as smollm2, or pass --quick")
    if recipe is not None and intervention is not None:
        raise usage_error(COMMAND, "--recipe and --intervention", "a recipe is an intervention", "pass one of them")
    minutes = None if budget is None else parse_duration(budget) / 60
    settings = Settings(items=items, shots=shots, chat=chat)
    if quick:
        settings = dataclasses.replace(settings, items=items or QUICK_ITEMS, max_new_tokens=QUICK_TOKENS)
        max_length = max_length or QUICK_LENGTH
    require_dtype(f"{COMMAND} --dtype", dtype)
    change = load_change(intervention, recipe)
    tasks = select_tasks(benchmark, subset, task, data, settings)  # errors in files come before a model is loaded
    options = {"device": device, "dtype": dtype, "revision": revision, "device_map": device_map, "chat": chat}
    name = model or QUICK
    baseline = None if compare is None else find_baseline(compare)
    try:
        if compare is not None and baseline is None:
            with prepare_model(compare, options, None, None, f"{COMMAND} --compare") as lm:
                baseline = run_model(lm, tasks, settings, max_length, out, batch_size, minutes)
        with prepare_model(name, options | {"keep_rotary": keep_rotary}, position, (change, recipe)) as lm:
            folder = run_model(lm, tasks, settings, max_length, out, batch_size, minutes)
    except OutOfTime:
        results.update(folder=out, report=None)
        print(f"stopped after {budget}; run the same command to resume. Records: {out}", file=sys.stderr)
        return
    page, findings = write_bench_report(folder)
    results.update(folder=folder, report=page, **summarize_benchmarks(findings))
    if baseline is not None:
        if baseline.resolve() == folder.resolve():
            raise usage_error(
                f"{COMMAND} --compare",
                str(compare),
                "the two models must differ",
                "change the model, or what is applied",
            )
        hashes = {(one.benchmark, one.name): one.hash for one in tasks}
        page, findings = write_bench_comparison((baseline, folder), None, margin=margin, hashes=hashes)
        results["comparison"] = {"report": page, **summarize_benchmarks(findings)}


def select_tasks(
    benchmark: list[str] | None, subset: list[str] | None, task: list[str] | None, data: Path | None, settings: Settings
) -> list[BenchTask]:
    """The tasks that the options name, with their rows read."""
    from whence.bench.harness import harness_version, named_task, subset_task
    from whence.bench.tasks.catalogue import BENCHMARKS, select_subsets

    if subset and not benchmark:
        raise usage_error(
            f"{COMMAND} --subset", ", ".join(subset), "a subset is part of a benchmark", "add --benchmark"
        )
    if not benchmark and not task:
        raise usage_error(
            f"{COMMAND} --benchmark", "none", f"the benchmarks are {', '.join(BENCHMARKS)}", "name one, or a --task"
        )
    harness_version()  # names the extra if it is missing
    tasks = []
    if benchmark:
        subsets, folder = select_subsets(benchmark, subset or (), data)
        tasks += [subset_task(one, folder, settings) for one in subsets]
    for text in task or ():
        tasks += named_task(text)
    return tasks


def find_baseline(text: str) -> Path | None:
    """The folder of records that ``--compare`` names; None if it names a model."""
    from whence.bench.bench_folder import PLAN
    from whence.cli.bench_report import find_benchmarks

    path = Path(text).expanduser()
    if path.suffix == ".json":
        path = path.parent
    found = find_benchmarks(path)
    if len(found) > 1:
        raise usage_error(
            f"{COMMAND} --compare", f"{text} with {len(found)} models", "it must hold one", f"name a folder with {PLAN}"
        )
    return found[0] if found else None


def load_change(intervention: str | None, recipe: Path | None) -> Any:
    """The intervention that the options name. One that needs the documents of a prompt is refused: no task marks them."""
    from whence.mend import load_intervention
    from whence.mend.cure import Cure
    from whence.mend.recipe import load_recipe_cure, read_recipe

    option = "--recipe" if recipe is not None else "--intervention"
    if recipe is not None:
        subject = f"{COMMAND} --recipe"
        change = load_recipe_cure(subject, recipe, read_recipe(subject, recipe))
    elif intervention is not None:
        change = load_intervention(intervention, option)
    else:
        return None
    rewrites = isinstance(change, Cure) and change.rewrites_prompts
    if getattr(change, "needs_documents", False) or rewrites:
        raise usage_error(
            f"{COMMAND} {option}",
            change.name,
            "this cure needs to know where the documents of a prompt are, and benchmarks do not mark them",
            "judge it with whence mend, or choose another cure, such as log-n",
        )
    return change


@contextmanager
def prepare_model(
    name: str,
    options: dict[str, Any],
    position: str | None,
    change: tuple[Any, Path | None] | None,
    command: str = COMMAND,
) -> Iterator[ProbedModel]:
    """A loaded model with what the options attach and apply, which its identity names."""
    from whence.hf import apply_recipe
    from whence.mend import identify_intervention
    from whence.probe import probed_model

    options = dict(options)
    lm = probed_model.load(
        name, options.pop("device"), options.pop("dtype"), position=position, command=command, **options
    )
    intervention, recipe = change or (None, None)
    if intervention is None:
        yield lm
        return
    identified = dataclasses.replace(lm, intervention=identify_intervention(intervention))
    with apply_recipe(lm.model, recipe) if recipe is not None else intervention.apply(lm.model):
        yield identified


def run_model(
    lm: ProbedModel,
    tasks: list[BenchTask],
    settings: Settings,
    max_length: int | None,
    out: Path,
    batch_size: int,
    minutes: float | None,
) -> Path:
    """Run the tasks on one model. Returns its folder."""
    from whence.bench.bench_folder import BenchPlan, run_tasks
    from whence.bench.harness import DEFAULT_LENGTH
    from whence.cli.progress import show_progress
    from whence.probe.identity import identify

    longest = lm.longest
    if longest is not None and max_length is not None and max_length > longest:
        raise usage_error(
            f"{COMMAND} --max-length", str(max_length), f"{lm.name} has {longest} positions", "pass at most that"
        )
    settings = dataclasses.replace(settings, max_length=max_length or longest or DEFAULT_LENGTH)
    plan = BenchPlan(lm.name, identify(lm), settings)
    with show_progress(minutes) as progress:
        return run_tasks(
            lm, plan, tasks, out, batch_size,
            lambda done, total, description, read: progress.finish(done, total, description, existing=read),
            progress.advance,
        )  # fmt: skip

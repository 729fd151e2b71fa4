"""``whence discover``"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whence import records
from whence.cli.discover_model import QUICK, Texts, discover_model
from whence.cli.json_output import JsonOption, json_document
from whence.cli.training_options import (
    BatchSize,
    Duration,
    EmbedDim,
    FfnDim,
    Heads,
    LabelColumn,
    Layers,
    LearningRate,
    Settings,
    Steps,
    TextColumn,
    Tokens,
    collect_settings,
    name_options,
    parse_duration,
)
from whence.errors import usage_error

if TYPE_CHECKING:
    from whence.lab.study import Study

BOTH = "bias and scale"
LM = "lm"  # name of a task here alone
HELP = (
    "Train models with a free curve over distance, name the formula that each kind of head learned, write it as a mechanism, "
    "and compare it with known ones."
)
EXAMPLES = """Examples:

whence discover --task lm --quick

whence discover --task retrieval --acts-on both --seeds 8 --budget 1h

whence discover --data book.txt --tokens bytes --context 64

whence discover --model smollm2

whence compare --heads 4 --position build/discover/NAME/discovered.py:Discovered --position rotary

The mechanism has the number of heads that it was learned with, which --heads repeats; the command prints it at its end.

Tasks: lm (language modelling on Python's help topics), retrieval, and every other task of whence compare."""


def discover(
    ctx: typer.Context,
    task: Annotated[
        str | None, typer.Option(help="lm, retrieval, or any task of whence compare. Default: lm without --data.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Name the attention profiles of a pretrained model instead: smollm2, a folder or a name on the hub."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Text file or folder, table, or Hugging Face dataset (hf:NAME).")
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    tokens: Tokens = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of a training input, or of a text with --model.", min=1)
    ] = None,
    acts_on: Annotated[
        str, typer.Option(help="What the free curve changes in the score: bias, scale or both.")
    ] = "bias",
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds, or of texts with --model. Default: 5; with --quick 4, or 3 texts.", min=2),
    ] = None,
    smoothness: Annotated[
        str | None, typer.Option(help="Weights to try on validation data, as 0,0.003,0.03; one weight is not tried.")
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Evaluation lengths of the comparison, as multiples of the trained length.")
    ] = "1x,2x,4x,8x,16x",
    kinds: Annotated[
        int, typer.Option(help="Largest number of kinds of heads, beside heads without an effect.", min=1)
    ] = 6,
    challenger: Annotated[
        bool, typer.Option("--challenger/--no-challenger", help="Let gplearn challenge the named formulas.")
    ] = True,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Train the named formula against known mechanisms.")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small models and few steps: under two minutes on two cores.")
    ] = False,
    budget: Duration = "20m",
    jobs: Annotated[
        int | None, typer.Option(help="Number of runs at a time. Default: all cores or GPUs.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for records, the mechanism and the report.")] = Path(
        "build/discover"
    ),
    as_json: JsonOption = False,
    layers: Layers = None,
    embed_dim: EmbedDim = None,
    heads: Heads = None,
    ffn_dim: FfnDim = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    setting: Settings = None,
) -> None:
    from whence.discover import challenger as gplearn
    from whence.discover import discovery, studies
    from whence.errors import require_package
    from whence.lab import default_studies, runner
    from whence.lab.setting_errors import rename_settings

    results = ctx.with_resource(json_document("discover", as_json))
    # every text is parsed before data or tasks are read
    deadline = time.monotonic() + parse_duration(budget)
    if model is not None:
        if task is not None:
            raise usage_error("--task", repr(task), "a pretrained model is not trained", "leave out --task or --model")
        usual = QUICK if quick else Texts()
        discover_model(model, data, Texts(seeds or usual.count, context or usual.tokens), out, deadline, results)
        return
    multiples = default_studies.parse_lengths(lengths)
    if acts_on not in ("bias", "scale", "both", BOTH):
        raise usage_error("--acts-on", repr(acts_on), "it is bias, scale or both", "pass bias, for example")
    own_smoothness = None if smoothness is None else parse_smoothness(smoothness)
    if challenger:
        require_package("gplearn", "the challenger of whence discover (or pass --no-challenger)", "discover")
    named = {
        "layers": layers, "embed_dim": embed_dim, "heads": heads, "ffn_dim": ffn_dim, "steps": steps,
        "batch_size": batch_size, "lr": lr,
    }  # fmt: skip
    own_settings = collect_settings(setting, named)
    name, task_settings = choose_task(task, data, text_column=text_column, label_column=label_column, tokens=tokens)
    size = studies.choose_size(name, quick)
    settings = {**size.settings, **own_settings}
    with rename_settings(partial(name_options, [str(one.name) for one in ctx.command.params])):
        tables = studies.build_tables_study(
            name, BOTH if acts_on == "both" else acts_on, seeds or size.seeds, settings=settings, task_settings=task_settings, context=context,
            lengths=multiples, quick=quick,
        )  # fmt: skip
        runner.validate_study(tables)
    records.require_output_folder("--out", out)

    values = own_smoothness or size.smoothness
    search = None if not challenger else gplearn.QUICK if quick else gplearn.Search()
    if len(values) > 1:
        tuning = studies.build_smoothness_study(tables, values, size.smoothness_seeds)
        folder = train(tuning, out, jobs, deadline, f"1 of 4: choosing the smoothness from {len(values)} weights")
        if folder is None:
            return
        tables, chosen = studies.choose_smoothness(tables, tuning, folder, values)
    else:
        tables, chosen = studies.set_smoothness(tables, values[0]), {"chosen": values[0], "tries": []}
    folder = train(tables, out, jobs, deadline, f"2 of 4: training {len(tables.seeds)} free tables")
    if folder is None:
        return
    place = out / folder.name.replace("discover-tables-", "discovered-", 1)
    record = discovery.load_or_name(
        place / discovery.RECORD, folder, tables, chosen, max_kinds=kinds, search=search,
        on_phase=lambda text: print(f"3 of 4: {text}", file=sys.stderr, flush=True),
    )  # fmt: skip
    mechanism = discovery.write_mechanism_file(record, place / discovery.MECHANISM)
    check_mechanism(mechanism, record)
    print_answer(record, mechanism)
    finish(record, place, [], results)
    without = f"report without a comparison: {place / discovery.PAGE}"
    if not compare:
        print(without)
        return
    contest = studies.build_comparison(tables, mechanism, studies.RIVALS)
    contest, notes = runner.check_studies(contest, studies.DISCOVERED)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    folders = train_all(
        contest, out, jobs, deadline, "4 of 4: the named formula against the table and known mechanisms"
    )
    if folders is None:
        print(without)
    else:
        finish(record, place, folders, results)


def parse_smoothness(text: str) -> tuple[float, ...]:
    """
    >>> parse_smoothness("0, 0.003,0.03")
    (0.0, 0.003, 0.03)
    """
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or len(set(values)) < len(values) or not all(0 <= value < float("inf") for value in values):
        rule = "it lists different numbers of at least 0"
        raise usage_error("--smoothness", repr(text), rule, "pass 0,0.003,0.03, for example")
    return values


def choose_task(task: str | None, data: str | None, **options: Any) -> tuple[str, dict[str, Any] | None]:
    """The task and its settings; None for its defaults."""
    from whence.discover.studies import LANGUAGE_MODELLING
    from whence.lab import data_options, tasks

    name = LANGUAGE_MODELLING if task == LM else task
    if data is not None:
        chosen = () if name in (None, LANGUAGE_MODELLING) else (name,)
        found, settings = data_options.file_task(data, chosen, **options)
        if chosen and found != chosen[0]:
            raise usage_error("--task", repr(task), "the task reads no data of its own", "leave out --task or --data")
        return found, settings
    given = {option: value for option, value in options.items() if value is not None}
    name = name or LANGUAGE_MODELLING
    tasks.find_task_class(name, aliases=(LM,))
    return name, data_options.assign_options((name,), given).get(name)


def train(study: Study, out: Path, jobs: int | None, deadline: float, title: str) -> Path | None:
    """Train the runs of one study that have no record; its folder, or None if the time limit was reached."""
    folders = train_all([study], out, jobs, deadline, title)
    return None if folders is None else folders[0]


def train_all(contest: list[Study], out: Path, jobs: int | None, deadline: float, title: str) -> list[Path] | None:
    """Train the runs of studies that have no record; their folders, or None if the time limit was reached."""
    from whence.cli.live_table import show_arms
    from whence.cli.run import count_runs, describe_divergence
    from whence.lab.executors import default_jobs
    from whence.lab.sequential import run_until_decided
    from whence.lab.sources import pin_sources
    from whence.lab.study_folder import study_folder, write_spec

    print(title, file=sys.stderr, flush=True)
    pinned = [pin_sources(study) for study in contest]
    planned = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for study in pinned:  # all of them before the first run, which the others use again
        records.make_folder(study_folder(study, out))
        write_spec(study, study_folder(study, out), planned)
    seconds = max(1e-3, deadline - time.monotonic())
    with show_arms(pinned, seconds) as callbacks:
        states = run_until_decided(pinned, out, seconds=seconds, jobs=jobs or default_jobs(), **callbacks)
    outcomes = [state.outcome for state in states]
    problems = [line for one in outcomes for line in one.problems]
    problems += [error.describe() for one in outcomes for error in one.failed]
    for line in problems + [describe_divergence(run, one.folder) for one in outcomes for run in one.diverged]:
        print(line, file=sys.stderr)
    unfinished = sum(len(one.unfinished) for one in outcomes)
    if unfinished:
        print(f"the time limit was reached; run the command again to resume {count_runs(unfinished)}", file=sys.stderr)
        return None
    if problems:
        raise typer.Exit(1)
    return [one.folder for one in outcomes]


def check_mechanism(path: Path, record: Mapping[str, Any]) -> None:
    """Run the common checks on the written mechanism."""
    from whence.checks import check
    from whence.discover.discovery import CLASS_NAME
    from whence.position.expression import ModelDims, build_position

    heads = record["heads"]
    for layer in range(record["layers"]):
        check(build_position(f"{path}:{CLASS_NAME}()", ModelDims(heads, 8, 8 * heads, record["context"], layer=layer)))


def print_answer(record: dict[str, Any], mechanism: Path) -> None:
    from whence.report.discovery.sentences import answer, describe_challenger, describe_smoothness, warn_unlearned

    print(describe_smoothness(record))
    if warning := warn_unlearned(record):
        print(f"warning: {warning}")
    print("\n".join(answer(record)))
    for curves in record["hooks"].values():
        for kind in curves["kinds"]:
            if kind.get("challenger", {}).get("wins"):
                print(f"{kind['label'].capitalize()}: {describe_challenger(kind)}")
    heads = f"--heads {record['heads']} " if record["heads"] > 1 else ""
    print(f"mechanism: {mechanism}")
    print(f"to compare it: whence compare {heads}--position {mechanism}:Discovered --position rotary")


def finish(record: dict[str, Any], place: Path, folders: list[Path], results: dict[str, Any]) -> None:
    """Write the report, print what the comparison claims, and collect what ``--json`` prints."""
    from whence.cli.discover_report import summarize_discovery, write_discovery_report
    from whence.cli.run import print_summary
    from whence.discover.discovery import MECHANISM, PAGE, RECORD

    findings = write_discovery_report(place, folders)
    if folders:
        print_summary(findings["studies"])
        print(f"report: {place / PAGE}")
    results.update(
        folder=place, record=place / RECORD, mechanism=place / MECHANISM, report=place / PAGE,
        smoothness=record["smoothness"], **summarize_discovery(findings),
    )  # fmt: skip

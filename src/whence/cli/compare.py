"""``whence compare``"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from whence.cli.compare_config import SETTINGS, choose_arms, read_config
from whence.cli.json_output import JsonOption, json_document
from whence.cli.training_options import (
    MODEL,
    BatchSize,
    Dropout,
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
    WarmupSteps,
    collect_settings,
    name_options,
    parse_duration,
)
from whence.position.catalogue import SHORT_NAMES

HELP = "Train one small model with several positions on the same tasks and seeds, and write an HTML report."
EXAMPLES = f"""Examples:

whence compare

whence compare --task retrieval --position none --position rotary --seeds 5

whence compare --position none --position "Rotary() + Epar(learnable=True)"

whence compare --position none --position "./bell.py:Bell(heads=4)" --task my_module:MyTask

whence compare --data reviews.csv --text-column text --label-column stars

whence compare --data book.txt --position rotary --position alibi

whence compare --data pairs.jsonl --source-column en --target-column de

whence compare --data pairs.jsonl --source-column en --target-column de --architecture encoder-decoder --translations 200 --metric bleu

whence compare --task squad --data questions.json

whence compare --task glue --subset rte --data RTE

whence compare --data papers.jsonl --source-column article --target-column abstract --target-context 64 --summaries 50 --metric rougeL

whence compare --layers 4 --lr 3e-4 --set schedule=cosine --position rotary --position "alibi; lr=1e-3"

whence compare --sweep lr=1e-3,3e-3,1e-2 --position none --position rotary

whence compare --config mine.toml --jobs 2

Tasks: retrieval, copy, recall, topics, sources, questions, reports, paraphrases; from the folder of WHENCE_DATA also wikitext2,
wikitext103, books, sst2, squad, qmsum, arxiv, glue, multi30k, wmt14.

Positions: {", ".join(SHORT_NAMES)}; or mechanisms with settings, joined by +."""


def compare(
    ctx: typer.Context,
    task: Annotated[
        list[str] | None, typer.Option(help="Task name, module:Class or ./file.py:Class. Repeatable.")
    ] = None,
    position: Annotated[
        list[str] | None,
        typer.Option(
            help="Short name, expression, module:Class or ./file.py:Class; settings of this arm follow after semicolons. "
            "Repeatable."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Table (.csv, .tsv, .jsonl, .parquet), text file, folder, or Hugging Face dataset (hf:NAME); with --task squad, "
            "glue, qmsum or arxiv data of its format."
        ),
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    source_column: Annotated[str | None, typer.Option(help="Column of --data with the source of each pair.")] = None,
    target_column: Annotated[str | None, typer.Option(help="Column of --data with the target of each pair.")] = None,
    subset: Annotated[str | None, typer.Option(help="Task of GLUE for --task glue. Default: sst2.")] = None,
    architecture: Annotated[
        str | None, typer.Option(help="Model for pairs: decoder or encoder-decoder. Default: decoder.")
    ] = None,
    cross_position: Annotated[
        str | None,
        typer.Option(help="Position in cross-attention of an encoder-decoder: none or same. Default: none."),
    ] = None,
    translations: Annotated[
        int | None, typer.Option(help="Pairs of each split to translate for BLEU and chrF. Default: 0.", min=0)
    ] = None,
    summaries: Annotated[
        int | None, typer.Option(help="Pairs of each split to summarize for ROUGE. Default: 0.", min=0)
    ] = None,
    target_context: Annotated[
        int | None, typer.Option(help="Tokens of the target of a pair. Default: those of --context.", min=0)
    ] = None,
    num_beams: Annotated[
        int | None, typer.Option(help="Beams of translations and summaries. Default: 1, greedy search.", min=1)
    ] = None,
    split_column: Annotated[
        str | None, typer.Option(help="Column of --data with train, validation or test. Default: a stratified split.")
    ] = None,
    split_seed: Annotated[int | None, typer.Option(help="Seed of the split of --data. Default: 0.", min=0)] = None,
    tokens: Tokens = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of a training input, for --data and tasks on texts.", min=1)
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Evaluation lengths, as 1x,2x,16x of the trained length. Trained weights are reused."),
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave out rows of --data that cannot be used, and record them.")
    ] = False,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric that decides, such as accuracy, macro_f1, mcc, perplexity, bleu, rougeL or token_f1."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds per arm. Default: add seeds until decided.", min=1)
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="decided: add seeds in rounds; with --seeds, at most so many.")
    ] = None,
    budget: Duration = "10m",
    margin: Annotated[
        float | None,
        typer.Option(
            help="Difference below which arms are equivalent, in points, per cent of perplexity or units of another metric. 0: claim no equivalence. Default: 10 for the accuracy of copy and recall."
        ),
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Compare every two positions, not only each with the baseline.")
    ] = False,
    shard: Annotated[str | None, typer.Option(help="i/n: every n-th run from the i-th on, for array jobs.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Position that all others are compared with. Default: the first, or rotary for recall and topics if it is there."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Number of runs at a time. Default: all cores or GPUs, or the whole cluster.", min=1),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="Where runs execute: local, ray, slurm, a plug-in, module:Class or ./file.py:Class.")
    ] = "local",
    out: Annotated[Path, typer.Option(help="Folder for records and the report.")] = Path("build/compare"),
    as_json: JsonOption = False,
    layers: Layers = None,
    embed_dim: EmbedDim = None,
    heads: Heads = None,
    ffn_dim: FfnDim = None,
    dropout: Dropout = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    warmup_steps: WarmupSteps = None,
    setting: Settings = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to try for each arm on validation data, as lr=1e-4,3e-4,1e-3. Repeatable.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    sweep_seeds: Annotated[
        int, typer.Option(help="Number of seeds of each try of --sweep.", min=1, rich_help_panel=MODEL)
    ] = 1,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with values for these options. Its paths start from its own folder, except out. Options here override it.",
            callback=read_config,
            is_eager=True,  # the other options need it
        ),
    ] = None,
) -> None:
    from whence.cli.compare_sweep import require_one_process, run_sweeps
    from whence.cli.run import parse_shard, run_studies
    from whence.lab import data_options, default_studies, runner
    from whence.lab.executors import process_rank
    from whence.lab.setting_errors import rename_settings
    from whence.lab.sweeps import parse_sweeps

    results = ctx.with_resource(json_document("compare", as_json))
    # every text is parsed before data or tasks are read
    parse_shard(shard)
    sweeps = parse_sweeps(sweep or ())
    if sweeps:
        require_one_process()
    seconds = parse_duration(budget)
    looks = default_studies.choose_looks(seeds, until)
    multiples = None if lengths is None else default_studies.parse_lengths(lengths)
    named = {
        "layers": layers, "embed_dim": embed_dim, "heads": heads, "ffn_dim": ffn_dim, "dropout": dropout,
        "steps": steps, "batch_size": batch_size, "lr": lr, "warmup_steps": warmup_steps,
    }  # fmt: skip
    settings = {**ctx.meta.get(SETTINGS, {}), **collect_settings(setting, named)}
    tasks: list[str] = list(task or ())
    task_settings: dict[str, dict[str, Any]] = {}
    options = {
        "text_column": text_column,
        "label_column": label_column,
        "source_column": source_column,
        "target_column": target_column,
        "subset": subset,
        "architecture": architecture,
        "cross_position": cross_position,
        "translations": translations,
        "summaries": summaries,
        "target_context": target_context,
        "num_beams": num_beams,
        "split_column": split_column,
        "split_seed": split_seed,
        "tokens": tokens,
        "skip_bad_rows": skip_bad_rows or None,
    }
    if data is not None:
        name, task_settings[name] = data_options.file_task(data, tasks, **options)
        tasks += [name] if name not in tasks else []
    else:
        chosen = {name: value for name, value in options.items() if value is not None}
        task_settings = data_options.assign_options(tasks, chosen)
    with rename_settings(partial(name_options, [str(one.name) for one in ctx.command.params])):
        studies = default_studies.build_studies(
            tuple(tasks or default_studies.DEFAULT_TASKS),
            choose_arms(ctx, position) or default_studies.DEFAULT_POSITIONS,
            looks,
            baseline=baseline,
            settings=settings,
            task_settings=task_settings,
            context=context,
            lengths=multiples,
            metric=metric or "",
            margin=margin,
            family="pairs" if pairs else "baseline",
        )
        studies, notes = runner.check_studies(studies, baseline and studies[0].decision.baseline)
    if process_rank() == 0:
        results["notes"] = notes
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    deadline = time.monotonic() + seconds
    if sweeps:
        results.update(folder=out, report=None, study_reports=[], studies=[], problems=[])  # until the sweep has ended
        tuned = run_sweeps(studies, sweeps, sweep_seeds, out, jobs, executor, deadline, shard, results)
        if tuned is None:
            return
        studies = tuned
    left = max(1e-3, deadline - time.monotonic())
    run_studies(studies, out, jobs, None, executor, left, shard, results)

"""The studies of ``whence compare``: the same positions on tasks where position matters, each for its own reason."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab import tasks as lab_tasks
from whence.lab.arms import Arm
from whence.lab.data import hub, text_files
from whence.lab.data.tables import read_table, table_files
from whence.lab.data.token_folder import is_token_folder
from whence.lab.settings import parse_arm_text, split_settings
from whence.lab.study import METRICS, Budget, Decision, Study, share_family
from whence.lab.study_labels import FILE_TASK_USES, PREFIX
from whence.lab.tasks.base import extrapolation_lengths
from whence.lab.tasks.file_rows import hash_inputs
from whence.plugins import did_you_mean
from whence.position.expression import parse_position

#: numbers of seeds after which the default comparison is judged
DEFAULT_LOOKS = (3, 5, 8, 12)
DEFAULT_POSITIONS = ("none", "sinusoidal", "rotary", "alibi", "epar", "power")

DEFAULT_TASKS = ("copy", "recall")

#: question, model, budget, deciding split, baseline and margin of tasks, so that a comparison takes minutes on two cores; a
#: margin is in points of accuracy and holds for no other metric
TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "copy": {
        "question": "Does it copy a string? Symbols repeat, so only their positions tell which one comes next.",
        "model": {"embed_dim": 32, "heads": 4, "layers": 1, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 200, "batch_size": 16, "lr": 3e-3, "evaluate_every": 100},
        "settings": {"string": 8, "symbols": 8, "items": 128},
        "margin": 10.0,
    },
    "recall": {
        "question": "Does it recall the latest of several marked symbols in inputs 8 times as long as in training? "
        "Only position tells which mark is the latest.",
        "model": {"embed_dim": 32, "heads": 4, "layers": 1, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 200, "batch_size": 32, "lr": 3e-3, "evaluate_every": 100},
        "settings": {"tokens": 32, "symbols": 8, "interval": 4, "items": 64},
        "split": "8x",
        "baseline": "rotary",
        "margin": 10.0,
    },
    "sources": {
        "question": "Does it recognise where a piece of text comes from?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 200, "batch_size": 32, "lr": 2e-3, "evaluate_every": 50},
        "settings": {},
    },
    "topics": {
        "question": "Does it predict the next byte of prose in texts 8 times as long as in training?",
        "model": {"embed_dim": 32, "heads": 4, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 250, "batch_size": 16, "lr": 3e-3, "evaluate_every": 125},
        "settings": {"context": 32, "blocks": 64},
        "split": "8x",
        "baseline": "rotary",
    },
    "retrieval": {
        "question": "Does it retrieve the value of a key, also from longer lists than in training?",
        "model": {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 32, "lr": 3e-3, "evaluate_every": 100},
        "settings": {"pairs": 4, "keys": 32, "values": 8, "items": 128},
    },
    "questions": {
        "question": "Does it find the answers to questions about a passage, and see that some have none?",
        "model": {"embed_dim": 32, "heads": 4, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 16, "lr": 3e-3, "evaluate_every": 200},
        "settings": {"facts": 2, "context": 40},
    },
    "reports": {
        "question": "Does it summarize a report, whose first and last sentence alone matter?",
        "model": {"embed_dim": 32, "heads": 4, "layers": 1, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 16, "lr": 3e-3, "evaluate_every": 200},
        "settings": {"sentences": 4, "context": 40},
    },
    "paraphrases": {
        "question": "Does it tell whether two sentences with the same words mean the same?",
        "model": {"embed_dim": 32, "heads": 4, "layers": 2, "ffn_dim": 64, "dropout": 0.0},
        "budget": {"steps": 400, "batch_size": 32, "lr": 3e-3, "evaluate_every": 100},
        "settings": {},
    },
    "qmsum": {
        "question": "Does it summarize what a meeting says about a query?",
        "model": {"embed_dim": 64, "heads": 4, "layers": 2, "ffn_dim": 256, "dropout": 0.1},
        "budget": {"steps": 400, "batch_size": 16, "lr": 1e-3},
        "settings": {"context": 256, "target_context": 64, "summaries": 20},
    },
    "arxiv": {
        "question": "Does it write the abstract of a paper?",
        "model": {"embed_dim": 64, "heads": 4, "layers": 2, "ffn_dim": 256, "dropout": 0.1},
        "budget": {"steps": 400, "batch_size": 16, "lr": 1e-3},
        "settings": {"context": 256, "target_context": 64, "summaries": 20, "test_texts": 200},
    },
    "squad": {
        "question": "Does it find the answers to questions about a passage, and see that some have none?",
        "model": {"embed_dim": 64, "heads": 4, "layers": 2, "ffn_dim": 256, "dropout": 0.1},
        "budget": {"steps": 400, "batch_size": 16, "lr": 1e-3},
        "settings": {"context": 192},
    },
}

#: model and budget of a task on a user's data
FILE_DEFAULTS: dict[str, Any] = {
    "model": {"embed_dim": 64, "heads": 4, "layers": 2, "ffn_dim": 128, "dropout": 0.1},
    "budget": {"steps": 400, "batch_size": 32, "lr": 1e-3},
}


def build_studies(
    tasks: Sequence[str] = DEFAULT_TASKS,
    arms: Sequence[str | Arm] = DEFAULT_POSITIONS,
    looks: tuple[int, ...] = DEFAULT_LOOKS,
    *,
    baseline: str | None = None,
    settings: Mapping[str, Any] | None = None,
    task_settings: Mapping[str, Mapping[str, Any]] | None = None,
    context: int | None = None,
    lengths: Sequence[int] | None = None,
    metric: str = "",
    margin: float | None = None,
    family: str = "baseline",
) -> list[Study]:
    """One study for each task, all with the same arms and seeds. Their comparisons are one family.

    Args:
        tasks: names of tasks.
        arms: positions, each with settings after semicolons if they differ from those of the other arms; or arms.
        looks: numbers of seeds after which the records are judged; the last one is the number of seeds.
        baseline: the arm that the others are compared with; by default the task's own if it is among them, else the first.
        settings: settings of the model and the budget for all arms, by name, instead of the defaults of the task.
        task_settings: settings of a task instead of its defaults, by the task's name.
        context: tokens of an input, for the tasks that have this setting.
        lengths: lengths of the evaluation as multiples of the trained length, for the tasks that have several.
        metric: the metric that decides; empty for the task's own.
        margin: arms that differ by less are equivalent; 0 claims no equivalence; None for the default of the task, which has
            one only for its own metric.
        family: "baseline" compares every arm with the baseline, "pairs" every two arms.

    >>> [study.name for study in build_studies()]
    ['compare-copy', 'compare-recall']
    """
    chosen_arms = tuple(parse_arm_text(arm) if isinstance(arm, str) else arm for arm in arms)
    _require_different("position", [(_describe_arm(arm), arm.name) for arm in chosen_arms])
    _require_different("position", [(arm.name, arm.name) for arm in chosen_arms])
    _require_different("task", [(task, task) for task in tasks])
    names = [arm.name for arm in chosen_arms]
    if baseline is not None and baseline not in names:
        remedy = did_you_mean(baseline, names, "name one of them, or add --position")
        raise usage_error("--baseline", repr(baseline), f"the positions are {', '.join(names)}", remedy)
    if metric not in ("", *METRICS):
        remedy = did_you_mean(metric, METRICS, "choose one of them")
        raise usage_error("--metric", repr(metric), f"the metrics are {', '.join(METRICS)}", remedy)
    if margin is not None and not 0 <= margin < math.inf:
        rule = "it must be a difference above 0 in points or units of the metric"
        raise usage_error("--margin", repr(margin), rule, "use 0 to claim no equivalence")
    if len(chosen_arms) == 1:
        looks = looks[:1]  # there is nothing to decide
    own_settings = _add_lengths(tasks, _add_context(tasks, task_settings or {}, context), lengths)
    decision = Decision(
        baseline=baseline or "", metric=metric, margin=margin or None, family=family, looks=looks if len(looks) > 1 else (),
    )  # fmt: skip
    seeds = tuple(range(looks[-1]))
    return share_family(
        [
            _build_study(
                task, chosen_arms, seeds, settings or {}, _add_margin(decision, margin, task), own_settings.get(task)
            )
            for task in tasks
        ]
    )


def _describe_arm(arm: Arm) -> str:
    """The same text for arms that are the same."""
    return repr((parse_position(arm.position).normal_form, sorted(arm.model.items()), sorted(arm.budget.items())))


def _add_context(
    tasks: Sequence[str], task_settings: Mapping[str, Mapping[str, Any]], context: int | None
) -> dict[str, Mapping[str, Any]]:
    """The settings of tasks, with the context for those that have this setting."""
    added = dict(task_settings)
    if context is None:
        return added
    having = [task for task in tasks if "context" in inspect.signature(lab_tasks.find_task_class(task)).parameters]
    if not having:
        rule = f"the inputs of {' and '.join(tasks)} have another setting for their length"
        raise usage_error("--context", str(context), rule, "leave it out, or choose a task on texts such as topics")
    for task in having:
        added[task] = {**(added.get(task) or TASK_DEFAULTS.get(task, {}).get("settings", {})), "context": context}
    return added


def _add_lengths(
    tasks: Sequence[str], task_settings: Mapping[str, Mapping[str, Any]], lengths: Sequence[int] | None
) -> dict[str, Mapping[str, Any]]:
    """The settings of tasks, with the evaluation lengths for those that have several."""
    added = dict(task_settings)
    if lengths is None:
        return added
    having = [task for task in tasks if "lengths" in lab_tasks.find_task_class(task).evaluation_settings]
    if not having:
        got = ",".join(f"{length}x" for length in lengths)
        rule = f"{' and '.join(tasks)} has no evaluation beyond the trained length"
        raise usage_error("--lengths", got, rule, "leave it out, or choose a task such as topics")
    for task in having:
        usual = TASK_DEFAULTS.get(task, {}).get("settings", {})
        added[task] = {**added.get(task, usual), "lengths": sorted({1, *lengths})}
    return added


def parse_lengths(text: str) -> list[int]:
    """
    >>> parse_lengths("1x,2x,16x")
    [1, 2, 16]
    """
    parts = [part.strip().removesuffix("x") for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise usage_error(
            "--lengths", repr(text), "it lists multiples of the trained length", "pass 1x,2x,4x, for example"
        )
    return [int(part) for part in parts]


def choose_looks(seeds: int | None, until: str | None) -> tuple[int, ...]:
    """The looks for the options --seeds and --until.

    >>> choose_looks(None, None), choose_looks(5, None), choose_looks(6, "decided")
    ((3, 5, 8, 12), (5,), (3, 5, 6))
    """
    if until not in (None, "decided"):
        raise usage_error("--until", repr(until), "it can be decided", "leave it out for a fixed number of --seeds")
    if seeds is None:
        return DEFAULT_LOOKS
    if until is None:
        return (seeds,)
    return (*(look for look in DEFAULT_LOOKS if look < seeds), seeds)


def file_task(data: str, tasks: Sequence[str] = (), **options: Any) -> tuple[str, dict[str, Any]]:
    """The task on a user's data with its settings.

    A task of ``tasks`` that reads a path, such as ``squad``, reads the data. Without one the options decide: packed documents of
    a token folder; pairs of texts if a source or a target column is named; otherwise classification of a table, and language
    modelling of any other text or of a table without labels. The settings contain a hash of the data, so that changed data make
    another study.

    Args:
        data: a file, a folder, ``hf:NAME``, or the name of a Hugging Face dataset.
        tasks: names of the tasks that the user chose.
        options: settings of the task that the user chose; None means that an option was left out.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    data = _locate_data(data)
    readers = [task for task in tasks if "path" in inspect.signature(lab_tasks.find_task_class(task)).parameters]
    if len(readers) > 1:
        got = f"{data} for {' and '.join(readers)}"
        raise usage_error("--data", got, "one task reads the data", "name one of them with --task")
    if readers and hub.is_hub_name(data):
        raise usage_error("--data", data, f"{readers[0]} reads files", "save the data as files and name them")
    task = readers[0] if readers else _choose_file_task(data, chosen)
    known = inspect.signature(lab_tasks.find_task_class(task)).parameters
    for name, value in chosen.items():
        if name not in known:
            raise usage_error(
                f"--{name.replace('_', '-')}",
                f"{value!r} with {data}",
                f"{FILE_TASK_USES.get(task, task)} has no such option",
                "leave it out",
            )
    tokens = str(chosen.get("tokens", ""))
    usual = TASK_DEFAULTS.get(task, {}).get("settings", {})
    return task, {**usual, "path": data, "sha256": hash_inputs(data, tokens), **chosen}


def assign_options(tasks: Sequence[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of tasks that read files of a format of their own, from options without --data.

    >>> assign_options(["glue", "copy"], {"subset": "rte"})
    {'glue': {'subset': 'rte'}}
    """
    assigned: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        having = [
            task for task in tasks
            if {"path", name} <= set(inspect.signature(lab_tasks.find_task_class(task)).parameters)
        ]  # fmt: skip
        if not having:
            option = f"--{name.replace('_', '-')}"
            raise usage_error(option, "no --data", "it is an option of a data file", "add --data FILE")
        for task in having:
            usual = TASK_DEFAULTS.get(task, {}).get("settings", {})
            assigned[task] = {**assigned.get(task, usual), name: value}
    return assigned


def rebase_data(data: str, folder: Path) -> str:
    """The value of --data with a relative path resolved against a folder. Names of datasets remain as they are.

    >>> rebase_data("reviews.csv", Path("/studies")), rebase_data("hf:stanfordnlp/imdb", Path("/studies"))
    ('/studies/reviews.csv', 'hf:stanfordnlp/imdb')
    """
    path = folder / data.removeprefix(hub.PREFIX)
    if hub.is_hub_name(data):
        return f"{hub.PREFIX}{path}" if path.is_dir() else data
    return data if _may_be_hub_name(data) and not path.exists() else str(path)


def rebase_tokens(tokens: str, folder: Path) -> str:
    """The value of --tokens with the path of a tokenizer file resolved against a folder.

    >>> rebase_tokens("tok/tokenizer.json", Path("/studies")), rebase_tokens("bytes", Path("/studies"))
    ('/studies/tok/tokenizer.json', 'bytes')
    """
    return str(folder / tokens) if Path(tokens).suffix or "/" in tokens else tokens


def _may_be_hub_name(data: str) -> bool:
    """Whether a text has the form of a dataset's name. Names without a dot are the usual ones; others need ``hf:``."""
    return not Path(data).suffix and all(part.replace("-", "").replace("_", "").isalnum() for part in data.split("/"))


def _locate_data(data: str) -> str:
    """The data as a path that exists, or as ``hf:NAME``."""
    if hub.is_hub_name(data) or Path(data).exists():
        return data if hub.is_hub_name(data) else str(Path(data))
    if not _may_be_hub_name(data):
        rule = "it must name a file, a folder, or a Hugging Face dataset as hf:NAME"
        raise usage_error("--data", f"no file {data}", rule, "check the path")
    return f"{hub.PREFIX}{data}"  # reading it says so if there is no such dataset either


def _choose_file_task(data: str, options: Mapping[str, Any]) -> str:
    if "source_column" in options or "target_column" in options:
        missing = [name for name in ("source_column", "target_column") if name not in options]
        if missing:
            option, other = (
                name.replace("_", "-") for name in (missing[0], *(set(options) & {"source_column", "target_column"}))
            )
            raise usage_error(f"--{option}", f"only --{other}", "a pair has a source and a target", f"add --{option}")
        return "pairs_file"
    if hub.is_hub_name(data):
        labelled = "label_column" in options or "label" in hub.read_hub_table(data).columns
        return "labelled_file" if labelled else "text_file"
    path = Path(data)
    if is_token_folder(path):
        return "packed_text"
    if not (table_files(path) if path.is_dir() else text_files.is_table(path)):
        for name in ("text_column", "split_column"):
            if name in options:
                option, got = f"--{name.replace('_', '-')}", f"{options[name]!r} with {path.name}"
                raise usage_error(option, got, "only a table has columns", "leave it out")
        return "text_file"
    if "label_column" in options or "text_column" not in options:
        return "labelled_file"
    columns = read_table(path, [options["text_column"], options.get("split_column")]).columns
    return "labelled_file" if "label" in columns else "text_file"


def _require_different(option: str, keys: list[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for key, text in keys:
        if key in seen:
            got = f"{text!r} twice" if seen[key] == text else f"{seen[key]!r} and {text!r}, which are the same"
            raise usage_error(f"--{option}", got, f"each {option} may occur once", "remove one of them")
        seen[key] = text


def _build_study(
    task: str,
    arms: tuple[Arm, ...],
    seeds: tuple[int, ...],
    own: Mapping[str, Any],
    decision: Decision,
    task_settings: Mapping[str, Any] | None,
) -> Study:
    lab_tasks.find_task_class(task)
    defaults = FILE_DEFAULTS if task in lab_tasks.FILE_TASKS else TASK_DEFAULTS.get(task, {})
    settings = defaults.get("settings", {}) if task_settings is None else task_settings
    model, chosen = split_settings(own, "whence compare")
    budget = complete_budget(chosen, {"steps": 300, "batch_size": 16, "lr": 1e-3} | defaults.get("budget", {}))
    arms = tuple(replace(arm, budget=complete_budget(arm.budget, {})) for arm in arms)
    name = str(settings.get("path", task)) if task in lab_tasks.FILE_TASKS else task
    split = defaults.get("split") or _first_split(task, settings)
    if "lengths" in settings and split not in (chosen_splits := extrapolation_lengths(1, settings["lengths"])):
        split = [*chosen_splits][-1]  # the longest
    own_baseline = next((arm.name for arm in arms if arm.name == defaults.get("baseline")), arms[0].name)
    return Study(
        name=f"{PREFIX}{_file_name(name)}",
        question=defaults.get("question", f"Which position does best on {Path(name).name}?"),
        task=task,
        task_settings=settings,
        model=defaults.get("model", {}) | model,
        arms=arms,
        seeds=seeds,
        budget=Budget(**budget),
        decision=replace(
            decision,
            split=split,
            baseline=decision.baseline or own_baseline,
        ),
    )


def _add_margin(decision: Decision, margin: float | None, task: str) -> Decision:
    """The decision with the default margin of the task, if none is given and accuracy decides."""
    if margin is not None or decision.metric not in ("", "accuracy"):
        return decision
    return replace(decision, margin=TASK_DEFAULTS.get(task, {}).get("margin"))


def complete_budget(chosen: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The chosen settings over the defaults. Another number of steps or epochs also sets ``evaluate_every``, so that a curve
    has several points.

    >>> complete_budget({"steps": 100}, {"steps": 300, "lr": 1e-3, "evaluate_every": 50})
    {'steps': 100, 'lr': 0.001, 'evaluate_every': 25}
    >>> complete_budget({"epochs": 3}, {"steps": 300}), complete_budget({"lr": 1e-4}, {})
    ({'epochs': 3, 'evaluate_every': 1}, {'lr': 0.0001})
    """
    other = {"steps": "epochs", "epochs": "steps"}
    replaced = [other[name] for name in chosen if name in other and other[name] not in chosen]
    budget = {name: value for name, value in defaults.items() if name not in replaced} | dict(chosen)
    length = budget.get("epochs", budget.get("steps"))
    sets_length = any(name in chosen for name in other) or (length is not None and "evaluate_every" not in budget)
    if sets_length and "evaluate_every" not in chosen and isinstance(length, int):
        budget["evaluate_every"] = max(1, length // 4)
    return budget


def _file_name(task: str) -> str:
    """A task's name without what a folder name should not contain.

    >>> _file_name("sst2"), _file_name("./mine.py:Mine(size=3)"), _file_name("data/reviews.csv")
    ('sst2', 'mine-Mine', 'reviews')
    """
    module, _, name = task.partition("(")[0].rpartition(":")
    parts = [Path(module).stem, name] if module else [Path(name).stem if "/" in name or "." in name else name]
    return "-".join("".join(c if c.isalnum() or c in "_-" else "-" for c in part) for part in parts)


def _first_split(task: str, settings: Mapping[str, Any]) -> str:
    """The split that decides. Built-in tasks are not loaded for it, since their data may be large."""
    if task in lab_tasks.TASKS:
        return "dev" if task in ("sst2", "glue") else "test"
    return next(iter(lab_tasks.load(task, **settings).splits()))

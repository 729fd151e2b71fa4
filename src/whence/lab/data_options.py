"""The task and the settings for the data that a user names with ``whence compare --data``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab import tasks as lab_tasks
from whence.lab.data import hub, text_files
from whence.lab.data.tables import read_table, table_files
from whence.lab.data.token_folder import is_token_folder
from whence.lab.study_labels import FILE_TASK_USES
from whence.lab.task_defaults import TASK_DEFAULTS
from whence.lab.tasks.file_rows import hash_inputs


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

"""Datasets of the Hugging Face Hub, through the package ``datasets``: ``--data hf:NAME`` or ``hf:NAME/CONFIG``.

``hf:FOLDER`` is a dataset in a local folder, as ``save_to_disk`` writes it or as it is published; it needs no network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, require_package, usage_error
from whence.lab.data.corpora import content_hash
from whence.lab.data.rows import SPLIT_NAMES, Row
from whence.lab.data.tables import SPLIT, Table

PREFIX = "hf:"
#: the files by which a folder of ``save_to_disk`` is recognised
SAVED_DICT, SAVED_STATE = "dataset_dict.json", "state.json"
#: modules of which each holds ``HF_HUB_OFFLINE``
OFFLINE_SWITCHES = ("huggingface_hub.constants", "datasets.config")
#: pins the content of WikiText
WIKITEXT_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"


def is_hub_name(data: str) -> bool:
    """Whether ``--data`` names a dataset explicitly.

    >>> is_hub_name("hf:stanfordnlp/imdb"), is_hub_name("reviews.csv")
    (True, False)
    """
    return data.startswith(PREFIX)


def read_hub_table(data: str) -> Table:
    """All rows of a dataset. Its splits train, validation and test become the column ``split``.

    Labels that the dataset stores as numbers with names are read as names. Other splits, and those whose labels are hidden
    (-1, as in GLUE's test splits), are left out with a note. A dataset with a training split alone has no split column.
    """
    splits = _load_splits(data)
    table = Table(data.removeprefix(PREFIX), [], has_splits=True)
    for split_name, part in splits.items():
        names = {column: getattr(feature, "names", None) for column, feature in part.features.items()}
        hidden = [c for c, known in names.items() if known and len(part) and all(value == -1 for value in part[c])]
        split = SPLIT_NAMES.get(split_name)
        if split is None or hidden:
            reason = "whose labels are hidden" if hidden else "which is none of train, validation and test"
            table.notes.append(f"Not read: the split {split_name} with {len(part):,} rows, {reason}.")
            continue
        table.columns = list(part.column_names)
        for number, values in enumerate(part, start=1):
            table.rows.append(Row(number, {**_name_labels(values, names), SPLIT: split}, split_name, "row"))
    found = {row.values[SPLIT] for row in table.rows}
    if "train" not in found:
        got = f"{data} with the splits {', '.join(splits)}"
        raise usage_error("--data", got, "one of them must be train", "choose another dataset or configuration")
    if found == {"train"}:
        table.has_splits = False
    elif SPLIT not in table.columns:
        table.columns.append(SPLIT)
    return table


def _load_splits(data: str) -> dict[str, Any]:
    """The splits of a dataset by name, from a local folder or from the Hub."""
    datasets = require_package("datasets", f"--data {data}", "data")
    folder = Path(data.removeprefix(PREFIX)).expanduser()
    with _without_bars(datasets), _open_source("--data", data):
        if folder.is_dir() and _is_saved(folder):
            loaded = datasets.load_from_disk(str(folder))
        else:
            loaded = datasets.load_dataset(*_repository(data))
        return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def stream_splits(data: str, revision: str | None = None) -> dict[str, Any]:
    """The splits of a dataset by name, each an iterable of rows that are read when they are needed.

    Args:
        data: ``hf:NAME``, ``hf:NAME/CONFIG`` or ``hf:FOLDER``.
        revision: pins the content of a dataset of the Hub.
    """
    datasets = require_package("datasets", f"reading {data}", "data")
    folder = Path(data.removeprefix(PREFIX)).expanduser()
    if folder.is_dir() and _is_saved(folder):
        return _load_splits(data)  # memory-mapped
    with _open_source("whence tokenize", data):
        return dict(datasets.load_dataset(*_repository(data), revision=revision, streaming=True))


def _is_saved(folder: Path) -> bool:
    return (folder / SAVED_DICT).exists() or (folder / SAVED_STATE).exists()


def _repository(data: str) -> tuple[str, str | None]:
    """What ``load_dataset`` takes: a folder, or a repository with its configuration."""
    name = data.removeprefix(PREFIX)
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser()), None
    parts = name.split("/")
    # owner/name, owner/name/config, or a name of the old form without an owner
    return ("/".join(parts[:2]), parts[2]) if len(parts) == 3 else (name, None)


@contextmanager
def _without_bars(datasets: Any) -> Iterator[None]:
    bars = datasets.utils.are_progress_bars_disabled()
    datasets.utils.disable_progress_bars()
    try:
        yield
    finally:
        if not bars:
            datasets.utils.enable_progress_bars()


@contextmanager
def _open_source(subject: str, data: str) -> Iterator[None]:
    """Read a folder or the Hub inside; an error of a library becomes one that names the data."""
    with nullcontext() if _is_folder(data) else caches_if_unreachable(subject) as unreachable:
        try:
            yield
        except Exception as error:  # each library has its own class for connection errors
            raise network_error(subject, data, error, unreachable) from error


@contextmanager
def caches_if_unreachable(subject: str) -> Iterator[str | None]:
    """Inside, only the local caches of the Hub are read if it cannot be reached: retries of each request take half a minute.

    Yields why it cannot be reached, as a clause; None if it can.
    """
    from whence.hf.load import why_hub_offline

    reason = why_hub_offline()
    modules = [] if reason is None else [require_package(name, subject, "data") for name in OFFLINE_SWITCHES]
    states = [module.HF_HUB_OFFLINE for module in modules]
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield reason
    finally:
        for module, state in zip(modules, states, strict=True):
            module.HF_HUB_OFFLINE = state


def _is_folder(data: str) -> bool:
    return Path(data.removeprefix(PREFIX)).expanduser().is_dir()


def network_error(subject: str, data: str, error: Exception, unreachable: str | None = None) -> WhenceError:
    """The error for a dataset that cannot be read. ``unreachable``: why the Hub cannot be reached, as a clause."""
    reason = str(error).splitlines()[0][:160] if str(error) else "no reason"
    if _is_folder(data):
        rule, remedy = "it must be a folder of a dataset", "write it again with save_to_disk, or name a single file"
    elif unreachable is not None or isinstance(error, ConnectionError):
        rule = "a dataset of the Hugging Face Hub needs a network or a copy in the local cache"
        remedy = "check the path if a file was meant, or the network; a dataset that save_to_disk wrote elsewhere is hf:FOLDER"
    else:
        rule = "it must name an existing file, or a Hugging Face dataset that can be reached"
        remedy = "check the path or the name; a dataset with several configurations is hf:OWNER/NAME/CONFIG"
    got = f"{data}, and {unreachable}" if unreachable else f"{data} ({type(error).__name__}: {reason})"
    return usage_error(subject, got, rule, remedy)


def _name_labels(values: dict[str, Any], names: dict[str, list[str] | None]) -> dict[str, Any]:
    return {
        column: known[value] if (known := names.get(column)) and isinstance(value, int) and value >= 0 else value
        for column, value in values.items()
    }


def hash_rows(table: Table) -> str:
    """A hash of all rows of a dataset."""
    return content_hash(json.dumps(row.values, sort_keys=True, default=str) for row in table.rows)

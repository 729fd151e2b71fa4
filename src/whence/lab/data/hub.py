"""Datasets of the Hugging Face Hub, through the package ``datasets``: ``--data hf:NAME`` or ``hf:NAME/CONFIG``."""

from __future__ import annotations

import json
from typing import Any

from whence.errors import require_package, usage_error
from whence.lab.data.corpora import content_hash
from whence.lab.data.tables import SPLIT, SPLIT_NAMES, Row, Table

PREFIX = "hf:"


def is_hub_name(data: str) -> bool:
    """Whether ``--data`` names a dataset explicitly.

    >>> is_hub_name("hf:stanfordnlp/imdb"), is_hub_name("reviews.csv")
    (True, False)
    """
    return data.startswith(PREFIX)


def read_hub_table(data: str) -> Table:
    """All rows of a dataset. Its splits train, validation and test become the column ``split``; others are left out.

    Labels that the dataset stores as numbers with names are read as names. A split whose labels are hidden (-1, as in GLUE's
    test splits) is left out.
    """
    subject, name = f"--data {data}", data.removeprefix(PREFIX)
    datasets = require_package("datasets", subject, "data")
    parts = name.split("/")
    # owner/name, owner/name/config, or a name of the old form without an owner
    repository, config = ("/".join(parts[:2]), parts[2]) if len(parts) == 3 else (name, None)
    try:
        loaded = datasets.load_dataset(repository, config) if config else datasets.load_dataset(repository)
    except Exception as error:  # each library has its own class for connection errors
        raise usage_error(
            "--data",
            f"{data} ({type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else 'no reason'})",
            "it must name an existing file, or a Hugging Face dataset that can be reached",
            "check the path or the name and the network; a dataset with several configurations is hf:OWNER/NAME/CONFIG",
        ) from error
    table = Table(name, [], has_splits=True)
    for split_name, part in loaded.items():
        split = SPLIT_NAMES.get(split_name)
        if split is None:
            continue
        names = {column: getattr(feature, "names", None) for column, feature in part.features.items()}
        hidden = [c for c, known in names.items() if known and len(part) and all(value == -1 for value in part[c])]
        if hidden:
            continue
        table.columns = [*part.column_names, *([] if SPLIT in part.column_names else [SPLIT])]
        for number, values in enumerate(part, start=1):
            table.rows.append(Row(number, {**_name_labels(values, names), SPLIT: split}, split_name))
    if not table.rows:
        got = f"{data} with the splits {', '.join(loaded)}"
        raise usage_error("--data", got, "one of them must be train", "choose another dataset")
    return table


def _name_labels(values: dict[str, Any], names: dict[str, list[str] | None]) -> dict[str, Any]:
    return {
        column: known[value] if (known := names.get(column)) and isinstance(value, int) and value >= 0 else value
        for column, value in values.items()
    }


def hash_rows(table: Table) -> str:
    """A hash of all rows of a dataset."""
    return content_hash(json.dumps(row.values, sort_keys=True, default=str) for row in table.rows)

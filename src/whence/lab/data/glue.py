"""The files of GLUE (Wang et al. 2018, arXiv 1804.07461): each task's tables with its own columns, or JSON Lines.

A table has the published columns, or those of Hugging Face: ``sentence``, or two texts, and ``label``. JSON Lines have the latter.
Labels are the published words or their numbers. Rows without a label, such as those of the published test parts, are not read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whence.errors import usage_error
from whence.lab.data.corpora import ORIGINS, data_folder
from whence.lab.data.tables import SUFFIXES, Row, plain_suffix, read_table

#: similarity from 0 to 5 in steps of 0.2, as T5 predicts it (Raffel et al. 2020, arXiv 1910.10683)
STEP, HIGHEST = 0.2, 5.0


@dataclass(frozen=True)
class GlueSubset:
    """One task of GLUE.

    Args:
        folder: its folder in the data folder.
        columns: the published columns of its one or two texts; numbers from 1 for a table without a header line.
        label: the published column of the label.
        labels: the labels in the order of their numbers; empty for a similarity.
        metrics: GLUE's own metrics; the first one decides.
        keys: the columns in JSON Lines and at Hugging Face.
    """

    folder: str
    columns: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    keys: tuple[str, ...]


_TWO, _ENTAILMENT = ("sentence1", "sentence2"), ("entailment", "not_entailment")
SUBSETS = {
    "sst2": GlueSubset("SST-2", ("sentence",), "label", ("0", "1"), ("accuracy",), ("sentence",)),
    "cola": GlueSubset("CoLA", ("4",), "2", ("0", "1"), ("mcc",), ("sentence",)),
    "mrpc": GlueSubset("MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1"), ("binary_f1", "accuracy"), _TWO),
    "qqp": GlueSubset("QQP", ("question1", "question2"), "is_duplicate", ("0", "1"), ("binary_f1", "accuracy"), ("question1", "question2")),
    "stsb": GlueSubset("STS-B", _TWO, "score", (), ("pearson", "spearman"), _TWO),
    "mnli": GlueSubset("MNLI", _TWO, "gold_label", ("entailment", "neutral", "contradiction"), ("accuracy",), ("premise", "hypothesis")),
    "qnli": GlueSubset("QNLI", ("question", "sentence"), "label", _ENTAILMENT, ("accuracy",), ("question", "sentence")),
    "rte": GlueSubset("RTE", _TWO, "label", _ENTAILMENT, ("accuracy",), _TWO),
    "wnli": GlueSubset("WNLI", _TWO, "label", ("0", "1"), ("accuracy",), _TWO),
}  # fmt: skip
#: names of the published parts by split; dev decides, since the published test parts have no labels
PARTS = {
    "train": ("train", "train_full"), "dev": ("dev", "dev_matched", "validation", "validation_matched"),
    "dev_mismatched": ("dev_mismatched", "validation_mismatched"), "test": ("test-labeled",),
}  # fmt: skip


@dataclass(frozen=True)
class GlueItem:
    """One or two texts, and a class or a similarity."""

    texts: tuple[str, ...]
    label: float


def find_glue_files(subject: str, subset: str, path: str) -> dict[str, Path]:
    """The files of a task by part, in a folder or in the data folder."""
    own = SUBSETS[subset]
    folder = Path(path) if path else data_folder(subject, ORIGINS["glue"]) / "glue" / own.folder
    if not folder.is_dir():
        got = f"no folder {folder}" if not folder.exists() else f"the file {folder}"
        raise usage_error(
            subject, got, "the parts are files of a folder, such as train.tsv and dev.tsv", ORIGINS["glue"]
        )
    files = {file.name.lower(): file for file in sorted(folder.iterdir()) if plain_suffix(file) in SUFFIXES}
    found = {}
    for part, stems in PARTS.items():
        match = next((file for stem in stems for name, file in files.items() if name.split(".")[0] == stem), None)
        if match is not None:
            found[part] = match
    for part in ("train", "dev"):
        if part not in found:
            got = f"no {part}.tsv or {part}.jsonl in {folder}"
            raise usage_error(subject, got, "there must be rows for training and for the decision", ORIGINS["glue"])
    return found


def read_glue(subject: str, subset: str, path: Path) -> list[GlueItem]:
    """The labelled rows of a file."""
    own = SUBSETS[subset]
    table = read_table(path, [*own.columns, own.label])
    columns, label = own.columns, own.label
    if not {*columns, label} <= set(table.columns):
        columns, label = own.keys, "label"
        if own.columns[0].isdecimal():
            table = read_table(path, [*columns, label])
    lacking = [column for column in (*columns, label) if column not in table.columns]
    if lacking:
        rule = f"{subset} has the columns {', '.join((*own.columns, own.label))}, or {', '.join((*own.keys, 'label'))}"
        raise usage_error(subject, f"{path.name} without the column {lacking[0]}", rule, "correct the file")
    if table.bad:
        raise usage_error(
            subject, f"{path.name}: {table.bad[0]}", "each line is a row of the table", "correct the file"
        )
    items = [_read_row(subject, path, row, columns, label, own.labels) for row in table.rows]
    if not items:
        raise usage_error(subject, f"{path.name} without rows", "each part has rows", "correct the file")
    return items


def _read_row(
    subject: str, path: Path, row: Row, columns: Sequence[str], label: str, labels: Sequence[str]
) -> GlueItem:
    texts = tuple(str(row.values.get(column) or "").strip() for column in columns)
    value = str(row.values.get(label)).strip()
    number = _parse_label(value, labels)
    if number is None or not all(texts):
        got = f"{value!r} as the label" if number is None else "no text"
        rule = f"a label is one of {', '.join(labels)}" if labels else "a label is a number from 0 to 5"
        raise usage_error(subject, f"{got} at line {row.line} of {path.name}", rule, "correct the file")
    return GlueItem(texts, number)


def _parse_label(value: str, labels: Sequence[str]) -> float | None:
    """The number of a label, which is a word or already a number; None for any other text.

    >>> _parse_label("entailment", ("entailment", "not_entailment")), _parse_label("1", ("a", "b")), _parse_label("x", ())
    (0, 1, None)
    """
    if value in labels:
        return labels.index(value)
    if labels:
        return int(value) if value.isdecimal() and int(value) < len(labels) else None
    try:
        score = float(value)
    except ValueError:
        return None
    return score if math.isfinite(score) and 0 <= score <= HIGHEST else None

"""The rows of a user's table as examples in training, validation and test parts, for the tasks on files."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.lab.data import hub
from whence.lab.data.rows import BadRow, Row, report_bad_rows, split_value, text_value
from whence.lab.data.splits import describe_duplicates, normalize_text, stratified_split
from whence.lab.data.tables import SPLIT, Table, hash_data, read_table
from whence.lab.data.token_folder import is_token_folder, read_manifest
from whence.lab.data.tokenizers import TOKENS, Tokenizer, WordTokenizer

PARTS = ("train", "test", "validation")  # the test part decides, so it is before validation


def hash_inputs(data: str, tokens: str = "") -> str:
    """A hash of the data and of the tokenizer file, if there is one; changed inputs make another study."""
    if is_token_folder(Path(data)):
        return read_manifest(Path(data))["identity"]
    digest = hub.hash_rows(hub.read_hub_table(data)) if hub.is_hub_name(data) else hash_data(Path(data))
    if tokens and tokens not in TOKENS and Path(tokens).is_file():
        digest = hashlib.sha256((digest + hash_data(Path(tokens))).encode()).hexdigest()
    return digest


def require_same_data(data: str, tokens: str, sha256: str) -> None:
    """Reject data that differ from those that a study was built for. An empty hash is not checked."""
    if sha256 and hash_inputs(data, tokens) != sha256:
        raise usage_error(
            "--data",
            f"{data}, which changed since the study was built",
            "all runs of a study use the same data",
            "restore the file, or run the command again to build another study",
        )


def load_table(data: str, columns: Mapping[str, str | None]) -> Table:
    """The table that ``--data`` names. ``columns`` maps options to the columns that must exist."""
    table = hub.read_hub_table(data) if hub.is_hub_name(data) else read_table(Path(data), list(columns.values()))
    table.require_columns(columns)
    return table


@dataclass(frozen=True)
class Example:
    """A row of texts with the part it belongs to."""

    texts: tuple[str, ...]
    label: str = ""
    part: str = "train"


class Rows:
    """The usable rows of a table, each in one part, and what is known about the others."""

    def __init__(
        self,
        table: Table,
        text_columns: Mapping[str, str],
        label_column: str | None,
        split_column: str,
        split_seed: int,
        skip_bad_rows: bool,
    ) -> None:
        named = [
            *text_columns.values(),
            *([label_column] if label_column else []),
            *([split_column] if split_column else []),
        ]
        twice = next((column for column in named if named.count(column) > 1), None)
        if twice is not None:
            got = f"the column {twice!r} for two of them"
            rule = f"{', '.join([*text_columns, *(['label'] if label_column else [])])} and split are different columns"
            raise usage_error("--data", got, rule, "name another column")
        splits = split_column or (SPLIT if table.has_splits else "")
        bad: list[BadRow] = list(table.bad)
        usable: list[tuple[Row, Example]] = []
        for row in table.rows:
            values = [text_value(row, column, what) for what, column in text_columns.items()]
            values.append("" if label_column is None else text_value(row, label_column, "label"))
            values.append(split_value(row, splits) if splits else "train")
            wrong = next((value for value in values if isinstance(value, BadRow)), None)
            if wrong is not None:
                bad.append(wrong)
                continue
            *texts, label, part = map(str, values)
            usable.append((row, Example(tuple(texts), label.strip(), part)))
        rare: list[BadRow] = []
        if label_column is not None:
            examples_read = len(usable)
            usable, rare = _drop_rare_labels(usable, bool(splits))
            if not bad or skip_bad_rows:  # otherwise the error about the bad rows comes first
                _require_classes(label_column, usable, rare, examples_read)
        *others, last = [*text_columns, *(["label"] if label_column else []), *(["split"] if splits else [])]
        columns = f"{', '.join(others)} and {last}" if others else last
        rule = f"every row needs a {columns}" + (", and enough rows share each label" if rare else "")
        self.bad_rows = report_bad_rows(table.name, [*bad, *rare], len(usable), skip_bad_rows, rule)
        examples = [example for _, example in usable]
        self.keys = [normalize_text(example.texts[0]) for example in examples]
        if splits:
            self.parts = [example.part for example in examples]
            self.how = f"the parts that the {'data name' if table.has_splits else f'column {splits!r} names'}"
        else:
            self.parts = stratified_split(self.keys, [example.label for example in examples], split_seed)
            self.how = f"80 % training, 10 % validation, 10 % test of each class, by seed {split_seed}; equal texts stay together"
            if label_column is None:
                self.how = self.how.replace(" of each class", "")
        if self.parts and "test" not in self.parts:  # a table of train and dev: dev decides
            self.parts = ["test" if part == "validation" else part for part in self.parts]
        self.by_part: dict[str, list[Example]] = {part: [] for part in PARTS}
        for example, part in zip(examples, self.parts, strict=True):
            self.by_part[part].append(example)
        self.by_part = {part: own for part, own in self.by_part.items() if own}
        self.labels = [example.label for example in examples]
        if not {"train", "test"} <= set(self.by_part):
            sizes = ", ".join(f"{len(own)} for {part}" for part, own in self.by_part.items()) or "none"
            remedy = "add rows"
            if splits:
                remedy = (
                    "correct the names, or leave out --split-column for a split of all rows"
                    if split_column
                    else ("add a file of the other part, or name a single file for a split of its rows")
                )
            got = f"{len(examples)} usable rows in {table.name} ({sizes})"
            raise usage_error("--data", got, "there must be rows for training and for test", remedy)
        self.notes = [*table.notes, *_notice_labels(self.labels if label_column else [])]
        if not splits:
            self.notes += table.notice_split_columns()

    def facts(self, labels: bool) -> dict[str, Any]:
        return {
            "items": {part: len(own) for part, own in self.by_part.items()},
            "split": self.how,
            "duplicates": describe_duplicates(self.keys, self.labels if labels else None, self.parts),
            "bad_rows": self.bad_rows,
            "notes": self.notes,
        }


def _require_classes(
    column: str, usable: Sequence[tuple[Row, Example]], rare: Sequence[BadRow], examples_read: int
) -> None:
    """Reject a column that has no labels: one label alone, or nearly as many as there are rows."""
    labels = {example.label for _, example in usable}
    if examples_read and len(rare) > examples_read / 2:
        got = f"{column!r}, whose labels are mostly too rare ({rare[0]}; {len(rare)} such rows of {examples_read})"
        rule = "classification needs labels that many rows share"
        raise usage_error("--label-column", got, rule, "name another column, or add rows")
    if len(labels) == 1 and not rare:
        got = f"{column!r} with one label, {labels.pop()!r}, in {examples_read} rows"
        raise usage_error("--label-column", got, "classification needs at least two labels", "name another column")


def _notice_labels(labels: Sequence[str]) -> list[str]:
    """A note about labels that are different classes and differ in upper and lower case only."""
    spellings: dict[str, set[str]] = defaultdict(set)
    for label in labels:
        spellings[label.casefold()].add(label)
    alike = [sorted(own) for own in spellings.values() if len(own) > 1]
    return [f"Different classes that differ in case only: {', '.join(own)}." for own in alike]


def _drop_rare_labels(
    usable: list[tuple[Row, Example]], has_splits: bool
) -> tuple[list[tuple[Row, Example]], list[BadRow]]:
    """Rows whose label cannot be in every part: too few different texts for a split, or none in a given training part."""
    if has_splits:
        known = {example.label for _, example in usable if example.part == "train"}
        reason = "label {} does not occur in the training part"
    else:
        texts: dict[str, set[str]] = defaultdict(set)
        for _, example in usable:
            texts[example.label].add(normalize_text(example.texts[0]))
        known = {label for label, own in texts.items() if len(own) >= 3}
        reason = "label {} has fewer than 3 different texts, one for each part"
    kept = [(row, example) for row, example in usable if example.label in known]
    return kept, [row.bad(reason.format(repr(e.label))) for row, e in usable if e.label not in known]


def sort_labels(labels: Iterable[str]) -> list[str]:
    """The different labels: numbers by size, words by the alphabet.

    >>> sort_labels(["10", "2", "2"]), sort_labels(["b", "a", "1"])
    (['2', '10'], ['1', 'a', 'b'])
    """
    unique = set(labels)
    try:
        return sorted(unique, key=lambda label: (float(label), label))
    except ValueError:
        return sorted(unique)


def unknown_share(tokenizer: Tokenizer, parts: Mapping[str, Sequence[list[int]]], unknown: int) -> dict[str, float]:
    """The share of unknown tokens in each part; empty if the tokenizer has none."""
    if not isinstance(tokenizer, WordTokenizer):
        return {}
    return {
        part: sum(text.count(unknown) for text in texts) / max(1, sum(map(len, texts))) for part, texts in parts.items()
    }

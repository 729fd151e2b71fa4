"""Claims of the sources, read from one TOML file per source and validated before anything is computed.

number = "000"                          number of the source
title = "..."
kind = "..."                            kind of text

[[claim]]
id = "epar-bound"                       starts with the file's name
claim = "..."                           the claim in our words
quote = "..."                           a few words of the source that make the claim, in its language, exact
where = "..."                           section of the source
implied = true                          the source does not say it; it is our reading
repository = "owner/name @ commit: path"   what the claim rests on beyond the text, if anything
by_definition = true                    an identity that no experiment can contradict; counted apart
how = "..."                             how it is tested here
compute = "name"                        exactly one of these four: a computation whose record is the evidence,
read = "name"                           a reader of stored records,
untestable = "reason"                   why it cannot be tested here,
waits_for = "what"                      what is needed before it can be tested
arithmetic = true                       a failed check is an arithmetic error of the source, not a different measurement
arguments = { ... }                     arguments of the computation or reader, such as the source's figures
checks = [{ figure = "name", equals = "4.7" }]   also ``ratio = true`` for a ratio with one value per seed, judged by its logarithm,
                                        and ``chance = "name"``: what a random answer has, a value per seed
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error
from whence.records import RecordReader
from whence_papers import FOLDER

#: sign of each verdict, in the order of tables
SIGNS = {
    "reproduced": "✓", "not reproduced": "✗", "undecided": "?", "equivalent": "≈", "arithmetic wrong": "≠",
    "not testable": "–", "open": "○",
}  # fmt: skip
METHODS = ("compute", "read", "untestable", "waits_for")
TEXTS = ("id", "claim", "quote", "where", "how")
FLAGS = ("arithmetic", "implied", "by_definition")
QUOTE_LENGTH = (4, 240)  # characters: a number with its unit, or one sentence
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+ @ ([0-9a-f]{40}|commit not recorded): .+")
RELATIONS = ("equals", "at_most", "at_least", "below", "above")


@dataclass(frozen=True)
class FigureCheck:
    """One number that the source states about a figure of the evidence."""

    figure: str  # name of the figure in the evidence
    relation: str  # one of RELATIONS
    number: float
    text: str  # the number as the source prints it
    within: float = 0.0  # tolerance of ``equals``; by default half of the last printed digit
    note: str = ""
    ratio: bool = False  # values of seeds are compared by their logarithms
    chance: str = ""  # name of the figure that a random answer has; an interval that includes it decides nothing
    our_bound: bool = False  # the source gives no number, and this bound was chosen here

    @property
    def statement(self) -> str:
        """The claim about this number, as text.

        >>> FigureCheck("share", "at_most", 0.5, "0.5").statement
        'share at most 0.5'
        """
        relation = "" if self.relation == "equals" else f"{self.relation.replace('_', ' ')} "
        return f"{self.figure.replace('_', ' ')} {relation}{self.text}"


@dataclass(frozen=True)
class Claim:
    """A claim and the one method by which it is judged."""

    id: str
    source: str
    claim: str
    quote: str  # the source's own words
    where: str
    how: str
    method: str  # one of METHODS
    by: str  # name of the computation or reader, the reason, or what is awaited
    arithmetic: bool = False
    implied: bool = False
    by_definition: bool = False
    repository: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[FigureCheck, ...] = ()

    @property
    def statement(self) -> str:
        """The claim as text; what the source does not say itself is marked as our reading."""
        return f"Our reading: {self.claim[0].lower()}{self.claim[1:]}" if self.implied else self.claim


@dataclass(frozen=True)
class Source:
    """A text with claims."""

    name: str
    number: str
    title: str
    kind: str
    claims: tuple[Claim, ...]


def load_sources(folder: Path, known: Mapping[str, tuple[str, ...]] | None = None) -> list[Source]:
    """Load every source of a folder, sorted by number.

    Args:
        folder: holds one TOML file per source.
        known: names of all computations and readers, under "compute" and "read"; other names are errors.
    """
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise usage_error(
            "claims",
            f"no .toml file in {folder}",
            "a ledger has one TOML file per source",
            "pass --folder with the folder of the claims",
        )
    sources = sorted((_source(path, known or {}) for path in paths), key=lambda source: source.number)
    ids: set[str] = set()
    for source in sources:
        for claim in source.claims:
            if claim.id in ids:
                raise _entry_error(f"{source.name}.toml", claim.id, "a duplicate id", "ids are unique")
            ids.add(claim.id)
    return sources


def _source(path: Path, known: Mapping[str, tuple[str, ...]]) -> Source:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise usage_error(
            f"claims/{path.name}", str(error), "the file must be valid TOML", "correct that line"
        ) from None
    texts = {name: data.pop(name, None) for name in ("number", "title", "kind")}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            raise _entry_error(path.name, None, f"{name} = {text!r}", f"{name} is a non-empty text")
    claims = data.pop("claim", None)
    if data:
        raise _entry_error(
            path.name, None, f"an entry {next(iter(data))!r}", "the keys are number, title, kind and claim"
        )
    if not isinstance(claims, list) or not claims:
        raise _entry_error(path.name, None, "no [[claim]]", "a source has at least one claim")
    return Source(path.stem, claims=tuple(_claim(path, place, row, known) for place, row in enumerate(claims)), **texts)


def _claim(path: Path, place: int, row: dict[str, Any], known: Mapping[str, tuple[str, ...]]) -> Claim:
    name = str(row.get("id") or f"claim {place + 1}")
    for key in TEXTS:
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise _entry_error(path.name, name, f"{key} = {row.get(key)!r}", f"{', '.join(TEXTS)} are non-empty texts")
    low, high = QUOTE_LENGTH
    if not low <= len(row["quote"].strip()) <= high:
        raise _entry_error(
            path.name, name, f"a quote of {len(row['quote'].strip())} characters", f"a quote has {low} to {high}"
        )
    repository = row.get("repository", "")
    if not isinstance(repository, str) or ("repository" in row and not REPOSITORY.fullmatch(repository)):
        rule = "a repository is 'OWNER/NAME @ COMMIT: PATH', with 'commit not recorded' for a commit that is unknown"
        raise _entry_error(path.name, name, f"repository = {repository!r}", rule)
    if not row["id"].startswith(f"{path.stem}-"):
        raise _entry_error(path.name, name, f"id = {row['id']!r}", f"ids in this file start with {path.stem}-")
    methods = [method for method in METHODS if method in row]
    if len(methods) != 1 or not isinstance(row[methods[0]], str) or not row[methods[0]].strip():
        raise _entry_error(
            path.name, name, ", ".join(methods) or "no method", f"a claim has exactly one of {', '.join(METHODS)}"
        )
    method = methods[0]
    unknown = set(row) - {*TEXTS, *METHODS, *FLAGS, "repository", "arguments", "checks"}
    if unknown:
        raise _entry_error(
            path.name, name, f"an entry {min(unknown)!r}", "the docstring of claims.py lists the keys of a claim"
        )
    if method in known and row[method] not in known[method]:
        raise _entry_error(
            path.name, name, f"{method} = {row[method]!r}", f"the known names are {', '.join(sorted(known[method]))}"
        )
    arguments, checks = row.get("arguments", {}), row.get("checks", [])
    if (
        not isinstance(arguments, dict)
        or not isinstance(checks, list)
        or not all(isinstance(row.get(flag, False), bool) for flag in FLAGS)
    ):
        raise _entry_error(
            path.name,
            name,
            f"arguments, checks, {', '.join(FLAGS[:-1])} or {FLAGS[-1]} of the wrong type",
            "they are a table, a list, and true or false",
        )
    if (method in ("compute", "read")) != bool(checks):
        raise _entry_error(
            path.name,
            name,
            f"{method} with {len(checks)} checks",
            "compute and read need checks, untestable and waits_for have none",
        )
    return Claim(
        **{key: row[key].strip() for key in TEXTS}, source=path.stem, method=method, by=row[method].strip(),
        **{flag: row.get(flag, False) for flag in FLAGS}, repository=repository, arguments=arguments,
        checks=tuple(_check(path.name, name, check) for check in checks),
    )  # fmt: skip


def _check(file: str, name: str, row: Any) -> FigureCheck:
    rule = f"a check has a figure and exactly one of {', '.join(RELATIONS)}, with the number as the source prints it, as text"
    if not isinstance(row, dict) or not isinstance(row.get("figure"), str):
        raise _entry_error(file, name, f"the check {row!r}", rule)
    relations = [relation for relation in RELATIONS if relation in row]
    if len(relations) != 1 or set(row) - {"figure", "within", "note", "ratio", "chance", "our_bound", *RELATIONS}:
        raise _entry_error(file, name, f"the check {row!r}", rule)
    relation = relations[0]
    text = row[relation]
    number = _number(text)
    # a printed number stands for every number that rounds to it; the factor allows for float rounding
    own = 0.5 * 10.0 ** -len(str(text).partition(".")[2]) * (1 + 1e-9) if relation == "equals" else 0.0
    within = _number(row["within"]) if "within" in row else own
    if number is None or within is None or ("within" in row and relation != "equals"):
        raise _entry_error(file, name, f"the check {row!r}", rule)
    ratio, chance = row.get("ratio", False), row.get("chance", "")
    if not isinstance(ratio, bool) or not isinstance(chance, str) or (ratio and (relation == "equals" or number <= 0)):
        rule = "ratio is true for a bound above 0, and chance is the name of a figure"
        raise _entry_error(file, name, f"the check {row!r}", rule)
    our_bound = row.get("our_bound", False)
    if not isinstance(our_bound, bool) or (our_bound and relation == "equals"):
        raise _entry_error(
            file, name, f"the check {row!r}", "our_bound is true for a bound that the source does not give"
        )
    return FigureCheck(
        row["figure"], relation, number, text, within, str(row.get("note", "")), ratio, chance, our_bound
    )


def _number(text: Any) -> float | None:
    """Parse a printed number, with or without thousands separators."""
    if not isinstance(text, str):
        return None
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _entry_error(file: str, name: str | None, got: str, rule: str) -> WhenceError:
    return usage_error(f"claims/{file}" + (f", {name}," if name else ""), got, rule, "correct that entry")


class MissingEvidence(Exception):
    """Evidence that is not there yet: records of a study, a data folder, trained weights. The message names it."""


@dataclass(frozen=True)
class LedgerFolders:
    """Folders of the claims and their records, of the studies' records, and of the benchmarks, with their reader."""

    claims: Path = FOLDER / "claims"
    results: Path = FOLDER / "results"
    benchmarks: Path = Path("benchmarks/records")
    reader: RecordReader = field(default_factory=RecordReader, compare=False, repr=False)
    #: shared by the claims of one judgement: reference distributions of comparisons, and summaries of arms by folder and name
    references: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    arms: dict[tuple[Path, str], dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    #: finished runs of next-location studies, in the same way
    runs: dict[tuple[Path, str], list[dict[str, Any]]] = field(default_factory=dict, compare=False, repr=False)

    def record_path(self, claim_id: str) -> Path:
        return self.claims / "records" / f"{claim_id}.json"

"""What the sources claim, read from one TOML file a source and checked before anything is computed.

number = "000"                          the source
title = "..."
kind = "..."                            what sort of text it is

[[claim]]
id = "epar-bound"                       begins with the file's name
claim = "..."                           in our words
where = "..."                           the section of the source
how = "..."                             how it is tested here
compute = "name"                        one of these four: a computation whose record shows it,
read = "name"                           a reading of a study's records,
untestable = "why"                      the reason why it cannot be tested here,
waits_for = "what"                      what has to be there first
arithmetic = true                       a failure is a sum or formula gone wrong, not another measurement
given = { ... }                         the source's figures, and what else the computation or reading is given
checks = [{ figure = "name", said = "4.7" }]
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whence.errors import WhenceError, usage_error

WAYS = ("compute", "read", "untestable", "waits_for")
TEXTS = ("id", "claim", "where", "how")
RELATIONS = ("said", "at_most", "at_least", "below", "above")


@dataclass(frozen=True)
class Check:
    """One number that the source says of what we find."""

    figure: str  # its name in the evidence
    relation: str  # one of RELATIONS
    number: float
    text: str  # the number as the source prints it
    within: float = 0.0  # for ``said``: how far off still agrees; half of the last printed digit if nothing is given
    note: str = ""

    @property
    def says(self) -> str:
        """The claim on this number.

        >>> Check("share", "at_most", 0.5, "0.5").says
        'share at most 0.5'
        """
        relation = "" if self.relation == "said" else f"{self.relation.replace('_', ' ')} "
        return f"{self.figure.replace('_', ' ')} {relation}{self.text}"


@dataclass(frozen=True)
class Claim:
    """A claim, and the one way in which it is dealt with."""

    id: str
    source: str
    claim: str
    where: str
    how: str
    way: str  # one of WAYS
    by: str  # the computation's or reading's name, the reason, or what it waits for
    arithmetic: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Source:
    """A text that claims something."""

    name: str
    number: str
    title: str
    kind: str
    claims: tuple[Claim, ...]


def load(folder: Path, known: Mapping[str, tuple[str, ...]] | None = None) -> list[Source]:
    """Every source of a folder, by number.

    Args:
        folder: holds one TOML file a source.
        known: the names of all computations and readings, under "compute" and "read"; others are refused.
    """
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise usage_error(
            "claims", f"no .toml file in {folder}", "a ledger has one a source", "run it where claims/ is"
        )
    sources = sorted((_source(path, known or {}) for path in paths), key=lambda source: source.number)
    seen: set[str] = set()
    for source in sources:
        for claim in source.claims:
            if claim.id in seen:
                raise _bad(f"{source.name}.toml", claim.id, "an id that is there twice", "every claim has its own")
            seen.add(claim.id)
    return sources


def _source(path: Path, known: Mapping[str, tuple[str, ...]]) -> Source:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise usage_error(f"claims/{path.name}", str(error), "it is TOML", "correct that line") from None
    texts = {name: data.pop(name, None) for name in ("number", "title", "kind")}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            raise _bad(path.name, None, f"{name} = {text!r}", f"a source has a {name}, as text")
    claims = data.pop("claim", None)
    if data:
        raise _bad(path.name, None, f"an entry {next(iter(data))!r}", "it has number, title, kind and claims")
    if not isinstance(claims, list) or not claims:
        raise _bad(path.name, None, "no [[claim]]", "a source claims something")
    return Source(path.stem, claims=tuple(_claim(path, place, row, known) for place, row in enumerate(claims)), **texts)


def _claim(path: Path, place: int, row: dict[str, Any], known: Mapping[str, tuple[str, ...]]) -> Claim:
    name = str(row.get("id") or f"claim {place + 1}")
    for key in TEXTS:
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise _bad(path.name, name, f"{key} = {row.get(key)!r}", f"a claim has {', '.join(TEXTS)}, as text")
    if not row["id"].startswith(f"{path.stem}-"):
        raise _bad(path.name, name, "an id of another file", f"it begins with {path.stem}-")
    ways = [way for way in WAYS if way in row]
    if len(ways) != 1 or not isinstance(row[ways[0]], str) or not row[ways[0]].strip():
        raise _bad(path.name, name, ", ".join(ways) or "no way to test it", f"it has exactly one of {', '.join(WAYS)}")
    way = ways[0]
    unknown = set(row) - {*TEXTS, *WAYS, "arithmetic", "given", "checks"}
    if unknown:
        raise _bad(path.name, name, f"an entry {min(unknown)!r}", "the head of ledger.py says what a claim has")
    if way in known and row[way] not in known[way]:
        raise _bad(path.name, name, f"{way} = {row[way]!r}", f"it is one of {', '.join(sorted(known[way]))}")
    given, checks = row.get("given", {}), row.get("checks", [])
    if (
        not isinstance(given, dict)
        or not isinstance(checks, list)
        or not isinstance(row.get("arithmetic", False), bool)
    ):
        raise _bad(path.name, name, "given, checks or arithmetic of another type", "a table, a list, true or false")
    if (way in ("compute", "read")) != bool(checks):
        raise _bad(
            path.name, name, f"{way} with {len(checks)} checks", "what is tested has checks, what is not has none"
        )
    return Claim(
        **{key: row[key].strip() for key in TEXTS}, source=path.stem, way=way, by=row[way].strip(),
        arithmetic=row.get("arithmetic", False), given=given,
        checks=tuple(_check(path.name, name, check) for check in checks),
    )  # fmt: skip


def _check(file: str, name: str, row: Any) -> Check:
    rule = f"a check has a figure and one of {', '.join(RELATIONS)}, whose number is a text as the source prints it"
    if not isinstance(row, dict) or not isinstance(row.get("figure"), str):
        raise _bad(file, name, f"the check {row!r}", rule)
    relations = [relation for relation in RELATIONS if relation in row]
    if len(relations) != 1 or set(row) - {"figure", "within", "note", *RELATIONS}:
        raise _bad(file, name, f"the check {row!r}", rule)
    relation = relations[0]
    text = row[relation]
    number = _number(text)
    # a printed number stands for all that round to it; the last digits of a float may lie just outside
    own = 0.5 * 10.0 ** -len(str(text).partition(".")[2]) * (1 + 1e-9) if relation == "said" else 0.0
    within = _number(row["within"]) if "within" in row else own
    if number is None or within is None or ("within" in row and relation != "said"):
        raise _bad(file, name, f"the check {row!r}", rule)
    return Check(row["figure"], relation, number, text, within, str(row.get("note", "")))


def _number(text: Any) -> float | None:
    """The number that a text prints, thousands apart or not."""
    if not isinstance(text, str):
        return None
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bad(file: str, name: str | None, got: str, rule: str) -> WhenceError:
    return usage_error(f"claims/{file}" + (f", {name}," if name else ""), got, rule, "correct that entry")

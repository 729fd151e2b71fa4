"""The evidence of a claim: the record of a computation, or figures read from the records of a study, experiment or probe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from whence import records
from whence.errors import usage_error
from whence_papers.ledger import mend_records, next_location_records, probe_records, study_records
from whence_papers.ledger.claims import Claim, LedgerFolders, MissingEvidence
from whence_papers.ledger.computations import COMPUTATIONS
from whence_papers.ledger.pretrained_models import PRETRAINED
from whence_papers.ledger.trained_models import COMPARISONS, MEASUREMENTS

READERS = study_records.READERS | probe_records.READERS | mend_records.READERS | next_location_records.READERS
KNOWN_NAMES = {"compute": (*COMPUTATIONS, *MEASUREMENTS, *PRETRAINED), "read": tuple(READERS)}


@dataclass(frozen=True)
class Evidence:
    """Figures by name and their record, or what is missing."""

    figures: dict[str, Any] | None
    record: str = ""
    waits_for: str = ""


def find_evidence(claim: Claim, folders: LedgerFolders) -> Evidence:
    """Find the evidence of a claim. Nothing is computed."""
    if claim.method == "read":
        try:
            figures, where = READERS[claim.by](folders, **claim.arguments)
        except MissingEvidence as missing:
            return Evidence(None, waits_for=str(missing))
        return Evidence(figures, where)
    path = folders.record_path(claim.id)
    if not folders.reader.exists(path):
        first = f"the trained weights of {claim.arguments['study']}, and then " if claim.by in MEASUREMENTS else ""
        return Evidence(None, waits_for=f"{first}its record (`whence claims --update`)")
    record = folders.reader.read(path)
    if record.get("computation") != claim.by or record.get("arguments") != to_plain(claim.arguments):
        return Evidence(
            None, waits_for=f"a new record: {path.name} was computed from other arguments (`whence claims --update`)"
        )
    if not isinstance(record.get("figures"), dict):
        raise usage_error(
            "claims",
            f"{path.name} without 'figures'",
            "a record stores its figures under 'figures'",
            "run `whence claims --update`",
        )
    figures = record["figures"]
    if claim.by in COMPARISONS:
        figures = figures | COMPARISONS[claim.by](figures, **claim.arguments)
    return Evidence(figures, path.as_posix())


def update_records(claims: list[Claim], folders: LedgerFolders) -> Iterator[tuple[Claim, str]]:
    """Recompute the records and yield the outcome for each claim. A record with equal numbers is left unchanged.

    A record of other sources than those of the commit it names is written again. Every record stores the command that
    computes it again; a record without one gets it, and nothing else in it changes.
    """
    results: dict[str, dict[str, Any]] = {}  # claims with the same computation and arguments share the result
    for claim in claims:
        if claim.method != "compute":
            continue
        path, command = folders.record_path(claim.id), update_command(claim)
        before = folders.reader.read(path) if folders.reader.exists(path) else None
        try:
            key = repr((claim.by, to_plain(claim.arguments)))
            if key not in results:
                results[key] = to_plain(run_computation(claim, folders))
            figures = results[key]
        except MissingEvidence as missing:
            if before is not None and "command" not in before:
                records.write(path, before | {"command": command})
            state = "it has no record" if before is None else "its record is kept"
            yield claim, f"waits for {missing}; {state}"
            continue
        record = {
            "claim": claim.id,
            "computation": claim.by,
            "arguments": to_plain(claim.arguments),
            "figures": figures,
        }
        if before is not None and is_current(before) and nearly_equal({key: before.get(key) for key in record}, record):
            if "command" not in before:
                records.write(path, before | {"command": command})
            yield claim, "unchanged"
            continue
        environment = records.describe_environment(("torch",), sources=[__name__])
        records.write(path, record | {"command": command, "environment": environment})
        yield claim, "written"


def is_current(record: dict[str, Any]) -> bool:
    """Whether a record is not known to come from other sources than those of its commit."""
    return (record.get("provenance") or {}).get("source_matches_commit") is not False


def update_command(claim: Claim) -> str:
    """The command that computes the record of a claim again."""
    return f"whence claims --update --id {claim.id}"


def run_computation(claim: Claim, folders: LedgerFolders) -> dict[str, Any]:
    """Run the computation of a claim."""
    try:
        if claim.by in MEASUREMENTS:
            return MEASUREMENTS[claim.by](folders, **claim.arguments)
        return (COMPUTATIONS | PRETRAINED)[claim.by](**claim.arguments)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        rule = "arguments holds the arguments of the computation"
        raise usage_error(f"claims/{claim.source}.toml, {claim.id},", str(error), rule, "correct that entry") from error


def to_plain(value: Any) -> Any:
    """Convert to what a JSON round trip returns.

    >>> to_plain({"a": (1, 2.5)})
    {'a': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {str(key): to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    return value


def nearly_equal(a: Any, b: Any) -> bool:
    """Whether two results are equal up to the last digits, which differ between machines.

    >>> nearly_equal({"x": [0.1 + 0.2, 1e-17]}, {"x": [0.3, 0]}), nearly_equal({"x": 1.0}, {"x": 1.1})
    (True, False)
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return set(a) == set(b) and all(nearly_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(nearly_equal, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return a == b

"""The evidence of a claim: the record of a computation, or what the records of a study, an experiment or a probe say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from whence import records
from whence.errors import usage_error
from whence_papers.ledger import experiments, probes, studies
from whence_papers.ledger.computations import COMPUTATIONS
from whence_papers.ledger.ledger import Claim
from whence_papers.ledger.measured import MEASURED
from whence_papers.ledger.next_places import NEXT_PLACES
from whence_papers.ledger.places import Places, Waiting
from whence_papers.ledger.trained import MEASUREMENTS

EVERY_READING = studies.READINGS | experiments.READINGS | probes.READINGS | NEXT_PLACES | MEASURED
KNOWN = {"compute": (*COMPUTATIONS, *MEASUREMENTS), "read": tuple(EVERY_READING)}


@dataclass(frozen=True)
class Evidence:
    """What was found, by name, and where it stands; or what has to be there first."""

    found: dict[str, Any] | None
    record: str = ""
    waits_for: str = ""


def evidence_of(claim: Claim, places: Places) -> Evidence:
    """What there is for a claim now; nothing is computed anew."""
    if claim.way == "read":
        try:
            found, record = EVERY_READING[claim.by](places, **claim.given)
        except Waiting as waiting:
            return Evidence(None, waits_for=str(waiting))
        return Evidence(found, record)
    path = places.record_path(claim.id)
    if not records.exists(path):
        first = f"the trained weights of {claim.given['study']}, and then " if claim.by in MEASUREMENTS else ""
        return Evidence(None, waits_for=f"{first}its record (`whence claims --update`)")
    kept = records.read(path)
    if kept.get("computation") != claim.by or kept.get("given") != plain(claim.given):
        return Evidence(
            None, waits_for=f"a new record, since {path.name} is of other figures: `whence claims --update`"
        )
    if not isinstance(kept.get("found"), dict):
        raise usage_error("claims", f"{path.name} without found", "a record says what was found", "compute it again")
    return Evidence(kept["found"], path.as_posix())


def update(claims: list[Claim], places: Places) -> Iterator[tuple[Claim, str]]:
    """Compute the records anew, and say of each what became of it; one with the same numbers is left as it is."""
    once: dict[str, dict[str, Any]] = {}  # claims that share a computation and its figures share its outcome
    for claim in claims:
        if claim.way != "compute":
            continue
        path = places.record_path(claim.id)
        try:
            key = repr((claim.by, plain(claim.given)))
            if key not in once:
                once[key] = plain(computed(claim, places))
            found = once[key]
        except Waiting as waiting:
            kept = "its record is kept" if records.exists(path) else "it has no record"
            yield claim, f"waits for {waiting}; {kept}"
            continue
        record = {"claim": claim.id, "computation": claim.by, "given": plain(claim.given), "found": found}
        if records.exists(path) and same({key: records.read(path).get(key) for key in record}, record):
            yield claim, "unchanged"
            continue
        environment = records.describe_environment(("torch",), sources=[__name__])
        records.write(path, record | {"command": records.rerun_command(), "environment": environment})
        yield claim, "written"


def computed(claim: Claim, places: Places) -> dict[str, Any]:
    """What a claim's computation finds now."""
    try:
        if claim.by in MEASUREMENTS:
            return MEASUREMENTS[claim.by](places, **claim.given)
        return COMPUTATIONS[claim.by](**claim.given)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        rule = "given holds what the computation is given"
        raise usage_error(f"claims/{claim.source}.toml, {claim.id},", str(error), rule, "correct that entry") from error


def plain(value: Any) -> Any:
    """What JSON would hand back.

    >>> plain({"a": (1, 2.5)})
    {'a': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def same(a: Any, b: Any) -> bool:
    """Whether two findings are equal but for the last digits, which differ from one machine to the next.

    >>> same({"x": [0.1 + 0.2, 1e-17]}, {"x": [0.3, 0]}), same({"x": 1.0}, {"x": 1.1})
    (True, False)
    """
    if isinstance(a, dict) and isinstance(b, dict):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)
    return a == b

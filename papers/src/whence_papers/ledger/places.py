"""Where the ledger finds things, and what it says when something is not there yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whence_papers import FOLDER


class Waiting(Exception):
    """Something that has to be there first: a study's records, a folder of data, trained weights. Says what."""


@dataclass(frozen=True)
class Places:
    """The ledger's data with its records below, the studies' records, and the measurements."""

    claims: Path = FOLDER / "claims"
    results: Path = FOLDER / "results"
    benchmarks: Path = Path("benchmarks/records")

    def record_path(self, claim_id: str) -> Path:
        return self.claims / "records" / f"{claim_id}.json"

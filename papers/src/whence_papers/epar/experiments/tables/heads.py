"""What the trained heads came to, as CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence_papers.epar.experiments.tables.writing import write_csv


def write(record: dict[str, Any], folder: Path) -> None:
    heads, seeds = record["results"]["heads"], record["spec"]["seeds"]
    rows = [
        {"form": form, "seed": seed, "last_error": head["errors"][-1]}
        | {name: head.get(name, "") for name in ("alpha", "beta", "gamma")}
        for form in heads
        if form != "start"
        for seed, head in zip(seeds, heads[form], strict=True)
    ]
    write_csv(folder / "trained_heads.csv", rows)

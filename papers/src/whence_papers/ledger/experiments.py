"""What the records of experiments say of a claim, read anew each time; a record that is missing is waited for."""

from __future__ import annotations

from typing import Any

from whence import records
from whence_papers.ledger.places import Places, Waiting
from whence_papers.ledger.studies import METRICS, Reading, judged


def adapters(places: Places, adapter: str, baseline: str, split: str) -> tuple[dict[str, Any], str]:
    """One adapter of the adaptive experiment against another: 1 where it can be called better, -1 where worse."""
    path = places.results / "epar" / "adaptive_attention.json"
    if not records.exists(path):
        raise Waiting(f"the adaptive experiment ({path}, made by `whence run epar/adaptive_attention`)")
    models = records.read(path)["results"]["models"]
    factor = METRICS["accuracy"][0]
    sides = {name: [factor * seed["splits"][split] for seed in models[name]] for name in (baseline, adapter)}
    # every adapter is one comparison with the same baseline, whichever of them a claim is about
    found = judged(sides, baseline, "accuracy", len(models) - 1)[adapter]
    return found, path.as_posix()


READINGS: dict[str, Reading] = {"adapters": adapters}

"""Does coverage keep a pointer-generator from repeating words?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.lab.experiment import Experiment
from whence_papers.pointer.coverage.experiment import CoverageSpec, compute

__all__ = ["COVERAGE"]


def _draw(record: dict[str, Any], folder: Path) -> None:
    from whence_papers.pointer.coverage.figure import draw

    draw(record, folder)


COVERAGE = Experiment(
    name="coverage",
    group="pointer",
    folder="coverage",
    question="Does coverage keep a pointer-generator from repeating words?",
    spec=CoverageSpec(),
    quick=CoverageSpec(seeds=(0, 1), steps=3, extra_steps=2, num_test_texts=6),
    compute=compute,
    draw=_draw,
)

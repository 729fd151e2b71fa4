"""ROUGE of summaries, by rouge-score (Lin 2004)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from whence.errors import require_package

ROUGE = ("rouge1", "rouge2", "rougeL")


def score_summaries(summaries: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L: the mean F measure over summaries, with stemming, from 0 to 1.

    >>> round(score_summaries(["Bo slept in Rome"], ["Bo slept."])["rougeL"], 3)
    0.667
    """
    scorer = require_package("rouge_score.rouge_scorer", "ROUGE", "summarization").RougeScorer(
        list(ROUGE), use_stemmer=True
    )
    scores = [scorer.score(reference, own) for own, reference in zip(summaries, references, strict=True)]
    return {name: sum(float(one[name].fmeasure) for one in scores) / len(scores) for name in ROUGE}


def rouge_signature() -> str:
    """The library, its version and the setting that changes scores."""
    return f"rouge-score {version('rouge-score')}, F measure, Porter stemmer"

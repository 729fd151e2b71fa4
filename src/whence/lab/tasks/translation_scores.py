"""BLEU and chrF of translations, by sacrebleu (Post 2018, arXiv 1804.08771)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whence.errors import require_package


@dataclass(frozen=True)
class TranslationScores:
    """Corpus scores from 0 to 100 by metric, and sacrebleu's signature of each: its version and its settings."""

    values: dict[str, float]
    signatures: dict[str, str]


def score_translations(translations: Sequence[str], references: Sequence[str]) -> TranslationScores:
    """BLEU and chrF of a corpus with one reference for each translation, with sacrebleu's defaults (tokenizer 13a).

    >>> score_translations(["a man sleeps on the sofa"], ["a man sleeps on the sofa"]).values["bleu"]
    100.00000000000004
    """
    metrics = require_package("sacrebleu.metrics", "BLEU and chrF", "translation")
    values, signatures = {}, {}
    # force: no warning about translations that look tokenized
    for name, metric in (("bleu", metrics.BLEU(force=True)), ("chrf", metrics.CHRF())):
        values[name] = float(metric.corpus_score(list(translations), [list(references)]).score)
        signatures[name] = str(metric.get_signature())
    return TranslationScores(values, signatures)

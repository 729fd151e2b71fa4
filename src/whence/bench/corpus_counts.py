"""Counts of each item behind a corpus metric, and bootstrap draws of the metric from them.

Records hold the counts and not the reference texts, which belong to the benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from whence.bench.tasks.scores import corpus_metric
from whence.probe.curves import bootstrap_means

CORPUS_DRAWS = 500
WITHOUT_COUNTS = ("chrf", "codebleu")  # corpus metrics whose counts by item are not published


def count_matches(name: str, answer: str, reference: str) -> list[float]:
    """The counts of one answer: edits and length of the reference for TER, matches, totals and both lengths for BLEU."""
    score = corpus_metric(name, effective_order=True).sentence_score(answer.strip(), [reference])
    if name == "ter":
        return [float(score.num_edits), float(score.ref_length)]
    return [float(count) for count in (*score.counts, *score.totals, score.sys_len, score.ref_len)]


def bootstrap_corpus(name: str, counts: Sequence[Sequence[float]]) -> list[float]:
    """Scores of items that are drawn with replacement."""
    means = bootstrap_means(torch.tensor(counts, dtype=torch.float64), seed=0, draws=CORPUS_DRAWS)
    if name == "ter":
        return (100 * means[:, 0] / means[:, 1]).tolist()
    metric, scores = corpus_metric(name, effective_order=True), []
    for row in (means * len(counts)).round().long().tolist():
        correct, total, (answer, reference) = row[:4], row[4:8], row[8:]
        whole = metric.compute_bleu(correct, total, answer, reference, metric.smooth_method, metric.smooth_value)
        scores.append(float(whole.score))
    return scores

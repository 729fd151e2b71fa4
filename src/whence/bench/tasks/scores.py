"""How answers are scored: the functions that lm-evaluation-harness calls with a row and the generated answer.

The harness's own scores are used where it has them (LongBench, GLUE). Its SQuAD and SCROLLS load their metrics from the hub,
so exact match, F1 and ROUGE are here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from whence.errors import require_package
from whence.lab.answer_scores import exact_match, normalize_answer, score_answer, token_f1

Row = dict[str, Any]
UNANSWERABLE = "unanswerable"


def score_squad(row: Row, results: Sequence[str]) -> dict[str, float]:
    """SQuAD 2.0: exact match and F1 over all questions, over those with an answer and over those without.

    The answer "unanswerable" is the empty answer.
    """
    answer = results[0].strip()
    if normalize_answer(answer) == UNANSWERABLE:
        answer = ""
    found = score_answer(answer, row["answers"])
    scores = {"exact": found["exact_match"], "f1": found["token_f1"]}
    part = "HasAns" if row["answers"] else "NoAns"
    return scores | {f"{part}_{name}": value for name, value in scores.items()}


def score_f1(row: Row, results: Sequence[str]) -> dict[str, float]:
    """The best F1 over the accepted answers."""
    return {"f1": max(token_f1(results[0].strip(), one) for one in row["answers"])}


def score_exact(row: Row, results: Sequence[str]) -> dict[str, float]:
    """Exact match with an accepted answer."""
    return {"exact": max(exact_match(results[0].strip(), one) for one in row["answers"])}


def score_rouge(row: Row, results: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L (F measure with stemming), each the best over the references."""
    scorer = require_package("rouge_score.rouge_scorer", "whence bench", "bench").RougeScorer(
        ["rouge1", "rouge2", "rougeL"], use_stemmer=True
    )
    scores = scorer.score_multi(row["answers"], results[0].strip())
    return {name: float(score.fmeasure) for name, score in scores.items()}


def score_translation(row: Row, results: Sequence[str]) -> dict[str, Any]:
    """Corpus BLEU, chrF and TER by the harness, and chrF of the sentence (0 to 1), which paired tests need."""
    pair = (row["target"], results[0].strip())
    return {"bleu": pair, "chrf": pair, "ter": pair, "sentence_chrf": sentence_chrf(*pair)}


def score_code(row: Row, results: Sequence[str]) -> dict[str, Any]:
    """Corpus BLEU over tokens separated by spaces, exact match of the tokens, chrF of the program (0 to 1), and CodeBLEU."""
    pair = (row["target"], " ".join(results[0].split()))
    same = float(pair[1].split() == pair[0].split())
    scores = {"token_bleu": pair, "exact": same, "sentence_chrf": sentence_chrf(*pair)}
    return scores | ({"codebleu": pair} if has_codebleu() else {})


def sentence_chrf(reference: str, answer: str) -> float:
    sacrebleu = require_package("sacrebleu", "whence bench", "bench")
    return float(sacrebleu.sentence_chrf(answer, [reference]).score) / 100


def token_bleu(pairs: Sequence[tuple[str, str]]) -> float:
    """BLEU-4 of (reference, answer) pairs whose tokens are separated by spaces."""
    return float(
        corpus_metric("token_bleu").corpus_score([answer for _, answer in pairs], [[one for one, _ in pairs]]).score
    )


def has_codebleu() -> bool:
    """Whether the package codebleu is installed. Its parsers have no wheels for Python 3.13 and later."""
    return importlib.util.find_spec("codebleu") is not None


def codebleu(language: str) -> Callable[[Sequence[tuple[str, str]]], float]:
    """CodeBLEU of (reference, answer) pairs: the mean of BLEU, BLEU weighted by keywords, and the matches of syntax trees
    and of data flow.

    The mean is taken here: the total of the package counts a data flow without any match as a full match.
    """

    def score(pairs: Sequence[tuple[str, str]]) -> float:
        compute = require_package("codebleu", "CodeBLEU", "bench").calc_codebleu
        found = compute([one for one, _ in pairs], [answer for _, answer in pairs], lang=language)
        parts = [value for name, value in found.items() if name.endswith("_match_score")]
        return 100 * float(sum(parts)) / len(parts)

    return score


def corpus_metric(name: str, effective_order: bool = False) -> Any:
    """The metric of sacrebleu behind ``bleu``, ``chrf``, ``ter`` or ``token_bleu``. ``effective_order``: for single sentences."""
    metrics = require_package("sacrebleu.metrics", "whence bench", "bench")
    if name == "token_bleu":
        return metrics.BLEU(tokenize="none", smooth_method="add-k", effective_order=effective_order)
    if name == "bleu":
        return metrics.BLEU(effective_order=effective_order)
    return {"chrf": metrics.CHRF, "ter": metrics.TER}[name]()

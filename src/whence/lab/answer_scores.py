"""Exact match and F1 of short answers, as SQuAD defines them (Rajpurkar et al. 2016, arXiv 1606.05250; 2018, arXiv 1806.03822).

The answer to an unanswerable question is the empty text.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """A text as SQuAD compares it: lower case, no punctuation, no articles, single spaces.

    >>> normalize_answer("The Beatles' *first*  album, an LP")
    'beatles first album lp'
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> float:
    """1 if the two are equal without case, punctuation and articles.

    >>> exact_match("The Eiffel tower.", "eiffel Tower"), exact_match("Paris", "")
    (1.0, 0.0)
    """
    return float(normalize_answer(answer) == normalize_answer(reference))


def token_f1(answer: str, reference: str) -> float:
    """F1 of the words of an answer. An empty side scores 1 only against another empty side, as SQuAD 2.0 defines it.

    >>> token_f1("the tower in Paris", "Paris"), token_f1("", ""), token_f1("Paris", "")
    (0.5, 1.0, 0.0)
    """
    words, expected = normalize_answer(answer).split(), normalize_answer(reference).split()
    if not words or not expected:
        return float(words == expected)
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected))


def score_answer(answer: str, references: Sequence[str]) -> dict[str, float]:
    """``exact_match`` and ``token_f1`` of one answer, each the best over the references; no reference: unanswerable.

    As in SQuAD's own script, references without a word after normalisation do not count.

    >>> score_answer("in Paris", ["Paris", "in Paris, France"]), score_answer("", [])
    ({'exact_match': 0.0, 'token_f1': 0.8}, {'exact_match': 1.0, 'token_f1': 1.0})
    """
    accepted = [one for one in references if normalize_answer(one)] or [""]
    return {
        "exact_match": max(exact_match(answer, one) for one in accepted),
        "token_f1": max(token_f1(answer, one) for one in accepted),
    }

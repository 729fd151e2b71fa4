"""The published scores of a generated answer (Liu et al. 2023, arXiv 2307.03172)."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from whence.errors import usage_error

PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """A text as SQuAD compares it: lower case, no punctuation, no articles, single spaces.

    >>> normalised("The Beatles' *first*  album, an LP")
    'beatles first album lp'
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(PUNCTUATION)).split())


def value_occurs(output: str, answers: Sequence[str]) -> bool:
    """Whether a value stands anywhere in what was generated; the case of letters does not count.

    >>> value_occurs('"ABC-1"}', ["abc-1"]), value_occurs("abc", ["abc-1"])
    (True, False)
    """
    return any(answer.lower() in output.lower() for answer in answers)


def best_subspan(output: str, answers: Sequence[str]) -> bool:
    """Whether an answer stands in the first line, both normalised; what follows a line break does not count.

    >>> best_subspan("It was the Röntgen.\\nMarie Curie", ["Röntgen"]), best_subspan("Curie\\nRöntgen", ["Röntgen"])
    (True, False)
    """
    first = normalised(output.split("\n")[0])
    return any(normalised(answer) in first for answer in answers)


def right(metric: str, output: str, answers: Sequence[str]) -> bool:
    """The score of an output by the name of its metric."""
    known = {"value": value_occurs, "subspan": best_subspan}
    if metric not in known:
        raise usage_error("right", repr(metric), f"the metrics are {', '.join(known)}", "take one of them")
    return known[metric](output, answers)

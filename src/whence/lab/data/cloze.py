"""Cloze questions from the contexts of other questions: a sentence with one name or number replaced by "what".

Some thousand questions are few for a model that is trained from scratch. Cloze questions are as many as one likes, and their words
occur in the context as those of a question do. A third of them are about a context that does not have the answer, unless all
questions are answerable.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from whence.lab.data.squad import Question, split_sentences

#: a name of one or several words, or a number
_SPAN = re.compile(r"\b[A-Z][\w'’-]+(?: (?:of |the )?[A-Z][\w'’-]+)*|\b\d[\d,.]*\d\b|\b\d\b")
#: words of a sentence that a question needs beside its gap
MIN_WORDS = 5
#: share of the other words that a question drops, and share of questions without an answer
DROPPED, UNANSWERABLE = 0.3, 1 / 3


def make_cloze_questions(
    questions: Sequence[Question], count: int, seed: int = 0, unanswerable: float = UNANSWERABLE
) -> list[Question]:
    """``count`` cloze questions about the contexts of ``questions``; none if no context has a name or a number.

    ``unanswerable`` is the share of questions without an answer.

    >>> one = Question("", "towns", "It rained a lot. In May the old town of Bern was full of people.", "")
    >>> made = make_cloze_questions([one], 1)[0]
    >>> made.question, made.answers
    ('old of what was full people', (('Bern', 40),))
    """
    drawn = random.Random(f"cloze/{seed}")
    contexts = list(dict.fromkeys((one.title, one.context) for one in questions))
    gaps = [(title, context, start, sentence, match.span()) for title, context in contexts
            for start, sentence in _locate_sentences(context) for match in _SPAN.finditer(sentence)
            if match.start() > 0 and len(sentence.split()) > MIN_WORDS]  # fmt: skip
    made: list[Question] = []
    while gaps and len(made) < count:
        title, context, start, sentence, (first, last) = drawn.choice(gaps)
        answer = sentence[first:last]
        before, after = (
            [word for word in side.rstrip(".!?").split() if drawn.random() >= DROPPED]
            for side in (sentence[:first], sentence[last:])
        )
        asked = " ".join([*before, "what", *after])
        answers: tuple[tuple[str, int], ...] = ((answer, start + first),)
        if drawn.random() < unanswerable:
            _, context = drawn.choice(contexts)
            if answer in context:
                continue
            answers = ()
        made.append(Question(f"cloze-{seed}-{len(made)}", title, context, asked, answers))
    return made


def _locate_sentences(context: str) -> list[tuple[int, str]]:
    """The sentences of a context with their first characters."""
    found, at = [], 0
    for sentence in split_sentences(context):
        at = context.index(sentence, at)
        found.append((at, sentence))
        at += len(sentence)
    return found

"""Counts over the speeches' own files. They need the data folder; without it their records stay as they are."""

from __future__ import annotations

from typing import Any

from whence.errors import MissingExtra, WhenceError
from whence_papers.ledger.places import Waiting


def speeches_counts(context: int) -> dict[str, Any]:
    """Vocabulary, items, padding at a length, and how many test sentences stand in the training file."""
    from whence_papers.speeches import data

    asked = "whence claims"
    try:
        nltk = data.tokeniser(asked)
        words = data.vocabulary(asked, nltk.split).size
        train, _ = data.labelled(asked, "train_CLS.tsv")
        test, _ = data.labelled(asked, "test_CLS.tsv")
    except (WhenceError, MissingExtra) as error:
        raise Waiting(f"the speeches' files ({error})") from None
    known = set(train)
    lengths = [min(context, len(nltk.split(text))) for text in train]
    return {
        "vocabulary": words,
        "training_items": len(train),
        "test_items": len(test),
        "padding_percent": 100 * (1 - sum(lengths) / (context * len(train))),
        "test_items_in_training": sum(text in known for text in test),
        "words": f"nltk {nltk.version}; other versions cut other words.",
    }


COMPUTATIONS = (speeches_counts,)

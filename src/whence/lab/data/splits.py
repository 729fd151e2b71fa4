"""Split rows into training, validation and test parts, and find texts that occur in more than one of them."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

#: parts of an automatic split, with their shares of each class
SHARES = {"test": 0.1, "validation": 0.1}
_NOT_WORD = re.compile(r"[\W_]+")


def normalize_text(text: str) -> str:
    """A text without case, punctuation and repeated spaces; two texts with the same normal form are near-duplicates.

    >>> normalize_text("  Good, VERY good!  ")
    'good very good'
    """
    normal = _NOT_WORD.sub(" ", text.casefold()).strip()
    return normal or text.strip()  # a text of punctuation alone is itself


def stratified_split(keys: Sequence[str], labels: Sequence[Hashable], seed: int) -> list[str]:
    """The part of each row: a tenth of each label's rows for test, a tenth for validation, the rest for training.

    Rows with the same key stay together, so that no text is in two parts. They count for their most frequent label.
    Every part gets at least one row of each label that has three different keys.

    >>> parts = stratified_split([str(number) for number in range(100)], [number % 2 for number in range(100)], seed=0)
    >>> Counter(zip(parts, [number % 2 for number in range(100)], strict=True))["test", 1]
    5
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        groups[key].append(index)
    strata: dict[Hashable, list[list[int]]] = defaultdict(list)
    for rows in groups.values():
        strata[Counter(labels[row] for row in rows).most_common(1)[0][0]].append(rows)
    parts = ["train"] * len(keys)
    for label, members in sorted(strata.items(), key=lambda item: str(item[0])):
        random.Random(f"{seed}/{label}").shuffle(members)
        total = sum(map(len, members))
        waiting = list(members)
        for part, share in SHARES.items():
            wanted, taken = max(1, round(share * total)), 0
            while taken < wanted and len(waiting) > 1:
                rows = waiting.pop()
                taken += len(rows)
                for row in rows:
                    parts[row] = part
    return parts


def describe_duplicates(keys: Sequence[str], labels: Sequence[Hashable] | None, parts: Sequence[str]) -> dict[str, Any]:
    """Near-duplicates (equal normalised texts): rows that repeat another, texts in two parts, texts with two labels.

    >>> describe_duplicates(["a", "a", "b"], [0, 1, 1], ["train", "test", "train"])
    {'repeated_rows': 1, 'across_parts': {'test': 1}, 'conflicting_texts': 1, 'conflicting_rows': 2}
    """
    in_training = {key for key, part in zip(keys, parts, strict=True) if part == "train"}
    across: Counter[str] = Counter()
    for key, part in zip(keys, parts, strict=True):
        if part != "train" and key in in_training:
            across[part] += 1
    facts: dict[str, Any] = {"repeated_rows": len(keys) - len(set(keys)), "across_parts": dict(sorted(across.items()))}
    if labels is not None:
        known: dict[str, set[Hashable]] = defaultdict(set)
        for key, label in zip(keys, labels, strict=True):
            known[key].add(label)
        conflicting = {key for key, own in known.items() if len(own) > 1}
        facts |= {"conflicting_texts": len(conflicting), "conflicting_rows": sum(key in conflicting for key in keys)}
    return facts


def describe_lengths(lengths: Sequence[int], limit: int | None, unit: str) -> dict[str, Any]:
    """The distribution of lengths in tokens, and the share of texts that the limit cuts.

    >>> describe_lengths([1, 2, 3, 10], 5, "words")
    {'unit': 'words', 'min': 1, 'median': 2, 'p90': 3, 'max': 10, 'limit': 5, 'truncated': 0.25}
    """
    ordered = sorted(lengths)

    def quantile(share: float) -> int:
        return ordered[int(share * (len(ordered) - 1))]

    return {
        "unit": unit, "min": ordered[0], "median": quantile(0.5), "p90": quantile(0.9), "max": ordered[-1],
        "limit": limit, "truncated": 0.0 if limit is None else sum(one > limit for one in ordered) / len(ordered),
    }  # fmt: skip

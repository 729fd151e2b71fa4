"""Questions over several documents (Liu et al. 2023, arXiv 2307.03172), one of which holds the answer.

The published oracle file has one passage for each question. The distractors here are passages of other questions, which
are easier to tell apart than the retrieved ones of the paper; in return each of them answers a question of its own, so
its answer is a rival, and a wrong choice says which document was read instead. The layout of a prompt is the published
one, the instruction is in our words.
"""

from __future__ import annotations

import random
from typing import Any

from whence.errors import usage_error
from whence.lab.data.folder import data_file
from whence.probe.metrics import normalised
from whence.probe.tasks.prompts import Item, Task, require_items
from whence.probe.tasks.published_files import read_rows

FILE = "lost_in_the_middle/nq-open-oracle.jsonl.gz"


def documents(items: int, count: int = 10, seed: int = 0, words: int = 100) -> Task:
    """Questions with ``count`` documents each, every document cut after so many words (the published ones have 100)."""
    path = data_file("documents", "lost_in_the_middle", FILE, "probe with key-value pairs or a needle")
    rows, genuine = read_rows(path, "documents")
    origin = (
        f"the published {path.name} (Liu et al. 2023)" if genuine else f"{path.name}, which is not the published file"
    )
    return made_of(rows, items, count, seed, words, {"file": FILE}, origin)


def made_of(
    rows: list[dict[str, Any]],
    items: int,
    count: int,
    seed: int,
    words: int,
    settings: dict[str, Any],
    origin: str = "rows that were handed over",
) -> Task:
    """The task from rows of the published form: ``question``, ``answers``, and ``ctxs`` with a title and a text."""
    if count < 2:
        raise usage_error("documents", f"{count} documents", "the gold has rivals", "take at least 2")
    usable = [row for row in rows if _answer_in(_passage(row, words), row["answers"])]
    require_items("documents", len(usable), items)
    draw = random.Random(seed)
    order = draw.sample(usable, len(usable))
    made = []
    for row in order[:items]:
        others: list[dict[str, Any]] = []
        for other in draw.sample(order, len(order)):
            if len(others) == count - 1:
                break
            if _apart(row, other, others, words):
                others.append(other)
        if len(others) < count - 1:
            raise usage_error(
                "documents", f"{count} documents", "no two may hold each other's answers", "take fewer documents"
            )
        made.append(
            Item(
                question=row["question"],
                gold=_passage(row, words),
                others=tuple(_passage(other, words) for other in others),
                answers=(_answer_in(_passage(row, words), row["answers"]), *row["answers"]),
                rivals=tuple(_answer_in(_passage(other, words), other["answers"]) for other in others),
            )
        )
    return Task(
        name=f"questions, {count} documents",
        about="A question and several passages of an encyclopedia, one of which answers it.",
        head="Answer the question from these documents. Only one of them holds the answer.\n\n",
        joint="\n",
        tail="\n\nQuestion: {question}\nAnswer:",
        lead=" ",
        label="Document [{number}]",
        metric="subspan",
        paired=True,
        items=tuple(made),
        settings={**settings, "documents": count, "items": items, "seed": seed, "words": words},
        source=(
            f"questions and gold passages of {origin}; built distractors: passages of other questions, not the published "
            "retrieved ones"
        ),
    )


def _passage(row: dict[str, Any], words: int) -> str:
    gold = row["ctxs"][0]
    return f"(Title: {gold['title']}) {' '.join(gold['text'].split()[:words])}"


def _answer_in(passage: str, answers: list[str]) -> str:
    """The first accepted answer that stands in the passage as it is cut; empty where none does."""
    return next((answer for answer in answers if normalised(answer) and answer.lower() in passage.lower()), "")


def _apart(row: dict[str, Any], other: dict[str, Any], chosen: list[dict[str, Any]], words: int) -> bool:
    """Whether another question's passage can stand here: neither passage answers the other's question."""
    taken = [row, *chosen]
    text, gold = normalised(_passage(other, words)), normalised(_passage(row, words))
    answer = normalised(_answer_in(_passage(other, words), other["answers"]))
    return (
        bool(answer)
        and answer not in gold
        and not any(normalised(accepted) in text for accepted in row["answers"])
        and all(other["ctxs"][0]["title"] != one["ctxs"][0]["title"] for one in taken)
        and not any(
            answer.startswith(known) or known.startswith(answer)  # the shorter of two would always be the likelier
            for known in (normalised(_answer_in(_passage(one, words), one["answers"])) for one in taken)
        )
    )

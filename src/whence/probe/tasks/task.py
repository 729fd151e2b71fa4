"""What a probe asks: a question over a row of slots, one of which holds the answer, and that one can be moved.

The published scores of a generated answer (Liu et al. 2023, arXiv 2307.03172).
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from whence.errors import usage_error
from whence.lab.data.corpora import content_hash

Span = tuple[int, int]

#: the two lines every curve is drawn between: nothing but the question, and the gold alone
CLOSED_BOOK, ORACLE = "closed book", "oracle"


@dataclass(frozen=True)
class Item:
    """A question, the text that answers it, and the texts around that."""

    question: str
    gold: str
    others: tuple[str, ...]  # in the order in which they stand
    answers: tuple[str, ...]  # any of them is right; the likelihood is that of the first
    rivals: tuple[str, ...]  # wrong answers; in a paired task rival i is what the question about others[i] asks for


@dataclass(frozen=True)
class Prompt:
    """A prompt as text, with the places of its slots in it, counted in characters."""

    text: str
    slots: tuple[Span, ...]
    gold: int | None  # which slot holds the answer
    answer: str  # what follows the text when it is answered rightly
    rivals: tuple[str, ...]
    owners: tuple[int | None, ...]  # for the answer and each rival: the slot that holds it
    accepted: tuple[str, ...]


@dataclass(frozen=True)
class ProbeTask:
    """A task of a probe: questions over a row of slots, and how their prompts are written.

    A prompt is ``head``, the slots with ``joint`` between them, and ``tail`` with the question. The probe moves the gold
    from slot to slot and keeps everything else. A task of your own is a function that returns a ``ProbeTask`` for a number
    of items; name it with ``--task my_module:colors``, ``--task ./colors.py:colors``, or register it in the entry-point
    group ``whence.probe_tasks``::

        def colors(items: int) -> ProbeTask:
            made = [Item(f"thing {n}", f"Thing {n} is red.", ("Stone is grey.", "Grass is green."), ("red",), ("grey", "green"))
                    for n in range(items)]
            return ProbeTask(
                name="colors", about="The color of a thing.", head="", joint="\\n", tail="\\nWhat color is {question}?",
                lead=" ", label="", metric="value", paired=True, items=tuple(made),
            )

    Args:
        name: for tables and pages.
        about: one sentence about the task, for the page.
        tail: contains ``{question}``.
        lead: between the prompt and an answer: a space, or a space and a quotation mark.
        label: before each slot, with ``{number}`` counted from 1; empty for none.
        metric: ``"value"`` or ``"subspan"``: how a generated answer is scored, see ``is_correct``.
        paired: whether rival i is the answer that slot i holds, so that a wrong choice tells which slot was read.
        items: all with the same number of other texts and of rivals.
        settings: for the record.
        source: where the questions come from.
    """

    name: str
    about: str
    head: str
    joint: str
    tail: str
    lead: str
    label: str
    metric: str
    paired: bool
    items: tuple[Item, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def slots(self) -> int:
        return len(self.items[0].others) + 1

    @cached_property
    def hash(self) -> str:
        """Records with equal hashes have the same items."""
        parts = [self.head, self.joint, self.tail, self.lead, self.label]
        for item in self.items:
            parts.append(json.dumps([item.question, item.gold, item.others, item.answers, item.rivals]))
        return content_hash(parts)

    def prompt(self, item: Item, place: int) -> Prompt:
        """The prompt with the gold in slot ``place``; the others keep their order."""
        if not 0 <= place <= len(item.others):
            raise usage_error(
                f"{self.name}.prompt",
                f"place {place}",
                f"it has slots 0 to {len(item.others)}",
                "take one of them",
            )
        texts = [*item.others[:place], item.gold, *item.others[place:]]
        around = [*range(place), *range(place + 1, len(texts))]
        return self._build_prompt(item, texts, place, (place, *(around if self.paired else [None] * len(item.rivals))))

    def closed_book(self, item: Item) -> Prompt:
        """The question alone: what the model knows, or guesses, without any slot."""
        return self._build_prompt(item, [], None, (None,) * (1 + len(item.rivals)))

    def oracle(self, item: Item) -> Prompt:
        """The gold as the only slot: what can be had when nothing stands around it."""
        return self._build_prompt(item, [item.gold], 0, (0, *[None] * len(item.rivals)))

    def at(self, item: Item, condition: int | str) -> Prompt:
        """The prompt for a place, or for one of the two lines by its name."""
        if isinstance(condition, int):
            return self.prompt(item, condition)
        return {CLOSED_BOOK: self.closed_book, ORACLE: self.oracle}[condition](item)

    def content_free(self, text: str, places: int | None = None) -> Prompt:
        """The same layout with the same words in every slot: whatever differs between slots is position alone."""
        item = self.items[0]
        return self._build_prompt(item, [text] * (places or self.slots), None, (None,) * (1 + len(item.rivals)))

    def first(self, count: int) -> ProbeTask:
        """The same task with its first items."""
        return replace(self, items=self.items[:count])

    def _build_prompt(self, item: Item, texts: list[str], gold: int | None, owners: tuple[int | None, ...]) -> Prompt:
        text, spans = self.head, []
        for number, slot in enumerate(texts):
            text += self.joint if number else ""
            start = len(text)
            text += self.label.format(number=number + 1) + slot
            spans.append((start, len(text)))
        text += self.tail.format(question=item.question)
        return Prompt(
            text,
            tuple(spans),
            gold,
            self.lead + item.answers[0],
            tuple(self.lead + rival for rival in item.rivals),
            owners,
            item.answers,
        )


def spread_slots(slots: int, count: int) -> tuple[int, ...]:
    """So many places from the first slot to the last, as evenly as whole numbers allow.

    >>> spread_slots(140, 5), spread_slots(3, 5), spread_slots(20, 3)
    ((0, 35, 70, 104, 139), (0, 1, 2), (0, 10, 19))
    """
    if slots < 2 or count < 2:
        raise usage_error(
            "spread", f"{count} places among {slots} slots", "a curve has two ends", "take two or more of each"
        )
    count = min(count, slots)
    return tuple(int(index * (slots - 1) / (count - 1) + 0.5) for index in range(count))


def require_items(caller: str, found: int, wanted: int) -> None:
    if wanted < 1 or found < wanted:
        raise usage_error(caller, f"{wanted} items", f"there are {found}", "ask for at least 1 and no more than that")


PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """A text as SQuAD compares it: lower case, no punctuation, no articles, single spaces.

    >>> normalize_answer("The Beatles' *first*  album, an LP")
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
    first = normalize_answer(output.split("\n")[0])
    return any(normalize_answer(answer) in first for answer in answers)


def is_correct(metric: str, output: str, answers: Sequence[str]) -> bool:
    """The score of an output by the name of its metric."""
    known = {"value": value_occurs, "subspan": best_subspan}
    if metric not in known:
        raise usage_error("correct", repr(metric), f"the metrics are {', '.join(known)}", "take one of them")
    return known[metric](output, answers)

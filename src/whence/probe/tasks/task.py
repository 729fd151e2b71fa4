"""Tasks of a probe: a question about several slots, one of which contains the answer (the gold) and can be moved.

Generated answers are scored as published by Liu et al. 2023 (arXiv 2307.03172).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from whence.errors import usage_error
from whence.lab.answer_scores import normalize_answer
from whence.lab.data.corpora import content_hash

Span = tuple[int, int]

#: the two baselines of every curve: the question without any slot, and the gold as the only slot
CLOSED_BOOK, ORACLE = "closed book", "oracle"


@dataclass(frozen=True)
class Item:
    """A question, the text that answers it (the gold), and the other texts."""

    question: str
    gold: str
    others: tuple[str, ...]  # in the order of the prompt
    answers: tuple[str, ...]  # accepted answers; the likelihood is that of the first
    rivals: tuple[str, ...]  # wrong answers; in a paired task rival i is the answer that others[i] contains

    def __post_init__(self) -> None:
        for name in ("others", "answers", "rivals"):
            texts = getattr(self, name)
            if not isinstance(texts, tuple | list) or not all(isinstance(text, str) for text in texts):
                example = f"({texts!r},)" if isinstance(texts, str) else '("red",)'
                raise usage_error(f"Item({name}=...)", repr(texts), f"{name} is a tuple of texts", f"pass {example}")


@dataclass(frozen=True)
class Prompt:
    """A prompt as text, with the spans of its slots in characters."""

    text: str
    slots: tuple[Span, ...]
    gold: int | None  # the slot that contains the answer
    answer: str  # the correct continuation of the text
    rivals: tuple[str, ...]
    owners: tuple[int | None, ...]  # for the answer and each rival: the slot that contains it
    accepted: tuple[str, ...]
    labels: tuple[int, ...] = ()  # the characters at the beginning of each slot that are its label; none by default


@dataclass(frozen=True)
class ProbeTask:
    """A task of a probe: items and the layout of their prompts.

    A prompt is ``head``, the slots with ``joint`` between them, and ``tail`` with the question. The probe moves the gold
    from slot to slot and changes nothing else. A custom task is a function that returns a ``ProbeTask`` for a number
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
        paired: whether rival i is the answer in others[i], so that a wrong choice identifies the slot that was read.
        items: all with the same number of other texts and of rivals.
        settings: for the record.
        source: the origin of the items.
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
                "choose one of them",
            )
        texts = [*item.others[:place], item.gold, *item.others[place:]]
        around = [*range(place), *range(place + 1, len(texts))]
        return self._build_prompt(item, texts, place, (place, *(around if self.paired else [None] * len(item.rivals))))

    def closed_book(self, item: Item) -> Prompt:
        """The question without any slot: measures what the model knows or guesses."""
        return self._build_prompt(item, [], None, (None,) * (1 + len(item.rivals)))

    def oracle(self, item: Item) -> Prompt:
        """The gold as the only slot: an upper bound without distraction."""
        return self._build_prompt(item, [item.gold], 0, (0, *[None] * len(item.rivals)))

    def at(self, item: Item, condition: int | str) -> Prompt:
        """The prompt for a gold slot, or for one of the two baselines by name."""
        if isinstance(condition, int):
            return self.prompt(item, condition)
        return {CLOSED_BOOK: self.closed_book, ORACLE: self.oracle}[condition](item)

    def content_free(self, text: str, places: int | None = None) -> Prompt:
        """The same layout with the same words in every slot, so that slots differ only in position."""
        item = self.items[0]
        return self._build_prompt(item, [text] * (places or self.slots), None, (None,) * (1 + len(item.rivals)))

    def first(self, count: int) -> ProbeTask:
        """The same task with its first items."""
        return replace(self, items=self.items[:count])

    def _build_prompt(self, item: Item, texts: list[str], gold: int | None, owners: tuple[int | None, ...]) -> Prompt:
        text, spans, labels = self.head, [], []
        for number, slot in enumerate(texts):
            text += self.joint if number else ""
            start, label = len(text), self.label.format(number=number + 1)
            text += label + slot
            spans.append((start, len(text)))
            labels.append(len(label))
        text += self.tail.format(question=item.question)
        return Prompt(
            text,
            tuple(spans),
            gold,
            self.lead + item.answers[0],
            tuple(self.lead + rival for rival in item.rivals),
            owners,
            item.answers,
            tuple(labels),
        )


def spread_slots(slots: int, count: int) -> tuple[int, ...]:
    """``count`` slots from the first to the last, spaced as evenly as possible.

    >>> spread_slots(140, 5), spread_slots(3, 5), spread_slots(20, 3)
    ((0, 35, 70, 104, 139), (0, 1, 2), (0, 10, 19))
    """
    if slots < 2 or count < 2:
        raise usage_error(
            "spread_slots", f"{count} of {slots} slots", "a curve needs at least two slots", "pass two or more of each"
        )
    count = min(count, slots)
    return tuple(int(index * (slots - 1) / (count - 1) + 0.5) for index in range(count))


def require_wrong_rivals(subject: str, answers: Sequence[str], rivals: Sequence[str]) -> None:
    """Require that no rival is an accepted answer, or begins or continues one."""
    for rival in rivals:
        clash = next((answer for answer in answers if not neither_is_prefix(rival, answer)), None)
        if clash is not None:
            raise usage_error(
                subject,
                f"the rival {rival!r} beside the answer {clash!r}",
                "no rival is a right answer or the beginning of one",
                "use another",
            )


def neither_is_prefix(rival: str, answer: str) -> bool:
    """Whether neither text is a prefix of the other; the shorter one would always be more likely.

    >>> neither_is_prefix("Ada Lovelace", "ada"), neither_is_prefix("Ben", "Ada")
    (False, True)
    """
    one, other = normalize_answer(rival) or rival.strip().lower(), normalize_answer(answer) or answer.strip().lower()
    return not (one.startswith(other) or other.startswith(one))


def require_items(subject: str, available: int, requested: int) -> None:
    if requested < 1:
        raise usage_error(subject, f"{requested} items", "it has at least one", "pass 1 or more")
    if available < requested:
        raise usage_error(subject, f"{requested} items", f"there are {available}", "pass a number from 1 to that")


def value_occurs(output: str, answers: Sequence[str]) -> bool:
    """Whether a value occurs in the output, ignoring case.

    >>> value_occurs('"ABC-1"}', ["abc-1"]), value_occurs("abc", ["abc-1"])
    (True, False)
    """
    return any(answer.lower() in output.lower() for answer in answers)


def best_subspan(output: str, answers: Sequence[str]) -> bool:
    """Whether an answer occurs in the first line of the output, both normalized.

    >>> best_subspan("It was the Röntgen.\\nMarie Curie", ["Röntgen"]), best_subspan("Curie\\nRöntgen", ["Röntgen"])
    (True, False)
    """
    first = normalize_answer(output.split("\n")[0])
    return any(normalize_answer(answer) in first for answer in answers)


def is_correct(metric: str, output: str, answers: Sequence[str]) -> bool:
    """The score of an output by the name of its metric."""
    metrics = {"value": value_occurs, "subspan": best_subspan}
    if metric not in metrics:
        raise usage_error(
            "is_correct(metric)", repr(metric), f"the metrics are {', '.join(metrics)}", "choose one of them"
        )
    return metrics[metric](output, answers)

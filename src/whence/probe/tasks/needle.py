"""Needle in a haystack: one sentence states a number, and the text around it is about something else.

The text is the help topics of Python, so nothing is downloaded. Without distractors the rivals are numbers that do not
occur in the text, and any model that reads the needle beats them. A distractor is a sentence of the same form about
another name, at the end of another piece. Its number is a rival, so the model has to match the name. With a distractor in
every other piece, the default of ``whence probe``, a wrong choice identifies the slot that was read instead.
"""

from __future__ import annotations

import random

from whence.errors import usage_error
from whence.lab.data.python_texts import paragraphs, topics
from whence.probe.tasks.task import Item, ProbeTask, require_items

NAMES = (
    "Alder", "Birch", "Cedar", "Dogwood", "Elder", "Fir", "Gorse", "Hazel", "Ivy", "Juniper", "Larch", "Maple", "Oak",
    "Pine", "Rowan", "Spruce", "Thorn", "Willow", "Yew", "Ash",
)  # fmt: skip
RIVALS = 9


def build_needle(items: int, pieces: int = 10, words: int = 40, seed: int = 0, distractors: int = 0) -> ProbeTask:
    """Texts of ``pieces`` pieces of ``words`` words each; the needle takes the place of one piece.

    ``distractors`` is the number of other pieces that end in the code of another name.
    """
    require_items("needle", max(items, 0), items)
    if pieces < 2 or words < 1:
        raise usage_error(
            "needle", f"{pieces} pieces of {words} words", "a text needs at least 2 pieces of 1 word", "pass more"
        )
    most = min(pieces, len(NAMES)) - 1
    if not 0 <= distractors <= most:
        raise usage_error(
            "needle",
            f"distractors={distractors}",
            f"each needs its own piece and name: 0 to {most} here",
            "pass fewer distractors",
        )
    filler = _words()
    draw = random.Random(seed)
    task_items = []
    for _ in range(items):
        start = draw.randrange(len(filler))
        num_words = (pieces - 1) * words
        text = [filler[(start + index) % len(filler)] for index in range(num_words)]
        name = draw.choice(NAMES)
        numbers = list(map(str, draw.sample(range(10_000, 100_000), max(RIVALS, distractors) + 1)))
        others = [" ".join(text[i * words : (i + 1) * words]) for i in range(pieces - 1)]
        rivals = numbers[1:]
        if distractors:
            names = draw.sample([other for other in NAMES if other != name], distractors)
            holders = sorted(draw.sample(range(pieces - 1), distractors))
            for piece, other, rival in zip(holders, names, rivals, strict=False):
                others[piece] += " " + _sentence(other, rival)
            rivals = rivals[:distractors]
        task_items.append(Item(name, _sentence(name, numbers[0]), tuple(others), (numbers[0],), tuple(rivals)))
    settings = {"pieces": pieces, "words": words, "items": items, "seed": seed}
    others_too = f", {distractors} distractor{'' if distractors == 1 else 's'}" if distractors else ""
    return ProbeTask(
        name=f"needle, {pieces * words} words{others_too}",
        about="One sentence with a number, somewhere in pages of a manual."
        + (" Other sentences of the same form give the numbers of other names." if distractors else ""),
        head="Somewhere in the text below there is a gate code. Remember it.\n\n",
        joint=" ",
        tail="\n\nQuestion: What is the gate code of {question}?\nAnswer: The gate code of {question} is",
        lead=" ",
        label="",
        metric="value",
        paired=distractors == pieces - 1,
        items=tuple(task_items),
        settings=settings | ({"distractors": distractors} if distractors else {}),
    )


def _sentence(name: str, number: str) -> str:
    return f"The gate code of {name} is {number}."


def _words() -> list[str]:
    """The words of all prose paragraphs, without tables, code and five-digit numbers, which could equal a rival."""
    parts = topics("needle")
    words: list[str] = []
    for _, text in sorted({**parts.train, **parts.test}.items()):
        for bare, paragraph in paragraphs(text):
            if paragraph[:1].strip() and not any(sign in bare for sign in ("::=", ">>>", "|", "---", "===")):
                words += [
                    word for word in bare.split() if not (len(word.strip(".,")) == 5 and word.strip(".,").isdigit())
                ]
    return words

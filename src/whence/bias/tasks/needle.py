"""A needle in a text: one sentence with a number, somewhere in pages that have nothing to do with it.

The pages are the help topics that come with every Python, so nothing is downloaded. The rivals are numbers that stand
nowhere in the text: chance is one in their count, and a model that reads the needle at all beats them.
"""

from __future__ import annotations

import random

from whence.bias.tasks.prompts import Item, Task, require_items
from whence.errors import refusal
from whence.lab.data.python_texts import paragraphs, topics

NAMES = (
    "Alder", "Birch", "Cedar", "Dogwood", "Elder", "Fir", "Gorse", "Hazel", "Ivy", "Juniper", "Larch", "Maple", "Oak",
    "Pine", "Rowan", "Spruce", "Thorn", "Willow", "Yew", "Ash",
)  # fmt: skip
RIVALS = 9


def needle(items: int, pieces: int = 10, words: int = 40, seed: int = 0) -> Task:
    """Texts of so many pieces of so many words each; the needle takes the place of one piece."""
    require_items("needle", max(items, 0), items)
    if pieces < 2 or words < 1:
        raise refusal("needle", f"{pieces} pieces of {words} words", "a text has at least 2 of 1", "take more")
    stock = _words()
    draw = random.Random(seed)
    made = []
    for _ in range(items):
        start = draw.randrange(len(stock))
        need = (pieces - 1) * words
        text = [stock[(start + index) % len(stock)] for index in range(need)]
        name = draw.choice(NAMES)
        numbers = draw.sample(range(10_000, 100_000), RIVALS + 1)
        made.append(
            Item(
                question=name,
                gold=f"The gate code of {name} is {numbers[0]}.",
                others=tuple(" ".join(text[i * words : (i + 1) * words]) for i in range(pieces - 1)),
                answers=(str(numbers[0]),),
                rivals=tuple(map(str, numbers[1:])),
            )
        )
    return Task(
        name=f"needle, {pieces * words} words",
        about="One sentence with a number, somewhere in pages of a manual.",
        head="Somewhere in the text below there is a gate code. Remember it.\n\n",
        joint=" ",
        tail="\n\nQuestion: What is the gate code of {question}?\nAnswer: The gate code of {question} is",
        lead=" ",
        label="",
        metric="value",
        paired=False,
        items=tuple(made),
        settings={"pieces": pieces, "words": words, "items": items, "seed": seed},
    )


def _words() -> list[str]:
    """The words of all paragraphs of prose; tables and code make poor filler, and five-digit numbers would be rivals."""
    parts = topics("needle")
    kept: list[str] = []
    for _, text in sorted({**parts.train, **parts.test}.items()):
        for bare, paragraph in paragraphs(text):
            if paragraph[:1].strip() and not any(sign in bare for sign in ("::=", ">>>", "|", "---", "===")):
                kept += [
                    word for word in bare.split() if not (len(word.strip(".,")) == 5 and word.strip(".,").isdigit())
                ]
    return kept

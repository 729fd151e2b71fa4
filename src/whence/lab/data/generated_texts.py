"""Small generated texts for tasks whose data sets are published elsewhere: questions about passages, paraphrases, and reports
with summaries. They need no files. Position matters in each, and a seed decides everything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from whence.lab.data.squad import Question

NAMES = (
    "Ada",
    "Bo",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "Juno",
    "Kim",
    "Lea",
    "Max",
    "Nora",
    "Olaf",
    "Pia",
)
THINGS = ("lamp", "chair", "bike", "clock", "piano", "kite", "radio", "table", "map", "tent", "mirror", "drum")
PLACES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Kyoto", "Turin", "Bern", "Sofia", "Accra")
VERBS = ("chased", "praised", "followed", "called", "painted", "feared", "helped", "watched")


def generate_questions(passages: int, facts: int, seed: int) -> list[Question]:
    """Passages of facts, with two questions each. A quarter of the questions have no answer.

    A fact has two sentences: "Ada bought a lamp in Rome. It cost 30 coins." The price belongs to the preceding sentence, so
    the order of the sentences matters for half of the questions. An unanswerable question is about a name of no sentence.
    """
    drawn = random.Random(f"questions/{seed}")
    found = []
    for number in range(passages):
        names, things = drawn.sample(NAMES, facts + 1), drawn.sample(THINGS, facts)
        places, prices = drawn.sample(PLACES, facts), drawn.sample(range(10, 100, 5), facts)
        sentences = [
            f"{name} bought a {thing} in {place}. It cost {price} coins."
            for name, thing, place, price in zip(names[:facts], things, places, prices, strict=True)
        ]
        context = " ".join(sentences)
        for kind in range(2):
            fact = drawn.randrange(facts)
            name = names[facts] if drawn.random() < 0.25 else names[fact]
            answer = places[fact] if kind == 0 else f"{prices[fact]} coins"
            start = context.index(answer, len(" ".join(sentences[:fact])))
            asked = f"Where did {name} buy it?" if kind == 0 else f"How much did {name} pay?"
            answers = ((answer, start),) if name == names[fact] else ()
            found.append(Question(f"{seed}-{number}-{kind}", f"passage {seed}-{number}", context, asked, answers))
    return found


@dataclass(frozen=True)
class LabelledPair:
    """Two sentences and whether they mean the same."""

    first: str
    second: str
    label: int


def generate_paraphrases(pairs: int, seed: int) -> list[LabelledPair]:
    """Pairs of an active and a passive sentence with the same words; half of them mean the same.

    "Ada chased Bo" is "Bo was chased by Ada" and not "Ada was chased by Bo". Only the order of the names tells.
    """
    drawn = random.Random(f"paraphrases/{seed}")
    found = []
    for _ in range(pairs):
        agent, patient = drawn.sample(NAMES, 2)
        verb, same = drawn.choice(VERBS), drawn.random() < 0.5
        subject, other = (patient, agent) if same else (agent, patient)
        found.append(LabelledPair(f"{agent} {verb} {patient}.", f"{subject} was {verb} by {other}.", int(same)))
    return found


def generate_reports(reports: int, sentences: int, seed: int) -> list[tuple[str, str]]:
    """Reports and their summaries. A report says who travels where; the summary has the first and the last journey.

    Nothing but position tells which sentences belong to the summary.
    """
    drawn = random.Random(f"reports/{seed}")
    found = []
    for _ in range(reports):
        names = drawn.sample(NAMES, sentences)
        texts = [f"{name} took the {drawn.choice(THINGS)} to {drawn.choice(PLACES)}." for name in names]
        found.append((" ".join(texts), f"{texts[0]} {texts[-1]}"))
    return found

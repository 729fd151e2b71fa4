"""Training examples whose answer lies anywhere in a long context: IN2, information-intensive training.

An et al. 2024 (arXiv 2404.16811) cut texts into segments of 128 tokens, let a large model write a question about one segment
or about several, and shuffle these segments among random ones. The answer is then equally likely at every place.

Here no other model is needed. A fact with invented names is planted into a segment, as a sentence, and the question asks for
it. A question of several hops needs one fact of each of several segments: "The keeper of A is B." and "The code of B is
48213." The other segments get facts about other names, so that a planted sentence alone does not give the answer away. These
questions are simpler than the paper's, and their text is less varied.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.errors import usage_error
from whence.validation import require_integer, require_number

IGNORED = -100  # a label without loss, as in transformers
HEAD, TAIL = "Read the text and answer the question.\n\n", "\n\nQuestion: {question}\nAnswer:"
SYLLABLES = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu")


@dataclass(frozen=True)
class IN2Example:
    """One example. Prompt and answer are tokens; ``gold`` are the places of the needed segments, in the order of the hops."""

    tokens: tuple[int, ...]
    labels: tuple[int, ...]  # the tokens of the answer, IGNORED before them
    segments: int
    gold: tuple[int, ...]
    question: str
    answer: str


class IN2Examples:
    """Examples from a text, each determined by the seed and its index.

    Args:
        tokenizer: of the model that learns.
        text: any text with at least ``max_segments`` segments.
        segment_tokens: the length of a segment.
        min_segments: of a context.
        max_segments: of a context. Their number is uniform between both.
        short_share: the share of examples whose context holds the needed segments alone.
        multi_hop_share: the share of questions that need several segments.
        hops: how many they need.
        seed: of the examples.
    """

    def __init__(
        self,
        tokenizer: Any,
        text: str,
        *,
        segment_tokens: int = 128,
        min_segments: int = 4,
        max_segments: int = 16,
        short_share: float = 0.1,
        multi_hop_share: float = 0.5,
        hops: int = 2,
        seed: int = 0,
    ) -> None:
        owner = "IN2Examples"
        require_integer(owner, "segment_tokens", segment_tokens)
        require_integer(owner, "hops", hops, low=2, high=5)
        require_integer(owner, "min_segments", min_segments, low=hops, remedy="pass at least the number of hops")
        require_integer(owner, "max_segments", max_segments, low=min_segments, remedy="pass at least min_segments")
        require_number(owner, "short_share", short_share, low=0, high=1)
        require_number(owner, "multi_hop_share", multi_hop_share, low=0, high=1)
        require_integer(owner, "seed", seed, low=0)
        self.tokenizer = tokenizer
        self.segment_tokens, self.min_segments, self.max_segments = segment_tokens, min_segments, max_segments
        self.short_share, self.multi_hop_share, self.hops, self.seed = short_share, multi_hop_share, hops, seed
        tokens = self._encode(text)
        self.pool = [
            tokens[start : start + segment_tokens]
            for start in range(0, len(tokens) - segment_tokens + 1, segment_tokens)
        ]
        if len(self.pool) < max_segments:
            raise usage_error(
                "IN2Examples(text=...)",
                f"{len(tokens)} tokens, which make {len(self.pool)} segments",
                f"a context of {max_segments} segments needs as many different ones",
                "pass a longer text, or smaller max_segments or segment_tokens",
            )
        bos = tokenizer.bos_token_id
        starts_with_bos = bos is not None and tokenizer("a")["input_ids"][:1] == [bos]
        self._head = ([bos] if starts_with_bos else []) + self._encode(HEAD)
        self._joint = self._encode("\n")

    def example(self, index: int) -> IN2Example:
        """The example with this index; always the same one."""
        rng = np.random.default_rng((self.seed, index))
        hops = self.hops if rng.random() < self.multi_hop_share else 1
        low = max(self.min_segments, hops)
        count = hops if rng.random() < self.short_share else int(rng.integers(low, self.max_segments + 1))
        names = _names(rng, count + hops)
        facts, question, answer = _chain(rng, names[:hops])
        gold = tuple(int(place) for place in rng.permutation(count)[:hops])
        decoys = iter(_fact(name, rng) for name in names[hops:])
        planted = [facts[gold.index(place)] if place in gold else next(decoys) for place in range(count)]
        chosen = rng.permutation(len(self.pool))[:count]
        context: list[int] = []
        for sentence, segment in zip(planted, chosen, strict=True):
            context += self._plant(self.pool[int(segment)], sentence, rng) + self._joint
        prompt = self._head + context + self._encode(TAIL.format(question=question))
        end = self.tokenizer.eos_token_id
        reply = self._encode(" " + answer) + ([] if end is None else [end])
        labels = (IGNORED,) * len(prompt) + tuple(reply)
        return IN2Example(tuple(prompt + reply), labels, count, gold, question, answer)

    def _plant(self, segment: list[int], sentence: str, rng: np.random.Generator) -> list[int]:
        """The segment with a sentence at a random place, and as long as before."""
        fact = self._encode(f" {sentence} ")
        room = self.segment_tokens - len(fact)
        if room < 0:
            raise usage_error(
                "IN2Examples(segment_tokens=...)",
                str(self.segment_tokens),
                f"a fact has {len(fact)} tokens with this tokenizer",
                "pass a larger number",
            )
        place = int(rng.integers(0, room + 1))
        return segment[:place] + fact + segment[place:room]

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def _names(rng: np.random.Generator, count: int) -> list[str]:
    """Different invented names."""
    numbers = rng.choice(len(SYLLABLES) ** 3, count, replace=False)
    size = len(SYLLABLES)
    parts = [(int(n) % size, int(n) // size % size, int(n) // size**2) for n in numbers]
    return ["".join(SYLLABLES[index] for index in part).capitalize() for part in parts]


def _fact(name: str, rng: np.random.Generator) -> str:
    return f"The code of {name} is {int(rng.integers(10000, 100000))}."


def _chain(rng: np.random.Generator, names: list[str]) -> tuple[list[str], str, str]:
    """One fact for each name, the question that needs all of them, and its answer."""
    links = [f"The keeper of {a} is {b}." for a, b in itertools.pairwise(names)]
    last = _fact(names[-1], rng)
    question = f"What is the code of {'the keeper of ' * len(links)}{names[0]}?"
    return [*links, last], question, last.rpartition(" ")[2].rstrip(".")

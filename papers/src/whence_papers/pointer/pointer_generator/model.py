"""``PointerGenerator``: an LSTM that reads a text and writes a shorter one, copying or generating each word
(See, Liu & Manning 2017, arXiv 1704.04368)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from whence.attention.additive import CoverageAttention
from whence.errors import usage_error
from whence_papers.pointer.pointer_generator.decoder import Carried, Decoder, Reading, Step
from whence_papers.pointer.pointer_generator.encoder import BothWays
from whence_papers.pointer.pointer_generator.spec import PointerGeneratorSpec
from whence_papers.pointer.pointer_generator.texts import NO_TARGET, PAD, UNKNOWN, Sources, Targets


@dataclass(frozen=True)
class Told:
    """What the model says to targets it is shown word by word."""

    log_p: Tensor  # [B, T, size], over the extended vocabulary
    gate: Tensor  # [B, T], logits of p_gen
    weights: Tensor  # [B, T, S]
    repeated: Tensor  # [B, T], the coverage loss of each step


@dataclass(frozen=True)
class Loss:
    """The training loss and what it is made of."""

    total: Tensor
    surprise: Tensor
    repeated: Tensor


class PointerGenerator(nn.Module):
    """Texts to summaries.

    >>> from whence_papers.pointer.pointer_generator.texts import Vocabulary
    >>> vocabulary = Vocabulary(["went", "to"])
    >>> model = PointerGenerator(PointerGeneratorSpec(len(vocabulary), embedding=8, hidden_size=8))
    >>> sources = vocabulary.sources([["ann", "went", "to", "oslo"], ["bob", "went"]])
    >>> model(sources, vocabulary.targets([["oslo"], ["bob"]], sources)).log_p.shape
    torch.Size([2, 2, 8])
    """

    def __init__(self, spec: PointerGeneratorSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocab_size, spec.embedding, padding_idx=PAD)
        self.encoder = BothWays(spec.embedding, spec.hidden_size)
        self.decoder = Decoder(spec)

    def read(self, sources: Sources) -> tuple[Reading, Carried]:
        """Encode sources, once for all steps; and what the first step starts from."""
        size = self.spec.vocab_size + sources.extra
        highest = int(sources.tokens.max())
        if highest >= self.spec.vocab_size:
            raise usage_error(
                "PointerGenerator(sources)",
                f"the word {highest}",
                f"this model knows the words below {self.spec.vocab_size}",
                "number the texts with the vocabulary the model was made for",
            )
        states, h, c = self.encoder(self.embedding(sources.tokens), sources.lengths)
        memory = self.decoder.attention.remember(states, lengths=sources.lengths)
        batch, length, embed_dim = states.shape
        first = Carried(h, c, states.new_zeros(batch, embed_dim), states.new_zeros(batch, length))
        return Reading(memory, sources.extended, size), first

    def step(self, words: Tensor, before: Carried, reading: Reading) -> tuple[Step, Carried]:
        """One step after the words ``[B]`` of the extended vocabulary; those beyond the vocabulary read as unknown."""
        known = words.masked_fill(words >= self.spec.vocab_size, UNKNOWN)
        return self.decoder(self.embedding(known), before, reading)

    def forward(self, sources: Sources, targets: Targets) -> Told:
        """Each step sees the target's words before it."""
        reading, carried = self.read(sources)
        steps: list[Step] = []
        for words in targets.inputs.unbind(1):
            said, carried = self.step(words, carried, reading)
            steps.append(said)
        parts = ("log_p", "gate", "weights", "repeated")
        return Told(*(torch.stack([getattr(step, part) for step in steps], 1) for part in parts))

    def loss(self, sources: Sources, targets: Targets) -> Loss:
        """Surprise and coverage loss, each a mean over the words of a target and then over the targets, as in the source.

        A model without a pointer is asked for the unknown word where a target lies beyond the vocabulary.
        """
        told = self(sources, targets)
        wanted = targets.extended if self.spec.output == "pointer" else targets.words
        asked = wanted != NO_TARGET
        surprise = -told.log_p.gather(2, wanted.masked_fill(~asked, PAD)[..., None])[..., 0]
        means = [
            (each.masked_fill(~asked, 0.0).sum(1) / asked.sum(1)).mean() for each in (surprise, told.repeated)
        ]  # fmt: skip
        return Loss(means[0] + self.spec.coverage_loss * means[1], *means)

    def with_coverage(self, coverage_loss: float = 1.0) -> PointerGenerator:
        """A copy of a model that was trained without coverage, with w_c = 0: from here the source trains on."""
        if self.spec.attention == "coverage":
            raise usage_error(
                "PointerGenerator.with_coverage",
                "a model with coverage",
                "only a model without it can be given coverage",
                "go on with this one",
            )
        made = PointerGenerator(replace(self.spec, attention="coverage", coverage_loss=coverage_loss))
        made = made.to(self.embedding.weight)
        made.decoder.attention = CoverageAttention.from_plain(self.decoder.attention)
        made.load_state_dict({**made.state_dict(), **self.state_dict()})
        return made

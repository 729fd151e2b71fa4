"""The predecessor on next places: the LSTM pointer-generator (See et al. 2017, arXiv 1704.04368), asked for one step.

    states  = LSTM over the visits in both directions                     the same vectors as the transformer reads
    context = additive attention of the decoder's first state over them   its weights are the pointer
    P       = p_gen generate + (1 - p_gen) copy,    p_gen from context, state and input

A next place is one word, so the decoder takes one step after a start. Coverage is what earlier steps looked at: there are
none, so the attention goes without it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from whence_papers.pointer.next_location.histories import PADDING
from whence_papers.pointer.next_location.reading import Answer, NextPlaceModel
from whence_papers.pointer.next_location.spec import NextPlaceSpec
from whence_papers.pointer.pointer_generator import PointerGeneratorSpec
from whence_papers.pointer.pointer_generator.decoder import Carried, Decoder, Reading
from whence_papers.pointer.pointer_generator.encoder import BothWays


class NextPlaceLstm(NextPlaceModel):
    """Made by ``build_next_place`` for ``body="lstm"``; ``ffn_dim`` are the units of each direction and of the decoder."""

    def __init__(self, spec: NextPlaceSpec) -> None:
        super().__init__(spec)
        inside = PointerGeneratorSpec(
            spec.places, embedding=spec.embed_dim, hidden_size=spec.ffn_dim, attention="additive", coverage_loss=0.0,
            output="generator" if spec.answers == "generate" else "pointer",
        )  # fmt: skip
        self.encoder = BothWays(spec.embed_dim, spec.ffn_dim)
        self.decoder = Decoder(inside)
        self.start = nn.Parameter(torch.zeros(spec.embed_dim))

    def answer(self, tokens: Tensor, *, key_mask: Tensor | None, extras: Mapping[str, Tensor]) -> Answer:
        key_mask = torch.ones_like(tokens, dtype=torch.bool) if key_mask is None else key_mask
        x = self.dropout(self.vectors(tokens, key_mask, extras))
        states, h, c = self.encoder(x, key_mask.sum(1))
        states = self.dropout(states)
        batch, length, embed_dim = states.shape
        first = Carried(h, c, states.new_zeros(batch, embed_dim), states.new_zeros(batch, length))
        memory = self.decoder.attention.remember(states, key_mask=key_mask)
        step, _ = self.decoder(self.start.expand(batch, -1), first, Reading(memory, tokens, self.spec.places))
        # padding is no place: what was generated for it goes to all others, and that much less was generated
        padded = step.log_p[:, PADDING].exp()
        generating = (step.gate.sigmoid() - padded) / (1 - padded)
        log_p = step.log_p.index_fill(1, torch.tensor([PADDING], device=tokens.device), -torch.inf).log_softmax(-1)
        return Answer(log_p, None if self.spec.answers == "generate" else step.weights.log(), generating)

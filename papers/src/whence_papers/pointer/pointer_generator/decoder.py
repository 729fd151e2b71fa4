"""One step of the decoder, and what is carried from step to step.

x_t   = W [embedding of the word before; context of the step before] + b         input feeding
s_t   = LSTM(x_t), h and c side by side
a_t   = additive attention of s_t over the source, with coverage or without
P_vocabulary = softmax(V' (V [h_t; context_t] + b) + b')
p_gen = sigmoid(w_h . context_t + w_s . s_t + w_x . x_t + b)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.attention.additive import AdditiveAttention, CoverageAttention, Memory
from whence.attention.pointer import Gate, mix, onto_vocabulary
from whence_papers.pointer.pointer_generator.spec import PointerGeneratorSpec


@dataclass(frozen=True)
class Reading:
    """An encoded batch of sources: what every step looks at."""

    memory: Memory
    extended: Tensor  # [B, S], the words in numbers of the extended vocabulary
    size: int  # of the extended vocabulary

    def of(self, rows: Tensor) -> Reading:
        return Reading(self.memory.of(rows), self.extended[rows], self.size)


@dataclass(frozen=True)
class Carried:
    """What a step hands to the next."""

    h: Tensor  # [B, hidden]
    c: Tensor  # [B, hidden]
    context: Tensor  # [B, 2 * hidden]
    coverage: Tensor  # [B, S]

    def of(self, rows: Tensor) -> Carried:
        return Carried(self.h[rows], self.c[rows], self.context[rows], self.coverage[rows])


@dataclass(frozen=True)
class Step:
    """What a step says."""

    log_p: Tensor  # [B, size], over the extended vocabulary
    gate: Tensor  # [B], the logit of p_gen; a model that can only generate has +inf
    weights: Tensor  # [B, S], where it looked
    repeated: Tensor  # [B], its coverage loss


class Decoder(nn.Module):
    """A step with a pointer or without, by the spec."""

    def __init__(self, spec: PointerGeneratorSpec) -> None:
        super().__init__()
        encoder_dim, hidden_size = 2 * spec.hidden_size, spec.hidden_size
        self.merge = nn.Linear(spec.embedding + encoder_dim, spec.embedding)
        self.cell = nn.LSTMCell(spec.embedding, hidden_size)
        kind = CoverageAttention if spec.attention == "coverage" else AdditiveAttention
        self.attention = kind(encoder_dim=encoder_dim, decoder_dim=2 * hidden_size, attention_dim=spec.scoring)
        self.into = nn.Linear(hidden_size + encoder_dim, hidden_size)
        self.out = nn.Linear(hidden_size, spec.vocab_size)
        self.gate = Gate(encoder_dim, 2 * hidden_size, spec.embedding) if spec.output == "pointer" else None

    def forward(self, vectors: Tensor, before: Carried, reading: Reading) -> tuple[Step, Carried]:
        """One step for the vectors ``[B, embedding]`` of the words before."""
        x = self.merge(torch.cat([vectors, before.context], -1))
        h, c = self.cell(x, (before.h, before.c))
        state = torch.cat([h, c], -1)
        seen = self.attention(reading.memory, state, before.coverage)
        scores = self.out(self.into(torch.cat([h, seen.context], -1)))
        if self.gate is None:
            log_p = F.pad(F.log_softmax(scores, -1), (0, reading.size - scores.shape[1]), value=-torch.inf)
            gate = torch.full_like(log_p[:, 0], torch.inf)
        else:
            gate = self.gate(seen.context, state, x)
            log_p = mix(scores, onto_vocabulary(seen.log_weights, reading.extended, reading.size), gate)
        step = Step(log_p, gate, seen.weights, seen.repeated)
        return step, Carried(h, c, seen.context, seen.coverage)

"""``PointerGenerator``: an LSTM that reads a text and writes a shorter one. It copies or generates each word
(See, Liu & Manning 2017, arXiv 1704.04368).

One decoder step:

x_t   = W [embedding of the previous word; context of the previous step] + b         input feeding
s_t   = LSTM(x_t), h and c concatenated
a_t   = additive attention of s_t over the source, with or without coverage
P_vocabulary = softmax(V' (V [h_t; context_t] + b) + b')
p_gen = sigmoid(w_h . context_t + w_s . s_t + w_x . x_t + b)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from whence.attention.additive import AdditiveAttention, CoverageAttention, Memory
from whence.attention.pointer import Gate, mix, scatter_to_vocabulary
from whence.errors import usage_error
from whence.validation import require_integer
from whence_papers.pointer.pointer_generator.vocabulary import NO_TARGET, PAD, UNKNOWN, SourceBatch, TargetBatch

CHOICES = {"attention": ("additive", "coverage"), "output": ("pointer", "generator")}


@dataclass(frozen=True)
class PointerGeneratorSpec:
    """Sizes and parts of a pointer-generator, validated at construction.

    Args:
        vocab_size: number of words, the special ones included.
        embedding: dimension of the word embeddings, which source and summary share.
        hidden_size: units of the decoder and of each direction of the encoder.
        attention_dim: dimension of additive attention; by default twice ``hidden_size``, that of an encoder state.
        attention: ``"additive"``, or ``"coverage"``, which also reads the attention of earlier steps.
        output: ``"pointer"``, which copies or generates, or ``"generator"``, which can only generate.
        coverage_loss_weight: weight of the coverage loss.

    The source has a vocabulary of 50,000, embeddings of 128, 256 units and a coverage loss of weight 1.

    >>> PointerGeneratorSpec(vocab_size=50, embedding=8, hidden_size=16).scoring
    32
    """

    vocab_size: int
    embedding: int = 128
    hidden_size: int = 256
    attention_dim: int | None = None
    attention: str = "coverage"
    output: str = "pointer"
    coverage_loss_weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "embedding", "hidden_size", "attention_dim"):
            value = getattr(self, name)
            if not (value is None and name == "attention_dim"):
                require_integer("PointerGeneratorSpec", name, value)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise usage_error(
                    f"PointerGeneratorSpec({name}=...)",
                    repr(getattr(self, name)),
                    f"{name} is one of {', '.join(choices)}",
                    "choose one of them",
                )
        number = isinstance(self.coverage_loss_weight, int | float) and not isinstance(self.coverage_loss_weight, bool)
        if not number or not 0 <= self.coverage_loss_weight < float("inf"):
            raise usage_error(
                "PointerGeneratorSpec(coverage_loss_weight=...)",
                repr(self.coverage_loss_weight),
                "coverage_loss_weight is a finite number of at least 0",
                "use 1, as the source does, or 0 for none",
            )

    @property
    def scoring(self) -> int:
        """``attention_dim`` with its default filled in."""
        return 2 * self.hidden_size if self.attention_dim is None else self.attention_dim


class BidirectionalEncoder(nn.Module):
    """Bidirectional LSTM over vectors ``[B, S, embedding]``; right padding changes nothing.

    The states ``[B, S, 2 * hidden]`` of both directions are concatenated. The decoder starts from
    ``h = relu(W [h_forward; h_backward] + b)``, and from c likewise with its own weights.
    """

    def __init__(self, embedding: int, hidden_size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(embedding, hidden_size, batch_first=True, bidirectional=True)
        self.reduce_h = nn.Linear(2 * hidden_size, hidden_size)
        self.reduce_c = nn.Linear(2 * hidden_size, hidden_size)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """States ``[B, S, 2 * hidden]``, 0 on padding, and the decoder's first h and c ``[B, hidden]``."""
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (h, c) = self.lstm(packed)
        states, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        ends = (torch.cat([last[0], last[1]], -1) for last in (h, c))
        first_h, first_c = (
            reduce(end).relu() for reduce, end in zip((self.reduce_h, self.reduce_c), ends, strict=True)
        )
        return states, first_h, first_c


@dataclass(frozen=True)
class EncodedSources:
    """An encoded batch of sources, read by every decoder step."""

    memory: Memory
    extended: Tensor  # [B, S], ids in the extended vocabulary
    size: int  # of the extended vocabulary

    def of(self, rows: Tensor) -> EncodedSources:
        return EncodedSources(self.memory.select(rows), self.extended[rows], self.size)


@dataclass(frozen=True)
class DecoderState:
    """State between two decoder steps."""

    h: Tensor  # [B, hidden]
    c: Tensor  # [B, hidden]
    context: Tensor  # [B, 2 * hidden]
    coverage: Tensor  # [B, S]

    def of(self, rows: Tensor) -> DecoderState:
        return DecoderState(self.h[rows], self.c[rows], self.context[rows], self.coverage[rows])


@dataclass(frozen=True)
class DecoderStep:
    """Output of one decoder step."""

    log_p: Tensor  # [B, size], over the extended vocabulary
    gate: Tensor  # [B], the logit of p_gen; a model that can only generate has +inf
    weights: Tensor  # [B, S], attention weights
    coverage_loss: Tensor  # [B], its coverage loss


class AttentionDecoder(nn.Module):
    """One decoder step, with or without a pointer."""

    def __init__(self, spec: PointerGeneratorSpec) -> None:
        super().__init__()
        encoder_dim, hidden_size = 2 * spec.hidden_size, spec.hidden_size
        self.merge = nn.Linear(spec.embedding + encoder_dim, spec.embedding)
        self.cell = nn.LSTMCell(spec.embedding, hidden_size)
        kind = CoverageAttention if spec.attention == "coverage" else AdditiveAttention
        self.attention = kind(encoder_dim=encoder_dim, decoder_dim=2 * hidden_size, attention_dim=spec.scoring)
        self.hidden_proj = nn.Linear(hidden_size + encoder_dim, hidden_size)
        self.out = nn.Linear(hidden_size, spec.vocab_size)
        self.gate = Gate(encoder_dim, 2 * hidden_size, spec.embedding) if spec.output == "pointer" else None

    def forward(
        self, vectors: Tensor, before: DecoderState, encoded: EncodedSources
    ) -> tuple[DecoderStep, DecoderState]:
        """One step from the embeddings ``[B, embedding]`` of the previous words."""
        x = self.merge(torch.cat([vectors, before.context], -1))
        h, c = self.cell(x, (before.h, before.c))
        state = torch.cat([h, c], -1)
        attended = self.attention(encoded.memory, state, before.coverage)
        scores = self.out(self.hidden_proj(torch.cat([h, attended.context], -1)))
        if self.gate is None:
            log_p = F.pad(F.log_softmax(scores, -1), (0, encoded.size - scores.shape[1]), value=-torch.inf)
            gate = torch.full_like(log_p[:, 0], torch.inf)
        else:
            gate = self.gate(attended.context, state, x)
            log_p = mix(scores, scatter_to_vocabulary(attended.log_weights, encoded.extended, encoded.size), gate)
        step = DecoderStep(log_p, gate, attended.weights, attended.coverage_loss)
        return step, DecoderState(h, c, attended.context, attended.coverage)


@dataclass(frozen=True)
class TeacherForcedOutput:
    """Outputs of all steps with the target words as inputs (teacher forcing)."""

    log_p: Tensor  # [B, T, size], over the extended vocabulary
    gate: Tensor  # [B, T], logits of p_gen
    weights: Tensor  # [B, T, S]
    coverage_loss: Tensor  # [B, T], the coverage loss of each step


@dataclass(frozen=True)
class Loss:
    """The training loss and its two parts."""

    total: Tensor
    cross_entropy: Tensor
    coverage_loss: Tensor


class PointerGenerator(nn.Module):
    """Pointer-generator from texts to summaries.

    >>> from whence_papers.pointer.pointer_generator.vocabulary import Vocabulary
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
        self.encoder = BidirectionalEncoder(spec.embedding, spec.hidden_size)
        self.decoder = AttentionDecoder(spec)

    def encode(self, sources: SourceBatch) -> tuple[EncodedSources, DecoderState]:
        """Encode sources once for all steps. Returns them with the initial decoder state."""
        size = self.spec.vocab_size + sources.extra
        highest = int(sources.tokens.max())
        if highest >= self.spec.vocab_size:
            raise usage_error(
                "PointerGenerator(sources)",
                f"the word id {highest}",
                f"ids of this model are below {self.spec.vocab_size}",
                "encode the texts with the vocabulary of the model",
            )
        states, h, c = self.encoder(self.embedding(sources.tokens), sources.lengths)
        memory = self.decoder.attention.build_memory(states, lengths=sources.lengths)
        batch, length, embed_dim = states.shape
        first = DecoderState(h, c, states.new_zeros(batch, embed_dim), states.new_zeros(batch, length))
        return EncodedSources(memory, sources.extended, size), first

    def step(self, words: Tensor, before: DecoderState, encoded: EncodedSources) -> tuple[DecoderStep, DecoderState]:
        """One step after the words ``[B]`` of the extended vocabulary. Out-of-vocabulary words are read as unknown."""
        ids = words.masked_fill(words >= self.spec.vocab_size, UNKNOWN)
        return self.decoder(self.embedding(ids), before, encoded)

    def forward(self, sources: SourceBatch, targets: TargetBatch) -> TeacherForcedOutput:
        """Run all steps with teacher forcing."""
        encoded, state = self.encode(sources)
        steps: list[DecoderStep] = []
        for words in targets.inputs.unbind(1):
            step, state = self.step(words, state, encoded)
            steps.append(step)
        parts = ("log_p", "gate", "weights", "coverage_loss")
        return TeacherForcedOutput(*(torch.stack([getattr(step, part) for step in steps], 1) for part in parts))

    def loss(self, sources: SourceBatch, targets: TargetBatch) -> Loss:
        """Cross-entropy and coverage loss, each a mean over the words of a target and then over the targets, as in the source.

        Without a pointer, an out-of-vocabulary target counts as the unknown word.
        """
        output = self(sources, targets)
        target_ids = targets.extended if self.spec.output == "pointer" else targets.words
        has_target = target_ids != NO_TARGET
        cross_entropy = -output.log_p.gather(2, target_ids.masked_fill(~has_target, PAD)[..., None])[..., 0]
        means = [
            (each.masked_fill(~has_target, 0.0).sum(1) / has_target.sum(1)).mean() for each in (cross_entropy, output.coverage_loss)
        ]  # fmt: skip
        return Loss(means[0] + self.spec.coverage_loss_weight * means[1], *means)

    def with_coverage(self, coverage_loss_weight: float = 1.0) -> PointerGenerator:
        """A copy of a model trained without coverage, with w_c = 0. The source continues training from here."""
        if self.spec.attention == "coverage":
            raise usage_error(
                "PointerGenerator.with_coverage",
                "a model with coverage",
                "only a model without coverage can be converted",
                "use this model as it is",
            )
        model = PointerGenerator(replace(self.spec, attention="coverage", coverage_loss_weight=coverage_loss_weight))
        model = model.to(self.embedding.weight)
        model.decoder.attention = CoverageAttention.from_plain(self.decoder.attention)
        model.load_state_dict({**model.state_dict(), **self.state_dict()})
        return model

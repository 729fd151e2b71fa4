"""Additive attention (Bahdanau et al. 2015, arXiv 1409.0473) with the coverage of See et al. 2017 (arXiv 1704.04368).

    e_i = v . tanh(W_h h_i + W_s s + w_c c_i + b)      a = softmax of e over real positions      context = sum a_i h_i

The term of the encoder, W_h h, is the same at every decoding step, so it is computed once::

    attention = CoverageAttention(encoder_dim=512, decoder_dim=256, attention_dim=512)   # AdditiveAttention: without w_c
    memory = attention.build_memory(states, key_mask=key_mask)   # states [B, S, 512]
    step = attention(memory, state)                              # state [B, 256], the first step
    step = attention(memory, state, step.coverage)               # every later step
    step.context, step.log_weights, step.weights, step.coverage, step.coverage_loss

``coverage`` c is the sum of the weights of earlier steps; ``coverage_loss`` of a step is ``sum_i min(a_i, c_i)``: 0 at the
first step and never above 1, the sum of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from whence import shapes
from whence.attention.layout import resolve_key_mask
from whence.errors import usage_error
from whence.validation import require_dim, require_table


@dataclass(frozen=True)
class Memory:
    """The encoder states and their projection, which every decoding step uses."""

    states: Tensor  # [B, S, encoder_dim]
    features: Tensor  # [B, S, attention_dim], W_h h
    real: Tensor | None  # [B, S] bool, False on padding

    def select(self, rows: Tensor) -> Memory:
        """The memory of some rows, in any order and with repetition, as in beam search."""
        return Memory(self.states[rows], self.features[rows], None if self.real is None else self.real[rows])


@dataclass(frozen=True)
class AttentionStep:
    """The result of one decoding step."""

    context: Tensor  # [B, encoder_dim]
    log_weights: Tensor  # [B, S], -inf on padding
    weights: Tensor  # [B, S]
    coverage: Tensor  # [B, S], this step included
    coverage_loss: Tensor  # [B], the coverage loss of this step


class AdditiveAttention(nn.Module):
    """Scores from a small network instead of a dot product. Coverage is returned and does not act on the scores.

    Args:
        encoder_dim: dimension of the encoder states (the keys).
        decoder_dim: dimension of the decoder state (the query).
        attention_dim: hidden dimension of the scoring network.

    >>> attention = AdditiveAttention(encoder_dim=6, decoder_dim=4, attention_dim=5)
    >>> step = attention(attention.build_memory(torch.ones(2, 3, 6), lengths=torch.tensor([3, 2])), torch.ones(2, 4))
    >>> step.weights.detach()
    tensor([[0.3333, 0.3333, 0.3333],
            [0.5000, 0.5000, 0.0000]])
    """

    def __init__(self, encoder_dim: int, decoder_dim: int, attention_dim: int) -> None:
        super().__init__()
        sizes = {"encoder_dim": encoder_dim, "decoder_dim": decoder_dim, "attention_dim": attention_dim}
        for name, value in sizes.items():
            require_dim(type(self).__name__, name, value)
        require_table(type(self).__name__, attention_dim, max(encoder_dim, decoder_dim))
        self.encoder_proj = nn.Linear(encoder_dim, attention_dim, bias=False)  # W_h
        self.decoder_proj = nn.Linear(decoder_dim, attention_dim)  # W_s and b
        self.score = nn.Linear(attention_dim, 1, bias=False)  # v

    def build_memory(self, states: Tensor, *, lengths: Tensor | None = None, key_mask: Tensor | None = None) -> Memory:
        """Project the encoder states ``[B, S, encoder_dim]`` once. ``lengths`` or ``key_mask`` (True where real) mark the real ones."""
        shapes.require_sequences(type(self).__name__, "states", states, self.encoder_proj)
        real = resolve_key_mask(lengths, key_mask, states.shape[0], states.shape[1], states.device)
        shapes.require_real_tokens(f"{type(self).__name__}.build_memory", real)
        return Memory(states, self.encoder_proj(states), real)

    def forward(self, memory: Memory, state: Tensor, coverage: Tensor | None = None) -> AttentionStep:
        """One step: a decoder state ``[B, decoder_dim]`` and the coverage ``[B, S]`` of earlier steps."""
        self._require_step(memory, state, coverage)
        before = memory.features.new_zeros(memory.features.shape[:2]) if coverage is None else coverage
        hidden = self.decoder_proj(state)[:, None] + memory.features + self.project_coverage(before)
        log_weights = masked_log_softmax(self.score(torch.tanh(hidden))[..., 0], memory.real)
        weights = log_weights.exp()
        context = (weights[:, None].to(memory.states.dtype) @ memory.states)[:, 0]
        return AttentionStep(context, log_weights, weights, before + weights, coverage_loss(weights, before))

    def project_coverage(self, coverage: Tensor) -> Tensor | float:
        """The term of the coverage ``[B, S]`` inside the tanh: 0 without coverage."""
        return 0.0

    def _require_step(self, memory: Memory, state: Tensor, coverage: Tensor | None) -> None:
        name = type(self).__name__
        if not isinstance(memory, Memory):
            got = shapes.describe_tensor(memory)
            raise usage_error(
                f"{name}(memory)", got, "memory must come from build_memory()", "call build_memory(states) first"
            )
        batch, length = memory.states.shape[:2]
        for argument, tensor, shape in (
            ("state", state, (batch, self.decoder_proj.in_features)),
            ("coverage", coverage, (batch, length)),
        ):
            if tensor is None and argument == "coverage":
                continue
            if not shapes.is_numeric(tensor) or not shapes.has_shape(tensor, shape):
                raise usage_error(
                    f"{name}({argument})",
                    shapes.describe_tensor(tensor),
                    f"for this memory it must be a tensor {list(shape)}",
                    "pass one row for each sequence of the memory",
                )
            if argument == "state":
                shapes.require_like(f"{name}(state)", "state", tensor, self.decoder_proj)
            elif tensor.device != memory.states.device:
                got = f"device {tensor.device} with the memory on {memory.states.device}"
                raise usage_error(
                    f"{name}(coverage)", got, "all tensors must be on one device", "move it with .to(device)"
                )


class CoverageAttention(AdditiveAttention):
    """Additive attention with coverage: ``w_c`` adds the coverage to the scores.

    ``from_plain`` starts from a trained attention without coverage, as the source does: with w_c = 0 the results are equal.
    """

    def __init__(self, encoder_dim: int, decoder_dim: int, attention_dim: int) -> None:
        super().__init__(encoder_dim, decoder_dim, attention_dim)
        self.coverage_proj = nn.Linear(1, attention_dim, bias=False)  # w_c

    def project_coverage(self, coverage: Tensor) -> Tensor:
        return self.coverage_proj(coverage[..., None].to(self.coverage_proj.weight.dtype))

    @classmethod
    def from_plain(cls, plain: AdditiveAttention) -> CoverageAttention:
        """A copy of an attention, with w_c = 0."""
        weight = plain.encoder_proj.weight
        attention = cls(plain.encoder_proj.in_features, plain.decoder_proj.in_features, plain.encoder_proj.out_features)
        attention = attention.to(device=weight.device, dtype=weight.dtype)
        attention.load_state_dict(
            {**plain.state_dict(), "coverage_proj.weight": torch.zeros_like(attention.coverage_proj.weight)}
        )
        return attention


def masked_log_softmax(scores: Tensor, real: Tensor | None) -> Tensor:
    """The logarithm of the weights ``[B, S]``: padding gets -inf before the softmax. In at least float32."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return torch.log_softmax(scores if real is None else scores.masked_fill(~real, -torch.inf), -1)


def renormalized_softmax(scores: Tensor, real: Tensor) -> Tensor:
    """The weights ``[B, S]`` as in the source: a softmax over all positions, 0 on padding, the rest divided by its sum.

    Equal to ``masked_log_softmax(scores, real).exp()`` in exact arithmetic; for comparison only. If padding has scores far
    above the real ones, the real weights underflow and their sum is 0.

    >>> scores, real = torch.tensor([[0.0, 0.0, 200.0]]), torch.tensor([[True, True, False]])
    >>> renormalized_softmax(scores, real), masked_log_softmax(scores, real).exp()
    (tensor([[nan, nan, nan]]), tensor([[0.5000, 0.5000, 0.0000]]))
    """
    weights = torch.softmax(scores, -1) * real
    return weights / weights.sum(-1, keepdim=True)


def coverage_loss(weights: Tensor, coverage: Tensor) -> Tensor:
    """The overlap of the weights ``[B, S]`` with the coverage of earlier steps: ``[B]``.

    >>> coverage_loss(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.2, 0.9, 0.9]]))
    tensor([0.7000])
    """
    return torch.minimum(weights, coverage).sum(-1)


def count_additive_parameters(encoder_dim: int, decoder_dim: int, attention_dim: int) -> int:
    """The number of parameters of ``AdditiveAttention``; ``CoverageAttention`` has ``attention_dim`` more.

    >>> count_additive_parameters(512, 256, 512)
    394240
    """
    return attention_dim * encoder_dim + attention_dim * decoder_dim + attention_dim + attention_dim

"""Where someone goes next, as a model: what every such model reads, and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from whence_papers.pointer.next_location.histories import PADDING
from whence_papers.pointer.next_location.spec import NextPlaceSpec

START = 0.05  # deviation of the embeddings: a place that training never shows must not stand out by its random start


class Answer(NamedTuple):
    """What a model says of a history."""

    log_p: Tensor  # [B, places]
    log_weights: Tensor | None  # [B, T] where it points, -inf on padding; None without a pointer
    generating: Tensor  # [B], the share that was generated instead of copied


class NextPlaceModel(nn.Module, ABC):
    """Visits as vectors: one embedding a thing that is read, summed and normed. Made by ``build_next_place``."""

    def __init__(self, spec: NextPlaceSpec) -> None:
        super().__init__()
        self.spec = spec
        self.place = nn.Embedding(spec.places, spec.embed_dim, padding_idx=PADDING)
        self.reads = nn.ModuleDict({name: nn.Embedding(size, spec.embed_dim) for name, size in spec.sizes().items()})
        for embedding in (self.place, *self.reads.values()):
            assert isinstance(embedding, nn.Embedding)
            nn.init.normal_(embedding.weight, std=START)
        self.norm, self.dropout = nn.LayerNorm(spec.embed_dim), nn.Dropout(spec.dropout)

    def forward(self, tokens: Tensor, *, key_mask: Tensor | None, extras: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities ``[B, places]`` of the next place after histories ``[B, T]``."""
        return self.answer(tokens, key_mask=key_mask, extras=extras).log_p

    @abstractmethod
    def answer(self, tokens: Tensor, *, key_mask: Tensor | None, extras: Mapping[str, Tensor]) -> Answer:
        """The same, and how it came about."""

    def vectors(self, tokens: Tensor, key_mask: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
        """Each visit as a vector, ``[B, T, width]``."""
        x = self.place(tokens)
        for name, embedding in self.reads.items():
            if name == "from_end":
                numbers = from_end(key_mask, self.spec.context)
            else:
                numbers = extras[name][:, None] if name == "user" else extras[name]
            x = x + embedding(numbers)
        return self.norm(x)


def from_end(key_mask: Tensor, most: int) -> Tensor:
    """The position from the end: 1 for the last visit, at most ``most``, 0 on padding.

    >>> import torch
    >>> from_end(torch.tensor([[True, True, True], [True, False, False]]), 2).tolist()
    [[2, 2, 1], [1, 0, 0]]
    """
    left = key_mask.flip(1).cumsum(1).flip(1)
    return (left * key_mask).clamp(max=most)

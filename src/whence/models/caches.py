"""``Caches``: one ``KVCache`` for each layer of a model, changed together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from whence.attention import KVCache
from whence.errors import usage_error


class Caches:
    """The keys and values of every layer of one decoder. ``Decoder.caches()`` builds them for its own layers.

    Args:
        layers: number of layers.
        capacity: maximum number of tokens of a preallocated cache; by default the caches grow.

    >>> caches = Caches(3, capacity=8)
    >>> len(caches), caches.seq_length
    (3, 0)
    """

    def __init__(self, layers: int, *, capacity: int | None = None) -> None:
        if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
            raise usage_error(
                "Caches(layers)", repr(layers), "layers must be an integer of at least 1", "pass the model's layers"
            )
        self.layers = tuple(KVCache(capacity=capacity) for _ in range(layers))

    def __len__(self) -> int:
        """The number of layers."""
        return len(self.layers)

    def __iter__(self) -> Iterator[KVCache]:
        return iter(self.layers)

    def __repr__(self) -> str:
        return f"Caches({len(self)} x {self.layers[0]!r})"

    @property
    def seq_length(self) -> int:
        """The number of tokens that were appended and not cropped."""
        return self.layers[0].seq_length

    @property
    def batch_size(self) -> int | None:
        """The number of rows; None before the first token."""
        return self.layers[0].batch_size

    def crop(self, length: int) -> None:
        """Keep the first ``length`` tokens in every layer."""
        for cache in self.layers:
            cache.crop(length)

    def reorder(self, index: Tensor) -> None:
        """Row b becomes the former row ``index[b]``, in every layer."""
        for cache in self.layers:
            cache.reorder(index)

    def reset(self) -> None:
        """Remove all tokens."""
        for cache in self.layers:
            cache.reset()

    def mark(self) -> list[dict[str, Any]]:
        """The state that ``restore`` returns to. Nothing is copied."""
        return [cache.mark() for cache in self.layers]

    def restore(self, mark: list[dict[str, Any]]) -> None:
        """Undo everything since the mark. Raises if preallocated memory was overwritten."""
        for cache, state in zip(self.layers, mark, strict=True):
            cache.restore(state)

"""``Caches``: one ``KVCache`` for each layer of a model, moved together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from whence.attention import KVCache
from whence.errors import usage_error


class Caches:
    """The keys and values of every layer of one decoder. ``Decoder.caches()`` makes them for its own layers.

    Args:
        layers: number of layers.
        capacity: the most tokens a preallocated cache takes; by default the caches grow.

    >>> caches = Caches(3, capacity=8)
    >>> len(caches), caches.seen
    (3, 0)
    """

    def __init__(self, layers: int, *, capacity: int | None = None) -> None:
        if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
            raise usage_error(
                "Caches(layers)", repr(layers), "layers is a whole number of at least 1", "give the model's layers"
            )
        self.each = tuple(KVCache(capacity=capacity) for _ in range(layers))

    def __len__(self) -> int:
        """How many layers there are."""
        return len(self.each)

    def __iter__(self) -> Iterator[KVCache]:
        return iter(self.each)

    def __repr__(self) -> str:
        return f"Caches({len(self)} x {self.each[0]!r})"

    @property
    def seen(self) -> int:
        """How many tokens were appended and not rolled back."""
        return self.each[0].seen

    def crop(self, length: int) -> None:
        """Roll every layer back to the first ``length`` tokens seen."""
        for cache in self.each:
            cache.crop(length)

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row ``index[b]`` was, in every layer."""
        for cache in self.each:
            cache.reorder(index)

    def reset(self) -> None:
        """Forget everything."""
        for cache in self.each:
            cache.reset()

    def mark(self) -> list[dict[str, Any]]:
        """What ``restore`` needs to undo everything from here on; nothing is copied."""
        return [cache.mark() for cache in self.each]

    def restore(self, mark: list[dict[str, Any]]) -> None:
        """Undo everything since the mark; refused where preallocated memory was overwritten."""
        for cache, each in zip(self.each, mark, strict=True):
            cache.restore(each)

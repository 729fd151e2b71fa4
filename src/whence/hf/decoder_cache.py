"""The caches of a decoder of ``whence.models`` as a cache of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.errors import require_package, usage_error
from whence.models import Caches

require_package("transformers", "whence.hf.WhenceForCausalLM", "hf")
from transformers.cache_utils import Cache  # noqa: E402


class DecoderCache(Cache):
    """The caches of a decoder's layers with the interface of a transformers cache.

    A key is stored before rotation with its own position, so beams, crops and left padding keep every position.
    """

    def __init__(self, caches: Caches) -> None:
        super().__init__(layers=[])
        self.caches = caches

    def __len__(self) -> int:
        return len(self.caches)

    def __repr__(self) -> str:
        return f"DecoderCache({self.caches!r})"

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        raise usage_error(
            "DecoderCache.update(...)",
            "keys and values",
            "only the decoder that it belongs to appends to it",
            "pass the cache as past_key_values",
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.caches.layers[layer_idx].seq_length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    def reset(self) -> None:
        self.caches.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.caches.reorder(beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove -n tokens for a negative n. A positive n is the length to keep, as in older versions of transformers."""
        length = self.get_seq_length()
        self.caches.crop(min(tokens_to_remove, length) if tokens_to_remove > 0 else length + tokens_to_remove)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.batch_size > 0:
            self.caches.reorder(torch.arange(self.batch_size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.caches.reorder(indices)

    @property
    def batch_size(self) -> int:
        return -1 if self.caches.batch_size is None else self.caches.batch_size

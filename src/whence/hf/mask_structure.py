"""Recognize the mask functions of transformers as causality, a sliding window, chunks and packed segments.

transformers describes a mask by a function of (sequence, head, query, key). In eager mode the function is evaluated block
by block and compared with the recognized structure, so a wrong guess is detected. While ``torch.compile`` traces, no
tensor value may be read: the function itself, its name and the model's config must then be enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import WhenceError, usage_error

BLOCK_ENTRIES = 1 << 22  # mask entries that are evaluated together

MaskFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class MaskStructure:
    """The meaning of a mask function. A slot is an index into the cache, padding included."""

    window: int | None = None
    segment_ids: Tensor | None = None  # [B, T] of packed sequences, where queries and keys are the same tokens
    chunks: tuple[Tensor, Tensor] | None = None  # [B or 1, T] and [B or 1, S]: a query sees keys of its own chunk

    @property
    def is_plain(self) -> bool:
        return self.window is None and self.segment_ids is None and self.chunks is None

    def visibility_ids(self) -> tuple[Tensor, Tensor] | None:
        """Ids of queries and keys: a query sees keys with its own id. None if all tokens see each other."""
        if self.chunks is None:
            return None if self.segment_ids is None else (self.segment_ids, self.segment_ids)
        if self.segment_ids is None:
            return self.chunks
        q_chunks, k_chunks = self.chunks
        stride = k_chunks.shape[-1] + 1  # larger than the number of chunks
        return self.segment_ids * stride + q_chunks, self.segment_ids * stride + k_chunks

    def visible_keys(self, q_slots: Tensor, k_slots: Tensor, rows: Tensor) -> Tensor:
        """Which keys the queries ``rows`` see, ``[B or 1, n, S]``."""
        distance = q_slots[rows][:, None] - k_slots
        visible = (distance >= 0)[None]
        if self.window is not None:
            visible = visible & (distance < self.window)
        ids = self.visibility_ids()
        if ids is not None:
            visible = visible & (ids[0][:, rows][:, :, None] == ids[1][:, None, :])
        return visible


@dataclass(frozen=True)
class MaskRequest:
    """The arguments with which transformers requests a mask."""

    function: MaskFunction
    batch: int
    q_slots: Tensor  # [T]
    k_slots: Tensor  # [S]
    is_full: bool  # the queries are all tokens; nothing comes from a cache
    has_attention_mask: bool
    local_size: int | None  # of a window or of chunks
    first_slot: Tensor | None  # [B, 1], the slot of the first real token
    config: Any

    def evaluate(self, q: Tensor, k: Tensor) -> Tensor:
        """The mask ``[B, n, m]`` at pairs of query and key slots."""
        sequences = torch.arange(self.batch, device=q.device)[:, None, None, None]
        head = torch.zeros((1, 1, 1, 1), dtype=torch.long, device=q.device)
        mask = self.function(sequences, head, q[None, None], k[None, None])
        return mask.expand(self.batch, 1, *torch.broadcast_shapes(q.shape, k.shape))[:, 0]


def recognize(request: MaskRequest, use_vmap: bool) -> MaskStructure:
    """The structure of a mask, verified entry by entry. Any other mask is an error."""
    if request.function is _causal_mask_function():
        return MaskStructure()
    if not use_vmap:
        for structure in _candidates(request):
            if _matches(request, structure):
                return structure
    _require_causal(request)
    raise _unsupported_mask(request, "neither causal, window, chunks, padding nor packed segments")


def recognize_while_tracing(request: MaskRequest, use_vmap: bool) -> MaskStructure:
    """The structure of a mask from the name of its function and from the config, without reading a tensor value."""
    if request.function is _causal_mask_function():
        return MaskStructure()
    is_known = not use_vmap and getattr(request.function, "__name__", "") == "and_mask"
    if not is_known or not getattr(request.config, "is_causal", True):
        raise _unsupported_mask(request, "not recognizable as causal while torch.compile traces")
    may_be_packed = request.is_full and not request.has_attention_mask  # transformers detects packing only then
    if request.local_size is None:
        if not may_be_packed:
            raise _unsupported_mask(request, "not recognizable as causal while torch.compile traces")
        return _with_segments(request, MaskStructure())
    local = _local_structures(request)
    if len(local) > 1:
        raise _unsupported_mask(
            request, f"of local size {request.local_size}, either a window or chunks, while torch.compile traces"
        )
    return _with_segments(request, local[0]) if may_be_packed else local[0]


def _candidates(request: MaskRequest) -> Iterator[MaskStructure]:
    local = _local_structures(request)
    yield from local
    if request.is_full:
        yield from (_with_segments(request, structure) for structure in local)


def _local_structures(request: MaskRequest) -> list[MaskStructure]:
    """A window or chunks of the requested size, whichever the config names; both if it names neither."""
    size = request.local_size
    if size is None:
        return [MaskStructure()]
    is_window = getattr(request.config, "sliding_window", None) == size
    is_chunk = getattr(request.config, "attention_chunk_size", None) == size
    windows = [] if is_chunk and not is_window else [MaskStructure(window=size)]
    return windows + ([] if is_window and not is_chunk else [MaskStructure(chunks=_chunks(request, size))])


def _chunks(request: MaskRequest, size: int) -> tuple[Tensor, Tensor]:
    """Chunks are counted from the first real token of each sequence."""
    q, k = request.q_slots[None], request.k_slots[None]
    if request.first_slot is not None:
        q, k = q - request.first_slot, k - request.first_slot
    return torch.div(q, size, rounding_mode="floor"), torch.div(k, size, rounding_mode="floor")


def _with_segments(request: MaskRequest, structure: MaskStructure) -> MaskStructure:
    """Add packed segments: one ends where a token does not see its predecessor, although window and chunk allow it."""
    slots = request.q_slots
    if len(slots) < 2 or structure.window == 1:
        return structure
    ends = ~request.evaluate(slots[1:, None], slots[:-1, None])[..., 0]  # [B, T - 1]
    if structure.chunks is not None:
        chunk = structure.chunks[0]
        ends = ends & (chunk[:, 1:] == chunk[:, :-1])
    segment_ids = torch.nn.functional.pad(ends.long().cumsum(-1), (1, 0))
    return MaskStructure(structure.window, segment_ids, structure.chunks)


def _matches(request: MaskRequest, structure: MaskStructure) -> bool:
    """Whether the mask function has this structure at every entry."""
    step = max(1, BLOCK_ENTRIES // (request.batch * len(request.k_slots)))
    for rows in torch.arange(len(request.q_slots), device=request.q_slots.device).split(step):
        mask = request.evaluate(request.q_slots[rows][:, None], request.k_slots[None])
        if not bool((mask == structure.visible_keys(request.q_slots, request.k_slots, rows)).all()):
            return False
    return True


def _causal_mask_function() -> Callable[..., Any]:
    from transformers.masking_utils import causal_mask_function

    return causal_mask_function


def _require_causal(request: MaskRequest) -> None:
    """Raise for an encoder's mask, in which a token sees later ones."""
    visible = request.evaluate(request.q_slots[:1, None], request.k_slots[None])[:, 0]
    if bool((visible & (request.k_slots > request.q_slots[0])).any()):
        raise usage_error(
            "an attached model",
            f"a mask of {getattr(request.config, 'model_type', 'its own')} in which a token sees later ones",
            "decoder-only language models are supported; encoders and encoder-decoders are not",
            "use a causal language model, such as llama, qwen3 or gpt2",
        )


def _unsupported_mask(request: MaskRequest, reason: str) -> WhenceError:
    return usage_error(
        "an attached model",
        f"a mask of {getattr(request.config, 'model_type', 'its own')} that is {reason}",
        "attend supports causality, a window, chunks, padding and packed segments",
        "use a causal language model with such a mask, or run it without torch.compile if the reason names it",
    )

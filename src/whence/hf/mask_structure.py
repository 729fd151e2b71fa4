"""Recognise transformers' mask functions as causality, a window, chunks and packed texts.

transformers describes a mask by a function of (sequence, head, query, key). In eager mode the function is evaluated block
by block and compared with the structure that was recognised, so a wrong guess is found. While a compiler traces, no number
of a tensor may be read: the function itself, its name and the model's config must then be enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import WhenceError, usage_error

PLACES = 1 << 22  # entries of a mask that are evaluated together

MaskFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class Structure:
    """What a mask function means. A slot is an index into the cache, padding included."""

    window: int | None = None
    segment_ids: Tensor | None = None  # [B, T] numbers of packed texts, where queries and keys are the same tokens
    chunks: tuple[Tensor, Tensor] | None = None  # [B or 1, T] and [B or 1, S]: a query sees keys of its own chunk

    @property
    def plain(self) -> bool:
        return self.window is None and self.segment_ids is None and self.chunks is None

    def segments(self) -> tuple[Tensor, Tensor] | None:
        """Numbers of queries and keys: a query sees keys of the same number. None when one number would do for all."""
        if self.chunks is None:
            return None if self.segment_ids is None else (self.segment_ids, self.segment_ids)
        if self.segment_ids is None:
            return self.chunks
        q_chunks, k_chunks = self.chunks
        many = k_chunks.shape[-1] + 1  # more than there are chunks
        return self.segment_ids * many + q_chunks, self.segment_ids * many + k_chunks

    def visible(self, q_slots: Tensor, k_slots: Tensor, rows: Tensor) -> Tensor:
        """Which keys some queries see, ``[B or 1, n, S]``."""
        distance = q_slots[rows][:, None] - k_slots
        seen = (distance >= 0)[None]
        if self.window is not None:
            seen = seen & (distance < self.window)
        segments = self.segments()
        if segments is not None:
            seen = seen & (segments[0][:, rows][:, :, None] == segments[1][:, None, :])
        return seen


@dataclass(frozen=True)
class Asked:
    """A request for a mask, as transformers makes it."""

    function: MaskFunction
    batch: int
    q_slots: Tensor  # [T]
    k_slots: Tensor  # [S]
    whole: bool  # the queries are all the tokens there are
    padded: bool  # an attention mask was given
    local_size: int | None  # of a window or of chunks
    first: Tensor | None  # [B, 1], the slot of the first real token
    config: Any

    def entries(self, q: Tensor, k: Tensor) -> Tensor:
        """The mask ``[B, n, m]`` at some pairs of slots."""
        sequences = torch.arange(self.batch, device=q.device)[:, None, None, None]
        head = torch.zeros((1, 1, 1, 1), dtype=torch.long, device=q.device)
        answer = self.function(sequences, head, q[None, None], k[None, None])
        return answer.expand(self.batch, 1, *torch.broadcast_shapes(q.shape, k.shape))[:, 0]


def recognise(asked: Asked, use_vmap: bool) -> Structure:
    """The structure of a mask, checked entry by entry; any other mask is refused."""
    if asked.function is _causal():
        return Structure()
    if not use_vmap:
        for structure in _candidates(asked):
            if _agrees(asked, structure):
                return structure
    _refuse_bidirectional(asked)
    raise _refused(asked, "neither causal, window, chunks, padding nor packed texts")


def recognise_while_tracing(asked: Asked, use_vmap: bool) -> Structure:
    """The same without reading a number: from what the function is called and what the config says."""
    if asked.function is _causal():
        return Structure()
    known = not use_vmap and getattr(asked.function, "__name__", "") == "and_mask"
    if not known or not getattr(asked.config, "is_causal", True):
        raise _refused(asked, "not a causal one that can be recognised while torch.compile traces")
    packed = asked.whole and not asked.padded  # transformers looks for packed texts only then
    if asked.local_size is None:
        if not packed:
            raise _refused(asked, "not a causal one that can be recognised while torch.compile traces")
        return _with_documents(asked, Structure())
    local = _local(asked)
    if len(local) > 1:
        raise _refused(
            asked, f"of local size {asked.local_size}, which could be a window or chunks while torch.compile traces"
        )
    return _with_documents(asked, local[0]) if packed else local[0]


def _candidates(asked: Asked) -> Iterator[Structure]:
    local = _local(asked)
    yield from local
    if asked.whole:
        yield from (_with_documents(asked, structure) for structure in local)


def _local(asked: Asked) -> list[Structure]:
    """A window or chunks of the given size, whichever the config names; both where it does not tell."""
    size = asked.local_size
    if size is None:
        return [Structure()]
    is_window = getattr(asked.config, "sliding_window", None) == size
    is_chunk = getattr(asked.config, "attention_chunk_size", None) == size
    windows = [] if is_chunk and not is_window else [Structure(window=size)]
    return windows + ([] if is_window and not is_chunk else [Structure(chunks=_chunks(asked, size))])


def _chunks(asked: Asked, size: int) -> tuple[Tensor, Tensor]:
    """Chunks are counted from each text's first real token."""
    q, k = asked.q_slots[None], asked.k_slots[None]
    if asked.first is not None:
        q, k = q - asked.first, k - asked.first
    return torch.div(q, size, rounding_mode="floor"), torch.div(k, size, rounding_mode="floor")


def _with_documents(asked: Asked, structure: Structure) -> Structure:
    """Packed texts: a text ends where a token does not see the one before it, although window and chunk would let it."""
    slots = asked.q_slots
    if len(slots) < 2 or structure.window == 1:
        return structure
    ends = ~asked.entries(slots[1:, None], slots[:-1, None])[..., 0]  # [B, T - 1]
    if structure.chunks is not None:
        chunk = structure.chunks[0]
        ends = ends & (chunk[:, 1:] == chunk[:, :-1])
    segment_ids = torch.nn.functional.pad(ends.long().cumsum(-1), (1, 0))
    return Structure(structure.window, segment_ids, structure.chunks)


def _agrees(asked: Asked, structure: Structure) -> bool:
    """Whether the mask function gives this structure at every entry."""
    step = max(1, PLACES // (asked.batch * len(asked.k_slots)))
    for rows in torch.arange(len(asked.q_slots), device=asked.q_slots.device).split(step):
        answer = asked.entries(asked.q_slots[rows][:, None], asked.k_slots[None])
        if not bool((answer == structure.visible(asked.q_slots, asked.k_slots, rows)).all()):
            return False
    return True


def _causal() -> Callable[..., Any]:
    from transformers.masking_utils import causal_mask_function

    return causal_mask_function


def _refuse_bidirectional(asked: Asked) -> None:
    """An encoder's tokens see those that come after them."""
    seen = asked.entries(asked.q_slots[:1, None], asked.k_slots[None])[:, 0]
    if bool((seen & (asked.k_slots > asked.q_slots[0])).any()):
        raise usage_error(
            "an attached model",
            f"a mask of {getattr(asked.config, 'model_type', 'its own')} in which a token sees later ones",
            "decoder-only language models are supported; encoders and encoder-decoders are not",
            "use a causal language model, such as llama, qwen3 or gpt2",
        )


def _refused(asked: Asked, why: str) -> WhenceError:
    return usage_error(
        "an attached model",
        f"a mask of {getattr(asked.config, 'model_type', 'its own')} that is {why}",
        "attend masks by causality, a window, chunks, padding and packed texts",
        "use a causal language model that masks so, and run it without torch.compile where this says so",
    )

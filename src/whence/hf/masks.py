"""Recognize Hugging Face masks as causal, window and segment structure.

transformers requests a mask with a function of (sequence, head, query, key) and with the state of the cache: the slots at
which queries and keys begin. A dense mask of all pairs would rule out every fast path of ``attend`` and grow with the
square of the length, so ``mask_structure`` recognizes the function as causality, window, chunks and packed segments. The
key mask is kept beside it. The result, a ``MaskInfo``, travels as an attribute of the tensor that transformers passes to
the layers. Any other mask is an error.

Positions follow one rule, in a single forward pass and with a cache. A mechanism that depends only on differences of
positions gets slots of the cache, padding included. Any other gets the number of tokens since the first real token of its
sequence or segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whence import torch_modes
from whence.attention.attend import Options
from whence.attention.token_positions import count_tokens
from whence.errors import usage_error
from whence.hf.mask_structure import MaskFunction, MaskRequest, MaskStructure, recognize, recognize_while_tracing
from whence.position.base import Position

COMPILED_IDS = (
    "a compiled model with an attached position takes position_ids that count the tokens; run it without compile"
)


@dataclass
class MaskInfo:
    """The mask of one forward pass: B sequences, T queries, S keys.

    A slot is an index into the cache, counted from the first token, padding included.
    """

    q_slots: Tensor  # [T]
    k_slots: Tensor  # [S]
    structure: MaskStructure  # window, chunks and packed segments
    key_mask: Tensor | None  # [B, S], False on padding and on empty slots; None if every token is real
    first_slot: Tensor | None  # [B, 1], the slot of the first real token
    is_full: bool  # the queries are all tokens; nothing comes from a cache
    _checked_ids: tuple[Tensor | None, Tensor | None] | None = field(default=None, repr=False)

    @property
    def segment_ids(self) -> Tensor | None:
        return self.structure.segment_ids

    def attend_arguments(self, position: Position, ids: Tensor | None) -> Options:
        """The mask and the positions as arguments of ``attend``."""
        arguments: Options = {"causal": True, "window": self.structure.window, "key_mask": self.key_mask}
        visibility = self.structure.visibility_ids()
        # whether attend, left to itself, counts the same positions as ``positions`` does
        counts_alike = self.first_slot is None or not position.relative or torch_modes.is_tracing()
        custom = self.custom_ids(position, ids)
        if self.is_full and custom is None and self.structure.chunks is None and counts_alike:
            # without explicit positions, attend's fast paths stay available while a compiler traces
            return arguments if visibility is None else {**arguments, "segment_ids": visibility[0]}
        q_positions, k_positions = self.positions(position, ids)
        if visibility is not None:
            arguments["segment_ids"] = (_squeeze_batch(visibility[0]), _squeeze_batch(visibility[1]))
        return {**arguments, "q_positions": q_positions, "k_positions": k_positions}

    def row_arguments(self, position: Position, ids: Tensor | None, rows: Tensor, keys: int) -> Options:
        """The same for the queries ``rows`` (``[n]`` or ``[B, n]``) and the first ``keys`` keys."""
        q_positions, k_positions = self.positions(position, ids)
        arguments: Options = {"causal": True, "window": self.structure.window}
        arguments["key_mask"] = None if self.key_mask is None else self.key_mask[:, :keys]
        arguments |= {"q_positions": _select_rows(q_positions, rows), "k_positions": k_positions[..., :keys]}
        visibility = self.structure.visibility_ids()
        if visibility is not None:
            q_ids, k_ids = _select_rows(visibility[0], rows), visibility[1][:, :keys]
            arguments["segment_ids"] = (_squeeze_batch(q_ids), _squeeze_batch(k_ids))
        return arguments

    def count_reachable_keys(self, rows: Tensor) -> int:
        """The number of keys at or before the last of the queries ``rows``. No query sees more."""
        return int((self.k_slots <= self.q_slots[rows].max()).sum())

    def positions(self, position: Position, ids: Tensor | None) -> tuple[Tensor, Tensor]:
        """Positions of queries and keys, ``[T]`` and ``[S]``, or ``[B, T]`` and ``[B, S]``.

        They are slots if the mechanism depends on differences only. Otherwise tokens are counted from the first one of
        each sequence or segment. Padding, which no query sees, gets position 0.
        """
        custom = self.custom_ids(position, ids)
        if custom is not None:
            return custom, custom
        if position.relative or (self.first_slot is None and self.segment_ids is None):
            return self.q_slots, self.k_slots
        if self.segment_ids is not None:
            counts = count_tokens(self.key_mask, self.segment_ids, len(self.q_slots), self.q_slots.device).clamp(min=0)
            return counts, counts
        assert self.first_slot is not None
        return (self.q_slots - self.first_slot).clamp(min=0), (self.k_slots - self.first_slot).clamp(min=0)

    def visible_keys(self, rows: Tensor) -> Tensor:
        """Which keys the queries ``rows`` see, without padding: ``[B or 1, n, S]``."""
        visible = self.structure.visible_keys(self.q_slots, self.k_slots, rows)
        return visible if self.key_mask is None else visible & self.key_mask[:, None, :]

    def query_mask(self) -> Tensor | None:
        """Which queries are real tokens, ``[B, T]``; None if all are."""
        return None if self.key_mask is None else self.key_mask[:, self.q_slots - self.k_slots[0]]

    def repeat_rows(self, batch: int, copies: int) -> MaskInfo:
        """The same mask with ``copies`` rows for each of ``batch`` sequences."""

        def repeat(x: Tensor) -> Tensor:
            return x if x.shape[0] != batch else x.repeat_interleave(copies, 0)

        old, optional = self.structure, lambda x: None if x is None else repeat(x)
        chunks = None if old.chunks is None else (repeat(old.chunks[0]), repeat(old.chunks[1]))
        structure = replace(old, segment_ids=optional(old.segment_ids), chunks=chunks)
        key_mask, first_slot = optional(self.key_mask), optional(self.first_slot)
        return replace(self, structure=structure, key_mask=key_mask, first_slot=first_slot, _checked_ids=None)

    def as_one_sequence(self) -> MaskInfo:
        """The same mask without packed segments."""
        structure = MaskStructure(self.structure.window, None, self.structure.chunks)
        return MaskInfo(self.q_slots, self.k_slots, structure, self.key_mask, self.first_slot, self.is_full)

    def custom_ids(self, position: Position, ids: Tensor | None) -> Tensor | None:
        """Position ids ``[T]`` or ``[B, T]`` that leave gaps, as the caller chose them; None for consecutive ids."""
        if ids is None or not position.effects:
            return None
        if self._checked_ids is None or self._checked_ids[0] is not ids:  # all layers of a forward pass share the ids
            self._checked_ids = (ids, self._check_ids(ids))
        return self._checked_ids[1]

    def _check_ids(self, ids: Tensor) -> Tensor | None:
        subject = "an attached model(position_ids=...)"
        if ids.ndim != 2:
            raise usage_error(
                subject,
                f"ids of shape {list(ids.shape)}",
                "each token has one position",
                "attach to a text model; multi-dimensional positions are not supported",
            )
        query_mask = self.query_mask()
        is_real = torch.ones_like(ids, dtype=torch.bool) if query_mask is None else query_mask
        expected = [
            self.q_slots[None],
            self.q_slots[None] if self.first_slot is None else self.q_slots - self.first_slot,
        ]
        if self.segment_ids is not None:  # transformers recognizes packed segments by ids that start again
            expected = [count_tokens(self.key_mask, self.segment_ids, len(self.q_slots), ids.device)]
        agree = [((ids == one) | ~is_real).all() for one in expected]
        if (
            torch_modes.is_tracing()
        ):  # no tensor value may be read here, so the compiled program checks the ids when it runs
            torch._assert_async(torch.stack(agree).any(), COMPILED_IDS)
            return None
        if any(bool(one) for one in agree):
            return None
        if not self.is_full:
            raise usage_error(
                subject,
                "ids with gaps, together with a cache",
                "the cache stores keys without their ids, so distances are counted in its slots",
                "omit position_ids, or call the model without a cache",
            )
        if self.segment_ids is not None:
            raise usage_error(
                subject,
                "ids with gaps and no attention_mask",
                "transformers then treats every gap as the start of another packed segment, which counts from 0",
                "pass attention_mask=torch.ones_like(input_ids) for one sequence, or ids that start at 0 in each segment",
            )
        if not self.structure.is_plain:
            raise usage_error(
                subject,
                "ids with gaps, in a model with a window or chunks",
                "the mask of the model counts tokens, not ids",
                "omit position_ids",
            )
        highest = ids.masked_fill(~is_real, -1).cummax(-1).values
        if not bool(((ids[:, 1:] > highest[:, :-1]) | ~is_real[:, 1:]).all()):
            raise usage_error(
                subject,
                "ids that do not increase",
                "a query sees keys with lower ids",
                "pass position_ids that increase, or use_cache=False and no attention_mask for packed sequences",
            )
        return ids[0] if ids.shape[0] == 1 else ids


def build_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **others: Any,
) -> Tensor:
    """The mask function registered with transformers. It returns a small tensor that carries a ``MaskInfo``."""
    # a static cache changes its offset in place, so the sum must be a new tensor
    q_slots = torch.arange(q_length, device=device) + q_offset
    k_slots = torch.arange(kv_length, device=device) + kv_offset
    is_full = isinstance(q_offset, int) and q_offset == 0 and kv_offset == 0 and q_length == kv_length
    key_mask, first_slot = _key_mask(attention_mask, k_slots, kv_offset)
    has_mask = attention_mask is not None
    request = MaskRequest(
        mask_function, batch_size, q_slots, k_slots, is_full, has_mask, local_size, first_slot, config
    )
    structure = (recognize_while_tracing if torch_modes.is_tracing() else recognize)(request, use_vmap)
    shape = (batch_size, 1, 1, kv_length)
    # generate calls contiguous() on the mask; a contiguous tensor returns itself and so keeps its attribute
    carrier = torch.ones(shape, dtype=torch.bool, device=device) if key_mask is None else key_mask.reshape(shape)
    carrier = carrier.contiguous()
    carrier.mask_info = MaskInfo(q_slots, k_slots, structure, key_mask, first_slot, is_full)  # type: ignore[attr-defined]
    return carrier


def repeat_mask(mask: Any, batch: int, copies: int) -> Any:
    """A mask of ``batch`` sequences for ``copies`` rows of each, next to each other. Other values stay as they are."""
    if not isinstance(mask, Tensor) or mask.shape[0] != batch:
        return mask
    repeated = mask.repeat_interleave(copies, 0)
    info = getattr(mask, "mask_info", None)
    if isinstance(info, MaskInfo):
        repeated.mask_info = info.repeat_rows(batch, copies)  # type: ignore[attr-defined]
    return repeated


def read_mask_info(mask: Tensor | None, queries: int, keys: int) -> MaskInfo:
    """The ``MaskInfo`` that a mask carries. A mask from elsewhere is an error."""
    info = getattr(mask, "mask_info", None)
    if not isinstance(info, MaskInfo):
        got = "no mask" if mask is None else f"a mask of shape {list(mask.shape)} made elsewhere"
        raise usage_error(
            "an attached model(attention_mask=...)",
            got,
            "causality, window and padding are read from the masks that transformers builds",
            "pass attention_mask of shape [batch, length] with 1 for real tokens, or none",
        )
    if info.q_slots.shape[0] != queries or info.k_slots.shape[0] != keys:
        raise usage_error(
            "an attached model",
            f"{queries} queries and {keys} keys with a mask for {len(info.q_slots)} and {len(info.k_slots)}",
            "layers that share a mask must have the same tokens in the cache",
            "use a DynamicCache or StaticCache",
        )
    return info


def _key_mask(attention_mask: Tensor | None, k_slots: Tensor, offset: int) -> tuple[Tensor | None, Tensor | None]:
    """Which keys are real, and the first real slot of each sequence; None for both if all are real."""
    if attention_mask is None or (not torch_modes.is_tracing() and bool(attention_mask.all())):
        return None, None  # slots beyond the mask are empty, and causality hides them
    mask = attention_mask.bool()
    first_slot = mask.long().argmax(-1, keepdim=True)
    missing = int(k_slots.shape[0]) + offset - mask.shape[1]
    if missing > 0:
        mask = torch.nn.functional.pad(mask, (0, missing))
    return mask[:, offset : offset + k_slots.shape[0]], first_slot


def _squeeze_batch(ids: Tensor) -> Tensor:
    """Ids ``[1, n]`` of all sequences as ``[n]``, the form ``attend`` takes; others unchanged."""
    return ids[0] if ids.shape[0] == 1 else ids


def _select_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Entries of ``[T]`` or ``[B or 1, T]``: the same for all sequences (``[n]``) or its own for each (``[B, n]``)."""
    if rows.ndim == 1:
        return x[..., rows]
    return x.expand(rows.shape[0], -1).gather(1, rows)

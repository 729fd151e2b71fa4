"""``AttentionEdit``: one change to the attention of a pretrained model, written as a few small methods.

An edit may change four things, in this order: the input of the attention module, the positions that queries and keys are
rotated to, the scores, which keys are visible and the sink of each row, and the weights after the softmax. The attention of the rows that an
edit affects is computed here, some rows at a time, so memory grows with the length and not with its square. Everything of
the model stays: its window, softcap, sinks, grouped queries and padding.

Several edits of one layer act one after the other. At most one of them may choose positions, and one the input.

Shapes: B sequences, H query heads, G key-value heads, T queries, S keys, D columns, n queries of a block of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.hf.masks import MaskInfo
from whence.hf.requests import Request, prompt_end_positions
from whence.hf.rotary_config import rotate_at
from whence.position.regions import Region
from whence.position.rotary import Rotary

BLOCK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 27}  # scores in memory at a time; small blocks leave a GPU waiting


class AttentionEdit:
    """The base class. Override what the edit changes; the defaults change nothing.

    Attributes:
        unrotated: queries and keys arrive before the model's rotation, and the cache holds them so. ``regions`` is called
            only then.
        causal: no token may change an earlier logit. ``False`` skips the check for edits that look ahead on purpose.
        needs_documents: the documents of a prompt must be known; see ``whence.hf.request``.
    """

    unrotated = False
    causal = True
    needs_documents = False

    def affected_rows(self, call: EditedCall) -> Tensor | None:
        """Which queries the edit changes, ``[B or 1, T]`` bool; None for all. The others take the usual path."""
        return None

    def change_input(self, x: Tensor) -> Tensor | None:
        """Another input ``[B, T, embed_dim]`` of the layer's query and key projections, for the affected rows; None for none."""
        return None

    def regions(self, call: EditedCall, rows: Tensor) -> Sequence[Region]:
        """Positions for the queries ``rows``, ``[n]``. Where regions overlap, the last one counts."""
        return (call.own_positions(rows),)

    def change_visible(self, call: EditedCall, rows: Tensor, visible: Tensor) -> Tensor:
        """Which keys the queries ``rows`` see: ``[B or 1, H or 1, n, S]`` bool."""
        return visible

    def change_scores(self, call: EditedCall, rows: Tensor, scores: Tensor) -> Tensor:
        """The scores ``[B, H, n, S]``, scaled and capped as in the model, before the mask."""
        return scores

    def change_sinks(self, call: EditedCall, rows: Tensor, sinks: Tensor | None) -> Tensor | None:
        """One more logit in the softmax of each row, without a value: ``[B or 1, H, n or 1, 1]``; None for none."""
        return sinks

    def change_weights(self, call: EditedCall, rows: Tensor, weights: Tensor) -> Tensor:
        """The weights ``[B, H, n, S]`` after the softmax."""
        return weights


@dataclass
class EditedCall:
    """One layer's attention in one forward pass, as edits see it. Keys include those of the cache."""

    module: nn.Module
    layer: int
    edits: Sequence[AttentionEdit]
    q: Tensor  # [B, H, T, D], before rotation if an edit is ``unrotated``
    k: Tensor  # [B, G, S, D]
    v: Tensor  # [B, G, S, E]
    changed: tuple[Tensor, Tensor] | None  # q and k of ``change_input``
    mask_info: MaskInfo
    request: Request
    state: dict[Any, Any]  # stays with the cache; without a cache it lives for one forward pass
    rotary: Rotary | None  # of the model, if an edit is ``unrotated``
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None  # [H]
    _prompt_ends: Tensor | None = field(default=None, repr=False)

    @property
    def rows_per_block(self) -> int:
        """The number of queries whose scores are in memory at a time."""
        limit = BLOCK_SCORES.get(self.q.device.type, BLOCK_SCORES["cpu"])
        return max(1, limit // (self.q.shape[0] * self.q.shape[1] * self.k.shape[2]))

    @property
    def is_first(self) -> bool:
        """Whether nothing was in the cache before this forward pass."""
        return bool(self.mask_info.q_slots[0] == 0)

    @property
    def q_positions(self) -> Tensor:
        """The number of tokens before each query, ``[B or 1, T]``; negative on left padding."""
        return self._count(self.mask_info.q_slots)

    @property
    def k_positions(self) -> Tensor:
        """The number of tokens before each key, ``[B or 1, S]``; negative on left padding."""
        return self._count(self.mask_info.k_slots)

    def _count(self, slots: Tensor) -> Tensor:
        first = self.mask_info.first_slot
        return slots[None] if first is None else slots[None] - first

    @property
    def prompt_ends(self) -> Tensor:
        """The number of tokens of each prompt, ``[B, 1]``.

        The request or ``generate`` states it. Otherwise the tokens of the first forward pass into a cache are the prompt.
        """
        if self._prompt_ends is None:
            info, batch = self.mask_info, self.q.shape[0]
            ends = prompt_end_positions(self.request, batch, info.first_slot, self.q.device)
            if ends is None and "prompt_ends" not in self.state:
                if not self.is_first:
                    raise usage_error(
                        f"an edited {type(self.module).__name__}",
                        "a cache that was filled before the intervention was applied",
                        "the end of the prompt must be known",
                        "pass prompt_ends to whence.hf.request, or apply the intervention before the first forward pass",
                    )
                query_mask = info.query_mask()
                real = torch.full((batch, 1), len(info.q_slots), device=self.q.device)
                self.state["prompt_ends"] = real if query_mask is None else query_mask.sum(-1, keepdim=True)
            self._prompt_ends = fit_batch(self.state["prompt_ends"], batch) if ends is None else ends
        return self._prompt_ends

    def answering_rows(self) -> Tensor:
        """Which queries answer, ``[B, T]``: the last token of the prompt, which predicts the first token of the answer,
        and all later ones."""
        return self.q_positions >= self.prompt_ends - 1

    def documents(self, subject: str) -> list[tuple[tuple[int, int], ...]]:
        """The token spans of the documents of every sequence of the batch."""
        spans = self.request.require_documents(subject)
        return [row for row in spans for _ in range(self.request.repeats(self.q.shape[0]))]

    def document_ids(self, subject: str, positions: Tensor) -> Tensor:
        """The index of the document of each token at these positions ``[B or 1, m]``; -1 outside all: ``[B, m]``."""
        spans = self.documents(subject)
        most = max(map(len, spans), default=0)
        if not most:
            return torch.full((len(spans), positions.shape[-1]), -1, device=positions.device)
        padded = [[*documents, *[(0, 0)] * (most - len(documents))] for documents in spans]
        starts, ends = torch.tensor(padded, device=positions.device)[:, None].unbind(-1)
        where = positions.expand(len(spans), -1)[..., None]
        inside = (where >= starts) & (where < ends)  # [B, m, documents]
        numbers = torch.arange(1, most + 1, device=positions.device)
        return (inside * numbers).amax(-1) - 1

    def own_positions(self, rows: Tensor) -> Region:
        """The positions that the model itself uses."""
        return Region(self.q_positions[:, None, rows].clamp(min=0), self.k_positions[:, None].clamp(min=0))

    def plain_scores(self, rows: Tensor) -> Tensor:
        """Scores ``[B, H, n, S]`` of the queries and keys as they arrive, without rotation if an edit is ``unrotated``."""
        return multiply(self.q[:, :, rows], self.k) * self.scale

    def rotated(self) -> tuple[Tensor, Tensor]:
        """Queries and keys at the model's own positions."""
        if self.rotary is None:
            return self.q, self.k
        own = self.own_positions(torch.arange(self.q.shape[2], device=self.q.device))
        return rotate_at(self.rotary, self.q, own.q_positions), rotate_at(self.rotary, self.k, own.k_positions)

    def scores(self, rows: Tensor) -> Tensor:
        """Scores ``[B, H, n, S]`` of the queries ``rows``, with the model's softcap, after all edits."""
        chooses_positions = [edit for edit in self.edits if edit.unrotated]
        if self.rotary is None:
            scores = multiply(self.q[:, :, rows], self.k)
        else:
            scores = self._region_scores(rows, self._regions(chooses_positions[0], rows))
        if self.changed is not None:
            q, k = self.changed
            editor = next(edit for edit in self.edits if type(edit).change_input is not AttentionEdit.change_input)
            scores = self._limit(editor, rows, multiply(q[:, :, rows], k), scores)
        scores = scores * self.scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        for edit in self.edits:
            scores = self._limit(edit, rows, edit.change_scores(self, rows, scores), scores)
        return scores

    def weights(self, rows: Tensor) -> Tensor:
        """The attention weights ``[B, H, n, S]`` of the queries ``rows``, ``[n]``, after all edits."""
        visible = self.mask_info.visible_keys(rows)[:, None]
        for edit in self.edits:
            visible = self._limit(edit, rows, edit.change_visible(self, rows, visible), visible)
        scores = self.scores(rows).masked_fill(~visible, -math.inf)
        sinks = self._sinks(rows, scores)
        if sinks is not None:
            scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1)
        top = scores.amax(-1, keepdim=True)
        exponentials = (scores - top.masked_fill(top == -math.inf, 0.0)).exp()  # a row that sees no key gets zeros
        weights = exponentials / exponentials.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
        weights = weights[..., : self.k.shape[2]]
        for edit in self.edits:
            weights = self._limit(edit, rows, edit.change_weights(self, rows, weights), weights)
        return weights

    def _sinks(self, rows: Tensor, scores: Tensor) -> Tensor | None:
        """The model's own sinks, after all edits."""
        sinks = None if self.sinks is None else self.sinks.to(scores.dtype)[None, :, None, None]
        for edit in self.edits:
            new = edit.change_sinks(self, rows, sinks)
            if new is not None and new is not sinks:
                new = new.to(scores.dtype)
                sinks = self._limit(edit, rows, new, new.new_tensor(-math.inf) if sinks is None else sinks)
        return sinks

    def weights_of(self, rows: Tensor) -> Tensor:
        """The same for rows ``[n]``, or separate ones for each sequence, ``[B, n]``."""
        if rows.ndim == 1:
            return self.weights(rows)
        union, places = rows.unique(return_inverse=True)
        weights = self.weights(union)
        return weights.gather(2, places[:, None, :, None].expand(-1, weights.shape[1], -1, weights.shape[3]))

    def output(self, rows: Tensor) -> Tensor:
        """The attention output ``[B, H, n, E]`` of the queries ``rows``, computed some at a time."""
        parts = [combine(self.weights(block), self.v) for block in rows.split(self.rows_per_block)]
        return torch.cat(parts, 2).to(self.v.dtype)

    def affected(self) -> Tensor | None:
        """The queries that any edit affects, in any sequence, ``[n]``; None for all."""
        every = [edit.affected_rows(self) for edit in self.edits]
        if any(one is None for one in every):
            return None
        union = torch.stack([one.any(0) for one in every if one is not None]).any(0)
        return union.nonzero()[:, 0]

    def _limit(self, edit: AttentionEdit, rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
        """What an edit changed, in the rows that it affects; elsewhere what was there before."""
        affected = None if new is old else edit.affected_rows(self)
        return new if affected is None else torch.where(affected[:, None, rows, None], new, old)

    def _regions(self, edit: AttentionEdit, rows: Tensor) -> Sequence[Region]:
        regions, affected = edit.regions(self, rows), edit.affected_rows(self)
        if affected is None:
            return regions
        own = replace(self.own_positions(rows), where=~affected[:, None, rows, None])
        return (*regions, own)

    def _region_scores(self, rows: Tensor, regions: Sequence[Region]) -> Tensor:
        assert self.rotary is not None
        q, keys = self.q[:, :, rows], self.k.shape[2]
        scores: Tensor | None = None
        for region in regions:
            first, last = _key_range(region.where, keys)
            if first == last:
                continue
            where = None if region.where is None else _slice_keys(region.where, first, last)
            rotated_q = rotate_at(self.rotary, q, region.q_positions)
            k = self.k[:, :, first:last]
            if region.k_positions.shape[1] > self.k.shape[1]:  # separate positions for the query heads of a group
                k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
            part = multiply(rotated_q, rotate_at(self.rotary, k, _slice_keys(region.k_positions, first, last)))
            part = part * region.factor
            if where is None:
                scores = part
                continue
            if scores is None:
                scores = part.new_zeros(*part.shape[:-1], keys)
            scores = scores.clone() if scores.requires_grad else scores
            scores[..., first:last] = torch.where(where, part, scores[..., first:last])
        assert scores is not None
        return scores


def multiply(q: Tensor, k: Tensor) -> Tensor:
    """Dot products ``[B, H, n, S]`` of queries ``[B, H, n, D]`` with the keys of their group ``[B, G, S, D]``, in float32."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    batch, heads, count, dim = q.shape
    groups = k.shape[1]
    grouped = q.to(dtype).reshape(batch, groups, heads // groups * count, dim)
    return (grouped @ k.to(dtype).transpose(-1, -2)).reshape(batch, heads, count, -1)


def combine(weights: Tensor, v: Tensor) -> Tensor:
    """Weighted sums ``[B, H, n, E]`` of values ``[B, G, S, E]``, in the precision of the weights."""
    batch, heads, count, keys = weights.shape
    grouped = weights.reshape(batch, v.shape[1], heads // v.shape[1] * count, keys)
    return (grouped @ v.to(weights.dtype)).reshape(batch, heads, count, -1)


def fit_batch(state: Tensor, batch: int) -> Tensor:
    """State ``[rows, ...]`` for a batch in which every row may have been repeated, as by beam search."""
    if batch % state.shape[0]:
        raise usage_error(
            "an edited model",
            f"a batch of {batch} sequences after one of {state.shape[0]}",
            "a cache keeps the state of its sequences",
            "start with an empty cache",
        )
    return state.repeat_interleave(batch // state.shape[0], 0)


def _key_range(where: Tensor | None, keys: int) -> tuple[int, int]:
    """The first key of a region and one past its last; equal if it has none."""
    if where is None or where.shape[-1] == 1:
        return 0, keys
    used = where.flatten(0, -2).any(0).nonzero()
    return (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)


def _slice_keys(x: Tensor, first: int, last: int) -> Tensor:
    return x if x.shape[-1] == 1 else x[..., first:last]

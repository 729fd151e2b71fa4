"""PINE: documents see each other in both directions, and every query orders them by importance to itself.

Wang et al. 2024 (arXiv 2407.01100). A prompt is [prefix, documents, suffix]. Every head of every layer gives documents
positions anew. For a token of a document, its own document is nearest, before it the document that this one attends to most,
and so on. For a token of the suffix or of the answer, the document that this token attends to most is nearest. Importance
is attention without positions, divided by the number of tokens of the document. Nothing depends on the order in which
documents are written, so permuting them changes the logits by rounding only.

A document ends where the suffix begins, minus a shift: the total length of the documents ranked before it. A rotary score
depends on the difference of positions alone, so here the query moves by the shift and the keys stay. All queries then share
the rotated keys of a document.

Two documents of equal importance keep the order in which they are written. This happens with documents of equal text, where
either order gives the same result.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.hf.edits import AttentionEdit, EditedCall, Region
from whence.mend.cure import Cure
from whence.mend.document_windows import DocumentWindows, WindowsOfRequest, require_no_window
from whence.validation import require_integer


class Pine(Cure):
    """Attention between documents in both directions, with positions by importance for each query and head.

    All documents of a prompt must be in one forward pass.

    Args:
        groups: treat this many groups of consecutive documents as documents. None for each document by itself; 1 changes
            nothing.
    """

    name = "pine"
    title = "PINE"
    paper = "Wang et al. 2024, arXiv 2407.01100"
    needs_documents = True

    def __init__(self, groups: int | None = None) -> None:
        if groups is not None:
            require_integer("Pine", "groups", groups, remedy="omit it to treat each document by itself")
        self.groups = groups

    def identity(self) -> Pine:
        return Pine(1)

    def edits(self, model: Any) -> AttentionEdit:
        return PineEdit(self.groups)


class PineEdit(AttentionEdit):
    unrotated = True
    causal = False
    needs_documents = True

    def __init__(self, groups: int | None) -> None:
        self.windows = WindowsOfRequest("Pine", groups)

    def regions(self, call: EditedCall, rows: Tensor) -> list[Region]:
        windows, own = self.windows.find(call), call.own_positions(rows)
        q_positions = base_positions(windows, own.q_positions[:, 0])[:, None]
        k_positions = base_positions(windows, own.k_positions[:, 0])[:, None]
        shifts, documents = self._shifts(call, windows, rows), windows.index(call.k_positions)[:, None, None]
        return [Region(q_positions, k_positions)] + [
            Region(q_positions + shifts[..., index], k_positions, where=documents == index)
            for index in range(shifts.shape[-1])
        ]

    def change_visible(self, call: EditedCall, rows: Tensor, visible: Tensor) -> Tensor:
        windows = self.windows.find(call)
        q, k = (
            windows.index(call.q_positions[:, rows])[:, None, :, None],
            windows.index(call.k_positions)[:, None, None],
        )
        return visible | ((q >= 0) & (k >= 0) & (q != k))

    def _shifts(self, call: EditedCall, windows: DocumentWindows, rows: Tensor) -> Tensor:
        """How many tokens each query ``rows`` puts between itself and each document, ``[B, H, n, K]``."""
        own = token_importance(call, windows, rows)
        lengths = windows.lengths[:, None, None]
        of_tokens = rank_shifts(own, lengths)
        of_documents = self._document_shifts(call, windows)
        if of_documents is None:
            return of_tokens
        index = windows.index(call.q_positions[:, rows])[:, None, :, None]
        batch, heads, count, documents = of_tokens.shape
        chosen = of_documents.gather(2, index.clamp(min=0).expand(batch, heads, count, documents))
        return torch.where(index >= 0, chosen, of_tokens)

    def _document_shifts(self, call: EditedCall, windows: DocumentWindows) -> Tensor | None:
        """The same for the tokens of each document, ``[B, H, K, K]``, once for each forward pass; None without documents."""
        key = ("pine", int(call.mask_info.q_slots[0]))
        if key not in call.state:
            require_no_window(call, "Pine")
            call.state[key] = None
            if _has_documents(call, windows):
                importance = document_importance(call, windows)
                call.state[key] = rank_shifts(importance, windows.lengths[:, None, None])
        shifts: Tensor | None = call.state[key]
        return shifts


def base_positions(windows: DocumentWindows, positions: Tensor) -> Tensor:
    """Where tokens stand before any shift: every document ends where the suffix begins. ``[B or 1, m]`` to ``[B, m]``.

    >>> from whence.mend.document_windows import find_windows
    >>> base_positions(find_windows([[(1, 3), (3, 6)]]), torch.arange(8)[None]).tolist()
    [[0, 4, 5, 3, 4, 5, 6, 7]]
    """
    index = windows.index(positions)
    return positions + torch.where(index >= 0, windows.suffix - windows.ends.gather(1, index.clamp(min=0)), 0)


def token_importance(call: EditedCall, windows: DocumentWindows, rows: Tensor) -> Tensor:
    """Attention without positions of the queries ``rows`` to each other document, per token of it: ``[B, H, n, K]``.

    The softmax is over the tokens of all documents but the query's own.
    """
    q, k = windows.index(call.q_positions[:, rows]), windows.index(call.k_positions)
    hidden = (k < 0)[:, None, None] | (q[:, None, :, None] == k[:, None, None])
    scores = call.plain_scores(rows).masked_fill(hidden, -math.inf)
    top = scores.amax(-1, keepdim=True)
    exponentials = (scores - top.masked_fill(top == -math.inf, 0.0)).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    members = k[..., None] == torch.arange(windows.starts.shape[1], device=k.device)
    mass = weights @ members[:, None].to(weights.dtype)
    return mass / windows.lengths[:, None, None].clamp(min=1)


def document_importance(call: EditedCall, windows: DocumentWindows) -> Tensor:
    """Importance ``[B, H, K, K]`` of each document for each other one, summed over its tokens; of itself it is infinite."""
    count = call.q.shape[2]
    documents = windows.starts.shape[1]
    total: Tensor | None = None
    for rows in torch.arange(count, device=call.q.device).split(call.rows_per_block):
        index = windows.index(call.q_positions[:, rows])
        members = (index[..., None] == torch.arange(documents, device=index.device)).transpose(1, 2)
        importance = token_importance(call, windows, rows)
        part = members[:, None].to(importance.dtype) @ importance
        total = part if total is None else total + part
    assert total is not None
    return total.masked_fill(torch.eye(documents, dtype=torch.bool, device=total.device), math.inf)


def rank_shifts(importance: Tensor, lengths: Tensor) -> Tensor:
    """The total length of the documents that are more important than each, ``[..., K]``. Documents without tokens count 0.

    >>> rank_shifts(torch.tensor([0.1, 0.5, 0.3]), torch.tensor([10, 20, 30]))
    tensor([50,  0, 20])
    """
    lengths = lengths.expand(importance.shape)
    order = importance.argsort(dim=-1, descending=True, stable=True)
    ranked = lengths.gather(-1, order)
    return torch.empty_like(ranked).scatter(-1, order, ranked.cumsum(-1) - ranked)


def _has_documents(call: EditedCall, windows: DocumentWindows) -> bool:
    """Whether this forward pass holds documents. It must then hold all of them."""
    positions = call.q_positions
    has_documents = (windows.index(positions) >= 0).any(-1, keepdim=True)
    is_whole = (positions[:, :1] <= windows.prefix) & (positions[:, -1:] >= windows.suffix - 1)
    if bool((has_documents & ~is_whole).any()):
        row = int((has_documents & ~is_whole).int().argmax())
        batch = windows.starts.shape[0]
        first, last = (int(positions.expand(batch, -1)[row, end]) for end in (0, -1))
        start, end = int(windows.prefix[row]), int(windows.suffix[row])
        raise usage_error(
            "Pine",
            f"a forward pass over tokens {first} to {last} with documents from {start} to {end - 1}",
            "documents see each other in both directions, so all of them must be in one forward pass",
            "pass the prompt in one piece, without chunked prefill",
        )
    return bool(has_documents.any())

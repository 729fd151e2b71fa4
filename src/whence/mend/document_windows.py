"""The documents of a batch of prompts as windows: what cures that treat documents separately share.

A prompt is [prefix, documents, suffix]. Tokens between two documents, such as a line break, belong to the document before
them. For results that do not depend on the order of documents, end every document with the same separator, inside its span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.hf.edits import EditedCall
from whence.hf.requests import Request, Span

NEVER = 2**40  # the position of a window that a prompt does not have


@dataclass(frozen=True)
class DocumentWindows:
    """The windows of B prompts, K at most. Positions count the tokens of a sequence from its first real one."""

    starts: Tensor  # [B, K]
    ends: Tensor  # [B, K], excluded; the start of the next window

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each window, ``[B, K]``; 0 for windows that a prompt does not have."""
        return self.ends - self.starts

    @property
    def prefix(self) -> Tensor:
        """The number of tokens before the first window, ``[B, 1]``."""
        return self.starts[:, :1]

    @property
    def total(self) -> Tensor:
        """The number of tokens in all windows, ``[B, 1]``."""
        return self.lengths.sum(-1, keepdim=True)

    @property
    def suffix(self) -> Tensor:
        """The position of the first token after the last window, ``[B, 1]``."""
        return self.prefix + self.total

    def index(self, positions: Tensor) -> Tensor:
        """The window of the tokens at these positions ``[B or 1, m]``; -1 outside all: ``[B, m]``."""
        last_started = (positions[..., None] >= self.starts[:, None]).sum(-1) - 1
        return last_started.masked_fill(positions >= self.suffix, -1)


def find_windows(spans: Sequence[Sequence[Span]], groups: int | None = None, device: Any = None) -> DocumentWindows:
    """The windows of documents: one for each, or ``groups`` of nearly equal numbers of consecutive documents.

    >>> windows = find_windows([[(2, 5), (6, 9), (9, 11)]])
    >>> windows.starts.tolist(), windows.ends.tolist()
    ([[2, 6, 9]], [[6, 9, 11]])
    >>> find_windows([[(2, 5), (6, 9), (9, 11)]], groups=2).starts.tolist()
    [[2, 6]]
    """
    starts, ends = [], []
    for row in spans:
        first = [row[index][0] for index in _group_starts(len(row), groups)]
        starts.append(first)
        ends.append([*first[1:], row[-1][1]] if row else [])
    width = max(1, *map(len, starts))
    return DocumentWindows(*(_pad(rows, width, device) for rows in (starts, ends)))


def require_no_window(call: EditedCall, subject: str) -> None:
    """Raise if the model's own window or chunks hide a part of the sequence from its last token."""
    info = call.mask_info
    window, length = info.structure.window, int(info.q_slots[-1]) + 1
    if (window is None or length <= window) and (info.structure.chunks is None or not _several(info.structure.chunks)):
        return
    raise usage_error(
        subject,
        f"a sequence of {length} tokens in layer {call.layer}, which sees {window or 'a chunk'} of them",
        "every document must be visible to the last token",
        "pass a shorter prompt, or use a model without a window",
    )


class WindowsOfRequest:
    """The windows of the current request, built once for each request and batch."""

    def __init__(self, subject: str, groups: int | None) -> None:
        self.subject, self.groups = subject, groups
        self._last: tuple[Request, int, DocumentWindows] | None = None

    def find(self, call: EditedCall) -> DocumentWindows:
        batch = call.q.shape[0]
        if self._last is None or self._last[0] is not call.request or self._last[1] != batch:
            windows = find_windows(call.documents(self.subject), self.groups, call.q.device)
            self._last = (call.request, batch, windows)
        return self._last[2]


def _group_starts(documents: int, groups: int | None) -> list[int]:
    count = documents if groups is None else min(groups, documents)
    return [index * documents // count for index in range(count)]


def _pad(rows: list[list[int]], width: int, device: Any) -> Tensor:
    return torch.tensor([row + [NEVER] * (width - len(row)) for row in rows], device=device)


def _several(chunks: tuple[Tensor, Tensor]) -> bool:
    return bool((chunks[0] != chunks[0][:, -1:]).any() | (chunks[0] > 0).any())

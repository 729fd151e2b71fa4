"""Parallel context windows: documents do not see each other and stand at the same positions.

Ratner et al. 2023 (arXiv 2212.10947) run every window of a prompt separately, join the caches, and let the question and the
answer see all of them. Here one forward pass does the same. A document sees the prefix and itself. Every document starts at
the position after the prefix, and the suffix after the longest document. The prefix, which includes the first token of the
text, is computed once and serves all windows.

No document is earlier than another, so their order does not matter. A question whose answer joins two documents is harder:
they meet only in the suffix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.hf.edits import AttentionEdit, EditedCall, Region
from whence.mend.cure import Cure
from whence.mend.document_windows import DocumentWindows, WindowsOfRequest, require_no_window
from whence.validation import require_integer


class ParallelWindows(Cure):
    """Give every document of a prompt the same positions, and hide the documents from each other.

    Args:
        windows: the number of windows; each holds consecutive documents, nearly the same number of them. One for each
            document by default; 1 changes nothing.
    """

    name = "parallel-windows"
    title = "Parallel context windows"
    paper = "Ratner et al. 2023, arXiv 2212.10947"
    needs_documents = True

    def __init__(self, windows: int | None = None) -> None:
        if windows is not None:
            require_integer("ParallelWindows", "windows", windows, remedy="omit it for one window for each document")
        self.windows = windows

    def identity(self) -> ParallelWindows:
        return ParallelWindows(1)

    def edits(self, model: Any) -> AttentionEdit:
        return ParallelWindowsEdit(self.windows)


class ParallelWindowsEdit(AttentionEdit):
    unrotated = True
    needs_documents = True

    def __init__(self, windows: int | None) -> None:
        self.windows = WindowsOfRequest("ParallelWindows", windows)

    def regions(self, call: EditedCall, rows: Tensor) -> tuple[Region]:
        require_no_window(call, "ParallelWindows")
        windows, own = self.windows.find(call), call.own_positions(rows)
        places = (parallel_positions(windows, positions[:, 0]) for positions in (own.q_positions, own.k_positions))
        q_positions, k_positions = (place[:, None] for place in places)
        return (Region(q_positions, k_positions),)

    def change_visible(self, call: EditedCall, rows: Tensor, visible: Tensor) -> Tensor:
        windows = self.windows.find(call)
        q, k = (
            windows.index(call.q_positions[:, rows])[:, None, :, None],
            windows.index(call.k_positions)[:, None, None],
        )
        return visible & ((q == k) | (q < 0) | (k < 0))


def parallel_positions(windows: DocumentWindows, positions: Tensor) -> Tensor:
    """Where tokens stand: windows after the prefix, the suffix after the longest window. ``[B or 1, m]`` to ``[B, m]``.

    >>> from whence.mend.document_windows import find_windows
    >>> parallel_positions(find_windows([[(1, 3), (3, 6)]]), torch.arange(8)[None]).tolist()
    [[0, 1, 2, 1, 2, 3, 4, 5]]
    """
    index = windows.index(positions)
    start = windows.starts.gather(1, index.clamp(min=0))
    after = windows.suffix - windows.prefix - windows.lengths.amax(-1, keepdim=True)
    shift = torch.where(index >= 0, start - windows.prefix, torch.where(positions >= windows.suffix, after, 0))
    return positions - shift

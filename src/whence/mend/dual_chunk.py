"""Dual chunk attention: no distance exceeds the chunk size (An et al. 2024, arXiv 2402.17463).

With a chunk size c, a local window w and a stride s = c - w, the key at j is rotated to ``j mod s``. The query at i is rotated
to a position that depends on how many strides lie between them:

    i // s - j // s = 0     i mod s                    the same chunk: exact distances
    i // s - j // s = 1     min(i mod s + s, c)        the chunk before: exact for the nearest tokens
    otherwise               min(2 s - 1, c)            earlier chunks: distances of up to c

Published sizes for a trained length L are c = 3 L / 4 and w = L / 8. Texts of up to c + 1 tokens keep all their distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whence.hf.edits import AttentionEdit, EditedCall
from whence.mend.cure import Cure, context_length
from whence.mend.size_search import choose_by_loss, reference_length
from whence.position.dual_chunk_rotary import dual_chunk_regions, require_window
from whence.position.regions import Region
from whence.probe.probed_model import ProbedModel
from whence.probe.tasks.task import Prompt
from whence.validation import LARGEST_INTEGER, require_choice, require_integer


class DualChunk(Cure):
    """Rotate queries and keys inside chunks, so that no distance exceeds the chunk size.

    Args:
        chunk: the chunk size c; 3/4 of the trained length by default. ``search`` tries 3/4 of 1, 1/2 and 1/4 of the longest
            prompt, and windows in proportion.
        window: the local window w, below ``chunk``; 1/8 of the trained length by default.
        temperature: what multiplies the scores of a query that T tokens precede or are, if T exceeds the trained length L.
            ``"official"``: ``(1 + 0.05 ln(T/L))**2``; the published code multiplies queries and keys by the root.
            ``"serving"``: ``1 + 0.1 ln(T/L)``, as in a serving system. ``None``: nothing. Here the query has the whole
            factor, with its own T. In those codes T is the length of the forward pass, and cached keys have an old factor.
        trained: the trained length L; the model's context by default.
    """

    name = "dual-chunk"
    title = "Dual chunk attention"
    paper = "An et al. 2024, arXiv 2402.17463"

    def __init__(
        self,
        chunk: int | None = None,
        window: int | None = None,
        temperature: str | None = "official",
        trained: int | None = None,
    ) -> None:
        for name, value, low in (("chunk", chunk, 2), ("window", window, 0), ("trained", trained, 8)):
            if value is not None:
                require_integer("DualChunk", name, value, low=low, remedy="pass a number of tokens")
        if temperature is not None:
            require_choice("DualChunk", "temperature", temperature, ("official", "serving"))
        self.chunk, self.window, self.temperature, self.trained = chunk, window, temperature, trained

    def identity(self) -> DualChunk:
        return DualChunk(LARGEST_INTEGER, self.window, None, self.trained)

    def search(self, lm: ProbedModel, prompts: Sequence[Prompt]) -> DualChunk:
        """The chunk and window with the least loss of the answers, if no chunk was given."""
        if self.chunk is not None:
            return self
        lengths = dict.fromkeys(max(8, reference_length(lm, prompts) // part) for part in (2, 1, 4))
        candidates = [
            DualChunk(3 * n // 4, n // 8 if self.window is None else self.window, self.temperature, self.trained)
            for n in lengths
            if self.window is None or self.window < 3 * n // 4
        ]
        return choose_by_loss(lm, prompts, candidates) if candidates else self

    def edits(self, model: Any) -> AttentionEdit:
        trained = self.trained or context_length(model)
        chunk = 3 * trained // 4 if self.chunk is None else self.chunk
        window = trained // 8 if self.window is None else self.window
        require_window("DualChunk", chunk, window)
        return DualChunkEdit(chunk, window, self.temperature, trained)


class DualChunkEdit(AttentionEdit):
    unrotated = True

    def __init__(self, chunk: int, window: int, temperature: str | None, trained: int) -> None:
        self.chunk, self.window, self.temperature, self.trained = chunk, window, temperature, trained

    def regions(self, call: EditedCall, rows: Tensor) -> tuple[Region, Region, Region]:
        own = call.own_positions(rows)
        factor = score_factor(own.q_positions[..., None] + 1, self.trained, self.temperature)
        return dual_chunk_regions(own.q_positions, own.k_positions, self.chunk, self.window, factor)


def score_factor(length: Tensor, trained: int, temperature: str | None) -> Tensor | float:
    """What multiplies the scores at these lengths T.

    >>> import torch
    >>> [float(score_factor(torch.tensor(4096), 1024, name)) for name in ("official", "serving")]
    [1.1434..., 1.1386...]
    """
    if temperature is None:
        return 1.0
    growth = (length.float() / trained).clamp(min=1).log()
    return (1 + 0.05 * growth) ** 2 if temperature == "official" else 1 + 0.1 * growth

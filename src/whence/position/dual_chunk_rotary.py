"""Dual chunk attention: no distance exceeds the chunk size (An et al. 2024, arXiv 2402.17463).

With a chunk size c, a local window w and a stride s = c - w, the key at j is rotated to ``j mod s``. The query at i is rotated
to a position that depends on how many strides lie between them:

    i // s - j // s = 0     i mod s                    the same chunk: exact distances
    i // s - j // s = 1     min(i mod s + s, c)        the chunk before: exact for the nearest tokens
    otherwise               min(2 s - 1, c)            earlier chunks: distances of up to c

Published sizes for a trained length L are c = 3 L / 4 and w = L / 8. Texts of up to c + 1 tokens keep all their distances. The
formula is that of the authors' code (``HKUNLP/ChunkLlama``), without its temperature, on which sources differ: beyond L the authors multiply
queries and keys by 0.05 ln(T / L) + 1 at a current length T, a port for serving keys alone by 0.1 ln(T / L) + 1. Cached keys would keep the
factor of an earlier T. ``LogTemperature`` beside it changes queries alone.

Use it on inputs many times longer than a rotary model was trained on: train with ``Rotary`` and evaluate with this. In a pretrained
model it is the cure ``dual-chunk``.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from whence.errors import usage_error
from whence.position.regions import Region, RegionRotary
from whence.validation import require_integer


class DualChunkRotary(RegionRotary):
    """Rotary inside chunks, so that no distance exceeds the chunk size.

    Args:
        chunk: the chunk size c.
        window: the local window w, below ``chunk``.
        base: determines the lowest frequency of the rotation.
        layout: ``"half"`` or ``"interleaved"``: which columns form a pair.
        rotary_dim: number of leading columns that are rotated; ``None`` for the whole head.

    >>> import torch
    >>> same, before, earlier = DualChunkRotary(chunk=8, window=2).regions(torch.tensor([[13]]), torch.arange(14)[None])
    >>> [one.q_positions.item() for one in (same, before, earlier)], same.k_positions[0].tolist()
    ([1, 7, 8], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1])
    """

    def __init__(
        self,
        *,
        chunk: int = 48,
        window: int = 8,
        base: float = 10000.0,
        layout: str = "half",
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__(base=base, layout=layout, rotary_dim=rotary_dim)
        self.chunk = require_integer("DualChunkRotary", "chunk", chunk, low=2, remedy="pass 3/4 of the trained length")
        self.window = require_integer("DualChunkRotary", "window", window, remedy="pass 1/8 of the trained length")
        require_window("DualChunkRotary", chunk, window)

    def regions(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Region, Region, Region]:
        return dual_chunk_regions(q_positions, k_positions, self.chunk, self.window)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "chunk", self.chunk
        yield "window", self.window
        yield from super().repr_items()


def dual_chunk_regions(
    i: Tensor, j: Tensor, chunk: int, window: int, factor: Tensor | float = 1.0
) -> tuple[Region, Region, Region]:
    """The regions of queries i ``[..., n]`` and keys j ``[..., S]``: the same chunk, the one before, and earlier ones."""
    stride = chunk - window
    apart = (i // stride)[..., :, None] - (j // stride)[..., None, :]
    past = i[..., :, None] >= j[..., None, :]
    inside, k = i % stride, j % stride
    before = (inside + stride).clamp(max=chunk)
    earlier = (0 * i + 2 * stride - 1).clamp(max=chunk)
    return (
        Region(inside, k, (apart == 0) & past, factor),
        Region(before, k, apart == 1, factor),
        Region(earlier, k, apart >= 2, factor),
    )


def require_window(owner: str, chunk: int, window: int) -> None:
    """Refuse a window that leaves no stride."""
    if window >= chunk:
        raise usage_error(
            f"{owner}(window=...)",
            f"{window} with chunk={chunk}",
            "the window is a part of the chunk",
            f"pass a window below {chunk}, such as {chunk // 6}",
        )

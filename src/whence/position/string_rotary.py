"""STRING, shifted rotary positions: far keys use the well-trained small distances again (An et al. 2024, arXiv 2410.18745).

Large distances are rare in training, so a model knows them less well. With a shift S and a window W, the query at i and the
key at j are rotated as if their distance were

    i - j              if i - j < S
    i - j - S + W      otherwise

The published S is 0.33 of the trained length (0.25 to 0.4), and W is 128 (up to 512). W = S is plain rotary. The formula is that of
the authors' code (``HKUNLP/STRING``), without its temperature (cos and sin times 0.1 ln 2 + 1 at every distance). That code counts the key at distance S twice while it reads a prompt,
and once while it decodes. Here it counts once.

Use it where a rotary model neglects tokens far back within its trained length: train with ``Rotary`` and evaluate with this. In a
pretrained model it is the cure ``string``.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from whence.errors import usage_error
from whence.position.regions import Region, RegionRotary, pair_distances
from whence.validation import require_integer


class StringRotary(RegionRotary):
    """Rotary with the distances from ``shift`` on shifted down to ``window`` and above.

    Args:
        shift: S, the first distance that is shifted.
        window: W, the distance that S becomes; at most ``shift``.
        base: determines the lowest frequency of the rotation.
        layout: ``"half"`` or ``"interleaved"``: which columns form a pair.
        rotary_dim: number of leading columns that are rotated; ``None`` for the whole head.

    >>> import torch
    >>> near, far = StringRotary(shift=5, window=2).regions(torch.tensor([[9]]), torch.arange(10)[None])
    >>> pair_distances(far.q_positions, far.k_positions)[far.where]
    tensor([6, 5, 4, 3, 2])
    """

    relative = True

    def __init__(
        self,
        *,
        shift: int = 21,
        window: int = 8,
        base: float = 10000.0,
        layout: str = "half",
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__(base=base, layout=layout, rotary_dim=rotary_dim)
        self.shift = require_integer("StringRotary", "shift", shift, remedy="pass a third of the trained length")
        self.window = require_integer("StringRotary", "window", window, remedy="pass a number of tokens")
        require_order("StringRotary", shift, window)

    def regions(self, q_positions: Tensor, k_positions: Tensor) -> tuple[Region, Region]:
        return string_regions(q_positions, k_positions, self.shift, self.window)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "shift", self.shift
        yield "window", self.window
        yield from super().repr_items()


def string_regions(
    i: Tensor, j: Tensor, shift: int, window: int, factor: Tensor | float = 1.0
) -> tuple[Region, Region]:
    """The exact and the shifted region of queries i ``[..., n]`` and keys j ``[..., S]``."""
    distance = pair_distances(i, j)
    near = (distance >= 0) & (distance < shift)
    return Region(i, j, near, factor), Region(i - shift + window, j, distance >= shift, factor)


def require_order(owner: str, shift: int, window: int) -> None:
    """Refuse a window that would make distances larger."""
    if window > shift:
        raise usage_error(
            f"{owner}(window=...)",
            f"{window} with shift={shift}",
            "distances become smaller, not larger",
            f"pass a window of at most {shift}",
        )

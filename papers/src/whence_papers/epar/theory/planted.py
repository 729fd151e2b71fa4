"""A small search problem with a right answer, to tune EPAR's numbers on: the nearest of several keys that match."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import usage_error


@dataclass(frozen=True)
class Planted:
    """Queries and keys ``[B, L, D]`` of one head, and the key that each row should find ``[B, L]``, -1 for none."""

    q: Tensor
    k: Tensor
    gold: Tensor


def planted(
    rows: int, length: int, seed: int, *, width: int = 16, reach: float = 0.5, decoys: int = 2, match: float = 3.0
) -> Planted:
    """The last query of each sequence matches its gold key and some decoys equally well; every decoy is farther away.

    The gold stands at a distance uniform over 1 .. reach * L. Content cannot tell gold and decoys apart, so only the
    distance can; all other scores are normal with deviation 1 and those of matching keys are ``match`` higher.
    """
    nearest = int(reach * length)
    if not nearest >= 1 or nearest + decoys >= length or decoys < 0:
        raise usage_error(
            "planted(length, reach, decoys)",
            f"length={length}, reach={reach}, decoys={decoys}",
            "the gold has at least one place to stand and all decoys fit behind it",
            "give a longer sequence, a smaller reach or fewer decoys",
        )
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, rows, length, width, dtype=torch.float64, generator=generator)
    asking = torch.nn.functional.normalize(q[:, -1], dim=-1)
    q[:, -1] = asking * width**0.5  # so that a score, scaled by width ** -0.5, is the key's part along the query
    distance = torch.randint(1, nearest + 1, (rows,), generator=generator)
    place = length - 1 - distance
    # decoys: the first places of a random order in which those not before the gold come last
    order = torch.rand(rows, length, generator=generator, dtype=torch.float64)
    order = order.masked_fill(torch.arange(length) >= place[:, None], 2.0).argsort(-1)[:, :decoys]
    matching = torch.cat([place[:, None], order], -1)
    lifted = torch.zeros(rows, length, dtype=torch.float64).scatter(-1, matching, match)
    gold = torch.full((rows, length), -1)
    gold[:, -1] = place
    return Planted(q, k + lifted[..., None] * asking[:, None], gold)

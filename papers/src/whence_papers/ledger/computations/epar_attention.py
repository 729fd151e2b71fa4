"""What EPAR's factor does to attention: a vector method does the same, and a weight on rows favours no key."""

from __future__ import annotations

from typing import Any

import torch

from whence_papers.epar import theory
from whence_papers.ledger.computations.epar_factor import from_evidence


def doubled_vectors(beta: float, gamma: float, length: int, embed_dim: int, seed: int) -> dict[str, Any]:
    """Causal EPAR beside attention without position over doubled queries and keys, in float64."""
    drawn = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, length, embed_dim, dtype=torch.float64, generator=drawn) for _ in range(3))
    found = theory.doubling_identity(q, k, v, theory.Setting(beta=beta, gamma=gamma), length)
    return from_evidence(found) | {"largest_difference": found.violation}


def row_weights(length: int, rows: int, seed: int) -> dict[str, Any]:
    """Weights on whole rows of scores: whether any key passes another, beside weights on keys and a temperature.

    A row weight w gives softmax(w * scores), which is the softmax at temperature 1 / w.
    """
    drawn = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, length, dtype=torch.float64, generator=drawn)
    weight = 0.1 + torch.rand(rows, 1, dtype=torch.float64, generator=drawn)
    of_keys = 0.1 + torch.rand(1, length, dtype=torch.float64, generator=drawn)
    by_row, by_key = torch.softmax(weight * scores, -1), torch.softmax(of_keys * scores, -1)
    order = scores.argsort(-1)
    return {
        "rows_reordered": int((by_row.argsort(-1) != order).any(-1).sum()),
        "rows_reordered_by_key_weights": int((by_key.argsort(-1) != order).any(-1).sum()),
        "difference_from_temperature": float((by_row - torch.softmax(scores / (1 / weight), -1)).abs().max()),
    }


def added_positions(length: int, embed_dim: int, shift: int, seed: int) -> dict[str, Any]:
    """How much a score changes when query and key move on together: vectors added to queries, and Shaw's to keys."""
    drawn = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(embed_dim, dtype=torch.float64, generator=drawn) for _ in range(2))
    by_place = torch.randn(length, embed_dim, dtype=torch.float64, generator=drawn)
    by_distance = torch.randn(length, embed_dim, dtype=torch.float64, generator=drawn)
    printed = [float((q + by_place[i]) @ k) for i in (3, shift + 3)]
    shaw = [float(q @ (k + by_distance[i - j])) for i, j in ((3, 0), (shift + 3, shift))]
    return {"change_as_printed": abs(printed[1] - printed[0]), "change_of_shaw": abs(shaw[1] - shaw[0])}


COMPUTATIONS = (doubled_vectors, row_weights, added_positions)

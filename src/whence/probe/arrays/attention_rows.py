"""Attention of the answering token to the prompt, by slot, region and distance.

All functions take attention rows ``[layers, heads, tokens]``; the query is the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from whence.errors import usage_error

Span = tuple[int, int]

#: share of the prompt that counts as its beginning, and as its end
EDGE = 0.1


def slot_means(rows: Tensor, slots: Sequence[Span]) -> Tensor:
    """Mean attention to a token of each slot, ``[layers, heads, slots]``; for the gold slot this is the papers' A_G.

    >>> slot_means(torch.tensor([[[0.5, 0.1, 0.3, 0.1]]]), [(1, 3)]).tolist()
    [[[0.20000000298023224]]]
    """
    if any(not 0 <= start < end <= rows.shape[-1] for start, end in slots):
        raise usage_error("slot_means", f"slots {list(slots)}", f"there are {rows.shape[-1]} tokens", "check the spans")
    return torch.stack([rows[..., start:end].mean(-1) for start, end in slots], -1)


def regions(rows: Tensor, edge: float = EDGE) -> dict[str, Tensor]:
    """Attention to the sink (the first token), the beginning, the middle and the end of the prompt. Each ``[layers, heads]``.

    Beginning and end are the first and the last tenth of the tokens after the sink.
    """
    tokens = rows.shape[-1]
    if tokens < 4 or not 0 < edge < 0.5:
        raise usage_error(
            "regions",
            f"{tokens} tokens and edge={edge}",
            "a prompt has two ends and a middle",
            "pass more tokens or an edge below 0.5",
        )
    size = max(1, round(edge * (tokens - 1)))
    return {
        "sink": rows[..., 0],
        "primacy": rows[..., 1 : 1 + size].sum(-1),
        "middle": rows[..., 1 + size : tokens - size].sum(-1),
        "recency": rows[..., tokens - size :].sum(-1),
    }


def by_distance(rows: Tensor) -> tuple[list[Span], Tensor]:
    """Mean attention by distance, in doublings: 0, 1, 2-3, 4-7 and so on, without the sink.

    Returns the ranges of distance and the mean attention to a token in each, ``[layers, heads, ranges]``.

    >>> by_distance(torch.tensor([[[0.9, 0.01, 0.02, 0.07]]]))[0]
    [(0, 1), (1, 2), (2, 3)]
    """
    back = rows[..., 1:].flip(-1)
    edges = [0, 1]
    while edges[-1] < back.shape[-1]:
        edges.append(min(2 * edges[-1], back.shape[-1]))
    ranges = list(pairwise(edges))
    return ranges, torch.stack([back[..., near:far].mean(-1) for near, far in ranges], -1)


def gold_and_profile(attention: Tensor, places: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Attention to the gold in each slot, and to each slot when the gold is elsewhere.

    Args:
        attention: ``[places, layers, heads, slots]``, the slot means with the gold at each of the places.

    Returns:
        The attention to the gold, ``[layers, heads, places]``, and the profile ``[layers, heads, slots]``: the attention that
        a slot receives for its position, whatever it contains.
    """
    if len(places) != attention.shape[0] or len(set(places)) < 2:
        raise usage_error(
            "gold_and_profile",
            f"{attention.shape[0]} measurements at places {list(places)}",
            "there must be one for each place, with the gold in two or more places",
            "measure at two or more places",
        )
    gold = torch.stack([attention[index, ..., place] for index, place in enumerate(places)], -1)
    elsewhere = torch.ones(len(places), attention.shape[-1], dtype=attention.dtype)
    for index, place in enumerate(places):
        elsewhere[index, place] = 0
    weights = elsewhere[:, None, None, :]
    return gold, (attention * weights).sum(0) / weights.sum(0)


def position_or_content(attention: Tensor, places: Sequence[int]) -> dict[str, Tensor]:
    """Shares of position and content in the variance of attention to slots, ``[layers, heads]`` each.

    The additive model of Hsieh et al. 2024 (arXiv 2406.16008): attention = position of the slot + relevance of the gold
    + rest, fitted by least squares for each head. The shares are of the variance; gold and position are not quite
    orthogonal, so content is the share that the gold adds to position.
    """
    count, slots = attention.shape[0], attention.shape[-1]
    rows = attention.permute(1, 2, 0, 3).flatten(2).double()  # [layers, heads, places * slots]
    slot_design = torch.eye(slots, dtype=torch.float64).repeat(count, 1)
    gold = torch.zeros(count, slots, dtype=torch.float64)
    gold[torch.arange(count), torch.tensor(list(places))] = 1
    design = torch.cat([slot_design, gold.reshape(-1, 1)], 1)
    centered = rows - rows.mean(-1, keepdim=True)
    total = centered.square().sum(-1).clamp_min(torch.finfo(torch.float64).tiny)
    position_residual = _residual(slot_design, rows).square().sum(-1)
    full_residual = _residual(design, rows).square().sum(-1)
    coefficients = torch.linalg.lstsq(design, rows.flatten(0, 1).T).solution[-1].reshape(rows.shape[:2])
    return {
        "position": 1 - position_residual / total,
        "content": (position_residual - full_residual) / total,
        "rest": full_residual / total,
        "relevance": coefficients,
    }


def _residual(design: Tensor, rows: Tensor) -> Tensor:
    flat = rows.flatten(0, 1).T
    fitted = design @ torch.linalg.lstsq(design, flat).solution
    return (flat - fitted).T.reshape(rows.shape)

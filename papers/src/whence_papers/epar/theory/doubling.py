"""Causal EPAR is attention without any position over vectors of twice the width: an identity, not an approximation.

For a key at or before its query |i - j| = i - j, and the decay is a product of a number of the query and one of the key:

    f(i - j) q_i.k_j  =  c0 q_i.k_j  +  c1 (u_i q_i).(w_j k_j)      u_i = exp(-beta i / L)   w_j = exp(beta j / L)

with c0 = alpha / (1 + gamma) and c1 = gamma c0. The basic form has c0 = 0 and needs no second half at all. Looking both
ways there is no such identity: the matrix of factors then has full rank (``factor_ranks``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.attention import attend
from whence.errors import usage_error
from whence_papers.epar.theory.effect import Setting, factor
from whence_papers.epar.theory.evidence import Evidence


def doubled(q: Tensor, k: Tensor, setting: Setting, length: int) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[..., T, D]`` at positions 0 .. T - 1 as ``[..., T, 2 D]``, or ``[..., T, D]`` for the basic form.

    Plain causal attention over them, with the scale of the original width, is EPAR's. Positions are counted from the
    middle, which cancels and keeps the exponentials near 1.
    """
    if q.shape[-2:] != k.shape[-2:]:
        raise usage_error(
            "doubled(q, k)",
            f"shapes {tuple(q.shape)} and {tuple(k.shape)}",
            "queries and keys are of the same tokens",
            "give both [..., T, D]",
        )
    q, k = q.to(torch.float64), k.to(torch.float64)
    tokens = q.shape[-2]
    places = torch.arange(tokens, dtype=torch.float64, device=q.device) - (tokens - 1) / 2
    exponent = (setting.beta * places / length)[:, None]
    fading_q, growing_k = torch.exp(-exponent) * q, torch.exp(exponent) * k
    if setting.form == "basic":
        return setting.alpha * fading_q, growing_k
    constant = setting.alpha / (1 + setting.gamma)
    return torch.cat([constant * q, constant * setting.gamma * fading_q], -1), torch.cat([k, growing_k], -1)


def doubling_identity(q: Tensor, k: Tensor, v: Tensor, setting: Setting, length: int) -> Evidence:
    """whence's causal EPAR attention against its attention without position over the doubled vectors, both dense.

    q, k and v are ``[B, H, T, D]``, taken in double precision. The violation is the largest difference of two outputs.
    """
    q, k, v = (x.to(torch.float64) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5
    at_scores = attend(q, k, v, position=setting.position(length), causal=True, scale=scale, backend="reference")
    q2, k2 = doubled(q, k, setting, length)
    over_vectors = attend(q2, k2, v, causal=True, scale=scale, backend="reference")
    apart = (at_scores - over_vectors).abs()
    # logits carry relative rounding of the products; the largest of them sets the scale of the error
    logits = scale * float((q2.abs() @ k2.abs().mT).tril().max())
    allowed = 16 * torch.finfo(q.dtype).eps * (1 + logits) * float(v.abs().max())
    worst = int(apart.argmax())
    found = float(apart.max())
    return Evidence(
        "causal EPAR is attention without position over doubled vectors",
        f"{tuple(q.shape)} in {q.dtype}, L = {length}; {setting}",
        apart.numel(),
        found,
        allowed,
        None if found <= allowed else {"entry": worst, "difference": found},
        {
            "width of a query": q.shape[-1],
            "width of a doubled one": q2.shape[-1],
            "largest output": float(at_scores.abs().max()),
        },
    )


def factor_ranks(setting: Setting, length: int) -> Evidence:
    """The same identity for attention that looks both ways: the matrix of factors would have rank 2 at most.

    The causal half is a part of a matrix of rank 2 (rank 1 for the basic form); the symmetric matrix has none so low.
    The violation is the rank beyond 2.
    """
    places = torch.arange(length, dtype=torch.float64)
    both_ways = factor(places[:, None] - places, length, setting)
    eye = torch.eye(length, dtype=torch.float64)
    q2, k2 = doubled(eye, eye, setting, length)  # row i of the identity picks what multiplies q_i and k_j
    parts = [half.diagonal() for half in q2.split(length, -1)], [half.diagonal() for half in k2.split(length, -1)]
    extended = sum(torch.outer(row, column) for row, column in zip(*parts, strict=True))
    assert isinstance(extended, Tensor)
    rank, causal_rank = (int(torch.linalg.matrix_rank(m, rtol=1e-10)) for m in (both_ways, extended))
    seen = places[:, None] >= places
    return Evidence(
        "looking both ways too, the factors are a matrix of rank 2 at most",
        f"all pairs of {length} positions; {setting}",
        1,
        float(max(rank - 2, 0)),
        0.0,
        {"rank": rank, "positions": length} if rank > 2 else None,
        {
            "rank both ways": rank,
            "rank of the causal extension": causal_rank,
            "extension against factor on the causal half": float((extended - both_ways)[seen].abs().max()),
        },
    )

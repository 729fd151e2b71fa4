"""Causal EPAR equals attention without position over vectors of twice the head dimension, exactly.

For a key at or before its query |i - j| = i - j, and the decay is a product of a factor of the query and a factor of the key:

    f(i - j) q_i.k_j  =  c0 q_i.k_j  +  c1 (u_i q_i).(w_j k_j)      u_i = exp(-beta i / L)   w_j = exp(beta j / L)

with c0 = alpha / (1 + gamma) and c1 = gamma c0. The basic form has c0 = 0 and needs only one half. For bidirectional attention
there is no such identity, because the matrix of factors then has full rank (``factor_ranks``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.attention import attend
from whence.errors import usage_error
from whence_papers.epar.theory.position_effect import Setting, StatementCheck, score_scale


def double_head_dim(q: Tensor, k: Tensor, setting: Setting, length: int) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[..., T, D]`` at positions 0 .. T - 1 as ``[..., T, 2 D]``, or ``[..., T, D]`` for the basic form.

    Causal attention over them without position, with the scale of the original head dimension, equals EPAR. Positions are
    counted from the middle of the sequence. The offset cancels, and the exponentials stay near 1.
    """
    if q.shape[-2:] != k.shape[-2:]:
        raise usage_error(
            "double_head_dim(q, k)",
            f"shapes {tuple(q.shape)} and {tuple(k.shape)}",
            "queries and keys must belong to the same tokens",
            "pass both as [..., T, D]",
        )
    q, k = q.to(torch.float64), k.to(torch.float64)
    tokens = q.shape[-2]
    positions = torch.arange(tokens, dtype=torch.float64, device=q.device) - (tokens - 1) / 2
    exponent = (setting.beta * positions / length)[:, None]
    fading_q, growing_k = torch.exp(-exponent) * q, torch.exp(exponent) * k
    if setting.form == "basic":
        return setting.alpha * fading_q, growing_k
    constant = setting.alpha / (1 + setting.gamma)
    return torch.cat([constant * q, constant * setting.gamma * fading_q], -1), torch.cat([k, growing_k], -1)


def doubling_identity(q: Tensor, k: Tensor, v: Tensor, setting: Setting, length: int) -> StatementCheck:
    """Compare causal EPAR attention with attention without position over the doubled vectors, both on the reference backend.

    q, k and v are ``[B, H, T, D]`` and are converted to double precision. The violation is the largest output difference.
    """
    q, k, v = (x.to(torch.float64) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5
    with_epar = attend(q, k, v, position=setting.position(length), causal=True, scale=scale, backend="reference")
    q2, k2 = double_head_dim(q, k, setting, length)
    with_doubled = attend(q2, k2, v, causal=True, scale=scale, backend="reference")
    difference = (with_epar - with_doubled).abs()
    # the rounding error of the logits is relative to the largest product
    logits = scale * float((q2.abs() @ k2.abs().mT).tril().max())
    allowed = 16 * torch.finfo(q.dtype).eps * (1 + logits) * float(v.abs().max())
    worst = int(difference.argmax())
    violation = float(difference.max())
    return StatementCheck(
        "causal EPAR is attention without position over doubled vectors",
        f"{tuple(q.shape)} in {q.dtype}, L = {length}; {setting}",
        difference.numel(),
        violation,
        allowed,
        None if violation <= allowed else {"entry": worst, "difference": violation},
        {
            "width of a query": q.shape[-1],
            "width of a doubled one": q2.shape[-1],
            "largest output": float(with_epar.abs().max()),
        },
    )


def factor_ranks(setting: Setting, length: int) -> StatementCheck:
    """The same identity for bidirectional attention, which would require a matrix of factors of rank 2 at most.

    The causal half is a part of a matrix of rank 2 (rank 1 for the basic form). The symmetric matrix has a higher rank. The
    violation is the rank minus 2.
    """
    positions = torch.arange(length, dtype=torch.float64)
    both_ways = score_scale(positions[:, None] - positions, length, setting)
    eye = torch.eye(length, dtype=torch.float64)
    q2, k2 = double_head_dim(eye, eye, setting, length)  # row i of the identity selects the factors of q_i and k_j
    parts = [half.diagonal() for half in q2.split(length, -1)], [half.diagonal() for half in k2.split(length, -1)]
    extended = sum(torch.outer(row, column) for row, column in zip(*parts, strict=True))
    assert isinstance(extended, Tensor)
    rank, causal_rank = (int(torch.linalg.matrix_rank(m, rtol=1e-10)) for m in (both_ways, extended))
    visible = positions[:, None] >= positions
    return StatementCheck(
        "looking both ways too, the factors are a matrix of rank 2 at most",
        f"all pairs of {length} positions; {setting}",
        1,
        float(max(rank - 2, 0)),
        0.0,
        {"rank": rank, "positions": length} if rank > 2 else None,
        {
            "rank both ways": rank,
            "rank of the causal extension": causal_rank,
            "extension against factor on the causal half": float((extended - both_ways)[visible].abs().max()),
        },
    )

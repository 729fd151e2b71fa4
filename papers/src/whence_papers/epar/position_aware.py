"""The EPAR framework's position-aware attention: scores times the position effect, divided by a temperature.

It is ``whence.Attention`` with an ``Epar``; what this file adds is the source's own choices, each of which can be changed:
one head, no causality, L the length of the sequence (``length="sequence"``, which no cache may be used with).
"""

from __future__ import annotations

from whence.attention import Attention
from whence.position.epar import Epar


def position_aware(
    embed_dim: int,
    heads: int = 1,
    *,
    form: str = "enhanced",
    alpha: float = 1.0,
    beta: float = 1.0,
    gamma: float = 0.5,
    temperature: float = 1.0,
    learnable: bool = False,
    causal: bool = False,
    length: str = "sequence",
    context: int | None = None,
    bias: bool = True,
) -> Attention:
    """Attention under the basic or the enhanced position effect; with ``learnable`` its numbers train, one set a head.

    >>> import torch
    >>> position_aware(8, form="basic")(torch.ones(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """
    effect = Epar(
        heads, form=form, alpha=alpha, beta=beta, gamma=gamma, learnable=learnable, length=length, context=context
    )  # fmt: skip
    return Attention(embed_dim, heads, effect, causal=causal, temperature=temperature, bias=bias)

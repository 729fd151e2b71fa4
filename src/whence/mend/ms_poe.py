"""Ms-PoE, multi-scale positional encoding: positions divided by a ratio of each head (Zhang et al. 2024, arXiv 2403.04797).

Rotary attention decays with distance, so what lies far back is lost. A ratio r above 1 brings it nearer: a query and a key
at positions m and n are rotated to m/r and n/r. Heads that attend to few tokens by their content keep a small ratio, the
others get a large one. In each layer, for each prompt:

    A   = softmax(q K^T / sqrt d) of the last row of the prompt, before rotation
    S_h = share of the visible keys with A above 3 times its mean
    r_h = min_ratio + (rank of S_h, counted from 0 and descending) (max_ratio - min_ratio) / (H - 1)

The ratios of a prompt stay until the end of its answer.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from whence.errors import usage_error
from whence.hf.edits import AttentionEdit, EditedCall, Region, fit_batch
from whence.mend.cure import Cure, number_of_layers
from whence.validation import require_choice, require_integer, require_number

STATE = "ms_poe"  # the ratios of the queries and of the keys, in the state of a layer


class MsPoE(Cure):
    """Divide the positions of each head by a ratio that depends on how it reads the prompt.

    Args:
        min_ratio: the ratio of the head with the highest score.
        max_ratio: the ratio of the head with the lowest score.
        skip_layers: so many first layers stay unchanged.
        share: ``"group"``: query heads with the same key-value head have one ratio, by the mean of their scores.
            ``"head"``: each query head has its own. By default ``"group"``, and ``"head"`` in a model with a single
            key-value head, which would have a single ratio.
        compat: ``"official"`` repeats three differences of the published code from the paper. It takes the order of the
            heads (argsort) for their ranks. It divides by H instead of H - 1. And the keys of a group have the ratio of its
            first query head, so with grouped queries most scores no longer depend on distances alone.
    """

    name = "ms-poe"
    title = "Ms-PoE"
    paper = "Zhang et al. 2024, arXiv 2403.04797"

    def __init__(
        self,
        min_ratio: float = 1.2,
        max_ratio: float = 1.8,
        skip_layers: int = 2,
        share: str | None = None,
        compat: str = "paper",
    ) -> None:
        require_number("MsPoE", "min_ratio", min_ratio, above=0, remedy="use 1.2, as published")
        require_number("MsPoE", "max_ratio", max_ratio, low=min_ratio, remedy="use 1.8, as published")
        require_integer("MsPoE", "skip_layers", skip_layers, low=0, remedy="use 2, as published")
        if share is not None:
            require_choice("MsPoE", "share", share, ("group", "head"))
        require_choice("MsPoE", "compat", compat, ("paper", "official"))
        if compat == "official" and share is not None:
            raise usage_error(
                "MsPoE(share=...)",
                f"{share!r} with compat='official'",
                "the published code has ratios of its own for queries and keys",
                "omit share, or use compat='paper'",
            )
        self.min_ratio, self.max_ratio = float(min_ratio), float(max_ratio)
        self.skip_layers, self.share, self.compat = skip_layers, share, compat

    def identity(self) -> MsPoE:
        return MsPoE(1.0, 1.0, self.skip_layers, self.share, self.compat)

    def edits(self, model: Any) -> dict[int, AttentionEdit]:
        layers = number_of_layers(model)
        if self.skip_layers >= layers:
            raise usage_error(
                "MsPoE(skip_layers=...)",
                f"{self.skip_layers} for a model of {layers} layers",
                "a layer must be left to change",
                f"pass skip_layers={layers - 1} or less",
            )
        return {layer: MsPoEEdit(self) for layer in range(self.skip_layers, layers)}


class MsPoEEdit(AttentionEdit):
    unrotated = True
    causal = False  # the last row of the prompt decides the positions of all rows

    def __init__(self, cure: MsPoE) -> None:
        self.cure = cure

    def regions(self, call: EditedCall, rows: Tensor) -> tuple[Region, ...]:
        if STATE not in call.state:
            call.state[STATE] = self._ratios(head_scores(call), call.k.shape[1])
        q_ratios, k_ratios = (fit_batch(ratios, call.q.shape[0])[..., None] for ratios in call.state[STATE])
        own = call.own_positions(rows)
        return (Region(own.q_positions / q_ratios, own.k_positions / k_ratios),)

    def _ratios(self, scores: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        """Ratios of the query heads ``[B, H]`` and of the keys ``[B, G]`` or ``[B, H]``."""
        low, high, per_group = self.cure.min_ratio, self.cure.max_ratio, scores.shape[1] // groups
        if self.cure.compat == "official":
            ratios = official_ratios(scores, low, high)
            return ratios, ratios[:, ::per_group]
        if (self.cure.share or ("group" if groups > 1 else "head")) == "head":
            ratios = head_ratios(scores, low, high)
            return ratios, ratios
        ratios = head_ratios(scores.unflatten(1, (groups, per_group)).mean(-1), low, high)
        return ratios.repeat_interleave(per_group, 1), ratios


def head_scores(call: EditedCall) -> Tensor:
    """The share ``[B, H]`` of keys with more than 3 times the mean weight, at the last row of each prompt."""
    is_last = (call.q_positions == call.prompt_ends - 1).expand(call.q.shape[0], -1)
    if not bool(is_last.any(-1).all()):
        raise usage_error(
            "MsPoE",
            "a part of a prompt without its last token",
            "the last token decides the positions of all tokens",
            "pass the whole prompt in one forward pass, without prefill_chunk_size",
        )
    if not call.is_first:
        raise usage_error(
            "MsPoE",
            "the end of a prompt whose beginning is already in the cache",
            "the last token decides the positions of all tokens",
            "pass the whole prompt in one forward pass, with an empty cache",
        )
    rows, places = is_last.long().argmax(-1).unique(return_inverse=True)
    visible = call.mask_info.visible_keys(rows)[:, None]  # [B or 1, 1, n, S]
    weights = call.plain_scores(rows).masked_fill(~visible, -math.inf).softmax(-1)
    count = visible.sum(-1)
    shares = (weights > 3 / count[..., None]).sum(-1) / count  # [B, H, n]
    return shares.gather(2, places[:, None, None].expand(-1, shares.shape[1], 1))[..., 0]


def head_ratios(scores: Tensor, low: float, high: float) -> Tensor:
    """Ratios from ``low`` for the highest score to ``high`` for the lowest, ``[..., H]``. A single head gets ``low``.

    >>> import torch
    >>> head_ratios(torch.tensor([0.9, 0.1, 0.5, 0.3]), 1.2, 1.8)
    tensor([1.2000, 1.8000, 1.4000, 1.6000])
    """
    ranks = scores.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return low + ranks * ((high - low) / max(1, scores.shape[-1] - 1))


def official_ratios(scores: Tensor, low: float, high: float) -> Tensor:
    """The ratios of the published code: head h gets the ratio of the h-th head in the order, and H is never reached.

    >>> import torch
    >>> official_ratios(torch.tensor([0.9, 0.1, 0.5, 0.3]), 1.2, 1.8)
    tensor([1.2000, 1.5000, 1.6500, 1.3500])
    """
    order = scores.argsort(dim=-1, descending=True, stable=True)
    return low + order * ((high - low) / scores.shape[-1])

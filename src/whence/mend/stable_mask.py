"""StableMask on a pretrained model: early rows give a part of their weight to no key (Yin et al. 2024, arXiv 2402.04779).

A causal softmax forces the first tokens to spend all their weight on few keys, and later tokens follow them: the first
token becomes a sink. StableMask adds a logit without a value to each row, which shrinks along the context; see
``whence.StableMask`` for the equation. The paper trains with it. Applied to a finished model it is an experiment. To train
a model further with it, use ``whence.hf.attach(model, "StableMask(learnable=True)")``, which stays on the model.

A model with sinks of its own keeps them: both logits take their share of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.hf.attach import model_dims
from whence.hf.edits import AttentionEdit, EditedCall
from whence.mend.cure import Cure
from whence.position.stable_mask import StableMask
from whence.validation import require_integer, require_numbers

NO_EFFECT = 1e6  # a decay with which the extra logit is far below every score, from the first row on


class StableMaskCure(Cure):
    """Add StableMask's decreasing logit to every row of every layer.

    Args:
        gamma: decay, at least 0, one number or one for each query head; ALiBi's slopes by default. The larger, the weaker.
        context: the number of tokens at whose end rows are left alone; the model's context by default.
    """

    name = "stable-mask"
    title = "StableMask"
    paper = "Yin et al. 2024, arXiv 2402.04779"

    def __init__(self, gamma: float | Sequence[float] | None = None, context: int | None = None) -> None:
        if gamma is not None:
            require_numbers("StableMaskCure.gamma", gamma, len(gamma) if isinstance(gamma, Sequence) else None, low=0)
        if context is not None:
            require_integer("StableMaskCure", "context", context, remedy="pass a number of tokens")
        self.gamma, self.context = gamma, context

    def identity(self) -> StableMaskCure:
        return StableMaskCure(NO_EFFECT, self.context)

    def edits(self, model: Any) -> AttentionEdit:
        dims = model_dims(model)
        context = self.context or dims.context
        return StableMaskEdit(StableMask(dims.heads, context=context, gamma=self.gamma), context)


class StableMaskEdit(AttentionEdit):
    def __init__(self, position: StableMask, context: int) -> None:
        self.position, self.context = position, context

    def change_sinks(self, call: EditedCall, rows: Tensor, sinks: Tensor | None) -> Tensor:
        at = call.q_positions[:, rows].clamp(min=0)
        logits = self.position.to(at.device).sink(at.flatten(), self.context).detach()
        own = logits.unflatten(1, at.shape).transpose(0, 1)[..., None]  # [B or 1, H, n, 1]
        return own if sinks is None else torch.logaddexp(sinks, own.to(sinks.dtype))

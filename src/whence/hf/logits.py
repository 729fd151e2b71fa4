"""A pretrained model as the lab's training loop knows models: tokens and which of them are real in, logits out."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Logits(nn.Module):
    """``Logits(model)(tokens, key_mask=real)``: logits ``[B, T, vocabulary]`` without a cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
        return self.model(input_ids=tokens, attention_mask=key_mask, use_cache=False).logits

"""``Encoder``: a bidirectional transformer that classifies a sequence, or each of its tokens."""

from __future__ import annotations

from torch import Tensor, nn

from whence.attention.layout import resolve_key_mask
from whence.models.assign_positions import AssignedPositions
from whence.models.body import Body
from whence.models.spec import ModelSpec


class Classifier(nn.Module):
    """One hidden layer with ReLU, then a logit for each class; no dropout."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.num_classes is not None
        self.into = nn.Linear(spec.embed_dim, spec.ffn_dim, bias=spec.bias)
        self.out = nn.Linear(spec.ffn_dim, spec.num_classes, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.into(x).relu())


class Encoder(nn.Module):
    """Embedding, bidirectional layers, mean pooling, a classifier. Use ``build`` to construct one."""

    def __init__(self, spec: ModelSpec, positions: AssignedPositions, backend: str = "auto") -> None:
        super().__init__()
        self.spec = spec
        self.body = Body(spec, positions, backend)
        self.classifier = Classifier(spec)

    def forward(self, tokens: Tensor, key_mask: Tensor | None = None, *, pool: bool = True) -> Tensor:
        """Logits ``[B, classes]`` for tokens ``[B, T]``; without ``pool`` those of every token, ``[B, T, classes]``.

        ``key_mask`` is a bool ``[B, T]``, True for real tokens: only these are attended to and averaged (a row without
        any averages to zeros). Without it every token counts.
        """
        x = self.body(tokens, key_mask=key_mask)
        if not pool:
            return self.classifier(x)
        mask = resolve_key_mask(None, key_mask, tokens.shape[0], tokens.shape[1], tokens.device)
        return self.classifier(masked_mean(x, mask))


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of ``[B, T, W]`` over the tokens where ``mask`` ``[B, T]`` is True, or over all of them: ``[B, W]``.

    >>> import torch
    >>> x = torch.tensor([[[1.0], [3.0], [50.0]]])
    >>> masked_mean(x, None), masked_mean(x, torch.tensor([[True, True, False]]))
    (tensor([[18.]]), tensor([[2.]]))
    """
    if mask is None:
        return x.mean(1)
    masked = x.masked_fill(~mask[:, :, None], 0)  # multiplying by 0 would keep a NaN
    return masked.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)

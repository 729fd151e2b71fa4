"""``Encoder``: a bidirectional transformer that gives a text one of several classes."""

from __future__ import annotations

from torch import Tensor, nn

from whence.attention.layout import resolve_key_mask
from whence.models.assign_positions import Placed
from whence.models.body import Body
from whence.models.spec import ModelSpec


class Classifier(nn.Module):
    """One hidden layer with ReLU, then a score for each class; no dropout."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.num_classes is not None
        self.into = nn.Linear(spec.embed_dim, spec.ffn_dim, bias=spec.biases)
        self.out = nn.Linear(spec.ffn_dim, spec.num_classes, bias=spec.biases)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.into(x).relu())


class Encoder(nn.Module):
    """Embedding, layers that look both ways, the mean over the text, a classifier. Made by ``build``."""

    def __init__(self, spec: ModelSpec, placed: Placed, backend: str = "auto") -> None:
        super().__init__()
        self.spec = spec
        self.body = Body(spec, placed, backend)
        self.classifier = Classifier(spec)

    def forward(self, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Tokens ``[B, T]`` give scores ``[B, classes]``.

        ``key_mask`` is a bool ``[B, T]``, True where a token is real: attention then sees real tokens only, and only they
        are averaged (a row without any averages to zeros). Without it every token counts, whatever it stands for.
        """
        x = self.body(tokens, key_mask=key_mask)
        real = resolve_key_mask(None, key_mask, tokens.shape[0], tokens.shape[1], tokens.device)
        return self.classifier(average(x, real))


def average(x: Tensor, real: Tensor | None) -> Tensor:
    """The mean of ``[B, T, W]`` over real tokens ``[B, T]``, or over all of them: ``[B, W]``.

    >>> import torch
    >>> x = torch.tensor([[[1.0], [3.0], [50.0]]])
    >>> average(x, None), average(x, torch.tensor([[True, True, False]]))
    (tensor([[18.]]), tensor([[2.]]))
    """
    if real is None:
        return x.mean(1)
    counted = x.masked_fill(~real[:, :, None], 0)  # not times 0, which lets a NaN through
    return counted.sum(1) / real.sum(1, keepdim=True).clamp(min=1)

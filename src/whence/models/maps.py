"""``attention_maps``: where every layer and head of a model looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from whence.models.body import Body
from whence.models.decoder import Decoder
from whence.models.encoder import Encoder
from whence.models.eval_mode import still


def attention_maps(model: Encoder | Decoder, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """The attention weights of tokens ``[B, T]`` in every layer: ``[layers, B, heads, T, T]``.

    They are the weights the model uses without dropout, computed densely whatever backend it was built with. A row adds
    up to 1, or to less where a sink takes a share. A query that is padding has a row too; it means nothing.

    >>> from whence.models import ModelSpec, build
    >>> model = build(ModelSpec("decoder", vocab_size=9, layers=3), seed=0)
    >>> attention_maps(model, torch.tensor([[1, 2, 3, 4]])).shape
    torch.Size([3, 1, 2, 4, 4])
    """
    found: list[Tensor] = []
    with torch.no_grad(), still(model), dense(model.body):
        model.body(tokens, key_mask=key_mask, weights_into=found)
    return torch.stack(found)


@contextmanager
def dense(body: Body) -> Iterator[None]:
    """Every layer on the reference inside the block, the only backend that has weights to show."""
    before = [(layer.attention, layer.attention.backend) for layer in body.stack()]
    try:
        for attention, _ in before:
            attention.backend = "reference"
        yield
    finally:
        for attention, backend in before:
            attention.backend = backend

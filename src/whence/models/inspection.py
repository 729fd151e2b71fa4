"""``attention_maps`` and ``parameter_table``: the attention weights of a model, and the size of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from whence.models.body import Body, Layer
from whence.models.decoder import Decoder
from whence.models.encoder import Encoder
from whence.torch_modes import eval_mode


def attention_maps(model: Encoder | Decoder, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """The attention weights of tokens ``[B, T]`` in every layer: ``[layers, B, heads, T, T]``.

    They are the model's weights without dropout, computed densely whatever its backend is. A row sums to 1, or to less if
    a sink takes a share. The row of a query that is padding has no meaning.

    >>> from whence.models import ModelSpec, build
    >>> model = build(ModelSpec("decoder", vocab_size=9, layers=3), seed=0)
    >>> attention_maps(model, torch.tensor([[1, 2, 3, 4]])).shape
    torch.Size([3, 1, 2, 4, 4])
    """
    weights: list[Tensor] = []
    with torch.no_grad(), eval_mode(model), reference_backend(model.body):
        model.body(tokens, key_mask=key_mask, weights_into=weights)
    return torch.stack(weights)


@contextmanager
def reference_backend(body: Body) -> Iterator[None]:
    """Use the reference backend in every layer inside the block, because only it returns weights."""
    before = [(layer.attention, layer.attention.backend) for layer in body.stack()]
    try:
        for attention, _ in before:
            attention.backend = "reference"
        yield
    finally:
        for attention, backend in before:
            attention.backend = backend


@dataclass(frozen=True)
class Part:
    """A part of a model, its number of parameters, and the parts inside it."""

    name: str
    count: int
    inside: tuple[Part, ...] = ()


@dataclass(frozen=True)
class ParameterTable:
    """The parts of a model; print it."""

    parts: tuple[Part, ...]

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Name and count of each part; the counts add up to the total."""
        return tuple((part.name, part.count) for part in self.parts)

    @property
    def total(self) -> int:
        return sum(part.count for part in self.parts)

    def __str__(self) -> str:
        lines = [*_lines(self.parts), ("total", self.total)]
        name_width = max(len(name) for name, _ in lines)
        count_width = max(len(f"{count:,}") for _, count in lines)
        return "\n".join(f"{name:<{name_width}}  {count:>{count_width},}" for name, count in lines)


def parameter_table(model: Encoder | Decoder) -> ParameterTable:
    """The parameters of a model by part. A parameter that several parts share counts in the first of them.

    >>> from whence.models import ModelSpec, build
    >>> print(parameter_table(build(ModelSpec("encoder", vocab_size=5755, num_classes=3))))
    embedding              368,320
    layers                 119,440
      each of 4             29,860
        attention           16,640
        feed-forward in      6,500
        feed-forward out     6,464
        attention norm         128
        feed-forward norm      128
    classifier               6,803
      hidden                 6,500
      classes                  303
    total                  494,563
    """
    counted: set[int] = set()
    body = model.body
    parts = [_count_part("embedding", [body.embedding], counted)]
    parts.append(_count_part("position at the input", body.at_input, counted))
    layers = tuple(_count_layer(index, layer, counted) for index, layer in enumerate(body.stack()))
    parts.append(Part("layers", sum(layer.count for layer in layers), layers))
    parts.append(_count_part("final norm", [body.final_norm], counted))
    if isinstance(model, Encoder):
        inside = (
            _count_part("hidden", [model.classifier.into], counted),
            _count_part("classes", [model.classifier.out], counted),
        )
        parts.append(Part("classifier", sum(part.count for part in inside), inside))
    else:
        parts.append(_count_part("output", [model.output], counted))
    return ParameterTable(tuple(part for part in parts if part.count))


def _count_layer(index: int, layer: Layer, counted: set[int]) -> Part:
    attention, feed_forward = layer.attention, layer.feed_forward
    projections = [attention.queries, attention.keys, attention.values, attention.out]
    parts = (
        _count_part("attention", projections, counted),
        _count_part("query and key norm", [attention.query_norm, attention.key_norm], counted),
        _count_part("position", [attention.position], counted),
        _count_part("feed-forward in", [feed_forward.into], counted),
        _count_part("feed-forward gate", [] if feed_forward.gate is None else [feed_forward.gate], counted),
        _count_part("feed-forward out", [feed_forward.out], counted),
        _count_part("attention norm", [layer.attention_norm], counted),
        _count_part("feed-forward norm", [layer.feed_forward_norm], counted),
    )
    inside = tuple(part for part in parts if part.count)
    return Part(f"layer {index}", sum(part.count for part in inside), inside)


def _count_part(name: str, modules: Iterable[nn.Module], counted: set[int]) -> Part:
    count = 0
    for module in modules:
        for parameter in module.parameters():
            if id(parameter) not in counted:
                counted.add(id(parameter))
                count += parameter.numel()
    return Part(name, count)


def _lines(parts: tuple[Part, ...], depth: int = 0) -> Iterator[tuple[str, int]]:
    """Each part and, below it, the parts inside; neighbors with equal parts inside are listed once."""
    for _, group in groupby(parts, key=lambda part: part.inside or part.name):
        alike = list(group)
        name = alike[0].name if len(alike) == 1 else f"each of {len(alike)}"
        yield "  " * depth + name, alike[0].count
        yield from _lines(alike[0].inside, depth + 1)

"""``parameter_table``: how many numbers a model learns, and where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from torch import nn

from whence.models.decoder import Decoder
from whence.models.encoder import Encoder
from whence.models.layer import Layer


@dataclass(frozen=True)
class Part:
    """A part of a model, how many parameters it has, and the parts these are in."""

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
        wide, high = max(len(name) for name, _ in lines), max(len(f"{count:,}") for _, count in lines)
        return "\n".join(f"{name:<{wide}}  {count:>{high},}" for name, count in lines)


def parameter_table(model: Encoder | Decoder) -> ParameterTable:
    """The parameters of a model by part. One that several parts share counts where it comes first.

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
    seen: set[int] = set()
    body = model.body
    parts = [_part("embedding", [body.embedding], seen)]
    parts.append(_part("position at the input", body.at_input, seen))
    layers = tuple(_layer(n, layer, seen) for n, layer in enumerate(body.stack()))
    parts.append(Part("layers", sum(layer.count for layer in layers), layers))
    parts.append(_part("final norm", [body.final_norm], seen))
    if isinstance(model, Encoder):
        inside = (
            _part("ffn_dim", [model.classifier.into], seen),
            _part("num_classes", [model.classifier.out], seen),
        )
        parts.append(Part("classifier", sum(part.count for part in inside), inside))
    else:
        parts.append(_part("output", [model.output], seen))
    return ParameterTable(tuple(part for part in parts if part.count))


def _layer(number: int, layer: Layer, seen: set[int]) -> Part:
    attention, feed_forward = layer.attention, layer.feed_forward
    projections = [child for child in attention.children() if child is not attention.position]
    inside = (
        _part("attention", projections, seen),
        _part("position", [attention.position], seen),
        _part("feed-forward in", [feed_forward.into], seen),
        _part("feed-forward out", [feed_forward.out], seen),
        _part("attention norm", [layer.attention_norm], seen),
        _part("feed-forward norm", [layer.feed_forward_norm], seen),
    )
    counted = tuple(part for part in inside if part.count)
    return Part(f"layer {number}", sum(part.count for part in counted), counted)


def _part(name: str, modules: Iterable[nn.Module], seen: set[int]) -> Part:
    count = 0
    for module in modules:
        for parameter in module.parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                count += parameter.numel()
    return Part(name, count)


def _lines(parts: tuple[Part, ...], depth: int = 0) -> Iterator[tuple[str, int]]:
    """Each part and, below it, what is inside; neighbours with the same inside are shown once."""
    for _, same in groupby(parts, key=lambda part: part.inside or part.name):
        alike = list(same)
        name = alike[0].name if len(alike) == 1 else f"each of {len(alike)}"
        yield "  " * depth + name, alike[0].count
        yield from _lines(alike[0].inside, depth + 1)

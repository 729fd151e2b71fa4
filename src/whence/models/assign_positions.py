"""Where a Position goes in a model: the parts that act on embeddings once at the input, the rest into every layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

from whence.attention import explain, without_embedding
from whence.errors import usage_error
from whence.models.spec import ModelSpec
from whence.position.base import Position
from whence.position.no_position import NoPosition

#: one Position, copied for each layer, or a function that makes the Position of a layer from its number
PerLayer = Position | Callable[[int], Position]


@dataclass(frozen=True)
class Placed:
    """The positions of a model, each where it acts."""

    at_input: tuple[Position, ...]
    layers: tuple[Position, ...]


def place(spec: ModelSpec, position: PerLayer | None) -> Placed:
    """Positions for the input and for each layer of a model, refused here if a forward pass would refuse them.

    A Position is copied, so that each layer learns its own and the one given stays as it is. A function is called with
    0, 1, 2, ... and what it makes is used as it is: one object returned for every layer is shared by all of them. Its
    parts that act on embeddings are those of layer 0; other layers may bring the same kinds, which are left out.

    >>> from whence.position import Alibi, Sinusoidal
    >>> spec = ModelSpec("decoder", vocab_size=10, layers=2)
    >>> placed = place(spec, Sinusoidal(64) + Alibi(2))
    >>> [type(part).__name__ for part in placed.at_input], [type(part).__name__ for part in placed.layers]
    (['Sinusoidal'], ['Alibi', 'Alibi'])
    """
    made = _made(spec, position)
    at_input = made[0].at_input()
    _require_one_input(made)
    layers = tuple(without_embedding(each) for each in made)
    for each in dict.fromkeys(layers):  # a shared one is rehearsed once
        _rehearse(spec, each)
    places = torch.zeros(1, 1, dtype=torch.long)
    for part in at_input:
        with torch.no_grad():
            part.embed(torch.zeros(1, 1, spec.embed_dim, device=_device(part)), places.to(_device(part)))
    return Placed(at_input, layers)


def _made(spec: ModelSpec, position: PerLayer | None) -> list[Position]:
    if position is None:
        return [NoPosition() for _ in range(spec.layers)]
    if isinstance(position, Position):  # asked first, for a module can be called too
        return [copy.deepcopy(position) for _ in range(spec.layers)]
    if not callable(position):
        raise usage_error(
            "build(position=...)",
            type(position).__name__,
            "position is a whence.Position or a function from a layer's number to one",
            "pass one of them",
        )
    made = [position(layer) for layer in range(spec.layers)]
    for layer, each in enumerate(made):
        if not isinstance(each, Position):
            raise usage_error(
                "build(position=make)",
                f"{type(each).__name__} from make({layer})",
                "make(layer) returns a whence.Position",
                "return one for every layer",
            )
    return made


def _require_one_input(made: list[Position]) -> None:
    """A model has one input, so no layer may bring an embedding that layer 0 does not bring."""
    first = [type(part).__name__ for part in made[0].at_input()]
    for layer, each in enumerate(made):
        kinds = [type(part).__name__ for part in each.at_input()]
        if kinds and kinds != first:
            raise usage_error(
                "build(position=make)",
                f"{' + '.join(kinds)} from make({layer}) and {' + '.join(first) or 'nothing'} from make(0)",
                "parts that act on embeddings act once, at the model's input, and are those of layer 0",
                "return them for layer 0",
            )


def _rehearse(spec: ModelSpec, position: Position) -> None:
    """Let ``attend`` look at what every forward pass will bring, so that its refusals come before any weight is made."""
    q = torch.zeros(1, spec.heads, 1, spec.head_dim, device=_device(position))
    k = torch.zeros(1, spec.num_kv_heads or spec.heads, 1, spec.head_dim, device=q.device)
    with torch.no_grad():
        explain(q, k, k, position=position, causal=spec.causal)


def _device(position: Position) -> torch.device:
    """Where a mechanism's own numbers are; the model may join them there later."""
    for tensor in (*position.parameters(), *position.buffers()):
        return tensor.device
    return torch.get_default_device()

"""Assign a Position to a model: the parts that act on embeddings to the input, the others to every layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from whence.attention import explain, without_embedding
from whence.errors import usage_error
from whence.models.spec import ModelSpec
from whence.position.base import Position, require_position
from whence.position.evaluate import evaluate_clock
from whence.position.no_position import NoPosition

#: one Position, copied for each layer, or a function that builds the Position of a layer from its index
PerLayer = Position | Callable[[int], Position]


@dataclass(frozen=True)
class AssignedPositions:
    """The positions of a model: those at its input, and one for each layer."""

    at_input: tuple[Position, ...]
    layers: tuple[Position, ...]


def assign_positions(spec: ModelSpec, position: PerLayer | None, *, causal: bool | None = None) -> AssignedPositions:
    """Positions for the input and for each layer of a model. What a forward pass would reject raises an error here.

    ``causal`` says whether attention is causal there, by default as the spec says.

    A Position is copied, so each layer learns its own and the argument stays unchanged. A function is called with
    0, 1, 2, ... and its results are used as they are: an object returned for every layer is shared by all of them. The
    parts that act on embeddings are those of layer 0; other layers may return the same kinds, which are dropped.

    >>> from whence.position import Alibi, Sinusoidal
    >>> spec = ModelSpec("decoder", vocab_size=10, layers=2)
    >>> positions = assign_positions(spec, Sinusoidal(64) + Alibi(2))
    >>> [type(part).__name__ for part in positions.at_input], [type(part).__name__ for part in positions.layers]
    (['Sinusoidal'], ['Alibi', 'Alibi'])
    """
    per_layer = _build_positions(spec, position)
    at_input = per_layer[0].at_input()
    _require_same_input(per_layer)
    layers = tuple(without_embedding(each) for each in per_layer)
    for each in dict.fromkeys(layers):  # a shared one is checked once
        _check_attention(spec, each, spec.causal if causal is None else causal)
    for part in at_input:
        with _runnable(part) as runnable:
            runnable.embed(torch.zeros(1, 1, spec.embed_dim), torch.zeros(1, 1, dtype=torch.long))
    return AssignedPositions(at_input, layers)


def _build_positions(spec: ModelSpec, position: PerLayer | None) -> list[Position]:
    if position is None:
        return [NoPosition() for _ in range(spec.layers)]
    if isinstance(position, Position):  # checked first, because a module is callable too
        return [copy.deepcopy(position) for _ in range(spec.layers)]
    if isinstance(position, type):
        require_position("build(position=...)", position)
    if not callable(position):
        raise usage_error(
            "build(position=...)",
            type(position).__name__,
            "position must be a whence.Position or a function from a layer's index to one",
            "pass one of them",
        )
    positions = [position(layer) for layer in range(spec.layers)]
    for layer, each in enumerate(positions):
        if not isinstance(each, Position):
            raise usage_error(
                "build(position=make)",
                f"{type(each).__name__} from make({layer})",
                "make(layer) must return a whence.Position",
                "return one for every layer",
            )
    return positions


def _require_same_input(positions: list[Position]) -> None:
    """A model has one input, so no layer may return an embedding that layer 0 does not return."""
    first = [type(part).__name__ for part in positions[0].at_input()]
    for layer, each in enumerate(positions):
        kinds = [type(part).__name__ for part in each.at_input()]
        if kinds and kinds != first:
            raise usage_error(
                "build(position=make)",
                f"{' + '.join(kinds)} from make({layer}) and {' + '.join(first) or 'nothing'} from make(0)",
                "parts that act on embeddings act once, at the model's input, and are those of layer 0",
                "return them for layer 0",
            )


def _check_attention(spec: ModelSpec, position: Position, causal: bool) -> None:
    """Let ``attend`` check the arguments of a forward pass, so that errors come before any weight is created."""
    with _runnable(position) as position:
        q = torch.zeros(1, spec.heads, 1, spec.effective_head_dim)
        k = torch.zeros(1, spec.num_kv_heads or spec.heads, 1, spec.effective_head_dim)
        x = torch.zeros(1, 1, spec.embed_dim)
        clock, q_input = evaluate_clock(position, x, spec.heads), x if position.reads_input else None
        explain(q, k, k, position=position, clock=clock, q_input=q_input, causal=causal)


@contextmanager
def _runnable(position: Position) -> Iterator[Position]:
    """The mechanism, with its device as the default inside the block; the model may be moved to another later.

    One on the meta device has no values: a copy with torch's fake tensors takes its place, so that shapes are checked.
    """
    tensors = (*position.parameters(), *position.buffers())
    device = tensors[0].device if tensors else torch.get_default_device()
    if device.type != "meta":
        with torch.no_grad(), device:
            yield position
        return
    blank = copy.deepcopy(position)
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        yield blank.to_empty(device="cpu")

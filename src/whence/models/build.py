"""``build``: a model from a spec and a Position."""

from __future__ import annotations

import torch

from whence.errors import usage_error
from whence.models.assign_positions import PerLayer, place
from whence.models.decoder import Decoder
from whence.models.encoder import Encoder
from whence.models.initialization import start_scaled
from whence.models.spec import ModelSpec


def build(
    spec: ModelSpec, position: PerLayer | None = None, *, backend: str = "auto", seed: int | None = None
) -> Encoder | Decoder:
    """A model whose every layer has its own position.

    Args:
        spec: everything but position.
        position: a Position, of which each layer gets a copy, or a function ``make(layer)`` that makes the one of layer
            0, 1, 2, ...; parts that act on embeddings act once, at the model's input. ``None`` for nothing.
        backend: of every layer, as in ``attend``, which judges it when the model runs, for the model may move until then.
        seed: start from this seed and leave torch's own random numbers alone. Models of one spec and seed start from
            the same weights whatever their positions are; by default torch's own random numbers are used.

    >>> from whence.position import Alibi
    >>> model = build(ModelSpec("decoder", vocab_size=50, layers=2), Alibi(2), seed=0)
    >>> model(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 50])
    """
    if not isinstance(spec, ModelSpec):
        raise usage_error("build(spec)", type(spec).__name__, "spec is a ModelSpec", "pass ModelSpec(**settings)")
    if seed is None:
        return _built(spec, position, backend, None)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise usage_error("build(seed=...)", repr(seed), "seed is a whole number", "give one, or leave it out")
    with torch.random.fork_rng(devices=[]):
        return _built(spec, position, backend, seed)


def _built(spec: ModelSpec, position: PerLayer | None, backend: str, seed: int | None) -> Encoder | Decoder:
    _sow(seed)
    placed = place(spec, position)
    _sow(seed)  # again, so that what a mechanism drew does not move the weights
    model = (Decoder if spec.causal else Encoder)(spec, placed, backend)
    if spec.initial == "scaled":
        start_scaled(model)
    return model


def _sow(seed: int | None) -> None:
    if seed is not None:
        torch.default_generator.manual_seed(seed)  # the processor's alone: a fork of the others is not taken

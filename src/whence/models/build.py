"""``build``: a model from a spec and a Position, and its initialization.

``init="torch"`` leaves each module as torch initializes it: embeddings normal with standard deviation 1, linear layers
uniform within ``1 / sqrt(inputs)``. ``init="scaled"`` is the initialization of GPT-2 (Radford et al. 2019): weights and
embeddings normal with standard deviation 0.02, biases 0, and the layers that add to the residual stream smaller by
``sqrt(2 * layers)``, because that many of them add up. Tied embeddings need ``"scaled"``: with embeddings of standard
deviation 1 the first logits are far from uniform. The parameters of a Position keep their own initial values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from whence.errors import usage_error
from whence.models.assign_positions import PerLayer, assign_positions
from whence.models.decoder import Decoder
from whence.models.encoder import Encoder
from whence.models.spec import ModelSpec

STD = 0.02


def build(
    spec: ModelSpec, position: PerLayer | None = None, *, backend: str = "auto", seed: int | None = None
) -> Encoder | Decoder:
    """A model in which every layer has its own Position.

    Args:
        spec: everything but position.
        position: a Position, which is copied for each layer, or a function ``make(layer)`` that builds the one of layer
            0, 1, 2, ...; parts that act on embeddings act once, at the model's input. ``None`` for no position.
        backend: of every layer, as in ``attend``. It is checked when the model runs, because the model may move before.
        seed: initialize from this seed and leave torch's global random state unchanged. Models of one spec and seed
            have the same initial weights whatever their positions are. By default the global random state is used.

    >>> from whence.position import Alibi
    >>> model = build(ModelSpec("decoder", vocab_size=50, layers=2), Alibi(2), seed=0)
    >>> model(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 50])
    """
    if not isinstance(spec, ModelSpec):
        raise usage_error("build(spec)", type(spec).__name__, "spec must be a ModelSpec", "pass ModelSpec(**settings)")
    if spec.kind == "encoder-decoder":
        raise usage_error(
            "build(spec)",
            "kind='encoder-decoder'",
            "such a model has positions in three attentions",
            "call build_encoder_decoder(spec, position)",
        )
    with seeded(seed) as restart:
        positions = assign_positions(spec, position)
        restart()  # so that random numbers drawn by a mechanism do not change the weights
        model = (Decoder if spec.causal else Encoder)(spec, positions, backend)
        if spec.init == "scaled":
            initialize_scaled(model)
        return model


def initialize_scaled(model: Encoder | Decoder) -> None:
    """Initialize every weight outside of position as GPT-2 does, in place."""
    body = model.body
    nn.init.normal_(body.embedding.weight, std=STD)
    depth = (2 * len(body.layers)) ** 0.5
    for layer in body.stack():
        attention, feed_forward = layer.attention, layer.feed_forward
        for linear in (attention.queries, attention.keys, attention.values, feed_forward.into, feed_forward.gate):
            if linear is not None:
                initialize_linear(linear, STD)
        for residual in (attention.out, feed_forward.out):
            initialize_linear(residual, STD / depth)
    if isinstance(model, Encoder):
        initialize_linear(model.classifier.into, STD)
        initialize_linear(model.classifier.out, STD)
        return
    if model.output.weight is not None:
        nn.init.normal_(model.output.weight, std=STD)
    if model.output.bias is not None:
        nn.init.zeros_(model.output.bias)


@contextmanager
def seeded(seed: int | None) -> Iterator[Callable[[], None]]:
    """Start from a seed inside the block, and leave torch's global random state unchanged; yield a function that starts again.

    Without a seed the global random state is used, and the function does nothing.
    """
    if seed is None:
        yield lambda: None
        return
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise usage_error("build(seed=...)", repr(seed), "seed must be an integer", "pass an integer, or omit seed")

    def restart() -> None:
        torch.default_generator.manual_seed(seed)  # of the CPU only: the state of other devices is not forked

    with torch.random.fork_rng(devices=[]):
        restart()
        yield restart


def initialize_linear(linear: nn.Linear, std: float) -> None:
    nn.init.normal_(linear.weight, std=std)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)

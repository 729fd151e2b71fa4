"""The numbers a model starts from.

``"torch"`` leaves each module as torch makes it: embeddings normal with deviation 1, linear layers uniform within
``1 / sqrt(inputs)``. ``"scaled"`` is the start of GPT-2 (Radford et al. 2019): weights and embeddings normal with
deviation 0.02, biases 0, and the layers that add to the residual sum smaller by ``sqrt(2 * layers)``, because that many
of them add up. A tied output wants ``"scaled"``: over embeddings of deviation 1 its first scores are far from even.

What position brings keeps its own start either way.
"""

from __future__ import annotations

from torch import nn

from whence.models.decoder import Decoder
from whence.models.encoder import Encoder

DEVIATION = 0.02


def start_scaled(model: Encoder | Decoder) -> None:
    """Give every weight outside of position its start, in place."""
    body = model.body
    nn.init.normal_(body.embedding.weight, std=DEVIATION)
    depth = (2 * len(body.layers)) ** 0.5
    for layer in body.stack():
        attention, feed_forward = layer.attention, layer.feed_forward
        for inside in (attention.queries, attention.keys, attention.values, feed_forward.into):
            _start(inside, DEVIATION)
        for adding in (attention.out, feed_forward.out):
            _start(adding, DEVIATION / depth)
    if isinstance(model, Encoder):
        _start(model.classifier.into, DEVIATION)
        _start(model.classifier.out, DEVIATION)
        return
    if model.output.weight is not None:
        nn.init.normal_(model.output.weight, std=DEVIATION)
    if model.output.bias is not None:
        nn.init.zeros_(model.output.bias)


def _start(linear: nn.Linear, deviation: float) -> None:
    nn.init.normal_(linear.weight, std=deviation)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)

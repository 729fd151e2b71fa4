"""Norms and dropout of a layer."""

import pytest
import torch
from small_models import WIDTH, assert_same, decoder, tokens

from whence import Rotary
from whence.models.body import Layer


def sublayers(layer):
    return layer.attention, layer.feed_forward, layer.attention_norm, layer.feed_forward_norm


def start(layer):
    """Norms that do something."""
    torch.manual_seed(0)
    with torch.no_grad():
        for norm in (layer.attention_norm, layer.feed_forward_norm):
            norm.weight.normal_()
            norm.bias.normal_()
    return torch.randn(2, 5, WIDTH, dtype=torch.float64)


def test_pre_norm_normalizes_the_input_of_a_sublayer():
    layer = decoder(Rotary(), norm="pre").eval().body.layers[0]
    x = start(layer)
    attention, feed_forward, first, second = sublayers(layer)
    between = x + attention(first(x))
    assert_same(layer(x), between + feed_forward(second(between)))


def test_post_norm_normalizes_the_residual_sum():
    layer = decoder(Rotary(), norm="post").eval().body.layers[0]
    x = start(layer)
    attention, feed_forward, first, second = sublayers(layer)
    between = first(x + attention(x))
    assert_same(layer(x), second(between + feed_forward(between)))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_feed_forward(activation):
    network = decoder(activation=activation).eval().body.layers[0].feed_forward
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    wanted = getattr(torch.nn.functional, activation)(x @ network.into.weight.T + network.into.bias)
    assert_same(network(x), wanted @ network.out.weight.T + network.out.bias)


PLACES = {
    "the embedding": lambda model: [model.body.dropout],
    "the attention weights": lambda model: [layer.attention for layer in model.body.layers],
    "what a sublayer adds": lambda model: [layer.dropout for layer in model.body.layers],
    "the hidden units": lambda model: [layer.feed_forward.dropout for layer in model.body.layers],
}


def quiet(model, but=()):
    """No dropout anywhere but in the places named."""
    for name, find in PLACES.items():
        for module in find(model) if name not in but else ():
            module.p = module.dropout = 0.0  # torch's modules call it p, Attention calls it dropout
    return model


@pytest.mark.parametrize("place", PLACES)
def test_dropout_acts_at(place):
    model = quiet(decoder(Rotary(), dropout=0.5), but=(place,))
    assert not torch.equal(model(tokens()), model(tokens()))


def test_dropout_acts_nowhere_else():
    model = quiet(decoder(Rotary(), dropout=0.5))
    assert torch.equal(model(tokens()), model(tokens()))


def test_dropout_acts_on_both_sublayer_outputs():
    layer = decoder(Rotary(), dropout=0.5).body.layers[0]
    layer.attention.dropout = layer.feed_forward.dropout.p = 0.0
    x, calls = torch.randn(1, 3, WIDTH, dtype=torch.float64), []
    layer.dropout.register_forward_hook(lambda module, given, out: calls.append(out))
    assert isinstance(layer, Layer) and layer(x).shape == x.shape
    assert len(calls) == 2 and all((out == 0).any() for out in calls)

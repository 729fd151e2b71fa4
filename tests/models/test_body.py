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


def test_a_gated_feed_forward_network():
    network = decoder(activation="silu", gated_ffn=True, bias=False).eval().body.layers[0].feed_forward
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    gate, hidden = x @ network.gate.weight.T, x @ network.into.weight.T
    assert_same(network(x), (gate * torch.sigmoid(gate) * hidden) @ network.out.weight.T)


@pytest.mark.parametrize("norm_type", ["layer", "rms"])
def test_norms(norm_type):
    model = decoder(norm_type=norm_type, norm_eps=0.5)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    centered = x - x.mean(-1, keepdim=True) if norm_type == "layer" else x
    wanted = centered / (centered.square().mean(-1, keepdim=True) + 0.5).sqrt()
    layer = model.body.layers[0]
    for norm in (layer.attention_norm, layer.feed_forward_norm, model.body.final_norm):
        assert_same(norm(x), wanted)


def test_query_and_key_norms_have_the_norms_eps():
    attention = decoder(Rotary(), qk_norm=True, norm_eps=1e-6, head_dim=6).body.layers[0].attention
    assert attention.query_norm.eps == attention.key_norm.eps == 1e-6 and attention.head_dim == 6
    assert attention.query_norm.weight.shape == (6,)
    assert not list(decoder().body.layers[0].attention.query_norm.parameters())


def test_states_are_the_inputs_of_the_layers_and_the_result():
    model = decoder(Rotary()).eval()
    states, inputs = [], []
    for layer in model.body.layers:
        layer.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    out = model.body(tokens(), states_into=states)
    assert [torch.equal(a, b) for a, b in zip(states, [*inputs, out], strict=True)] == [True] * 3


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradient_checkpointing_changes_nothing_but_memory(dropout):
    results = []
    for checkpointing in (False, True):
        model = decoder(Rotary(), dropout=dropout)
        model.body.gradient_checkpointing = checkpointing
        calls = []
        model.body.layers[0].register_forward_pre_hook(lambda *unused, calls=calls: calls.append(1))
        torch.manual_seed(0)
        out = model(tokens(), key_mask=torch.arange(9).ge(2).expand(2, 9))
        out.square().sum().backward()
        results.append([out, *(p.grad for p in model.parameters())])
        assert len(calls) == 1 + checkpointing  # once more in the backward pass
    for a, b in zip(*results, strict=True):
        assert_same(a, b)


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

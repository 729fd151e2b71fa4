"""Each layer has its own position, embeddings act once at the input, and what cannot run raises before it is built."""

import pytest
import torch
from small_models import HEAD_WIDTH, HEADS, WIDTH, assert_same, decoder, decoder_spec, encoder_spec, tokens

from whence import (
    Alibi,
    Cope,
    Epar,
    Fire,
    Learned,
    NoPosition,
    Rotary,
    Shaw,
    Sinusoidal,
    StableMask,
    T5Bias,
    WhenceError,
)
from whence.models import Decoder, Encoder, build
from whence.position.catalogue import CATALOGUE


def test_kind_selects_the_class():
    assert isinstance(build(decoder_spec()), Decoder) and isinstance(build(encoder_spec()), Encoder)


def test_each_layer_has_a_copy_and_the_argument_is_unchanged():
    given = Epar(HEADS, learnable=True, context=64)
    model = build(decoder_spec(layers=3), given)
    numbers = [list(layer.attention.position.parameters()) for layer in model.body.layers]
    assert len({id(p) for own in [*numbers, list(given.parameters())] for p in own}) == 4 * len(numbers[0])
    for own in numbers:
        for mine, original in zip(own, given.parameters(), strict=True):
            assert torch.equal(mine, original)


def test_a_function_makes_the_position_of_each_layer():
    model = build(decoder_spec(layers=3), lambda layer: Rotary() if layer % 2 else Alibi(HEADS))
    assert [type(layer.attention.position).__name__ for layer in model.body.layers] == ["Alibi", "Rotary", "Alibi"]


def test_a_function_that_returns_one_object_shares_it():
    shared = T5Bias(HEADS)
    model = build(decoder_spec(), lambda layer: shared)
    assert all(layer.attention.position is shared for layer in model.body.layers)


def test_parts_that_act_on_embeddings_act_once_at_the_input():
    model = decoder(Sinusoidal(WIDTH) + Alibi(HEADS)).eval()
    assert [type(part).__name__ for part in model.body.at_input] == ["Sinusoidal"]
    assert all(isinstance(layer.attention.position, Alibi) for layer in model.body.layers)
    seen = []
    model.body.layers[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(tokens())
    wanted = Sinusoidal(WIDTH).embed(model.body.embedding(tokens()), torch.arange(9)[None])
    assert_same(seen[0], wanted)


def test_a_function_may_return_the_same_embedding_for_each_layer():
    model = build(decoder_spec(), lambda layer: Learned(WIDTH, 32))
    assert len(model.body.at_input) == 1
    assert all(isinstance(layer.attention.position, NoPosition) for layer in model.body.layers)


def test_a_seed_determines_the_model_and_keeps_the_global_random_state():
    before = torch.get_rng_state()
    first, second = (build(decoder_spec(), lambda layer: Fire(HEADS), seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    other = build(decoder_spec(), lambda layer: Fire(HEADS), seed=4)
    for (name, a), b, c in zip(first.state_dict().items(), second.state_dict().values(), other.state_dict().values(), strict=True):  # fmt: skip
        assert torch.equal(a, b)
        assert not torch.equal(a, c) or "norm" in name or name.endswith((".c", ".multiplier"))


def test_without_a_seed_the_global_random_state_is_used():
    models = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(build(decoder_spec(), Alibi(HEADS)))
    for a, b in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("init", ["torch", "scaled"])
def test_models_of_one_seed_differ_in_position_alone(init):
    spec = decoder_spec(init=init)
    plain = build(spec, seed=0).state_dict()
    for entry in CATALOGUE:
        state = build(spec, lambda layer, entry=entry: entry.make(HEADS, HEAD_WIDTH), seed=0).state_dict()
        assert plain.keys() <= state.keys()
        assert all(torch.equal(plain[name], state[name]) for name in plain)


def test_scaled_initialization():
    model = build(
        decoder_spec(embed_dim=128, heads=2, ffn_dim=256, layers=8, init="scaled"), Shaw(64, clip=4, std=1.0), seed=0
    )
    layer = model.body.layers[0]
    for weight in (layer.attention.queries.weight, layer.feed_forward.into.weight, model.output.weight):
        assert 0.018 < weight.std() < 0.022
    for weight in (layer.attention.out.weight, layer.feed_forward.out.weight):
        assert 0.0045 < weight.std() < 0.0055  # a quarter: sixteen of them add up
    for linear in (layer.attention.queries, layer.attention.out, layer.feed_forward.out, model.output):
        assert not linear.bias.any()
    assert layer.attention.position.key_table.std() > 0.5  # position keeps its own start


def assert_error(spec, position, **about):
    with pytest.raises(WhenceError) as error:
        build(spec, position, **about)
    return str(error.value)


def test_causal_mechanisms_raise_in_an_encoder():
    text = assert_error(encoder_spec(), Alibi(HEADS))
    assert "position=Alibi" in text and "causal=False" in text and "pass causal=True" in text and "symmetric" in text
    for position in (
        T5Bias(HEADS),
        Fire(HEADS),
        Cope(HEAD_WIDTH),
        StableMask(HEADS, context=64),
        Rotary() + Fire(HEADS),
    ):
        assert "causal=False" in assert_error(encoder_spec(), position)


def test_a_mechanism_of_other_sizes_raises():
    text = assert_error(decoder_spec(), Alibi(4))
    assert "position=Alibi" in text and "4 heads with 2 in q" in text and "heads=2" in text
    assert "head_dim 5 with 8 in q" in assert_error(decoder_spec(), Shaw(5, clip=4))
    assert "embed_dim=16" in assert_error(decoder_spec(), Sinusoidal(32))
    assert "head_dim 5 with 8 in q" in assert_error(decoder_spec(), lambda layer: Shaw(8 if layer == 0 else 5, clip=4))


def test_a_value_that_is_not_a_position_raises():
    text = assert_error(decoder_spec(), 3)
    assert "position=..." in text and "got int" in text and "whence.Position" in text
    text = assert_error(decoder_spec(), lambda layer: None)
    assert "position=make" in text and "NoneType from make(0)" in text and "return one for every layer" in text
    text = assert_error(decoder_spec(), lambda layer: Sinusoidal(WIDTH) if layer else NoPosition())
    assert "position=make" in text and "return them for layer 0" in text
    assert "Sinusoidal from make(1) and nothing from make(0)" in text


def test_invalid_spec_and_seed_raise():
    text = assert_error({"kind": "decoder"}, None)
    assert "build(spec)" in text and "got dict" in text and "ModelSpec(**settings)" in text
    text = assert_error(decoder_spec(), None, seed=0.5)
    assert "seed=..." in text and "0.5" in text and "pass an integer" in text

"""A model built on the meta device has the parameters of the real one and no memory, and wrong sizes raise there too."""

import re
from pathlib import Path

import pytest
import torch
from small_models import HEAD_WIDTH, HEADS, WIDTH, decoder_spec, encoder_spec

from whence import Alibi, Rotary, Shaw, Sinusoidal, WhenceError
from whence.models import ModelSpec, build, build_encoder_decoder, parameter_table, qwen3_20m, qwen3_134m
from whence.position.catalogue import CATALOGUE


def shapes(model):
    return {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(("spec", "total"), [(qwen3_20m(), 20_454_784), (qwen3_134m(), 134_435_584)])
def test_a_preset_is_counted(spec, total):
    with torch.device("meta"):
        model = build(spec, Rotary())
    assert parameter_table(model).total == total
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
@pytest.mark.parametrize("made_there", [False, True])
def test_every_mechanism(entry, made_there):
    real = build(decoder_spec(), entry.make(HEADS, HEAD_WIDTH))
    position = entry.make(HEADS, HEAD_WIDTH)
    with torch.device("meta"):
        model = build(decoder_spec(), entry.make(HEADS, HEAD_WIDTH) if made_there else position)
    assert shapes(model) == shapes(real)
    assert model.body.embedding.weight.is_meta
    filled = model.to_empty(device="cpu")
    filled.load_state_dict(real.state_dict())
    assert shapes(filled) == shapes(real)


def test_constants_that_no_state_dict_holds_are_named_in_the_guide():
    """After to_empty and load_state_dict they are arbitrary numbers, so such a model is built with values."""
    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    named = re.search(r"The constants of\n(.*) are not in a state dict", page)[1]
    found = set()
    for entry in CATALOGUE:
        model = build(decoder_spec(), entry.make(HEADS, HEAD_WIDTH))
        if {name for name, _ in model.named_buffers()} - model.state_dict().keys():
            found.add(entry.name)
    assert set(re.findall(r"`(\w+)`", named)) == found


def make_encoder():
    return build(encoder_spec(), Sinusoidal(WIDTH))


def make_encoder_decoder():
    return build_encoder_decoder(
        ModelSpec("encoder-decoder", 13, embed_dim=WIDTH, heads=HEADS, layers=2), Sinusoidal(WIDTH)
    )


@pytest.mark.parametrize("make", [make_encoder, make_encoder_decoder])
def test_encoders(make):
    with torch.device("meta"):
        model = make()
    assert shapes(model) == shapes(make())


def test_sizes_are_checked_there_too():
    for make, message in (
        (lambda: Alibi(4), "4 heads with 2 in q"),
        (lambda: Shaw(5, clip=4), "head_dim 5 with 8 in q"),
        (lambda: Sinusoidal(32), "embed_dim=16"),
    ):
        with pytest.raises(WhenceError, match=message), torch.device("meta"):
            build(decoder_spec(), make())

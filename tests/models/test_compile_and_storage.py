"""A decoder compiles in one graph to the same answer, and its weights come back from a safetensors file."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import HEAD_WIDTH, HEADS, WIDTH, assert_same, decoder, encoder, tokens

from whence import Epar, Learned, Rotary, Shaw, Sink, T5Bias
from whence.position.catalogue import CATALOGUE

# all effects in two models; each mechanism for itself is compiled in tests/attention
COMPILED = {
    "Learned + Rotary + Epar": lambda: Learned(WIDTH, 32) + Rotary() + Epar(HEADS, learnable=True, context=64),
    "Shaw + T5Bias + Sink": lambda: Shaw(HEAD_WIDTH, clip=3, std=0.5) + T5Bias(HEADS, std=1.0) + Sink(HEADS),
}


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def answers(model, function, *given):
    out = function(*given)
    grads = torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)
    return [out, *(torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), grads, strict=True))]


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_decoder_matches_eager_mode(name):
    qwen3 = {"norm_type": "rms", "qk_norm": True, "gated_ffn": True, "activation": "silu"}
    model = decoder(COMPILED[name](), dropout=0.0, layers=1, **qwen3)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for a, b in zip(answers(model, compiled, tokens()), answers(model, model, tokens()), strict=True):
        assert_same(a, b)


def test_an_encoder_compiles_with_its_mask():
    model = encoder(Learned(WIDTH, 32) + Rotary(), dropout=0.0, layers=1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    real = torch.arange(9).lt(6).expand(2, 9)
    for a, b in zip(answers(model, compiled, tokens(), real), answers(model, model, tokens(), real), strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("number, entry", enumerate(CATALOGUE), ids=lambda each: getattr(each, "name", ""))
def test_weights_are_saved_and_loaded(number, entry, tmp_path):
    tied = number % 2 == 0  # a matter of the model alone
    model = decoder(entry.make(HEADS, HEAD_WIDTH), tie_embeddings=tied).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = decoder(entry.make(HEADS, HEAD_WIDTH), tie_embeddings=tied).eval()
    assert not torch.equal(other(tokens()), model(tokens()))
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(tokens()), model(tokens()))


def test_a_deep_copy_is_independent():
    model = decoder(Learned(WIDTH, 32) + Rotary()).eval()
    other = copy.deepcopy(model)
    assert torch.equal(model(tokens()), other(tokens()))
    with torch.no_grad():
        other.body.embedding.weight.zero_()
    assert not torch.equal(model(tokens()), other(tokens()))

"""Errors of attach and capture name the reason; unusual models that work are tested too."""

import copy
import re

import pytest
import torch
import transformers
from families import FAMILIES
from tiny_models import CONFIGS, tiny, tokens

import whence
from whence import hf
from whence.hf.interface import EDITOR, attention
from whence.hf.masks import build_mask

BY_NAME = {family.name: family for family in FAMILIES}


@pytest.mark.parametrize("family", ["bert", "modernbert", "vit", "t5", "bart", "whisper"])
def test_encoders_raise(family):
    model = BY_NAME[family].build()
    with pytest.raises(whence.WhenceError, match="encoders and encoder-decoders are not"):
        hf.attach(model, whence.NoPosition())
    assert "encoders and encoder-decoders are not" in hf.capture_unavailable(model)
    assert model.config._attn_implementation != "whence"


@pytest.mark.parametrize("family", ["bloom", "falcon", "gpt_neo", "mpt"])
def test_a_family_without_the_interface_cannot_be_captured(family):
    model, ids = BY_NAME[family].build(), tokens()
    before = model(ids).logits
    assert re.search(r"computes its attention itself.*attention interface", hf.capture_unavailable(model))
    assert torch.equal(model(ids).logits, before)


def test_the_error_for_a_hybrid_names_its_attention_layers():
    model = BY_NAME["lfm2"].build()
    assert hf.attention_layers(model) == [1]
    assert "pass layers=[1]" in hf.capture_unavailable(model)
    assert hf.capture_unavailable(model, layers=[1]) is None
    assert hf.attention_layers(tiny("llama")) == [0, 1] and hf.capture_unavailable(tiny("llama")) is None
    with pytest.raises(whence.WhenceError, match=r"whose layers \[0\] have no attention.*pass layers=\[1\]"):
        hf.attach(model, whence.NoPosition())


@torch.no_grad()
def test_attach_to_a_classification_head():
    """Its logits are one answer a text, so causality is looked at in the states before the head."""
    model = transformers.LlamaForSequenceClassification(CONFIGS["llama"]()).eval()
    model.config.pad_token_id, ids = 0, tokens()
    plain = model(ids).logits
    with hf.attach(model, whence.NoPosition()):
        torch.testing.assert_close(model(ids).logits, plain)
    with hf.attach(model, whence.PowerPrior(4, alpha=0.4)):
        assert not torch.equal(model(ids).logits, plain)


def test_a_classification_head_on_a_noncausal_model_raises():
    model = transformers.LlamaForSequenceClassification(CONFIGS["llama"]()).eval()
    model.config.pad_token_id = 0
    model.model.layers[1].register_forward_hook(lambda module, given, out: out + 0.01 * out.mean(1, keepdim=True))
    with pytest.raises(whence.WhenceError, match="a future token changes an earlier logit"):
        hf.attach(model, whence.NoPosition())


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_another_attention_implementation_does_not_drop_the_position(implementation):
    model, ids = tiny("llama"), tokens()
    before = model.config._attn_implementation
    plain = model(ids).logits
    attachment = hf.attach(model, whence.PowerPrior(4, alpha=0.4))
    attached = model(ids).logits
    model.set_attn_implementation(implementation)
    for run in (model, copy.deepcopy(model), model.model):
        with pytest.raises(whence.WhenceError, match=rf"implementation '{implementation}', set after attach.*'whence'"):
            run(ids)
    model.set_attn_implementation("whence")
    assert torch.equal(model(ids).logits, attached)
    other = copy.deepcopy(model)
    attachment.detach()
    assert model.config._attn_implementation == before
    assert torch.equal(model(ids).logits, plain) and torch.equal(other(ids).logits, attached)
    model.set_attn_implementation(implementation)
    torch.testing.assert_close(model(ids).logits, plain)


def test_a_second_model_with_the_same_config_object_raises():
    config = CONFIGS["llama"]()
    first, second = (transformers.LlamaForCausalLM(config).eval() for _ in range(2))
    other = transformers.LlamaForCausalLM(copy.deepcopy(config)).eval()
    with hf.attach(first, whence.Alibi(4)):
        with pytest.raises(whence.WhenceError, match=r"shares its config object.*copy\.deepcopy\(config\)"):
            hf.attach(second, whence.Alibi(4))
        hf.attach(other, whence.Alibi(4)).detach()
    hf.attach(second, whence.Alibi(4)).detach()


@torch.no_grad()
def test_position_ids_with_gaps():
    """Without a mask transformers takes every gap for another text; with one they are distances."""
    model, ids = tiny("llama"), tokens()
    spread = 2 * torch.arange(14)[None]
    with hf.attach(model, whence.PowerPrior(4, alpha=0.4)):
        with pytest.raises(whence.WhenceError, match=r"no attention_mask.*pass attention_mask=torch\.ones_like"):
            model(ids, position_ids=spread, use_cache=False)
        usual = model(ids, use_cache=False).logits
        used = model(ids, position_ids=spread, attention_mask=torch.ones_like(ids), use_cache=False).logits
    assert (used - usual).abs().max() > 1e-3
    windowed = tiny("mistral")
    with hf.attach(windowed, whence.Alibi(4)), pytest.raises(whence.WhenceError, match="with a window or chunks"):
        windowed(ids, position_ids=spread, attention_mask=torch.ones_like(ids), use_cache=False)


def test_unsupported_attention_arguments_raise():
    q, layer = torch.zeros(1, 4, 3, 8), torch.nn.Linear(1, 1)
    with pytest.raises(whence.WhenceError, match="a paged cache"):
        attention(layer, q, q, q, None, cache=object())
    layer.__dict__[EDITOR] = object()
    with pytest.raises(whence.WhenceError, match="adds a bias of its own"):
        attention(layer, q, q, q, None, position_bias=torch.zeros(1, 4, 3, 3))


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (1, 4, 1, 7), (1, 1, 5, 7)])
def test_a_position_bias_of_the_model_is_added_to_the_scores_and_learns(shape):
    """Against dense attention in plain operations, with the gradient of the bias; grouped keys, more keys than queries."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, h, n, 8, dtype=torch.float64) for h, n in ((4, 5), (2, 7), (2, 7)))
    bias, layer = torch.randn(shape, dtype=torch.float64, requires_grad=True), torch.nn.Linear(1, 1)
    layer.whence = whence.PowerPrior(4, alpha=0.3).double()
    visible = torch.arange(7) <= torch.arange(2, 7)[:, None]
    mask = build_mask(
        batch_size=2, q_length=5, kv_length=7, q_offset=2, mask_function=transformers.masking_utils.causal_mask_function
    )
    out, _ = attention(layer, q, k, v, mask, scaling=0.4, position_bias=bias)
    distance = (torch.arange(2, 7)[:, None] - torch.arange(7)).clamp(min=0).double()
    own = layer.whence.bias(distance.flatten(), None).view(4, 5, 7)
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    scores = (0.4 * q @ k.mT + own + bias).masked_fill(~visible, -torch.inf)
    exact = (scores.softmax(-1) @ v).transpose(1, 2)
    torch.testing.assert_close(out, exact)
    parameters = [bias, *layer.whence.parameters()]
    for got, wanted in zip(*(torch.autograd.grad(x.square().sum(), parameters) for x in (out, exact)), strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_class_or_a_number_of_layers_is_explained():
    model = tiny("llama")
    with pytest.raises(whence.WhenceError, match=r"attach\(position=.*the class Alibi.*Alibi\(heads=\.\.\.\)"):
        hf.attach(model, whence.Alibi)
    with pytest.raises(whence.WhenceError, match=r"layers=.*1.*pass layers=\[1\]"):
        hf.attach(model, "alibi", layers=1)
    with pytest.raises(whence.WhenceError, match=r"layers=.*'1'.*list of indices"):
        hf.attach(model, "alibi", layers="1")

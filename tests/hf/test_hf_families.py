"""Every family: nothing attached changes nothing, something attached changes something, and those that cannot are refused."""

import pytest
import torch
from tiny_models import FAMILIES, REFUSED, everything_of, left_padded, same, tiny, tokens

import whence
from whence import hf

#: in units of the largest logit; what two orders of float32 sums differ by in two layers
ROUNDING = 16 * torch.finfo(torch.float32).eps


def close(got, wanted):
    return float((got - wanted).abs().max()) <= ROUNDING * float(wanted.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_no_position_equals_the_original_model(family):
    model, ids = tiny(family), tokens()
    padded = left_padded(ids, (5, 0))
    real = padded["attention_mask"].bool()
    before = everything_of(model)
    with torch.no_grad():
        batch, single = model(**padded).logits, model(ids[:1]).logits
        text = model.generate(**padded, max_new_tokens=5, do_sample=False)
        with hf.attach(model, whence.NoPosition()):
            assert close(model(**padded).logits[real], batch[real])
            assert close(model(ids[:1]).logits, single)
            assert torch.equal(model.generate(**padded, max_new_tokens=5, do_sample=False), text)
        assert same(before, everything_of(model))
        assert torch.equal(model(**padded).logits[real], batch[real]) and torch.equal(model(ids[:1]).logits, single)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_position_acts_in_selected_layers_and_caching_matches_the_full_forward(family):
    model, ids = tiny(family), tokens()
    with torch.no_grad():
        plain = model(ids).logits
        with hf.attach(model, whence.PowerPrior(heads=4, alpha=0.4), layers=[1]) as attachment:
            assert list(attachment.positions) == [1]
            whole = model(ids).logits
            start = model(ids[:, :9], use_cache=True)
            steps, cache = [start.logits], start.past_key_values
            for place in range(9, 14):
                out = model(ids[:, place : place + 1], past_key_values=cache, use_cache=True)
                steps.append(out.logits)
    assert not close(whole, plain)
    assert close(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("family", REFUSED)
def test_families_without_the_interface_raise(family):
    model = tiny(family)
    before = everything_of(model)
    with pytest.raises(whence.WhenceError, match=rf"\({family}\), which computes its attention itself"):
        hf.attach(model, whence.NoPosition())
    assert same(before, everything_of(model))
    with (
        pytest.raises(whence.WhenceError, match=rf"\({family}\), which computes its attention itself"),
        hf.capture(model),
    ):
        pass


def test_a_family_that_never_calls_the_interface_raises(monkeypatch):
    """As BLOOM would be if it were switched: its attention runs without the interface, and without causality."""
    model = tiny("bloom")
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda cls: True))
    monkeypatch.setattr(type(model.transformer), "_can_set_attn_implementation", classmethod(lambda cls: True))
    with pytest.raises(
        whence.WhenceError, match=r"BloomForCausalLM \(bloom\), no layer of which calls the attention interface"
    ):
        hf.attach(model, whence.NoPosition())
    assert model.config._attn_implementation != "whence"


def test_a_model_that_sees_the_future_raises():
    model = tiny("llama")
    leak = model.model.layers[1].register_forward_hook(
        lambda module, given, out: out + 0.01 * out.mean(1, keepdim=True)
    )
    with pytest.raises(whence.WhenceError, match="a future token changes an earlier logit"):
        hf.attach(model, whence.NoPosition())
    leak.remove()
    hf.attach(model, whence.NoPosition()).detach()


def test_a_bidirectional_model_raises():
    model = tiny("llama")
    model.config.is_causal = False
    with pytest.raises(whence.WhenceError, match="a mask of llama in which a token sees later ones"):
        hf.attach(model, whence.NoPosition())


def test_a_layer_that_does_not_run_raises():
    model = tiny("llama")
    idle = model.model.layers[1].self_attn
    model.model.layers[1].self_attn = torch.nn.Identity()
    model.model.layers[1].self_attn.forward = lambda hidden_states, **others: (hidden_states, None)
    with pytest.raises(whence.WhenceError, match=r"whose layers \[1\] have no attention.*layers=\[0\]"):
        hf.attach(model, whence.NoPosition())
    hf.attach(model, whence.NoPosition(), layers=[0]).detach()
    model.model.layers[1].self_attn = idle
    hf.attach(model, whence.NoPosition()).detach()


def test_invalid_arguments_of_attach_raise_before_anything_changes():
    model = tiny("llama")
    before = everything_of(model)
    cases = [
        ({"position": 3}, "position=int"),
        ({"position": "Alibis()"}, "Alibis.*Alibi"),
        ({"position": whence.Sinusoidal(32)}, "Sinusoidal.*embeddings"),
        ({"position": whence.Epar(4, length="sequence")}, "length='sequence'"),
        ({"position": whence.Alibi(8)}, "8 heads with 4 in q"),
        ({"position": lambda layer: layer}, "function that returned 0.*return a Position"),
        (
            {"position": whence.NoPosition(), "layers": [2]},
            r"attach\(layers=...\) got \[2\].*layers 0 to 1",
        ),
        ({"position": whence.NoPosition(), "layers": []}, "at least one layer"),
        ({"position": whence.Rotary()}, "on top of the model's own rotation"),
    ]
    for given, text in cases:
        with pytest.raises(whence.WhenceError, match=text):
            hf.attach(model, **given)
        assert same(before, everything_of(model))
    for other in (torch.nn.Linear(2, 2), "smollm2"):
        with pytest.raises(whence.WhenceError, match="PreTrainedModel"):
            hf.attach(other, whence.NoPosition())
    with pytest.raises(whence.WhenceError, match=r"gpt2\), whose layers \[0, 1\] do not rotate queries and keys"):
        hf.attach(tiny("gpt2"), whence.NoPosition(), keep_rotary=False)
    with hf.attach(model, whence.NoPosition()), pytest.raises(whence.WhenceError, match=r"at a time.*detach"):
        hf.attach(model, whence.NoPosition())
    with hf.capture(model), pytest.raises(whence.WhenceError, match="attach before capture"):
        hf.attach(model, whence.NoPosition())
    assert same(before, everything_of(model))


@torch.no_grad()
def test_a_half_precision_model_keeps_its_dtype():
    model, ids = tiny("llama").bfloat16(), tokens()
    plain = model(ids).logits
    with hf.attach(model, whence.NoPosition()):
        assert torch.equal(model(ids).logits, plain)
    with hf.attach(model, whence.Alibi(4)):
        assert model(ids).logits.dtype == torch.bfloat16
    wide = tiny("llama")
    with hf.attach(wide, whence.PowerPrior(4)), torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(wide(ids).logits).all()

"""StableMask as a cure: the paper's rows, a model's own sinks beside it, and the checks of every cure."""

import cure_checks as checks
import pytest
import torch
from tiny_models import tiny, tokens

from whence import Rotary, Sink, StableMask, WhenceError, attend, hf
from whence.mend import LogN
from whence.mend.stable_mask import StableMaskCure

CURE = StableMaskCure(gamma=0.05, context=32)


@pytest.mark.parametrize("family", (*checks.FAMILIES, "gpt_oss"))
def test_every_check(family):
    checks.check_cure(CURE, family, identity=CURE.identity())


def first_weights(model, ids):
    """The attention weights of the first layer in one forward pass, in float64. No cure changes the input of that layer."""
    with torch.no_grad():
        return model(ids, output_attentions=True).attentions[0].double()


def test_the_rows_of_the_paper():
    """Future keys stay in the softmax with logits of -gamma times their place, and are masked afterwards."""
    model, ids, gamma = tiny("llama"), tokens(1, 10), 0.3
    model.set_attn_implementation("eager")
    before = first_weights(model, ids)
    with StableMaskCure(gamma=gamma, context=10).apply(model):
        after = first_weights(model, ids)
    lower = torch.ones(10, 10).tril().bool()
    with hf.attach(model, Sink(4, value=0.0, learnable=False)):  # a known logit shows the scale of the scores
        shares = first_weights(model, ids).sum(-1, keepdim=True)
    exponentials = before * (shares / (1 - shares))  # exp of the scores
    pseudo = torch.exp(-gamma * torch.arange(10.0, dtype=torch.float64)).expand(10, 10)
    padded = torch.where(lower, exponentials, pseudo)
    torch.testing.assert_close(after, (padded / padded.sum(-1, keepdim=True)) * lower, rtol=1e-3, atol=1e-6)
    assert float(after[..., -1, :].sum(-1).max()) == pytest.approx(1, abs=1e-5)  # nothing lies after the last token
    assert bool((after[..., :-1, :].sum(-1) < 1).all())


def test_a_model_keeps_its_own_sinks():
    """Each sink has its share of a row: odds of the keys against both sinks add."""
    model, ids = tiny("gpt_oss"), tokens(1, 6)
    model.set_attn_implementation("eager")
    attention = model.model.layers[0].self_attn
    torch.nn.init.normal_(attention.sinks)
    without = first_weights(model, ids)[..., :6].sum(-1)
    with CURE.apply(model):
        joined = first_weights(model, ids)[..., :6].sum(-1)
    stable = StableMask(4, context=32, gamma=0.05).sink(torch.arange(6.0), 32).double().exp()
    own = attention.sinks.detach().double().exp()[:, None]
    keys = own * without / (1 - without)  # the sum of the exponentials of the scores
    torch.testing.assert_close(joined[0], (keys / (keys + own + stable))[0], rtol=1e-4, atol=1e-6)
    assert bool((joined < without).all())


def test_it_acts_together_with_a_cure_of_the_scores():
    """Both orders of nesting give the weights of scores that one cure changes and a sink that the other adds."""
    model, ids = tiny("llama"), tokens(1, 24)
    model.set_attn_implementation("eager")
    sharper = LogN(trained=4)
    with sharper.apply(model):
        sharp = first_weights(model, ids)
    with CURE.apply(model), sharper.apply(model):
        inner = first_weights(model, ids)
    with sharper.apply(model), CURE.apply(model):
        outer = first_weights(model, ids)
    assert torch.equal(inner, outer)
    kept = inner.sum(-1, keepdim=True)
    assert bool((kept[:, :, :8] < 1).all())
    torch.testing.assert_close(inner / kept, sharp, rtol=1e-4, atol=1e-6)


def test_both_sinks_get_gradients():
    """Fine-tuning through attach trains the model's sinks and gamma together."""
    model = tiny("gpt_oss")
    with hf.attach(model, "StableMask(learnable=True)"):
        ids = tokens(1, 8)
        model(ids, labels=ids).loss.backward()
        for layer in model.model.layers:
            trained = [layer.self_attn.sinks, *layer.self_attn.whence.parameters()]
            assert len(trained) == 2
            assert all(bool(one.grad.isfinite().all()) and bool((one.grad != 0).all()) for one in trained)


def test_every_backend_joins_sinks():
    q = torch.randn(1, 4, 12, 8, dtype=torch.float64)
    position = (Rotary() + Sink(4, value=0.5) + StableMask(4, context=16)).double()
    expected = attend(q, q, q, position=position, causal=True, backend="reference")
    for backend in ("blockwise", "auto"):
        out = attend(q, q, q, position=position, causal=True, backend=backend)
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


def test_bad_settings():
    with pytest.raises(WhenceError, match=r"gamma.*-1"):
        StableMaskCure(gamma=-1.0)
    reason = StableMaskCure(gamma=[0.1, 0.2]).unavailable(tiny("llama"))
    assert "2 numbers for heads=4" in reason and "pass 4 numbers" in reason

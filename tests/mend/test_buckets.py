"""Attention Buckets: each row has its base, and the mixture is a distribution."""

import cure_checks as checks
import pytest
import torch
from tiny_models import tiny, tokens

from whence import WhenceError
from whence.mend.buckets import RETRIEVAL, TOOLS, AttentionBuckets, mix_logits, row_weights, search_multiples, wave
from whence.mend.calibration import AttentionCalibration
from whence.mend.pine import Pine
from whence.probe.probed_model import tiny_random_model
from whence.probe.tasks.task import Prompt

THREE = (1.0, 1.9, 2.8)


@pytest.mark.parametrize("family", checks.ROTARY)
def test_every_check(family):
    compat = "official" if family in ("llama", "gemma3") else "paper"
    cure, identity = AttentionBuckets(THREE, compat), AttentionBuckets((1.0, 1.0), compat)
    # a quarter of 8 columns has a single frequency, which is 1 for every base
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    model = tiny(family, rope_parameters=rope) if family == "gpt_neox" else None
    checks.check_cure(cure, family, identity=identity, documents=None, model=model)


def test_one_own_base_is_the_model_itself():
    model, ids = tiny("llama"), tokens(2, 20)
    before = checks.logits(model, ids)
    cure = AttentionBuckets(THREE).identity()
    with cure.apply(model):
        assert torch.equal(checks.logits(model, ids), before)
    assert cure.multiples == (1.0,)


@pytest.mark.parametrize("compat", ("paper", "official"))
def test_rows_are_models_with_other_bases(compat):
    ids, rows = tokens(2, 20), []
    for multiple in THREE:
        theta = {"rope_type": "default", "rope_theta": 10000.0 * multiple}
        rows.append(checks.logits(tiny("llama", rope_parameters=theta), ids))
    model = tiny("llama")
    with AttentionBuckets(THREE, compat).apply(model):
        ours = checks.logits(model, ids)
    stacked = torch.stack(rows, 1)
    if compat == "official":
        weights = stacked.amax(-1).softmax(1)
        checks.equal(ours, (weights[..., None] * stacked).sum(1))
    else:
        p = stacked.softmax(-1)
        weights = p.amax(-1) / p.amax(-1).sum(1, keepdim=True)
        checks.equal(ours.softmax(-1), (weights[..., None] * p).sum(1))
    torch.testing.assert_close(row_weights(stacked, compat).sum(1), torch.ones(2, 20))


def test_both_bases_of_gemma_change():
    ids, model = tokens(1, 20), tiny("gemma3", sliding_window=64)
    names = ("sliding_attention", "full_attention")
    thetas = {
        name: {"rope_type": "default", "rope_theta": model.config.rope_parameters[name]["rope_theta"] * 2}
        for name in names
    }
    expected = checks.logits(tiny("gemma3", sliding_window=64, rope_parameters=thetas), ids)
    with AttentionBuckets((2.0,)).apply(model):
        checks.equal(checks.logits(model, ids), expected)


def test_equal_rows_mix_to_themselves():
    logits = torch.randn(2, 1, 5, 7, dtype=torch.float64).expand(2, 4, 5, 7)
    for compat in ("paper", "official"):
        torch.testing.assert_close(mix_logits(logits, compat), logits[:, 0])


def test_published_bases():
    assert [round(10000 * one) for one in RETRIEVAL] == list(range(10000, 28001, 3000))
    assert [round(10000 * one) for one in TOOLS] == [10000, 17500, 18000, 19000, 20000, 25000]


def test_search_fills_troughs():
    assert float(wave(torch.tensor([0]), 10000.0, 64)) == pytest.approx(64**0.5)
    found = search_multiples(64, 10000.0, 2048, 4)
    assert len(set(found)) == 4 and found[0] == 1.0 and max(found) <= 3.0

    def open_troughs(multiples):
        distance = torch.arange(2048)
        waves = [wave(distance, 10000.0 * one, 64) for one in multiples]
        peaks = torch.cat([((w[1:-1] > w[:-2]) & (w[1:-1] > w[2:])).nonzero()[:, 0] for w in waves])
        w = waves[0]
        troughs = ((w[1:-1] < w[:-2]) & (w[1:-1] < w[2:])).nonzero()
        return int(((troughs - peaks).abs().amin(-1) > 3).sum())

    assert open_troughs(found) < open_troughs([1.0])
    lm = tiny_random_model()
    prompt = Prompt("a longer prompt of some bytes", (), None, "x", (), (), ())
    assert len(AttentionBuckets(THREE).search(lm, [prompt]).multiples) == 3


def test_refusals():
    assert "gpt2" in AttentionBuckets().unavailable(checks.model_of("gpt2"))
    with pytest.raises(WhenceError, match="multiples"):
        AttentionBuckets(())
    with pytest.raises(WhenceError, match=r"multiples=\.\.\.\) got 0"):
        AttentionBuckets((1.0, 0))
    with pytest.raises(WhenceError, match="compat"):
        AttentionBuckets(compat="mine")
    model = checks.model_of("llama")
    with Pine().apply(model):
        assert "another cure" in AttentionBuckets().unavailable(model)


@pytest.mark.parametrize("other", (AttentionCalibration(), Pine()))
def test_cures_that_it_cannot_be_combined_with(other):
    model, buckets = tiny("llama"), AttentionBuckets([1.0, 1.3])
    for first, second in ((buckets, other), (other, buckets)):
        with pytest.raises(WhenceError, match="apply one of them"), first.apply(model), second.apply(model):
            pass

"""Ms-PoE: ratios of the heads, scores that depend on scaled distances alone, and the checks of every cure."""

import cure_checks as checks
import pytest
import torch
from tiny_models import tiny, tokens

from whence import WhenceError, hf
from whence.mend.ms_poe import MsPoE, head_ratios, official_ratios

SCORES = torch.tensor([0.9, 0.1, 0.5, 0.3])


def test_published_ratios():
    torch.testing.assert_close(head_ratios(SCORES, 1.2, 1.8), torch.tensor([1.2, 1.8, 1.4, 1.6]))
    scores = torch.rand(3, 8, generator=torch.Generator().manual_seed(0))
    ratios = head_ratios(scores, 1.2, 1.8)
    higher = scores[:, :, None] > scores[:, None]
    assert bool((ratios[:, :, None] < ratios[:, None])[higher].all())


def test_the_official_code_takes_the_order_for_ranks():
    # in descending order the heads are 0, 2, 3, 1; the largest ratio is 1.2 + 0.6 * 3/4
    torch.testing.assert_close(official_ratios(SCORES, 1.2, 1.8), torch.tensor([1.2, 1.5, 1.65, 1.35]))
    torch.testing.assert_close(
        official_ratios(torch.arange(32.0, 0, -1), 1.2, 1.8).max(), torch.tensor(1.2 + 0.6 * 31 / 32)
    )


@pytest.mark.parametrize("family", checks.ROTARY)
def test_every_check(family):
    cure = MsPoE(min_ratio=1.5, max_ratio=4, skip_layers=0)
    checks.check_cure(cure, family, identity=cure.identity(), chunks=False)


@pytest.mark.parametrize("settings", [{"share": "head"}, {"compat": "official"}])
def test_every_check_with_a_ratio_for_each_head(settings):
    cure = MsPoE(min_ratio=1.5, max_ratio=4, skip_layers=1, **settings)
    checks.check_cure(cure, "qwen3", identity=cure.identity(), chunks=False, beams=True)


def test_gpt2_is_refused():
    assert "does not rotate" in MsPoE(skip_layers=0).unavailable(checks.model_of("gpt2"))


@pytest.mark.parametrize("share", ["group", "head"])
def test_a_score_depends_on_the_distance_over_the_ratio(share):
    with checks.edited_calls(MsPoE(skip_layers=1, share=share), tiny("llama"), tokens(1, 20)) as (skipped, call):
        assert skipped is None
        q_ratios, k_ratios = call.state["ms_poe"]
        groups = q_ratios.unflatten(1, (2, 2))
        assert bool((groups == groups[..., :1]).all()) == (share == "group")
        assert k_ratios.shape[1] == {"group": 2, "head": 4}[share]
        got, keys = call.scores(torch.tensor([17]))[0, :, 0], call.k.repeat_interleave(2, 1)
        for head, ratio in enumerate(q_ratios[0].tolist()):
            for key in (0, 5, 17):
                # the query at the distance, divided by the ratio, from a key at position 0
                pair = call.q[:, head, 17], keys[:, head, key]
                q, k = call.rotary.rotate(
                    *(x[:, None, None] for x in pair), torch.tensor([[(17 - key) / ratio]]), torch.zeros(1, 1)
                )
                assert float(got[head, key]) == pytest.approx(float((q * k).sum() * call.scale), rel=1e-4, abs=1e-5)


def test_the_ratios_follow_the_scores_of_unrotated_queries_and_keys():
    with checks.edited_calls(MsPoE(skip_layers=0, share="head"), tiny("llama"), tokens(2, 20)) as (call, _):
        keys = call.k.repeat_interleave(2, 1)
        weights = torch.softmax(torch.einsum("bhd,bhsd->bhs", call.q[:, :, -1], keys) * call.scale, -1)
        scores = (weights > 3 * weights.mean(-1, keepdim=True)).float().mean(-1)
        assert len(scores.unique()) > 1
        torch.testing.assert_close(call.state["ms_poe"][0], head_ratios(scores, 1.2, 1.8))


def test_a_single_key_value_head_still_has_several_ratios():
    for share, expected in ((None, 4), ("head", 4), ("group", 1)):
        cure, model = MsPoE(skip_layers=0, share=share), tiny("llama", num_key_value_heads=1)
        with checks.edited_calls(cure, model, tokens(1, 20)) as (call, _):
            assert len(call.state["ms_poe"][0].unique()) == expected


def test_official_queries_and_keys_of_a_group_have_different_ratios():
    with checks.edited_calls(MsPoE(skip_layers=0, compat="official"), tiny("llama"), tokens(1, 20)) as (call, _):
        q_ratios, k_ratios = call.state["ms_poe"]
        assert torch.equal(k_ratios, q_ratios[:, ::2])
        assert not torch.equal(k_ratios, q_ratios[:, 1::2])


@torch.no_grad()
def test_a_prompt_in_chunks_is_refused():
    model, ids = tiny("llama"), tokens(1, 20)
    with MsPoE(skip_layers=0).apply(model):
        with pytest.raises(WhenceError, match=r"MsPoE.*a part of a prompt.*whole prompt"):
            model.generate(ids, max_new_tokens=1, prefill_chunk_size=8)
        cache = model(ids[:, :8], use_cache=True).past_key_values
        model(ids[:, 8:], past_key_values=cache)  # the first forward pass was the prompt
        with hf.request(model, prompt_ends=[20]), pytest.raises(WhenceError, match=r"MsPoE.*a part of a prompt"):
            model(ids[:, :8], use_cache=True)
    cache = model(ids[:, :8], use_cache=True).past_key_values
    with (
        MsPoE(skip_layers=0).apply(model),
        hf.request(model, prompt_ends=[20]),
        pytest.raises(WhenceError, match=r"MsPoE.*already in the cache.*empty cache"),
    ):
        model(ids[:, 8:], past_key_values=cache)


def test_bad_settings():
    with pytest.raises(WhenceError, match=r"max_ratio.*1\.1"):
        MsPoE(max_ratio=1.1)
    with pytest.raises(WhenceError, match=r"share.*'head' with compat.*compat='paper'"):
        MsPoE(share="head", compat="official")
    assert "skip_layers=1 or less" in MsPoE().unavailable(tiny("llama"))

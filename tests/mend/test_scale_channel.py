"""Scaling one channel: the rank-one form of keys, the search, the effect of the scale, and the checks of every cure."""

from dataclasses import replace

import cure_checks as checks
import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from whence import WhenceError, hf
from whence.mend.answer_loss import answer_losses, document_spans
from whence.mend.scale_channel import (
    PUBLISHED,
    ChannelScaling,
    ScaleChannel,
    attention_by_scale,
    default_layers,
    spread_prompts,
)
from whence.probe.likelihood import score_choices
from whence.probe.probed_model import ProbedModel, byte_tokenizer, tiny_random_model
from whence.probe.tasks import build_task
from whence.report.mend.charts import effect_curves

PLANTED = 5


@pytest.mark.parametrize("family", checks.FAMILIES)
def test_every_check(family):
    cure = ScaleChannel(3, -2.0, [0, 1])
    checks.check_cure(cure, family, identity=cure.identity())


def test_rows_of_the_prompt_do_not_change_and_no_layers_change_no_bit():
    model, ids = checks.model_of("llama"), checks.tokens(2, checks.LENGTH)
    before = checks.logits(model, ids)
    with ScaleChannel(3, -2.0, [0, 1]).apply(model):
        after = checks.logits(model, ids)
    checks.equal(after[:, :-1], before[:, :-1])
    assert not torch.allclose(after[:, -1], before[:, -1], atol=1e-2)
    with ScaleChannel(3, -2.0, []).apply(model):
        assert torch.equal(checks.logits(model, ids), before)


def test_the_first_generated_token_is_affected_also_when_the_prompt_is_read_in_chunks():
    model, ids = checks.model_of("qwen3"), checks.tokens(2, checks.LENGTH)
    options = {"max_new_tokens": 3, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with ScaleChannel(3, -2.0, [0, 1]).apply(model):
        expected = checks.logits(model, ids)[:, -1]
        for chunks in ({}, {"prefill_chunk_size": 7}):
            out = model.generate(ids, **options, **chunks)
            checks.equal(out.logits[0], expected)
            assert torch.equal(out.sequences, model.generate(ids, **checks.GREEDY | {"max_new_tokens": 3}))


class Recorder(ChannelScaling):
    """The input and both keys of the last forward pass."""

    def change_input(self, x):
        self.x = x
        return super().change_input(x)

    def change_scores(self, call, rows, scores):
        self.k, self.changed, self.values = call.k, call.changed[1], call.v
        return scores


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rank_one_form_of_the_keys(family):
    model, ids, scale, channel = checks.model_of(family), checks.tokens(1, 12), -0.5, 7
    edit = Recorder(channel, scale)
    with hf.intervene(model, edit, layers=[1]):
        checks.logits(model, ids)
    if family == "llama":
        attention = model.model.layers[1].self_attn
        column = attention.k_proj.weight[:, channel]
        values = attention.v_proj(edit.x).unflatten(-1, (edit.k.shape[1], -1)).transpose(1, 2)
        assert torch.equal(edit.values, values)  # never scaled
    else:
        column = model.transformer.h[1].attn.c_attn.weight[channel, 32:64]
    extra = (scale - 1) * edit.x[..., channel : channel + 1] * column
    extra = extra.unflatten(-1, (edit.k.shape[1], -1)).transpose(1, 2)
    if family == "llama":
        extra = apply_rotary_pos_emb(extra, extra, *model.model.rotary_emb(edit.x, torch.arange(12)[None]))[1]
    torch.testing.assert_close(edit.changed, edit.k + extra, atol=1e-5, rtol=1e-5)
    assert float(extra.detach().abs().max()) > 0.1


def gpt2_that_looks_at_the_beginning():
    """A channel that falls with position; queries are constant and keys read that channel, so early keys score highest."""
    tokenizer = byte_tokenizer()
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024}
    config = transformers.GPT2Config(vocab_size=len(tokenizer), eos_token_id=0, bos_token_id=0, **sizes)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.wpe.weight[:, PLANTED] = torch.linspace(2, -2, 1024)
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, :64] = 0
            block.attn.c_attn.weight[PLANTED, 32:64] = 1.0
            block.attn.c_attn.bias[:32] = 0.3
    return ProbedModel("planted", model, tokenizer)


@pytest.fixture(scope="module")
def planted():
    return gpt2_that_looks_at_the_beginning()


@pytest.fixture(scope="module")
def prompts():
    task = build_task("key-value", 2, pairs=4)
    return [task.prompt(item, place) for item in task.items for place in (0, 3)]


@pytest.mark.parametrize("fit", ["cubic", "segmented", "window"])
def test_a_planted_channel_is_found(planted, fit):
    found = ScaleChannel(fit=fit, texts=4, tokens=300).find_channels(planted)
    assert found[0] == PLANTED and len(found) <= 10


def test_the_scale_moves_attention_from_the_beginning_to_the_end(planted, prompts):
    curve = attention_by_scale(planted, prompts[:2], PLANTED, (3.0, 1.0, 0.0, -1.0, -3.0))
    assert curve["layers"] == [0, 1] and len(curve["slots"]) == 5 and len(curve["slots"][0]) == 4
    assert curve["share_first"] == sorted(curve["share_first"], reverse=True)
    assert curve["share_first"][2] == pytest.approx(0.5, abs=1e-6)
    assert curve["share_first"][0] > curve["share_first"][1] > 0.51 and curve["share_first"][3] < 0.49


def test_the_effect_of_the_scale_is_drawn(planted, prompts):
    effect = ScaleChannel(PLANTED, layers=[0, 1]).describe_effect(planted, prompts)
    assert effect["setting"] == "scale" and effect["values"][0] > 1 > effect["values"][3] > effect["values"][-1]
    chart = effect_curves({"effect": effect, "label": "x", "title": "Scaling"})
    assert chart.head[1:3] == ["scale 2.0 (%)", "scale 1.0 (%)"] and len(chart.rows) == 4
    assert ScaleChannel().describe_effect(planted, prompts) is None  # before the search
    assert ScaleChannel(PLANTED, layers=[]).describe_effect(planted, prompts) is None


def test_the_search_takes_the_channel_and_scale_of_the_least_loss(planted, prompts):
    cure = ScaleChannel(scales=(0.0, -1.0), candidates=2, texts=4, tokens=300, samples=3)
    trials = cure.search_losses(planted, prompts)
    assert [(one["channel"] == PLANTED, one["scale"]) for one in trials[:2]] == [(True, 0.0), (True, -1.0)]
    assert len(trials) == 4
    best = min(trials, key=lambda one: one["loss"])
    chosen = cure.search(planted, prompts)
    assert (chosen.channel, chosen.scale) == (best["channel"], best["scale"])
    assert ScaleChannel(**chosen.settings()).settings() == chosen.settings()
    used = spread_prompts(prompts, 3)
    assert used == [prompts[0], prompts[1], prompts[2]]
    with chosen.apply(planted.model):
        assert float(answer_losses(planted, used).mean()) == best["loss"]
    one_by_one = ScaleChannel(**{**cure.settings(), "compat": "official"}).search_losses(planted, prompts)
    assert [one["scale"] for one in one_by_one] == [0.0, 0.0, -1.0]


def test_without_a_positional_channel_the_search_changes_nothing(planted, prompts, monkeypatch):
    cure = ScaleChannel(texts=2, tokens=64)
    monkeypatch.setattr(cure, "find_channels", lambda lm: [])
    assert cure.search(planted, prompts).scale == 1
    assert ScaleChannel(texts=2, tokens=64).unavailable(planted.model) is None


def test_losses_are_those_of_choices_under_the_cure(prompts):
    lm = tiny_random_model(layers=2)
    # the choices begin alike, and what they share is part of the prompt when they are scored
    prompts = [
        replace(one, text=one.text + ' "', answer=one.answer[2:], rivals=tuple(rival[2:] for rival in one.rivals))
        for one in prompts
    ]
    plain = answer_losses(lm, prompts)
    assert plain.tolist() == pytest.approx([-scores[0] for scores in score_choices(lm, prompts)], abs=1e-3)
    with ScaleChannel(3, -2.0, [0, 1]).apply(lm.model):
        losses = answer_losses(lm, prompts, documents=True)
        scores = score_choices(lm, prompts)
        assert losses.tolist() == pytest.approx([-one[0] for one in scores], abs=1e-3)
    assert (losses - plain).abs().min() > 0.01
    assert len(document_spans(lm, prompts[0])) == 4


def test_what_cannot_be_scaled_is_an_error(planted):
    with pytest.raises(WhenceError, match=r"no channel.*search"), ScaleChannel().apply(planted.model):
        pass
    with pytest.raises(WhenceError, match=r"channel=.*32.*0 to 31"), ScaleChannel(32).apply(planted.model):
        pass
    with pytest.raises(WhenceError, match="layers"), ScaleChannel(1, 0.0, [7]).apply(planted.model):
        pass
    with pytest.raises(WhenceError, match=r"fit=.*square"):
        ScaleChannel(fit="square")
    for settings in ({"scales": ("a",)}, {"scales": 0}, {"scales": []}, {"layers": 3}):
        with pytest.raises(WhenceError, match=rf"ScaleChannel\({next(iter(settings))}=.*; pass"):
            ScaleChannel(**settings)


def test_published_choices():
    assert PUBLISHED["Llama-2-7b-chat"] == (2393, -1.0) and PUBLISHED["Qwen1.5-7b"] == (1081, 0.2)
    assert default_layers(32) == list(range(10, 26))

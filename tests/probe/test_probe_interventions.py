"""Changed masks, changed positions, one changed channel, one emphasised slot: each does what it says and no more."""

import pytest
import torch

from whence.errors import WhenceError
from whence.probe import interventions, states
from whence.probe.likelihood import Reading, branches
from whence.probe.scaling import scaled
from whence.probe.subject import quick_subject
from whence.probe.tasks import task


@pytest.fixture(scope="module")
def subject():
    return quick_subject(layers=2)


@pytest.fixture(scope="module")
def text(subject):
    return states.random_texts(subject, 1, 40)


def test_with_no_source_of_order_states_do_not_know_theirs(subject, text):
    positions, visible = interventions.arms(40, (16, 24), 8)["neither"]
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    plain = next(states.each_text(subject, text, positions=positions, visible=visible))
    turned = next(states.each_text(subject, text[:, order], positions=positions, visible=visible))
    assert torch.allclose(plain[:, order], turned, atol=1e-4)
    for arm in ("untouched", "mask alone", "encoding alone"):
        positions, visible = interventions.arms(40, (16, 24), 8)[arm]
        plain = next(states.each_text(subject, text, positions=positions, visible=visible))
        turned = next(states.each_text(subject, text[:, order], positions=positions, visible=visible))
        assert not torch.allclose(plain[:, order], turned, atol=1e-2), arm


def test_untouched_is_the_model_as_it_is_and_shifts_reach_the_span(subject, text):
    made = interventions.arms(40, (16, 24), 8)
    plain = next(states.each_text(subject, text))
    found = {name: next(states.each_text(subject, text, positions=p, visible=v)) for name, (p, v) in made.items()}
    assert torch.allclose(found["untouched"], plain, atol=1e-5)
    # positions that go back are no packed texts: before the span nothing may change, in it something must
    for name in ("shifted encoding", "cropped mask"):
        assert torch.allclose(found[name][:, :16], plain[:, :16], atol=1e-5)
        assert not torch.allclose(found[name][1, 16:24], plain[1, 16:24], atol=1e-3)
    assert made["cropped mask"][1].sum(1)[20] == 20 + 1 - 8
    alone = next(states.each_text(subject, text, positions=made["shifted encoding"][0]))
    assert torch.equal(alone, found["shifted encoding"])
    assert torch.equal(states.mean_states(subject, text), plain.double())


def test_all_positions_moved_together_change_nothing_in_a_rotary_model(subject, text):
    moved = next(states.each_text(subject, text, positions=torch.arange(40) + 100))
    assert torch.allclose(moved, next(states.each_text(subject, text)), atol=1e-4)


def test_scaling_by_one_is_the_model_to_the_bit_and_all_is_undone(subject):
    made = task("key-value", 1, pairs=2)
    made = branches(subject, [made.prompt(made.items[0], 1)])
    plain = Reading(subject, made).scores()
    with scaled(subject, 3, 1.0, [0, 1]):
        assert Reading(subject, made).scores() == plain
    with scaled(subject, 3, -1.0, [0, 1]):
        assert Reading(subject, made).scores() != plain
    assert Reading(subject, made).scores() == plain
    with scaled(subject, 3, -1.0, []):
        assert Reading(subject, made).scores() == plain


def test_scaled_keys_have_the_rank_one_form_and_the_prompt_is_read_unchanged(subject):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    made = task("key-value", 1, pairs=2)
    made = branches(subject, [made.prompt(made.items[0], 1)])
    plain = Reading(subject, made).cache.layers
    layer = subject.model.model.layers[1]
    with states.attention_inputs(subject, [1]) as seen:
        Reading(subject, made)
    x = seen[1]  # the second layer's input is the same with and without, because rows of the prompt are
    with scaled(subject, 5, -0.5, [0, 1]):
        changed = Reading(subject, made).cache.layers
    heads, width = 2, layer.self_attn.head_dim
    extra = (-0.5 - 1) * x[..., 5:6] * layer.self_attn.k_proj.weight.detach()[:, 5]
    extra = extra.reshape(1, -1, heads, width).transpose(1, 2)
    cos, sin = subject.model.model.rotary_emb(x, torch.arange(x.shape[1])[None])
    turned = apply_rotary_pos_emb(extra, extra, cos, sin)[1]
    assert torch.allclose(changed[1].keys, plain[1].keys + turned, atol=1e-5)
    assert torch.equal(changed[1].values, plain[1].values)
    assert not torch.allclose(changed[1].keys, plain[1].keys, atol=1e-3)


def test_bad_channels_and_forwards_without_a_cache_are_refused(subject, text):
    with pytest.raises(WhenceError, match="there are 32 channels and 2 layers"), scaled(subject, 32, 0.0, [0]):
        pass
    with scaled(subject, 0, 0.0, [0]), pytest.raises(WhenceError, match="use_cache=True"):
        subject.model(text, use_cache=False)
    with pytest.raises(WhenceError, match="take a later span"):
        interventions.arms(40, (4, 8), 8)


def test_the_answer_of_a_model_that_copies_follows_the_attention():
    rows = [{"before": 0.1, "after": 0.4, "won_before": False, "won_after": True},
            {"before": 0.5, "after": 0.4, "won_before": True, "won_after": True}]  # fmt: skip
    found = interventions.followed(rows)
    assert found == {"gained": 0.5, "mean_gain": pytest.approx(0.1), "won_before": 0.5, "won_after": 1.0}
    looks = [{"attention_before": 0.3, "attention_after": after} for after in (0.4, 0.2)]  # as the answers went
    looked = interventions.followed([{**row, **look} for row, look in zip(rows, looks, strict=True)])
    assert looked == found | {"attention_rose": 0.5, "with_attention": 1.0}


def test_every_slot_is_emphasised_in_turn(subject):
    made = task("key-value", 1, pairs=3)
    found = interventions.answer_follows(subject, made, 1, times=4.0)
    assert [row["slot"] for row in found["rows"]] == [0, 1, 2] and found["gold"] == 1
    assert sum(row["before"] for row in found["rows"]) == pytest.approx(1)  # each slot owns one answer
    assert all(row["before"] != row["after"] for row in found["rows"])
    assert found["multiplied"] == "weight" and "attention_after" not in found["rows"][0]
    by_score = interventions.answer_follows(subject, made, 1, "score", times=4.0)
    assert by_score["multiplied"] == "score" and by_score["rows"] != found["rows"]
    for row, other in zip(by_score["rows"], found["rows"], strict=True):
        assert row["before"] == other["before"] and row["after"] != other["after"]
        assert 0 < row["attention_before"] < 1 and row["attention_before"] != row["attention_after"]
    with pytest.raises(WhenceError, match="take key-value pairs"):
        interventions.answer_follows(subject, task("needle", 1, pieces=2, words=3), 1)


def test_rank_correlation_and_movement():
    curve = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    assert interventions.rank_correlation(curve.square()) == 1 and interventions.rank_correlation(-curve) == -1
    moved = curve.clone()
    moved[2:4] += 1
    assert interventions.change_in_span(moved, curve, (2, 4)) == 0.25

"""Changed masks, changed positions, one emphasized slot: each does what it says and no more."""

import pytest
import torch

from whence.errors import WhenceError
from whence.probe import ablation, hidden_states
from whence.probe.probed_model import tiny_random_model
from whence.probe.tasks import build_task


@pytest.fixture(scope="module")
def lm():
    return tiny_random_model(layers=2)


@pytest.fixture(scope="module")
def text(lm):
    return hidden_states.random_texts(lm, 1, 40)


def test_with_no_source_of_order_states_do_not_know_theirs(lm, text):
    positions, visible = ablation.arms(40, (16, 24), 8)["neither"]
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    plain = next(hidden_states.iterate_states(lm, text, positions=positions, visible=visible))
    turned = next(hidden_states.iterate_states(lm, text[:, order], positions=positions, visible=visible))
    assert torch.allclose(plain[:, order], turned, atol=1e-4)
    for arm in ("untouched", "mask alone", "encoding alone"):
        positions, visible = ablation.arms(40, (16, 24), 8)[arm]
        plain = next(hidden_states.iterate_states(lm, text, positions=positions, visible=visible))
        turned = next(hidden_states.iterate_states(lm, text[:, order], positions=positions, visible=visible))
        assert not torch.allclose(plain[:, order], turned, atol=1e-2), arm


def test_untouched_is_the_model_as_it_is_and_shifts_reach_the_span(lm, text):
    instance = ablation.arms(40, (16, 24), 8)
    plain = next(hidden_states.iterate_states(lm, text))
    result = {
        name: next(hidden_states.iterate_states(lm, text, positions=p, visible=v)) for name, (p, v) in instance.items()
    }
    assert torch.allclose(result["untouched"], plain, atol=1e-5)
    # positions that go back are no packed texts: before the span nothing may change, in it something must
    for name in ("shifted encoding", "cropped mask"):
        assert torch.allclose(result[name][:, :16], plain[:, :16], atol=1e-5)
        assert not torch.allclose(result[name][1, 16:24], plain[1, 16:24], atol=1e-3)
    assert instance["cropped mask"][1].sum(1)[20] == 20 + 1 - 8
    alone = next(hidden_states.iterate_states(lm, text, positions=instance["shifted encoding"][0]))
    assert torch.equal(alone, result["shifted encoding"])
    assert torch.equal(hidden_states.mean_states(lm, text), plain.double())


def test_all_positions_moved_together_change_nothing_in_a_rotary_model(lm, text):
    moved = next(hidden_states.iterate_states(lm, text, positions=torch.arange(40) + 100))
    assert torch.allclose(moved, next(hidden_states.iterate_states(lm, text)), atol=1e-4)


def test_a_span_that_cannot_move_is_refused():
    with pytest.raises(WhenceError, match="pass a later span"):
        ablation.arms(40, (4, 8), 8)


def test_the_answer_of_a_model_that_copies_follows_the_attention():
    rows = [{"before": 0.1, "after": 0.4, "won_before": False, "won_after": True},
            {"before": 0.5, "after": 0.4, "won_before": True, "won_after": True}]  # fmt: skip
    result = ablation.summarize_emphasis(rows)
    assert result == {"gained": 0.5, "mean_gain": pytest.approx(0.1), "won_before": 0.5, "won_after": 1.0}
    looks = [{"attention_before": 0.3, "attention_after": after} for after in (0.4, 0.2)]  # as the answers went
    looked = ablation.summarize_emphasis([{**row, **look} for row, look in zip(rows, looks, strict=True)])
    assert looked == result | {"attention_rose": 0.5, "same_direction": 1.0}


def test_every_slot_is_emphasized_in_turn(lm):
    instance = build_task("key-value", 1, pairs=3)
    result = ablation.emphasize_slots(lm, instance, 1, factor=4.0)
    assert [row["slot"] for row in result["rows"]] == [0, 1, 2] and result["gold_slot"] == 1
    assert sum(row["before"] for row in result["rows"]) == pytest.approx(1)  # each slot owns one answer
    assert all(row["before"] != row["after"] for row in result["rows"])
    assert result["quantity"] == "weight" and "attention_after" not in result["rows"][0]
    by_score = ablation.emphasize_slots(lm, instance, 1, "score", factor=4.0)
    assert by_score["quantity"] == "score" and by_score["rows"] != result["rows"]
    for row, other in zip(by_score["rows"], result["rows"], strict=True):
        assert row["before"] == other["before"] and row["after"] != other["after"]
        assert 0 < row["attention_before"] < 1 and row["attention_before"] != row["attention_after"]
    with pytest.raises(WhenceError, match="use the task key-value"):
        ablation.emphasize_slots(lm, build_task("needle", 1, pieces=2, words=3), 1)


def test_rank_correlation_and_movement():
    curve = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    assert ablation.rank_correlation(curve.square()) == 1 and ablation.rank_correlation(-curve) == -1
    moved = curve.clone()
    moved[2:4] += 1
    assert ablation.change_in_span(moved, curve, (2, 4)) == 0.25

"""SelfExtend: the published distances, one softmax for both regions, and the checks of every cure."""

import cure_checks as checks
import pytest
import torch
from tiny_models import left_padded, tiny, tokens

from whence import WhenceError
from whence.mend.answer_loss import answer_losses
from whence.mend.self_extend import SelfExtend
from whence.mend.size_search import reference_length
from whence.probe.probed_model import tiny_random_model
from whence.probe.tasks import build_task


def test_published_distances():
    with checks.edited_calls(SelfExtend(group=4, window=8), tiny("llama"), tokens(1, 21)) as (call, _):
        distances = checks.region_distances(call, 20)
        assert [distances[j] for j in (20, 13, 12, 11, 8, 0)] == [0, 7, 8, 9, 9, 11]
    with checks.edited_calls(SelfExtend(group=1, window=8), tiny("llama"), tokens(1, 21)) as (call, _):
        assert checks.region_distances(call, 20) == list(range(20, -1, -1))
    with checks.edited_calls(SelfExtend(group=4, window=24), tiny("llama"), tokens(1, 21)) as (call, _):
        assert checks.region_distances(call, 20) == list(range(20, -1, -1))


def test_positions_count_from_the_first_token_of_a_padded_sequence():
    padded = left_padded(tokens(1, 24), (3,))
    ids = padded.pop("input_ids")
    with checks.edited_calls(SelfExtend(group=4, window=8), tiny("llama"), ids, **padded) as (call, _):
        distances = checks.region_distances(call, 23)[3:]
        assert [distances[j] for j in (20, 13, 12, 11, 8, 0)] == [0, 7, 8, 9, 9, 11]


def test_reach():
    """No distance exceeds the trained length L up to (L - w) g + w tokens."""
    trained, window, group = 16, 8, 2
    length = (trained - window) * group + window
    with checks.edited_calls(SelfExtend(group, window), tiny("llama"), tokens(1, length + group)) as (call, _):
        assert max(checks.region_distances(call, length - 1)) == trained - 1
        assert max(checks.region_distances(call, length + group - 1)) == trained


def test_the_merge_by_log_sum_exp_is_the_same():
    checks.check_merge(SelfExtend(group=4, window=8))
    checks.check_merge(SelfExtend(group=2, window=4, temperature=True, trained=8))


def test_temperature_multiplies_the_queries():
    cold = SelfExtend(group=1, window=4, trained=4, temperature=True)
    with checks.edited_calls(cold, tiny("llama"), tokens(1, 16)) as (call, _):
        rows = torch.tensor([2, 3, 15])
        with_temperature = call.scores(rows)
        call.edits[0].trained = None
        ratio = with_temperature / call.scores(rows)
    torch.testing.assert_close(ratio[0, 0, :, 0], torch.tensor([1.0, 1.0, 2.0]))  # ln 16 / ln 4


@pytest.mark.parametrize("family", checks.ROTARY)
def test_every_check(family):
    checks.check_cure(SelfExtend(group=4, window=4), family, identity=SelfExtend(group=4, window=4).identity())


def test_gpt2_is_refused():
    assert "does not rotate" in SelfExtend().unavailable(checks.model_of("gpt2"))


def test_bad_settings():
    with pytest.raises(WhenceError, match=r"window.*10 with group=4.*window=8"):
        SelfExtend(group=4, window=10)
    with pytest.raises(WhenceError, match=r"group.*0"):
        SelfExtend(group=0)


def test_the_search_takes_the_window_of_the_least_loss():
    lm, task = tiny_random_model(layers=2), build_task("key-value", 1, pairs=3)
    prompts = [task.prompt(task.items[0], place) for place in (0, 2)]
    length = reference_length(lm, prompts)
    chosen = SelfExtend().search(lm, prompts)
    candidates = [SelfExtend(4, max(4, length // part // 4 * 4)) for part in (2, 4, 8)]
    losses = []
    for cure in candidates:
        with cure.apply(lm.model):
            losses.append(float(answer_losses(lm, prompts).mean()))
    assert len(set(losses)) > 1
    assert chosen.settings() == candidates[losses.index(min(losses))].settings()
    assert SelfExtend(window=8).search(lm, prompts).settings() == SelfExtend(window=8).settings()  # a given size stays

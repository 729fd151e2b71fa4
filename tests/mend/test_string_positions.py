"""STRING: the published distances and temperature, one softmax for both regions, and the checks of every cure."""

import cure_checks as checks
import pytest
import torch
from tiny_models import tiny, tokens

from whence import WhenceError, hf
from whence.hf.edits import multiply
from whence.hf.rotary_config import rotate_at
from whence.mend.answer_loss import answer_losses
from whence.mend.size_search import reference_length
from whence.mend.string_positions import StringPositions
from whence.probe.probed_model import tiny_random_model
from whence.probe.tasks import build_task

SMALL = StringPositions(shift=5, window=2)
OFFICIAL = StringPositions(shift=5, window=2, compat="official")


def test_published_distances():
    with checks.edited_calls(SMALL, tiny("llama"), tokens(1, 10)) as (call, _):
        assert checks.region_distances(call, 9) == [6, 5, 4, 3, 2, 4, 3, 2, 1, 0]
        assert checks.region_distances(call, 4) == [4, 3, 2, 1, 0]


def test_sizes_follow_the_context():
    edit = StringPositions().edits(tiny("llama"))  # of 256
    assert (edit.shift, edit.window) == (84, 84)
    edit = StringPositions().edits(tiny("llama", max_position_embeddings=4096))
    assert (edit.shift, edit.window) == (1351, 128)


def test_published_temperature():
    assert round(SMALL.edits(tiny("llama")).factor, 4) == 1.1434
    with checks.edited_calls(StringPositions(5, 5), tiny("llama"), tokens(1, 10)) as (call, _):
        rows = torch.arange(10)
        hot = call.scores(rows)
        call.edits[0].factor = 1.0
        ratio = hot / call.scores(rows)
    torch.testing.assert_close(ratio.tril(), torch.full_like(ratio, 1.1434).tril(), rtol=0, atol=5e-5)


def test_the_key_at_the_shift_counts_once():
    """Equal scores give equal weights; the published code gives the key at distance S twice its weight in a prompt."""
    for cure, weights in ((SMALL, [0.1] * 10), (OFFICIAL, [1 / 11] * 4 + [2 / 11] + [1 / 11] * 5)):
        with checks.edited_calls(cure, tiny("llama"), tokens(1, 10)) as (call, _):
            call.q = torch.zeros_like(call.q)
            found = call.weights(torch.tensor([9]))
            torch.testing.assert_close(found, torch.tensor(weights).expand_as(found))


def test_the_published_code_counts_twice_in_the_prompt_alone():
    checks.check_cure(OFFICIAL, "llama", identity=OFFICIAL.identity())
    model, ids = tiny("llama"), tokens(1, 10)
    with checks.edited_calls(OFFICIAL, model, ids) as (call, _):
        twice, regions = call.scores(torch.tensor([9])), call.edits[0].regions(call, torch.tensor([9]))
        near = multiply(rotate_at(call.rotary, call.q[:, :, [9]], regions[0].q_positions),
                        rotate_at(call.rotary, call.k, regions[0].k_positions)) * call.scale * regions[0].factor  # fmt: skip
    with checks.edited_calls(SMALL, model, ids) as (call, _):
        once = call.scores(torch.tensor([9]))
    expected = once.clone()
    expected[..., 4] = (once.exp() + near.exp()).log()[..., 4]
    torch.testing.assert_close(twice, expected)
    with hf.request(model, prompt_ends=[9]), checks.edited_calls(OFFICIAL, model, ids) as (call, _):
        torch.testing.assert_close(call.scores(torch.tensor([9])), once)  # the row of an answer
    assert "compat" not in SMALL.settings() and StringPositions(**OFFICIAL.settings()).compat == "official"


def test_the_merge_by_log_sum_exp_is_the_same():
    checks.check_merge(SMALL)
    checks.check_merge(StringPositions(7, 3, temperature=False))


@pytest.mark.parametrize("family", checks.ROTARY)
def test_every_check(family):
    checks.check_cure(SMALL, family, identity=SMALL.identity())


def test_gpt2_is_refused():
    assert "does not rotate" in SMALL.unavailable(checks.model_of("gpt2"))


def test_bad_settings():
    with pytest.raises(WhenceError, match=r"window.*6 with shift=5.*at most 5"):
        StringPositions(shift=5, window=6)
    with pytest.raises(WhenceError, match=r"shift.*0"):
        StringPositions(shift=0)


def test_the_search_takes_the_shift_of_the_least_loss():
    lm, task = tiny_random_model(layers=2), build_task("key-value", 1, pairs=3)
    prompts = [task.prompt(task.items[0], place) for place in (0, 2)]
    length = reference_length(lm, prompts)
    chosen = StringPositions().search(lm, prompts)
    candidates = [StringPositions(int(part * length), min(128, int(part * length) // 2)) for part in (0.25, 0.33, 0.4)]
    losses = []
    for cure in candidates:
        with cure.apply(lm.model):
            losses.append(float(answer_losses(lm, prompts).mean()))
    assert len(set(losses)) > 1
    assert chosen.settings() == candidates[losses.index(min(losses))].settings()
    assert SMALL.search(lm, prompts).settings() == SMALL.settings()  # a given size stays

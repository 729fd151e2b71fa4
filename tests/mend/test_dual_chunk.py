"""Dual chunk attention: the published distances and temperatures, one softmax for all regions, the checks of every cure."""

import cure_checks as checks
import pytest
import torch
from tiny_models import tiny, tokens

from whence import WhenceError
from whence.mend.answer_loss import answer_losses
from whence.mend.dual_chunk import DualChunk, score_factor
from whence.mend.size_search import reference_length
from whence.probe.probed_model import tiny_random_model
from whence.probe.tasks import build_task

SMALL = DualChunk(chunk=8, window=2)


def test_published_distances():
    with checks.edited_calls(SMALL, tiny("llama"), tokens(1, 14)) as (call, _):
        assert checks.region_distances(call, 13) == [8, 7, 6, 5, 4, 3, 7, 6, 5, 4, 3, 2, 1, 0]
        for row in range(9):  # texts of up to chunk + 1 tokens
            assert checks.region_distances(call, row) == list(range(row, -1, -1))
        assert checks.region_distances(call, 9) != list(range(9, -1, -1))


def test_sizes_follow_the_trained_length():
    edit = DualChunk(trained=64).edits(tiny("llama"))
    assert (edit.chunk, edit.window, edit.trained) == (48, 8, 64)
    assert DualChunk().edits(tiny("llama")).chunk == 192  # of 256


def test_published_temperatures():
    lengths = torch.tensor([512, 1024, 4096])
    for name, expected in (("official", 1.1434), ("serving", 1.1386)):
        torch.testing.assert_close(
            score_factor(lengths, 1024, name), torch.tensor([1.0, 1.0, expected]), rtol=0, atol=5e-5
        )
    with checks.edited_calls(DualChunk(64, 0, "official", 8), tiny("llama"), tokens(1, 32)) as (call, _):
        rows = torch.tensor([7, 31])
        hot = call.scores(rows)
        call.edits[0].temperature = None
        ratio = hot / call.scores(rows)
    torch.testing.assert_close(ratio[0, 0, :, 0], torch.tensor([1.0, 1.1434]), rtol=0, atol=5e-5)


def test_the_merge_by_log_sum_exp_is_the_same():
    checks.check_merge(SMALL)
    checks.check_merge(DualChunk(6, 1, trained=8))


@pytest.mark.parametrize("family", checks.ROTARY)
def test_every_check(family):
    checks.check_cure(DualChunk(chunk=8, window=2, trained=12), family, identity=SMALL.identity())


def test_gpt2_is_refused():
    assert "does not rotate" in SMALL.unavailable(checks.model_of("gpt2"))


def test_bad_settings():
    assert "window below 8" in DualChunk(chunk=8).unavailable(tiny("llama"))
    with pytest.raises(WhenceError, match=r"temperature.*'hot'"):
        DualChunk(temperature="hot")


def test_the_search_takes_the_chunk_of_the_least_loss():
    lm, task = tiny_random_model(layers=2), build_task("key-value", 1, pairs=3)
    prompts = [task.prompt(task.items[0], place) for place in (0, 2)]
    length = reference_length(lm, prompts)
    chosen = DualChunk().search(lm, prompts)
    candidates = [DualChunk(3 * (length // part) // 4, length // part // 8) for part in (1, 2, 4)]
    losses = []
    for cure in candidates:
        with cure.apply(lm.model):
            losses.append(float(answer_losses(lm, prompts).mean()))
    assert len(set(losses)) > 1
    assert chosen.settings() == candidates[losses.index(min(losses))].settings()
    assert SMALL.search(lm, prompts).settings() == SMALL.settings()  # a given size stays

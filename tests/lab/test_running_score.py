"""The running score on training batches: the same numbers as the loss, whatever interrupts the run."""

import pytest
from small_study import ARMS, almost_equal

from whence.lab import tasks, training
from whence.lab.study import Budget


class Stopped(Exception):
    pass


def train(path, stop_at=None, tracks=True):
    task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)
    task.tracks_training = tracks
    model = task.build_model({"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16}, ARMS[1], 0)  # it has dropout

    def stop(progress):
        if progress.step == stop_at:
            raise Stopped

    budget = Budget(steps=6, batch_size=8, evaluate_every=3, grad_accum_steps=2)
    return training.train(model, task, budget, 0, path, stop, save_every=0.0)


def test_it_is_the_mean_over_the_batches_since_the_last_evaluation(tmp_path):
    result = train(tmp_path / "whole")
    rows = [row["training"] for row in result["evaluations"]]
    assert [row["num_targets"] for row in rows] == [24, 24]
    for row, loss in zip(rows, result["losses"], strict=True):
        assert row["cross_entropy"] == pytest.approx(loss["loss"], rel=1e-5)
        assert row["value"] == row["correct"] / 24 and 0 <= row["correct"] <= 24
    without = train(tmp_path / "plain", tracks=False)
    assert all("training" not in row for row in without["evaluations"])
    assert [row["loss"] for row in without["losses"]] == [
        row["loss"] for row in result["losses"]
    ]  # training is the same
    with pytest.raises(Stopped):
        train(tmp_path / "parts", stop_at=5)
    assert almost_equal(train(tmp_path / "parts"), result)

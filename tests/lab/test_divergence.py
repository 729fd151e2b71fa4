"""A loss, gradient or metric that is not finite ends the run; the last good weights stay."""

import pytest
from safetensors.torch import load_file
from small_study import ARMS, build_study

from whence import records
from whence.lab import results, run_execution, runner, training
from whence.lab.study import Budget
from whence.lab.study_task import build_model


@pytest.fixture
def save_every_step(monkeypatch):
    """A checkpoint after every step, not every minute."""
    whole = training.train
    monkeypatch.setattr(training, "train", lambda *a, **b: whole(*a, save_every=0.0, **b))


def test_a_loss_that_is_no_number_stops_the_arm(tmp_path, monkeypatch):
    original, count = training.compute_loss, iter(range(100))
    monkeypatch.setattr(training, "compute_loss", lambda *a: original(*a) * (float("nan") if next(count) == 3 else 1.0))
    outcome = runner.run_study(build_study(arms=ARMS[:1], seeds=(0,)), tmp_path)
    (run,) = outcome.diverged
    record = records.read(outcome.folder / run.file_name)
    assert record["result"]["status"] == "diverged" and record["result"]["step"] == 3
    assert not outcome.completed
    kept = load_file(outcome.folder / "checkpoints" / record["result"]["last_good_checkpoint"])  # written as it stopped
    assert all(tensor.isfinite().all() for name, tensor in kept.items() if name.startswith("model."))
    assert [row["step"] for row in record["result"]["evaluations"]] == [2] and len(record["result"]["losses"]) == 1
    again = runner.run_study(build_study(arms=ARMS[:1], seeds=(0,)), tmp_path)
    assert (
        len(again.diverged) == 1 and not again.completed and not again.existing
    )  # it is said again, and not tried again
    arm_found = results.summarize_arm(run.study, run.arm, outcome.folder)
    assert arm_found["values"] == {} and [row["step"] for row in arm_found["curves"]["0"]["losses"]] == [2]


def run_until_divergence(tmp_path, **changes):
    """The result of a run that saves after every step and diverges, and its last good weights."""
    outcome = runner.run_study(build_study(arms=ARMS[:1], seeds=(0,), **changes), tmp_path)
    (run,) = outcome.diverged
    result = records.read(outcome.folder / run.file_name)["result"]
    assert not (outcome.folder / "weights").exists()
    return result, load_file(outcome.folder / "checkpoints" / result["last_good_checkpoint"])


@pytest.mark.parametrize("step, kept", [(3, [2]), (4, [2, 4])])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_no_number_stops_it_before_the_weights_are_spoiled(
    tmp_path, monkeypatch, save_every_step, step, kept, clip
):
    """The loss before it was fine, and after the last step there would be no next loss to notice it."""
    instance, count = build_model, iter(range(100))

    def build_diverging(run, task):
        model = instance(run, task)
        next(model.parameters()).register_hook(lambda grad: grad * (float("nan") if next(count) == step else 1.0))
        return model

    monkeypatch.setattr(run_execution, "build_model", build_diverging)
    result, good = run_until_divergence(
        tmp_path, budget=Budget(steps=6, batch_size=8, evaluate_every=2, max_grad_norm=clip)
    )
    assert result["step"] == step and result["reason"] == f"the gradient became nan at step {step}"
    assert [row["step"] for row in result["evaluations"]] == kept
    assert all(tensor.isfinite().all() for name, tensor in good.items() if name.startswith("model."))


def test_an_evaluation_that_is_no_number_stops_it_too(tmp_path, monkeypatch, save_every_step):
    """A length at which a mechanism breaks down: no record could hold it, and nothing be compared with it."""
    whole, count = training.evaluate, iter(range(100))

    def broken(*given):
        return whole(*given) | (
            {"cross_entropy": float("inf")} if next(count) == 11 else {}
        )  # of four splits, three times

    monkeypatch.setattr(training, "evaluate", broken)
    result, _ = run_until_divergence(tmp_path)
    assert result["reason"] == "the evaluation on 8x became inf at step 5"
    assert [row["step"] for row in result["evaluations"]] == [2, 4]

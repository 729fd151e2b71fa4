"""Training: data, schedules, precision, and resuming after an interruption."""

import pytest
import torch
from small_study import ARMS, almost_equal

from whence.errors import Terminated
from whence.lab import checkpoints, tasks, training
from whence.lab.arms import Arm
from whence.lab.study import Budget
from whence.models import PRESETS


def test_every_step_has_its_own_data_and_every_arm_of_a_seed_the_same():
    task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)

    def tokens(seed, first=0, **budget):
        chosen = Budget(batch_size=4, **budget)
        source = task if chosen.steps else tasks.load("topics", context=256)
        schedule = training.Schedule(source, chosen)
        result = training.batches(source, chosen, schedule, seed, first)
        return [batch.tokens.tolist() for _, batch in zip(range(4), result, strict=False)]

    steps = tokens(0, steps=4)
    assert steps == tokens(0, steps=4) and len({str(one) for one in [*steps, *tokens(1, steps=4)]}) == 8
    assert tokens(0, 2, steps=4) == steps[2:]  # a resumed run sees the remaining batches
    assert tokens(0, 2, epochs=1)[:2] == tokens(0, epochs=1)[2:]


@pytest.mark.parametrize("every", [4, None])
def test_a_run_stopped_between_two_evaluations_resumes_there(tmp_path, every):
    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.step == 7:
            raise Stopped

    def trained(path, notify):
        steps = []
        task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)
        model = task.build_model(
            {"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16}, ARMS[1], 0
        )  # it has dropout
        budget = Budget(steps=10, batch_size=8, evaluate_every=every)
        note = lambda progress: (steps.append(progress.step), notify(progress))  # noqa: E731
        return training.train(model, task, budget, 0, path, note, save_every=0.0), steps

    whole, _ = trained(tmp_path / "whole", lambda progress: None)
    with pytest.raises(Stopped):
        trained(tmp_path / "parts", stop)
    rest, steps = trained(tmp_path / "parts", lambda progress: None)
    assert steps == [7, 8, 9, 10] and almost_equal(rest, whole)  # the seventh was told of and not yet saved


def test_schedules():
    class Some:
        def epoch(self, size, generator):
            return iter(range(5))

    warm = training.Schedule(Some(), Budget(steps=10, lr=1.0, warmup_steps=4, schedule="cosine"))
    assert [round(warm.lr(s), 3) for s in (0, 3, 4, 7)] == [0.25, 1.0, 1.0, 0.5]
    low = training.Schedule(Some(), Budget(steps=10, lr=1.0, warmup_steps=4, schedule="cosine", min_lr_ratio=0.2))
    assert [round(low.lr(s), 3) for s in (0, 3, 4, 7)] == [0.25, 1.0, 1.0, 0.6] and low.lr(10) == pytest.approx(0.2)
    epochs = training.Schedule(Some(), Budget(epochs=3, evaluate_every=1))
    assert epochs.steps == 15 and [s for s in range(15) if epochs.evaluates_after(s)] == [4, 9, 14]


def qwen3_style_model():
    """One step of it is quick, and its position and norms have parameters of one and of two dimensions."""
    task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)
    settings = {
        **PRESETS["qwen3-20m"],
        "embed_dim": 16,
        "heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "layers": 1,
        "ffn_dim": 16,
    }
    return task, task.build_model(settings, Arm("T5", "Rotary() + T5Bias()"), 0)


def test_weight_decay_of_matrices_alone():
    _, model = qwen3_style_model()
    budget = Budget(steps=2, weight_decay=0.5, adam_beta2=0.95, decay_matrices_only=True)
    optimizer = training.build_optimizer(model, budget)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}
    for name, p in model.named_parameters():
        assert decay.pop(id(p)) == (0.0 if "norm" in name or "position" in name else 0.5), name
    assert not decay
    (group,) = training.build_optimizer(model, Budget(steps=2, weight_decay=0.5)).param_groups
    assert group["weight_decay"] == 0.5 and group["betas"] == (0.9, 0.999)


def test_a_qwen3_style_model_trains_and_resumes_with_every_option(tmp_path):
    budget = Budget(
        steps=4, batch_size=8, lr=3e-3, warmup_steps=1, schedule="cosine", min_lr_ratio=0.1, adam_beta2=0.95, weight_decay=0.1,
        decay_matrices_only=True, max_grad_norm=0.5, grad_accum_steps=2, evaluate_every=2,
    )  # fmt: skip
    results = []
    for stop_at in (None, 3):
        path, steps = tmp_path / str(stop_at), []
        while not steps or steps[-1] < 4:
            task, model = qwen3_style_model()
            note = lambda progress: steps.append(progress.step)  # noqa: B023, E731
            stops = lambda: steps[-1] == stop_at and steps.count(stop_at) == 1  # noqa: B023, E731
            try:
                results.append(training.train(model, task, budget, 0, path, note, save_every=60.0, should_stop=stops))
            except Terminated:
                continue
    assert almost_equal(*results)


def test_runs_of_one_process_have_each_their_own_precision(tmp_path):
    result = {}
    for precision in ("no", "bf16", "no"):
        task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)
        model = task.build_model({"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.0}, ARMS[1], 0)
        budget = Budget(steps=2, batch_size=8, mixed_precision=precision)
        loss = training.train(model, task, budget, 0, tmp_path / precision)["losses"][0]["loss"]
        assert result.setdefault(precision, loss) == pytest.approx(loss, rel=1e-6)
        assert all(weight.dtype == torch.float32 for weight in model.parameters())
    assert result["bf16"] != result["no"] and result["bf16"] == pytest.approx(result["no"], rel=1e-2)


def test_a_weight_that_nothing_depends_on_is_no_hindrance_to_resuming(tmp_path):
    def build():
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"used": torch.nn.Linear(2, 1), "idle": torch.nn.Linear(2, 1)})
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def step(model, optimizer):
        model["used"](torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = build()
    step(model, optimizer)
    checkpoints.save(tmp_path / "state", model, optimizer, {"step": 1})
    again, resumed = build()
    assert checkpoints.load(tmp_path / "state", again, resumed) == {"step": 1}
    for pair in ((model, optimizer), (again, resumed)):
        step(*pair)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))

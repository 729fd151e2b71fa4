"""Processes that share a run, runs that go side by side, and what is left when someone stops them."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from whence import WhenceError
from whence.lab import executors, runner, tasks, training
from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_files import load_study_file
from whence.lab.study_task import build_model

STUDY = """
from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study


def studies():
    return [Study(
        name="shared", question="is it the same", task="retrieval",
        task_settings={"pairs": 2, "keys": 16, "values": 4, "items": 16},
        model={"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.0},
        arms=(parse_arm("epar"),), seeds=(0,), budget=Budget(steps=4, batch_size=9, evaluate_every=2),
        decision=Decision(baseline="epar"),
    )]
"""
#: four runs, each of a second or two: long enough to stop them midway
FOUR_RUNS = (
    STUDY.replace("seeds=(0,)", "seeds=(0, 1, 2, 3)").replace("steps=4", "steps=150").replace("every=2", "every=150")
)


def whence(*arguments, start=("-m",), **settings):
    command = [sys.executable, *start, "whence", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | settings.pop("env", {})
    return subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **settings
    )


def restore_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job may start with interrupts ignored


TOGETHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def test_two_processes_train_one_run_like_one_process(tmp_path, whence_here):
    (tmp_path / "shared.py").write_text(STUDY)
    order = ("run", tmp_path / "shared.py", "--jobs", 1, "--out")
    alone = whence_here(*order, tmp_path / "one")
    assert alone.returncode == 0 and alone.stdout.count("report:") == 1, alone.stderr
    process = whence(*order, tmp_path / "two", start=(*TOGETHER, "2", "-m"))
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert output.count("report:") == 1  # the first speaks for all
    require_alike(record_in(tmp_path / "one"), record_in(tmp_path / "two"))


@pytest.mark.parametrize("processes", [1, 2])
def test_distributed_runs_resume_with_copied_and_sharded_weights(tmp_path, processes):
    (tmp_path / "shared.py").write_text(STUDY)
    script = Path(__file__).with_name("shared_training.py")
    order = [sys.executable, *TOGETHER, str(processes), str(script), str(tmp_path / "shared.py"), str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(order, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    (study,) = load_study_file(tmp_path / "shared.py")
    alone = runner.execute_run(study.runs()[0], tmp_path / "alone")
    kept = load_file(next((tmp_path / "alone" / "weights").iterdir()))
    assert "shared_by" not in alone["result"]
    for kind, by in (("copied", "MULTI_CPU"), ("sharded", "FSDP")):
        require_alike(alone, record_in(tmp_path / kind), processes)
        assert record_in(tmp_path / kind)["result"].get("shared_by") == by
        weights = load_file(next((tmp_path / kind / "weights").iterdir()))
        assert weights.keys() == kept.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(weight, kept[name], rtol=1e-4, atol=1e-6)


def record_in(folder):
    return json.loads(next(folder.rglob("*seed0.json")).read_text())


def require_alike(alone, together, processes=2):
    assert (alone["processes"], together["processes"]) == (1, processes)
    one, two = alone["result"], together["result"]
    for a, b in zip(one["losses"], two["losses"], strict=True):  # nine rows among two: the shares are unequal
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    for split, row in one["evaluations"][-1]["splits"].items():
        assert row["cross_entropy"] == pytest.approx(two["evaluations"][-1]["splits"][split]["cross_entropy"], rel=1e-4)


def test_losses_of_shards_add_up_to_the_batch_loss():
    task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)
    model = task.build_model({"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16}, parse_arm("none"), 0).eval()
    batch = task.train_batch(3, training.seed_generator(0, 0))
    num_targets = training.count_targets(batch)
    whole = training.compute_loss(task, model, batch, num_targets)
    parts = [
        training.compute_loss(task, model, training.shard_batch(batch, part, 5), num_targets) for part in range(5)
    ]  # two have no rows
    torch.testing.assert_close(sum(parts), whole)


def test_jobs_raise_inside_a_distributed_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    study = Study(
        name="s", question="q", task="retrieval", arms=(parse_arm("none"),), seeds=(0,), budget=Budget(steps=1),
        decision=Decision(baseline="none"),
    )  # fmt: skip
    with pytest.raises(WhenceError, match="jobs=2 in 2"):
        runner.run_study(study, tmp_path, jobs=2)


def start_four_runs(folder):
    """Four runs, two at a time, of which at least one is finished."""
    (folder / "four.py").write_text(FOUR_RUNS)
    order = ("run", folder / "four.py", "--jobs", 2, "--out", folder)
    process = whence(*order, start_new_session=True, preexec_fn=restore_interrupts)
    deadline = time.monotonic() + 240
    while not read_finished(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def read_finished(folder):
    return {path: path.read_bytes() for path in folder.rglob("*seed*.json")}


def test_an_interrupt_keeps_finished_runs_and_prints_how_to_resume(tmp_path):
    process = start_four_runs(tmp_path)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal sends: to all of them
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "run the same command to resume" in errors
    assert "Traceback" not in errors
    finished = read_finished(tmp_path)
    assert finished and all(json.loads(text)["result"]["status"] == "done" for text in finished.values())


def test_parallel_runs_end_with_their_parent(tmp_path):
    """Else the same command would meet them: two at work on one run, and a record that appears meanwhile."""
    process = start_four_runs(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)  # the ends of its pipes that children hold are closed too
    left = read_finished(tmp_path)
    deadline = time.monotonic() + 20
    while is_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    if is_alive(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("some of them went on")
    assert 1 <= len(left) < 4 and read_finished(tmp_path) == left


def is_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_compiled_run_learns_the_same(tmp_path, monkeypatch):
    whole, calls = torch.compile, []
    # the code generator itself is torch's business, and takes half a minute
    monkeypatch.setattr(torch, "compile", lambda model: (calls.append(1), whole(model, backend="aot_eager"))[1])
    study = Study(
        name="s", question="q", task="retrieval", task_settings={"pairs": 2, "keys": 16, "values": 4, "items": 8},
        model={"embed_dim": 8, "heads": 1, "layers": 1, "ffn_dim": 8, "dropout": 0.0}, arms=(parse_arm("alibi"),), seeds=(0,),
        budget=Budget(steps=3, batch_size=4), decision=Decision(baseline="alibi"),
    )  # fmt: skip
    losses = []
    for compiled in (False, True):
        task = tasks.load(study.task, **study.task_settings)
        model = build_model(study.runs()[0], task)
        budget = Budget(steps=3, batch_size=4, compile=compiled)
        losses.append(training.train(model, task, budget, 0, tmp_path / "none")["losses"][-1]["loss"])
    assert len(calls) == 1
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


class KilledOnce:
    """Kills its process the first time that it runs a run."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, run, folder, on_progress):
        mark = self.folder / run.file_name
        if run.seed == 1 and not mark.exists():
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        if run.seed == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"seed": run.seed}


def test_a_killed_worker_fails_only_its_own_run(tmp_path):
    study = Study(
        name="s", question="q", task="retrieval", arms=(parse_arm("none"),), seeds=(0, 1, 2, 3, 4), budget=Budget(steps=1),
        decision=Decision(baseline="none"),
    )  # fmt: skip
    executor = executors.LocalExecutor(jobs=2)
    actual = {run.seed: one for run, one in executor.run(KilledOnce(tmp_path), study.runs(), tmp_path, lambda *_: None)}
    assert set(actual) == {0, 1, 2, 3, 4} and isinstance(actual[2], BrokenProcessPool)
    assert sum(isinstance(one, dict) for one in actual.values()) >= 3  # a neighbour may run beside it twice
    assert actual[1] == {"seed": 1} or isinstance(actual[1], BrokenProcessPool)

"""Processes that share a run, runs that go side by side, and what is left when someone stops them."""

import json
import multiprocessing
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
from whence.lab import executors, run_execution, runner, tasks, training
from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_files import load_study_file
from whence.lab.study_task import build_model
from whence.lab.workers import end_with_parent

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


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    """A folder with the records of several processes that train together, and what they printed."""
    base = tmp_path_factory.mktemp("distributed")
    (base / "shared.py").write_text(STUDY)
    text = STUDY.replace('(parse_arm("epar"),)', '(parse_arm("epar"), parse_arm("none"))')
    text = text.replace("seeds=(0,)", "seeds=(0, 1, 2, 3)").replace(
        'baseline="epar"', 'baseline="epar", metric="perplexity", margin=1000.0, looks=(3, 4)'
    )
    (base / "decided.py").write_text(text)
    order = [sys.executable, Path(__file__).with_name("shared_training.py"), base]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads do not survive a fork
    done = subprocess.run(order, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return base, done.stdout


def test_two_processes_train_like_one_process(distributed, tmp_path, whence_here):
    """All of a round, and both end after the look that decides: the arms are equivalent within the margin."""
    base, output = distributed
    alone = whence_here("run", base / "decided.py", "--jobs", 1, "--out", tmp_path)
    assert alone.returncode == 0 and alone.stdout.count("report:") == 1, alone.stderr
    assert output.count("report:") == 1  # the first speaks for all
    require_alike(record_in(tmp_path), record_in(base / "decided by 2"))
    names = [sorted(path.name for path in folder.rglob("*seed?.json")) for folder in (tmp_path, base / "decided by 2")]
    assert len(names[0]) == 6 and names[0] == names[1]


@pytest.fixture(scope="module")
def trained_alone(distributed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    (study,) = load_study_file(distributed[0] / "shared.py")
    return run_execution.execute_run(study.runs()[0], folder), load_file(next((folder / "weights").iterdir()))


@pytest.mark.parametrize("processes", [1, 2])
def test_distributed_runs_resume_with_copied_and_sharded_weights(distributed, trained_alone, processes):
    alone, kept = trained_alone
    assert "shared_by" not in alone["result"]
    for kind, by in (("copied", "MULTI_CPU"), ("sharded", "FSDP")):
        folder = distributed[0] / f"resumed by {processes}" / kind
        require_alike(alone, record_in(folder), processes)
        assert record_in(folder)["result"].get("shared_by") == by
        weights = load_file(next((folder / "weights").iterdir()))
        assert weights.keys() == kept.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(weight, kept[name], rtol=1e-4, atol=1e-6)


def record_in(folder):
    return json.loads(next(folder.rglob("epar*seed0.json")).read_text())


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


# One process loads everything once and forks a command for each signal. Each has two workers and a group of its own.
# A step sleeps: the runs take eight minutes, in which they need no core, and end by themselves if nobody stops them.
STOPPED_GROUPS = """
import json, multiprocessing, os, signal, sys, time
from pathlib import Path
import accelerate, safetensors.torch, torch._dynamo  # as training does
from whence.cli import main
from whence.lab import executors, runner, sequential, training

base, run_until_decided, compute_loss = Path(sys.argv[1]), sequential.run_until_decided, training.compute_loss


def sleep_and_compute_loss(*given):
    time.sleep(0.2)
    return compute_loss(*given)


training.compute_loss = sleep_and_compute_loss
executors.get_context = lambda method: multiprocessing.get_context("fork")  # each worker has what is loaded once


def start(name):
    child = os.fork()
    if child:
        return child
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may start with interrupts ignored
    (base / name).mkdir()
    for stream in (1, 2):
        os.dup2(os.open(base / f"{name}.{stream}", os.O_WRONLY | os.O_CREAT), stream)

    def mark(*given, on_progress, **named):
        def report(run, progress):
            (base / name / f"{run.file_name}.begun").touch()
            on_progress(run, progress)

        return run_until_decided(*given, on_progress=report, **named)

    sequential.run_until_decided = mark
    sys.argv = ["whence", "run", str(base / "study.py"), "--jobs", "2", "--out", str(base / name)]
    code = 1
    try:
        main()
    except SystemExit as error:
        code = error.code
    finally:
        os._exit(code)


def is_alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def wait_for(child, seconds):
    codes = []
    wait_until(lambda: codes or codes.extend(read_code(child)), seconds)
    return codes[0] if codes else None


def read_code(child):
    pid, status = os.waitpid(child, os.WNOHANG)
    return [os.waitstatus_to_exitcode(status)] if pid else []


signals = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM, "kill": signal.SIGKILL}
children = {name: start(name) for name in signals}
for name, child in children.items():
    wait_until(lambda: len(list((base / name).glob("*.begun"))) == 4, 200)
    if name == "kill":
        os.kill(child, signals[name])  # the command alone
    else:
        os.killpg(child, signals[name])  # as a terminal or a cluster does
    code = wait_for(child, 60)
    wait_until(lambda: not is_alive(child), 60)
    orphans = is_alive(child)
    if orphans:
        os.killpg(child, signal.SIGKILL)
    end = {"code": code, "orphans": orphans}
    (base / f"{name}.json").write_text(json.dumps(end))
"""


@pytest.fixture(scope="module")
def stopped_groups(tmp_path_factory):
    """A folder for each signal: of two arms with two seeds, the first is finished and the second trains for minutes."""
    base = tmp_path_factory.mktemp("groups")
    arms = 'arms=(Arm("short", "alibi", {}, {"steps": 1}), parse_arm("none"))'
    changes = {'arms=(parse_arm("epar"),)': arms, "seeds=(0,)": "seeds=(0, 1)", "steps=4": "steps=2400"}
    text = STUDY.replace("import parse_arm", "import Arm, parse_arm").replace('baseline="epar"', 'baseline="none"')
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (base / "study.py").write_text(text.replace("every=2", "every=2400"))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads do not survive a fork
    subprocess.run([sys.executable, "-c", STOPPED_GROUPS, base], check=True, env=environment, timeout=300)
    return base


@pytest.mark.parametrize(
    "name, code, message", [("interrupt", 130, "run the command again to resume"), ("terminate", 143, "resume")]
)
def test_a_stopped_group_leaves_records_and_checkpoints(stopped_groups, name, code, message):
    end = json.loads((stopped_groups / f"{name}.json").read_text())
    errors = (stopped_groups / f"{name}.2").read_text()
    assert end["code"] == code and message in errors and "Traceback" not in errors
    assert not end["orphans"]
    finished = [json.loads(path.read_text()) for path in (stopped_groups / name).rglob("*seed?.json")]
    assert [(record["arm"], record["result"]["status"]) for record in finished] == [("short", "done")] * 2
    assert len(list((stopped_groups / name).rglob("checkpoints/*.safetensors"))) == 2


def test_workers_end_with_their_parent(stopped_groups):
    """Else the same command would meet them: two at work on one run, and a record that appears meanwhile."""
    end = json.loads((stopped_groups / "kill.json").read_text())
    assert end["code"] == -signal.SIGKILL and not end["orphans"]
    assert len(list((stopped_groups / "kill").rglob("*seed?.json"))) == 2


def test_workers_leave_interrupts_to_their_parent():
    """Ctrl-C reaches the whole group of a terminal."""

    def interrupt_itself():
        end_with_parent()
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(7)

    process = multiprocessing.get_context("fork").Process(target=interrupt_itself)
    process.start()
    process.join(30)
    assert process.exitcode == 7


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
    assert len(calls) == 2  # the model and its loss
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


class KilledOnce:
    """Kills its process the first time that it runs seed 1, while seed 0 is at work, and every time that it runs seed 2."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, run, folder, on_progress):
        mark = self.folder / "killed"
        if run.seed == 0:
            deadline = time.monotonic() + 60
            while not mark.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        if run.seed == 2 or (run.seed == 1 and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / f"{run.seed}-{os.getpid()}").touch()
        return {"seed": run.seed}


def test_a_killed_worker_fails_only_its_own_run(tmp_path, forked_workers):
    study = Study(
        name="s", question="q", task="retrieval", arms=(parse_arm("none"),), seeds=(0, 1, 2, 3), budget=Budget(steps=1),
        decision=Decision(baseline="none"),
    )  # fmt: skip
    executor = executors.LocalExecutor(jobs=2)
    actual = {run.seed: one for run, one in executor.run(KilledOnce(tmp_path), study.runs(), tmp_path, lambda *_: None)}
    assert isinstance(actual.pop(2), BrokenProcessPool)
    assert actual == {0: {"seed": 0}, 1: {"seed": 1}, 3: {"seed": 3}}
    assert len(list(tmp_path.glob("0-*"))) == 1  # the neighbour was not disturbed
    workers = {child.pid for child in multiprocessing.active_children()}
    assert [run.seed for run, _ in executor.run(KilledOnce(tmp_path), study.runs()[3:], tmp_path, lambda *_: None)] == [
        3
    ]
    assert {
        child.pid for child in multiprocessing.active_children()
    } == workers  # the next round has the same processes
    executor.close()
    assert not multiprocessing.active_children()

"""Studies run to the end, whatever stops them in between, and their records say what was run."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from whence import WhenceError, records
from whence.lab import checkpoints, results, runner, tasks, training
from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Decision, Study
from whence.position.expression import ModelDims

ARMS = (parse_arm("none"), parse_arm("alibi"), Arm("EPAR", "Epar(learnable=True)"))


def small(**changes):
    made = Study(
        name="small",
        question="does it run",
        task="retrieval",
        task_settings={"pairs": 2, "keys": 16, "values": 4, "items": 16},
        model={"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16},
        arms=ARMS,
        seeds=(0, 1),
        budget=Budget(steps=6, batch_size=8, evaluate_every=2),
        decision=Decision(baseline="none"),
    )
    return dataclasses.replace(made, **changes)


def values(folder):
    return {
        path.name: json.loads(path.read_text())["result"] for path in sorted(folder.glob("*seed*.json"))
    }  # fmt: skip


def same(a, b):
    """Equal counts and steps, and numbers equal but for their last digits: a sum on this CPU may end differently where
    memory lies differently, which a process that has run other things before shows now and then."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == pytest.approx(b, rel=1e-5) if isinstance(a, float) else a == b


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    base = tmp_path_factory.mktemp("results")
    return base, runner.run_study(small(), base)


def test_every_arm_and_seed_has_a_record(finished):
    _, outcome = finished
    assert (len(outcome.completed), outcome.existing, outcome.problems) == (6, [], [])
    for run in small().runs():
        record = records.read(outcome.folder / run.file_name)
        assert record["spec"] == small().spec() and record["hash"] == small().hash
        assert [row["step"] for row in record["result"]["evaluations"]] == [2, 4, 6]
        assert set(record["result"]["evaluations"][0]["splits"]) == {"test", "2x", "4x", "8x"}
        assert record["environment"]["source_hash"] and record["wall_seconds"] > 0
        weights = outcome.folder / "weights" / (run.file_name.removesuffix(".json") + ".safetensors")
        assert weights.stat().st_size > 0


def test_a_record_names_the_gpu_it_was_trained_on(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "accelerator" not in runner.describe_origin(small())["environment"]["machine"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    assert runner.describe_origin(small())["environment"]["machine"]["accelerator"] == "Some GPU"


def sources_of(outcome):
    return {records.read(outcome.folder / run.file_name)["environment"]["source_hash"] for run in outcome.completed}


def test_a_record_names_the_sources_that_were_loaded(tmp_path, monkeypatch):
    """Whoever edits them while a study runs changes nothing of what runs."""
    sources = iter(["those that run", "others"])
    monkeypatch.setattr(records.environment, "source_hash", lambda: next(sources))
    outcome = runner.run_study(small(arms=ARMS[:1], budget=Budget(steps=1)), tmp_path)
    assert len(outcome.completed) == 2 and sources_of(outcome) == {"those that run"}


def test_what_was_learned_is_noted_before_and_after(finished):
    _, outcome = finished
    run = next(r for r in small().runs() if r.arm.name == "EPAR")
    numbers = records.read(outcome.folder / run.file_name)["numbers"]
    assert numbers["before"] != numbers["after"] and "alpha=" in next(iter(numbers["after"].values()))


def test_parts_of_a_position_say_each_their_own_numbers():
    task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)
    model = task.build_model(
        {"embed_dim": 16, "heads": 2, "layers": 1}, parse_arm("Rotary() + Epar(learnable=True)"), 0
    )
    found = runner.describe_positions(model)
    assert [name.split("position.")[1] for name in found] == ["members.0", "members.1"]
    assert "base=" in found["body.layers.0.attention.position.members.0"] and "alpha=" in str(found)


def test_a_second_call_finds_everything_and_touches_nothing(finished):
    base, outcome = finished
    before = {p: p.read_bytes() for p in outcome.folder.rglob("*") if p.is_file()}
    again = runner.run_study(small(), base)
    assert len(again.existing) == 6 and not again.completed
    assert before == {p: p.read_bytes() for p in outcome.folder.rglob("*") if p.is_file()}


def test_several_processes_find_the_same_numbers(finished, tmp_path, monkeypatch):
    _, outcome = finished
    monkeypatch.setattr(records.environment, "source_hash", lambda: "those of the parent")
    several = runner.run_study(small(), tmp_path, jobs=2)
    assert not several.problems and same(values(several.folder), values(outcome.folder))
    assert sources_of(several) == {"those of the parent"}


def test_numbers_drawn_by_others_change_nothing(finished, tmp_path, monkeypatch):
    # a library that is imported for the first time may draw from torch's randomness
    original = training.build_accelerator
    monkeypatch.setattr(training, "build_accelerator", lambda budget: (torch.rand(7), original(budget))[1])
    _, outcome = finished
    again = runner.run_study(small(), tmp_path)
    assert same(values(again.folder), values(outcome.folder))


def test_records_that_are_corrupt_or_foreign_are_named_and_left_alone(finished, tmp_path):
    _, outcome = finished
    folder = runner.study_folder(small(), tmp_path)
    folder.mkdir()
    first, second, third, *rest = small().runs()
    (folder / first.file_name).write_text("{broken")
    (folder / second.file_name).write_text(json.dumps({"hash": "of something else"}))
    record = records.read(outcome.folder / third.file_name)
    (folder / third.file_name).write_text(
        json.dumps(record | {"hash": "0" * 12})
    )  # the same arm and seed, another spec
    empty, copied, *rest = rest
    other = next(run for run in small().runs() if run.arm == copied.arm and run.seed != copied.seed)
    (folder / copied.file_name).write_bytes((outcome.folder / other.file_name).read_bytes())  # of another seed
    (folder / empty.file_name).write_text(
        json.dumps(records.read(outcome.folder / empty.file_name) | {"result": None})
    )  # edited by hand
    for run in rest:
        (folder / run.file_name).write_bytes((outcome.folder / run.file_name).read_bytes())
    again = runner.run_study(small(), tmp_path)
    assert len(again.problems) == 5 and len(again.existing) == 1 and not again.completed
    assert first.file_name in again.problems[0] and "corrupt" in again.problems[0]
    assert all("belongs to another" in problem for problem in again.problems[1:3])
    assert "no result" in again.problems[3] and "belongs to another" in again.problems[4]
    assert (folder / first.file_name).read_text() == "{broken"


def test_a_record_is_never_overwritten(finished, tmp_path):
    """Not even where another process was faster with the same run; its weights stay with it."""
    run = small().runs()[0]
    (tmp_path / run.file_name).write_text("{}")
    with pytest.raises(WhenceError, match="a record is written once"):
        runner.execute_run(run, tmp_path)
    assert (tmp_path / run.file_name).read_text() == "{}" and not (tmp_path / "weights").exists()


def test_a_run_that_another_process_finished_is_skipped(finished, tmp_path, monkeypatch):
    """Whether its record appears before the run starts or while it trains."""
    _, outcome = finished
    first, second = small().runs()[:2]
    content = {run.file_name: (outcome.folder / run.file_name).read_bytes() for run in (first, second)}
    (tmp_path / first.file_name).write_bytes(content[first.file_name])
    train, trained = training.train, []

    def train_while_another_finishes(*arguments):
        trained.append(arguments)
        (tmp_path / second.file_name).write_bytes(content[second.file_name])
        return train(*arguments)

    monkeypatch.setattr(training, "train", train_while_another_finishes)
    for run, count in ((first, 0), (second, 1)):
        assert runner.execute_run(run, tmp_path) == json.loads(content[run.file_name]) and len(trained) == count
        assert (tmp_path / run.file_name).read_bytes() == content[run.file_name] and not (tmp_path / "weights").exists()


def test_no_run_goes_on_with_changed_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "from whence import Alibi\nclass Bell(Alibi):\n    pass\n"
    (tmp_path / "bell.py").write_text(source)
    study = small(arms=(ARMS[0], Arm("bell", "./bell.py:Bell")))
    pinned = runner.pin_sources(study)
    assert pinned.hash != study.hash and runner.pin_sources(small()).hash == small().hash
    (tmp_path / "bell.py").write_text(source + "# edited\n")
    with pytest.raises(WhenceError, match=r"\./bell\.py:Bell.*run the command again"):
        runner.execute_run(pinned.runs()[1], tmp_path)
    assert runner.run_study(study, tmp_path / "out").folder != runner.study_folder(pinned, tmp_path / "out")


def test_every_step_has_its_own_data_and_every_arm_of_a_seed_the_same():
    task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)

    def tokens(seed, first=0, **budget):
        chosen = Budget(batch_size=4, **budget)
        source = task if chosen.steps else tasks.load("topics", context=256)
        schedule = training.Schedule(source, chosen)
        found = training.batches(source, chosen, schedule, seed, first)
        return [batch.tokens.tolist() for _, batch in zip(range(4), found, strict=False)]

    steps = tokens(0, steps=4)
    assert steps == tokens(0, steps=4) and len({str(one) for one in [*steps, *tokens(1, steps=4)]}) == 8
    assert tokens(0, 2, steps=4) == steps[2:]  # whoever goes on in the middle sees what was left
    assert tokens(0, 2, epochs=1)[:2] == tokens(0, epochs=1)[2:]


# One process loads everything once and forks: each attempt at the study is a child, and all but the last are killed.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_runner import longer
from whence.lab import runner, training
original = training.train
def saving(*a, **k):
    return original(*a, **k, save_every=0.0)
runner.training.train = saving

def attempt(folder):
    child = os.fork()
    if child == 0:
        runner.run_study(longer(), folder)
        os._exit(0)
    return child

for name, kills in (("whole", 0), ("killed", 2)):
    folder = Path(sys.argv[1]) / name
    for count in range(kills):
        child = attempt(folder)
        # once something is on disk, at no particular moment
        deadline = time.monotonic() + 120
        while not list(folder.rglob("checkpoints/*.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.1 * (count + 1))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it was done before it could be killed"
    assert os.waitpid(attempt(folder), 0)[1] == 0
"""


def longer():
    return small(budget=Budget(steps=30, batch_size=8, evaluate_every=3), seeds=(0,))


def test_a_killed_run_goes_on_to_the_same_records(tmp_path):
    script = SCRIPT.format(tests=str(Path(__file__).parent))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads do not survive a fork
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, timeout=300)
    assert done.returncode == 0
    whole, killed = (values(runner.study_folder(longer(), tmp_path / name)) for name in ("whole", "killed"))
    assert len(whole) == 3 and same(whole, killed)
    assert not list((tmp_path / "killed").rglob("*.part"))


@pytest.mark.parametrize("every", [4, None])
def test_a_run_stopped_between_two_evaluations_goes_on_from_there(tmp_path, every):
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
    assert steps == [7, 8, 9, 10] and same(rest, whole)  # the seventh was told of and not yet saved


@pytest.fixture
def saving(monkeypatch):
    """A checkpoint after every step, not every minute."""
    whole = training.train
    monkeypatch.setattr(training, "train", lambda *a: whole(*a, save_every=0.0))


def test_a_loss_that_is_no_number_stops_the_arm(tmp_path, monkeypatch):
    original, count = training.compute_loss, iter(range(100))
    monkeypatch.setattr(training, "compute_loss", lambda *a: original(*a) * (float("nan") if next(count) == 3 else 1.0))
    outcome = runner.run_study(small(arms=ARMS[:1], seeds=(0,)), tmp_path)
    (run,) = outcome.diverged
    record = records.read(outcome.folder / run.file_name)
    assert record["result"]["status"] == "diverged" and record["result"]["step"] == 3
    assert not outcome.completed
    kept = load_file(outcome.folder / "checkpoints" / record["result"]["last_good_checkpoint"])  # written as it stopped
    assert all(tensor.isfinite().all() for name, tensor in kept.items() if name.startswith("model."))
    assert [row["step"] for row in record["result"]["evaluations"]] == [2] and len(record["result"]["losses"]) == 1
    again = runner.run_study(small(arms=ARMS[:1], seeds=(0,)), tmp_path)
    assert (
        len(again.diverged) == 1 and not again.completed and not again.existing
    )  # it is said again, and not tried again
    arm_found = results.summarize_arm(run.study, run.arm, outcome.folder)
    assert arm_found["values"] == {} and [row["step"] for row in arm_found["curves"]["0"]["losses"]] == [2]


def diverged(tmp_path, **changes):
    """The result of a run that saves after every step and diverges, and its last good weights."""
    outcome = runner.run_study(small(arms=ARMS[:1], seeds=(0,), **changes), tmp_path)
    (run,) = outcome.diverged
    result = records.read(outcome.folder / run.file_name)["result"]
    assert not (outcome.folder / "weights").exists()
    return result, load_file(outcome.folder / "checkpoints" / result["last_good_checkpoint"])


@pytest.mark.parametrize("step, kept", [(3, [2]), (4, [2, 4])])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_no_number_stops_it_before_the_weights_are_spoiled(
    tmp_path, monkeypatch, saving, step, kept, clip
):
    """The loss before it was fine, and after the last step there would be no next loss to notice it."""
    made, count = runner.build_model, iter(range(100))

    def spoiled(run, task):
        model = made(run, task)
        next(model.parameters()).register_hook(lambda grad: grad * (float("nan") if next(count) == step else 1.0))
        return model

    monkeypatch.setattr(runner, "build_model", spoiled)
    result, good = diverged(tmp_path, budget=Budget(steps=6, batch_size=8, evaluate_every=2, max_grad_norm=clip))
    assert result["step"] == step and result["reason"] == f"the gradient became nan at step {step}"
    assert [row["step"] for row in result["evaluations"]] == kept
    assert all(tensor.isfinite().all() for name, tensor in good.items() if name.startswith("model."))


def test_an_evaluation_that_is_no_number_stops_it_too(tmp_path, monkeypatch, saving):
    """A length at which a mechanism breaks down: no record could hold it, and nothing be compared with it."""
    whole, count = training.evaluate, iter(range(100))

    def broken(*given):
        return whole(*given) | ({"surprise": float("inf")} if next(count) == 11 else {})  # of four splits, three times

    monkeypatch.setattr(training, "evaluate", broken)
    result, _ = diverged(tmp_path)
    assert result["reason"] == "the evaluation on 8x became inf at step 5"
    assert [row["step"] for row in result["evaluations"]] == [2, 4]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"arms": ()}, "study.arms"),
        ({"seeds": (1, 1)}, "study.seeds"),
        ({"decision": Decision(baseline="rotary")}, "baseline 'rotary'"),
        ({"decision": Decision(baseline="none", comparisons=1)}, "comparisons=2"),
    ],
)
def test_a_study_that_cannot_be_is_refused_when_written(changes, said):
    with pytest.raises(WhenceError, match=said):
        small(**changes)


def test_a_bad_spec_fails_before_anything_is_trained(tmp_path):
    for study, said in (
        (small(decision=Decision(baseline="none", split="9x")), "split '9x'"),
        (small(model={"embed_dim": 15, "heads": 2}), "embed_dim"),
        (small(model={"widht": 16}), "the setting widht"),
        (small(task="nothing"), "nothing"),
        (small(arms=(*ARMS, Arm("twin", "Epar( learnable = True )"))), "'EPAR' and 'twin'"),
    ):
        with pytest.raises(WhenceError, match=said):
            runner.run_study(study, tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WhenceError, match="the file"):
        runner.run_study(small(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("given", [{"alpha": 5.0}, {"alpha": 0.0}, {"alpha": "0.05"}, {"metric": "beauty"}])
def test_decisions_that_cannot_be(given):
    with pytest.raises(WhenceError, match=f"decision.{next(iter(given))}"):
        Decision(baseline="none", **given)


def test_a_study_decides_by_the_metric_it_names(finished, tmp_path):
    _, usual = finished
    outcome = runner.run_study(small(decision=Decision(baseline="none", metric="perplexity")), tmp_path)
    assert records.read(outcome.folder / "task.json")["metric"] == "perplexity"
    for name, result in values(outcome.folder).items():
        for row in result["evaluations"][-1]["splits"].values():
            assert row["value"] == pytest.approx(math.exp(row["surprise"])) and row["right"] <= row["asked"]
        assert same(result["losses"], values(usual.folder)[name]["losses"])  # it trains as ever
    found = results.collect_study(outcome.completed[0].study, outcome.folder)
    assert found["metric"] == "perplexity" and not found["higher_is_better"]


def test_fresh_processes_write_the_same_bits(tmp_path):
    code = (
        "import sys, pathlib, test_runner as t\n"
        "t.runner.run_study(t.small(), pathlib.Path(sys.argv[1]), jobs=int(sys.argv[2]))"
    )
    found = []
    for name, jobs in (("one", 1), ("again", 1), ("two at a time", 2)):
        here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        subprocess.run([sys.executable, "-c", code, tmp_path / name, str(jobs)], check=True, env=here, timeout=300)
        found.append(values(next((tmp_path / name).iterdir())))
    assert found[0] == found[1] == found[2] and len(found[0]) == 6


@pytest.mark.parametrize(
    "given",
    [{}, {"steps": 1, "epochs": 1}, {"steps": 0}, {"steps": 1, "schedule": "linear"}, {"steps": 1, "lr": "x"}],
)
def test_budgets_that_cannot_be(given):
    with pytest.raises(WhenceError):
        Budget(**given)


def test_the_hash_names_all_that_decides():
    assert small().hash == small(about="other words").hash
    assert small().hash == small(budget=Budget(steps=6, batch_size=8, evaluate_every=2, grad_accum_steps=1)).hash
    assert small().hash != small(budget=Budget(steps=6, batch_size=8, evaluate_every=2, grad_accum_steps=2)).hash
    assert small().hash != small(seeds=(0, 2)).hash != small(seeds=(0, 1), task_settings={}).hash
    assert Study(**{f.name: getattr(small(), f.name) for f in dataclasses.fields(Study)}).hash == small().hash


def test_schedules():
    class Some:
        def epoch(self, size, generator):
            return iter(range(5))

    warm = training.Schedule(Some(), Budget(steps=10, lr=1.0, warmup_steps=4, schedule="cosine"))
    assert [round(warm.lr(s), 3) for s in (0, 3, 4, 7)] == [0.25, 1.0, 1.0, 0.5]
    epochs = training.Schedule(Some(), Budget(epochs=3, evaluate_every=1))
    assert epochs.steps == 15 and [s for s in range(15) if epochs.evaluates_after(s)] == [4, 9, 14]


def test_runs_of_one_process_have_each_their_own_precision(tmp_path):
    found = {}
    for precision in ("no", "bf16", "no"):
        task = tasks.load("retrieval", pairs=2, keys=16, values=4, items=16)
        model = task.build_model({"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.0}, ARMS[1], 0)
        budget = Budget(steps=2, batch_size=8, mixed_precision=precision)
        loss = training.train(model, task, budget, 0, tmp_path / precision)["losses"][0]["loss"]
        assert found.setdefault(precision, loss) == pytest.approx(loss, rel=1e-6)
        assert all(weight.dtype == torch.float32 for weight in model.parameters())
    assert found["bf16"] != found["no"] and found["bf16"] == pytest.approx(found["no"], rel=1e-2)


def test_arms_fit_the_model_they_are_built_for():
    dims = ModelDims(4, 16, 64, 32, causal=False)
    assert parse_arm("alibi").build(dims).form == "symmetric" and parse_arm("t5").build(dims).form == "bidirectional"
    assert parse_arm("epar").build(dims).context == 32 and parse_arm("Epar(context=99)").build(dims).context == 99
    for text, said in (("flurb", "flurb"), ("Alibi(2)", "name each"), ("Alibi(x=1)", "rename x")):
        with pytest.raises(WhenceError, match=said):
            parse_arm(text)


def test_a_weight_that_nothing_depends_on_is_no_hindrance_to_resuming(tmp_path):
    def made():
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"used": torch.nn.Linear(2, 1), "idle": torch.nn.Linear(2, 1)})
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    def step(model, optimizer):
        model["used"](torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = made()
    step(model, optimizer)
    checkpoints.save(tmp_path / "state", model, optimizer, {"step": 1})
    again, resumed = made()
    assert checkpoints.load(tmp_path / "state", again, resumed) == {"step": 1}
    for pair in ((model, optimizer), (again, resumed)):
        step(*pair)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))

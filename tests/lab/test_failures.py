"""A run that ends with an error removes itself, by name, and not the verdicts of the other arms."""

import dataclasses
import random

import pytest

from whence.lab import failures, results, run_execution, runner, sequential, training
from whence.lab.arms import parse_arm
from whence.lab.claims import is_claimed
from whence.lab.sources import pin_sources
from whence.lab.study import Budget, Decision, Study
from whence.report.comparison import page
from whence.report.comparison.sentences import claim_sentences, summary_lines

STUDY = Study(
    name="rounds", question="", task="copy", task_settings={"string": 3, "symbols": 4, "items": 8},
    model={"embed_dim": 8, "heads": 1, "layers": 1, "ffn_dim": 8},
    arms=(parse_arm("none"), parse_arm("rotary"), parse_arm("alibi")), seeds=tuple(range(5)),
    budget=Budget(steps=1, batch_size=4), decision=Decision(baseline="none", looks=(3, 5)),
)  # fmt: skip
GAIN = {"NoPosition": 0.0, "Rotary": 0.4, "Alibi": 0.001}


class AwkwardError(Exception):
    """An error that pickle cannot restore, as many libraries have them."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


@pytest.fixture
def broken(monkeypatch):
    """The runs that fail, as (mechanism, seed), and the runs that were tried. The other runs have a value without training."""
    failing, tried = set(), []

    def train(model, task, budget, seed, state, on_progress=None, **others):
        name = type(model.body.layers[0].attention.position).__name__
        tried.append((name, seed))
        if (name, seed) in failing:
            raise AwkwardError("out of", "paper")
        value = 0.4 + GAIN[name] + random.Random(seed).gauss(0, 0.05) + random.Random(f"{name}{seed}").gauss(0, 0.01)
        splits = {split: {"value": value} for split in task.splits()}
        return {"steps": 1, "losses": [], "evaluations": [{"step": 1, "splits": splits}]}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr("whence.lab.checkpoints.save_weights", lambda *arguments: None)
    return failing, tried


def collect(state):
    return results.collect_findings([state.outcome.folder], "a title", "a command")


def test_a_failed_seed_removes_itself_and_no_verdict(tmp_path, broken):
    failing, tried = broken
    failing.add(("Rotary", 1))
    said = []
    (state,) = sequential.run_until_decided(
        [STUDY], tmp_path, on_failure=lambda run, word: said.append((run.arm.name, run.seed, word))
    )
    assert said == [("rotary", 1, "failed")]
    assert tried.count(("Rotary", 1)) == 1  # once in each call
    verdicts = {contrast.first: contrast for contrast in state.comparison.contrasts}
    assert verdicts["rotary"].verdict == "better" and 1 in verdicts["rotary"].missing
    assert verdicts["alibi"].seeds == 5  # it goes on, with all its seeds
    (failed,) = state.outcome.failed
    assert "rotary, seed 1 of rounds failed" in str(failed) and "AwkwardError: out of paper" in str(failed)
    findings = collect(state)
    arm = findings["studies"][0]["comparison"]["arms"]["rotary"]
    assert arm["kind"] == "better" and ", without seed 1, claimed" in arm["verdict"] and arm["left_out"] == [1]
    terminal = "\n".join(summary_lines(findings["studies"]))
    assert ", without seed 1)." in terminal and "seed 1 failed (" in terminal and "test_failures.py, line" in terminal
    text = page(findings)
    assert "seed 1 failed (" in text and "AwkwardError" in text

    failing.clear()
    (state,) = sequential.run_until_decided([STUDY], tmp_path)  # the same command tries it again
    assert tried.count(("Rotary", 1)) == 2 and not state.outcome.failed
    assert not list(state.outcome.folder.glob("*.failure.json"))
    assert collect(state)["studies"][0]["comparison"]["arms"]["rotary"]["left_out"] == []


def test_a_study_with_one_look_has_its_verdicts_too(tmp_path, broken):
    failing, _ = broken
    failing |= {("Alibi", 0), ("NoPosition", 3)}
    study = dataclasses.replace(STUDY, decision=Decision(baseline="none"))
    outcome = runner.run_study(study, tmp_path)
    arms = results.collect_study(pin_sources(study), outcome.folder)["comparison"]["arms"]
    assert arms["rotary"]["kind"] == "better" and arms["rotary"]["left_out"] == [3]
    assert arms["alibi"]["left_out"] == [0, 3] and ", without seeds 0 and 3)" in arms["alibi"]["verdict"]


def test_a_comparison_without_the_baseline_names_its_seeds_too(tmp_path, broken):
    failing, _ = broken
    failing |= {("Alibi", 0), ("NoPosition", 3)}
    study = dataclasses.replace(STUDY, decision=Decision(baseline="none", family="pairs"))
    found = results.collect_study(pin_sources(study), runner.run_study(study, tmp_path).folder)
    (other,) = found["comparison"]["others"]
    assert (other["first"], other["second"], other["left_out"]) == ("rotary", "alibi", [0])
    assert other["sentence"].endswith(", without seed 0)")
    assert any(line.endswith(", without seed 0) on rounds.") for line in claim_sentences(found))


def test_an_arm_that_always_fails_is_dropped_by_name(tmp_path, broken):
    failing, tried = broken
    failing |= {("Rotary", seed) for seed in range(5)}
    (state,) = sequential.run_until_decided([STUDY], tmp_path)
    assert sum(name == "Rotary" for name, _ in tried) == 3 and sum(name == "Alibi" for name, _ in tried) == 5
    assert any("rotary gets no further seeds" in note and "3 runs failed" in note for note in state.outcome.notes)
    study = collect(state)["studies"][0]
    assert set(study["comparison"]["arms"]) == {"alibi"} and study["arms"][1]["summary"] is None
    sequential.run_until_decided([STUDY], tmp_path)
    assert sum(name == "Rotary" for name, _ in tried) == 6 and sum(name == "Alibi" for name, _ in tried) == 5


def test_without_a_baseline_nothing_goes_on(tmp_path, broken):
    failing, tried = broken
    failing |= {("NoPosition", seed) for seed in range(5)}
    (state,) = sequential.run_until_decided([STUDY], tmp_path)
    assert len(tried) == 9 and state.comparison is None
    study = collect(state)["studies"][0]
    assert study["why_no_comparison"] == "every seed of the baseline none failed or diverged"
    pairs = dataclasses.replace(STUDY, decision=dataclasses.replace(STUDY.decision, family="pairs"))
    (state,) = sequential.run_until_decided([pairs], tmp_path)  # the other pairs are decided
    comparison = collect(state)["studies"][0]["comparison"]
    assert (comparison["baseline"], comparison["arms"]["alibi"]["kind"]) == ("rotary", "worse")


def test_a_failure_that_another_process_stored_is_not_tried_again_in_this_call(tmp_path, broken, monkeypatch):
    study = pin_sources(dataclasses.replace(STUDY, decision=Decision(baseline="none")))
    run = study.runs()[0]
    original = run_execution.execute_run

    def execute(one, folder, *others):
        if one == run:
            failures.write_failure(run, folder, failures.describe_error(run, KeyError("there")).failure)
            raise runner.RunInProgress("it was in progress")
        return original(one, folder, *others)

    monkeypatch.setattr(run_execution, "execute_run", execute)
    (failed,) = runner.run_study(study, tmp_path).failed
    assert failed.run_id == (run.arm.name, run.seed) and "KeyError: 'there'" in str(failed)


def test_a_run_that_failed_elsewhere_meanwhile_is_not_trained_again(tmp_path, broken):
    """The other process has released its claim on the run by the time this one comes to it."""
    _, tried = broken
    study = pin_sources(dataclasses.replace(STUDY, seeds=(0, 1), decision=Decision(baseline="none")))
    *_, last = study.runs()

    def fail_elsewhere(runs, folder):
        failures.write_failure(last, folder, failures.describe_error(last, KeyError("x")).failure)

    said = []
    outcome = runner.run_study(
        study, tmp_path, on_start=fail_elsewhere, on_failure=lambda run, word: said.append((run, word)),
    )  # fmt: skip
    assert len(tried) == len(set(tried)) == 5 and len(outcome.completed) == 5
    assert [error.run_id for error in outcome.failed] == [(last.arm.name, last.seed)] and said == [(last, "failed")]
    assert "KeyError: 'x'" in str(outcome.failed[0])
    assert failures.load_failure(last, outcome.folder) == outcome.failed[0].failure
    assert runner.run_study(study, tmp_path).completed == [last]  # the same command tries it again
    assert failures.load_failure(last, outcome.folder) is None


def test_a_failure_is_stored_before_the_claim_on_its_run_is_released(tmp_path, broken, monkeypatch):
    """Otherwise a process that waits for the run would find neither a record nor a failure, and train it again."""
    failing, _ = broken
    failing.add(("NoPosition", 0))
    claimed, write = [], failures.write_failure

    def write_failure(run, folder, failure):
        claimed.append(is_claimed(run, folder))
        write(run, folder, failure)

    monkeypatch.setattr(run_execution, "write_failure", write_failure)
    run = STUDY.runs()[0]
    with pytest.raises(failures.RunFailed, match="AwkwardError: out of paper"):
        run_execution.try_run(run, tmp_path)
    assert claimed == [True] and not is_claimed(run, tmp_path)


def test_a_stored_failure_counts_only_without_a_record(tmp_path):
    run = STUDY.runs()[0]
    failures.write_failure(run, tmp_path, failures.describe_error(run, KeyError("x")).failure)
    assert failures.load_failure(run, tmp_path).error == "KeyError: 'x'"
    failures.failure_path(run, tmp_path).write_text("{")
    assert "cannot be read" in failures.load_failure(run, tmp_path).error
    (tmp_path / run.file_name).write_text("{}")
    assert failures.load_failure(run, tmp_path) is None


ABSENT = """
import multiprocessing

from whence import Position


class OddError(Exception):
    def __init__(self, first, second):
        super().__init__(first + second)


class Absent(Position):
    def bias(self, distance, length):
        if multiprocessing.parent_process() is not None:  # the checks before training run in the main process
            raise OddError("out of ", "paper")
        return 0.0 * distance
"""


def test_the_line_of_an_error_leaves_the_worker(tmp_path, monkeypatch, forked_workers):
    """Neither the traceback nor an error of such a class can be sent between processes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "absent.py").write_text(ABSENT)
    study = dataclasses.replace(
        STUDY, arms=(parse_arm("none"), parse_arm("./absent.py:Absent")), seeds=(0,), decision=Decision(baseline="none")
    )
    outcome = runner.run_study(study, tmp_path / "out", jobs=2)
    (failed,) = outcome.failed
    assert len(outcome.completed) == 1 and "absent.py, line 15, in bias: OddError: out of paper" in failed.describe()
    assert "WHENCE_TRACEBACK=1" in failed.describe() and "Traceback" not in failed.describe()
    monkeypatch.setenv("WHENCE_TRACEBACK", "1")
    assert "Traceback" in failed.describe() and 'raise OddError("out of ", "paper")' in failed.describe()

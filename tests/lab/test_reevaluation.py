"""Other evaluation lengths and metrics reuse the weights of a run; the record is that of a full run."""

import dataclasses

import pytest

from whence import WhenceError, records
from whence.lab import default_studies, run_execution, run_keys, runner
from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Run, Study
from whence.lab.tasks import load

MODEL = {"embed_dim": 8, "heads": 1, "layers": 1, "ffn_dim": 8}
COPY = Study(
    name="copy", question="", task="copy", task_settings={"string": 3, "symbols": 4, "items": 8, "lengths": [1, 2]},
    model=MODEL, arms=(parse_arm("none"), parse_arm("alibi")), seeds=(0, 1),
    budget=Budget(steps=4, batch_size=4, evaluate_every=2), decision=Decision(baseline="none"),
)  # fmt: skip


def change(study, lengths="same", **changes):
    settings = {name: value for name, value in study.task_settings.items() if name != "lengths"}
    if lengths == "same":
        lengths = study.task_settings.get("lengths")
    if lengths is not None:
        settings["lengths"] = lengths
    return dataclasses.replace(study, task_settings=settings, **changes)


def run_keeping(study, base):
    outcome = runner.run_study(study, base)
    assert not outcome.problems and not outcome.diverged
    return outcome, {run.file_name: records.read(outcome.folder / run.file_name) for run in study.runs()}


#: what differs between two executions of the same run
VOLATILE = ("started", "wall_seconds", "evaluation", "command", "environment")


def require_same(found, expected):
    assert list(found) == list(expected)
    for name in found:
        left, right = (
            {key: value for key, value in one[name].items() if key not in VOLATILE} for one in (found, expected)
        )
        assert left == right


@pytest.mark.parametrize("lengths", [[1, 2, 4, 16], [1], [2, 8]])
def test_other_lengths_evaluate_only_what_is_missing(tmp_path, monkeypatch, lengths):
    run_keeping(COPY, tmp_path / "reused")
    other = change(COPY, lengths)
    monkeypatch.setattr(run_execution, "train_run", lambda *arguments: pytest.fail("trained again"))
    outcome, reused = run_keeping(other, tmp_path / "reused")
    monkeypatch.undo()
    assert len(outcome.completed) == 4 and "evaluated again" in outcome.notes[0]
    _, full = run_keeping(other, tmp_path / "full")
    require_same(reused, full)
    new = [f"{length}x" for length in lengths if length not in (1, 2)]
    for record in reused.values():
        assert record["evaluation"]["splits"] == new and record["evaluation"]["record"].startswith("copy-")
        assert record["evaluation"]["environment"] and record["environment"]
    for run in other.runs():  # so that this study can be extended in turn
        assert (outcome.folder / "weights" / run.weights_name).exists()


def test_chosen_lengths_reuse_the_usual_ones_but_not_the_other_way_round(tmp_path):
    """The usual lengths are evaluated during training too, which the weights cannot give afterwards."""
    usual = change(COPY, None, seeds=(0,))
    run_keeping(usual, tmp_path / "a")
    _, reused = run_keeping(change(usual, [1, 8]), tmp_path / "a")
    assert all(record["evaluation"]["splits"] == [] for record in reused.values())
    require_same(reused, run_keeping(change(usual, [1, 8]), tmp_path / "b")[1])
    _, trained = run_keeping(usual, tmp_path / "b")
    assert not any("evaluation" in record for record in trained.values())


def test_without_weights_the_run_is_trained_and_a_note_says_so(tmp_path):
    first, _ = run_keeping(COPY, tmp_path)
    for file in (first.folder / "weights").iterdir():
        file.unlink()
    outcome, trained = run_keeping(change(COPY, [1, 4]), tmp_path)
    assert outcome.notes == [f"{first.folder.name} has no weights of 4 runs, so they are trained again"]
    assert not any("evaluation" in record for record in trained.values())
    outcome, fewer = run_keeping(change(COPY, [1]), tmp_path)  # needs no weights
    assert "evaluated again" in outcome.notes[0] and all("evaluation" in record for record in fewer.values())


def test_another_metric_is_computed_from_the_counts(tmp_path):
    run_keeping(COPY, tmp_path / "reused")
    other = change(COPY, decision=Decision(baseline="none", metric="perplexity"))
    _, reused = run_keeping(other, tmp_path / "reused")
    assert all(record["evaluation"]["splits"] == [] for record in reused.values())
    require_same(reused, run_keeping(other, tmp_path / "full")[1])


def test_the_keys():
    def keys(study):
        run = Run(study, study.arms[0], 0)
        return run_keys.run_key(run), run_keys.training_key(run)

    longer, stopped = change(COPY, [1, 8]), Budget(steps=4, batch_size=4, evaluate_every=2, patience=1)
    assert keys(longer)[0] != keys(COPY)[0] and keys(longer)[1] == keys(COPY)[1]
    assert keys(change(COPY, budget=stopped))[1] != keys(COPY)[1]
    by_loss = Decision(baseline="none", metric="perplexity")  # with early stopping the metric chooses the weights
    assert keys(change(COPY, budget=stopped, decision=by_loss))[1] != keys(change(COPY, budget=stopped))[1]
    assert keys(change(COPY, decision=by_loss))[1] == keys(COPY)[1]


@pytest.mark.parametrize("task", ["retrieval", "copy", "topics", "sources"])
def test_the_inputs_of_a_split_do_not_depend_on_the_other_lengths(task):
    small = {
        "retrieval": {"pairs": 2, "items": 4},
        "copy": {"items": 4},
        "topics": {"blocks": 4},
        "sources": {"items": 4},
    }
    chosen, usual = load(task, **small[task], lengths=[4, 2]), load(task, **small[task])
    assert list(chosen.splits()) == ["test", "2x", "4x"] and chosen.training_splits() == ["test"]
    assert usual.training_splits() == list(usual.splits()) and chosen.settings == usual.settings
    for split in chosen.splits():
        for left, right in zip(chosen.evaluation(split), usual.evaluation(split), strict=True):
            assert left.tokens.equal(right.tokens) and left.targets.equal(right.targets)
    for wrong in ([], [0], [1.5], [True]):
        with pytest.raises(WhenceError, match=rf"{task}.*lengths.*pass"):
            load(task, **small[task], lengths=wrong)


def test_more_text_before_each_block_is_another_evaluation():
    """Longer inputs than 8x start later in the text, so other tokens are scored: the settings say so."""
    assert load("topics", blocks=4, lengths=[16]).settings != load("topics", blocks=4).settings


def test_lengths_of_the_command():
    build, parse = default_studies.build_studies, default_studies.parse_lengths
    copy, topics = build(lengths=parse("1x,2x, 4x"))
    assert copy.task_settings["lengths"] == [1, 2, 4] and copy.decision.split == "test"
    assert topics.decision.split == "4x"  # the usual one, 8x, is not evaluated
    assert build(lengths=[1])[1].decision.split == "test" and "lengths" not in build()[0].task_settings
    for wrong in ("", "2y", "0x", "1x,,2x", "-1"):
        with pytest.raises(WhenceError, match=r"--lengths.*pass 1x"):
            parse(wrong)
    with pytest.raises(WhenceError, match=r"--lengths.*2x.*sst2.*leave it out"):
        build(["sst2"], lengths=[2])

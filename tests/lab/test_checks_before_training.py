"""Checks before training: arms that a task excludes, lengths out of reach, and seeds that cannot decide."""

import dataclasses

import pytest
from small_study import build_study

from whence import WhenceError
from whence.lab import checks, results, runner, training
from whence.lab.arms import parse_arm
from whence.lab.default_studies import build_studies
from whence.lab.sources import pin_sources
from whence.lab.study import Decision
from whence.lab.study_folder import study_folder, write_spec
from whence.user_code import describe_user_error

TABLE = """
import torch
import whence

class Table(whence.Position):
    def __init__(self):
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(12))

    def bias(self, distance, length):
        return self.values[distance.long()]
"""


@pytest.fixture
def no_training(monkeypatch):
    def train(*arguments, **others):
        raise AssertionError("training began")

    monkeypatch.setattr(training, "train", train)


def named(*positions, **changes):
    arms = tuple(parse_arm(text) for text in positions)
    return build_study(arms=arms, seeds=(0, 1, 2), decision=Decision(baseline=arms[0].name), **changes)


@pytest.fixture(scope="module")
def two_sided(tmp_path_factory):
    """A small classification task, whose model is an encoder."""
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    path.write_text("text,label\n" + "".join(f"{'good' if n % 2 else 'bad'} film {n},{n % 2}\n" for n in range(40)))
    return {"task": "labelled_file", "task_settings": {"path": str(path), "context": 4}}


def test_causal_mechanisms_are_left_out_of_two_sided_tasks(no_training, two_sided):
    study = named("none", "fire", "alibi", "rotary + cope", "stablemask", **two_sided)
    (checked,), notes = runner.check_studies([study])
    assert [arm.name for arm in checked.arms] == ["none", "alibi"]
    assert len(notes) == 3 and all(
        "causal" in note and "reviews.csv" in note and "labelled_file" not in note for note in notes
    )
    assert [note.partition(" is left out")[0] for note in notes] == ["fire", "rotary + cope", "stablemask"]
    assert all(note in checked.about for note in notes) and checked.hash != study.hash
    with pytest.raises(WhenceError, match=r"'fire'.*causal.*remove the arm"):  # a study file is refused
        runner.validate_study(study)
    with pytest.raises(WhenceError, match=r"--position got .*reviews.csv.*'fire'.*causal.*another position"):
        runner.check_studies([named("fire", "cope", **two_sided)])


def test_the_baseline_may_be_left_out_unless_it_was_named(no_training, two_sided):
    study = named("fire", "none", "alibi", **two_sided)
    (checked,), notes = runner.check_studies([study])
    assert checked.decision.baseline == "none" and "baseline on reviews.csv is none" in notes[1]
    with pytest.raises(WhenceError, match=r"--baseline got 'fire' on reviews.csv.*causal.*'none'"):
        runner.check_studies([study], baseline="fire")


def test_lengths_out_of_reach_name_the_split(no_training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.py").write_text(TABLE)
    study = named("none", "Learned(max_length=16)", "./table.py:Table", "learned")  # inputs of 5, 9, 17 and 33 tokens
    (checked,), (first, second) = runner.check_studies([study])
    assert [arm.name for arm in checked.arms] == ["none", "learned"]
    assert "17 tokens of the split 4x" in first and "max_length=16" in first
    assert "17 tokens of the split 4x" in second and "IndexError" in second
    with pytest.raises(WhenceError, match=r"small.*Learned\(max_length=16\).*split 4x.*remove the arm"):
        runner.run_study(study, tmp_path / "out")
    (_,), notes = runner.check_studies([named("none", "Learned(max_length=4)")])
    assert "5 tokens of an input of training" in notes[0]


def test_an_error_of_the_users_code_on_training_inputs_stops_everything(no_training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.py").write_text(TABLE.replace("self.values[", "self.value["))
    with pytest.raises(AttributeError, match="value") as caught:
        runner.check_studies([named("none", "./table.py:Table")])
    assert describe_user_error(caught.value).startswith("table.py, line 11, in bias: AttributeError")


def test_an_error_of_an_installed_mechanism_on_training_inputs_stops_everything(no_training, tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    (packages / "installed_table.py").write_text(TABLE.replace("self.values[", "self.value["))
    with pytest.raises(AttributeError, match="value"):
        runner.check_studies([named("none", "installed_table:Table")])


def test_only_the_class_that_an_error_names_is_the_users(no_training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "learn.py").write_text(
        "import whence\n\nclass Learn(whence.Position):\n    def bias(self, distance, length):\n        return distance\n"
    )
    (_,), notes = runner.check_studies([named("none", "./learn.py:Learn + Learned(max_length=4)")])
    assert "5 tokens of an input of training (Learned" in notes[0]


def test_comparisons_that_remain_are_one_family(no_training, two_sided):
    studies = build_studies(("retrieval", "copy"), ("none", "fire", "alibi"), (3,))
    checked, notes = runner.check_studies([studies[0], dataclasses.replace(studies[1], **two_sided)])
    assert [study.decision.comparisons for study in checked] == [3, 3] and len(notes) == 1
    assert notes[0] not in checked[0].about and notes[0] in checked[1].about


@pytest.mark.parametrize(("seeds", "note"), [(1, "1 seed cannot decide"), (2, "2 seeds are too few"), (5, None)])
def test_seeds_that_cannot_decide(seeds, note):
    study = dataclasses.replace(build_study(), seeds=tuple(range(seeds)))
    (checked,), notes = runner.check_studies([study])
    assert notes == ([] if note is None else [checked.about])
    if note is not None:
        assert notes[0].startswith(note) and notes[0].endswith(" 3 seeds would do.")


def test_many_comparisons_need_more_seeds():
    powers = [checks.estimate_power(6, seeds, "baseline", 0.05) for seeds in (2, 3, 5)]
    assert powers == sorted(powers) and powers[0] < 0.8 < powers[1]
    assert checks.find_deciding_seeds(3, "baseline", 0.05) == 3
    assert checks.find_deciding_seeds(3, "baseline", 0.002) > 3


def test_notes_follow_the_last_command(tmp_path):
    study = pin_sources(build_study())
    folder = study_folder(study, tmp_path)
    for about in ("one arm is left out", ""):
        write_spec(dataclasses.replace(study, about=about), folder)
        assert results.load_study(folder).about == about

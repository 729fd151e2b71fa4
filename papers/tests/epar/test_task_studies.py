"""The studies of the EPAR source's tasks: the arms and the decision of its protocol, and a small form that runs in seconds."""

import runpy
from dataclasses import replace

import pytest

from whence import records
from whence.lab.runner import run_study
from whence.lab.study_task import load_task
from whence_papers import FOLDER
from whence_papers.epar.task_studies import SIZES

PROTOCOL = runpy.run_path(str(FOLDER / "studies/epar/protocol.py"))
FILES = {name: runpy.run_path(str(FOLDER / f"studies/{name}.py")) for name in ("question_answering",)}


@pytest.mark.parametrize("scale", SIZES)
@pytest.mark.parametrize("name", FILES)
def test_the_arms_and_the_decision(name, scale):
    for study in FILES[name]["studies"](scale):
        assert study.arms[:7] == PROTOCOL["ARMS"]
        assert [arm.position for arm in study.arms[7:]] == ["Learned() + Epar()", "Sinusoidal() + Epar()"]
        assert study.decision.alpha == 0.01 and study.decision.baseline == "rotary" and study.comparisons == 8
        assert scale in study.name and (scale == "small" or study.seeds == (42, 43, 44, 45, 46))


def run_two_arms(study, folder):
    """The last evaluation of rotary and of EPAR with learned vectors, one seed each."""
    arms = tuple(arm for arm in study.arms if arm.name in ("rotary", "Learned + EPAR"))
    study = replace(study, arms=arms, seeds=study.seeds[:1], decision=replace(study.decision, comparisons=None))
    outcome = run_study(study, folder, jobs=1)
    assert len(outcome.completed) == 2
    rows = [records.read(outcome.folder / run.file_name)["result"]["evaluations"][-1]["splits"] for run in study.runs()]
    return [row[study.decision.split] for row in rows]


def test_questions(tmp_path):
    original, shuffled = FILES["question_answering"]["studies"]("small")
    assert (original.decision.split, shuffled.decision.split) == ("test", "shuffled")
    assert load_task(original).settings["order"] == "original"
    for row in run_two_arms(shuffled, tmp_path):
        assert row["value"] == row["token_f1"] and "exact_match" in row
    (own, _) = FILES["question_answering"]["studies"]("gpu", "mine.json")
    assert own.task == "squad" and own.task_settings["path"] == "mine.json"

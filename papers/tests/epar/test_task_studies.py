"""The studies of the EPAR source's tasks: the arms and the decision of its protocol, and a small form that runs in seconds."""

import runpy
from dataclasses import replace

import pytest

from whence import records
from whence.lab.runner import run_study
from whence.lab.study_task import load_task
from whence_papers import FOLDER
from whence_papers.epar.task_studies import SIZES, size_for

PROTOCOL = runpy.run_path(str(FOLDER / "studies/epar/protocol.py"))
NAMES = ("question_answering", "glue", "summarization", "language_modelling")
FILES = {name: runpy.run_path(str(FOLDER / f"studies/{name}.py")) for name in NAMES}


@pytest.mark.parametrize("scale", SIZES)
@pytest.mark.parametrize("name", FILES)
def test_the_arms_and_the_decision(name, scale):
    for study in FILES[name]["studies"](scale):
        assert study.arms[:7] == PROTOCOL["ARMS"]
        assert [arm.position for arm in study.arms[7:]] == ["Learned() + Epar()", "Sinusoidal() + Epar()"]
        assert study.decision.alpha == 0.01 and study.decision.baseline == "rotary" and study.comparisons == 8
        assert scale in study.name and (scale == "small" or study.seeds == (42, 43, 44, 45, 46))


def test_the_small_protocol_needs_no_files(monkeypatch):
    monkeypatch.delenv("WHENCE_DATA", raising=False)
    (study,) = PROTOCOL["studies"]("small")
    assert study.arms == PROTOCOL["ARMS"] and study.decision.alpha == 0.01 and len(study.seeds) == 5
    task = load_task(study)
    assert task.name == "topics" and task.vocab_size == 256 and "bytes" in study.about


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
    for scale in ("cpu", "gpu"):
        assert [study.name for study in FILES["question_answering"]["studies"](scale)] == [
            f"question-answering-{scale}-{task}-{order}"
            for task in ("squad", "questions")
            for order in ("original", "shuffled")
        ]
    (own, _) = FILES["question_answering"]["studies"]("gpu", "mine.json")
    assert own.task == "squad" and own.task_settings["path"] == "mine.json"


@pytest.mark.parametrize(
    "name, metric", [("glue", "accuracy"), ("summarization", "rougeL"), ("language_modelling", "perplexity")]
)
def test_the_other_tasks(name, metric, tmp_path):
    (study,) = FILES[name]["studies"]("small")
    assert load_task(study).metric == metric
    for row in run_two_arms(study, tmp_path):
        assert row["value"] == (row[metric] if metric in row else pytest.approx(row["value"])) and row["value"] > 0


@pytest.mark.parametrize("name", FILES)
def test_steps_of_the_gpu_follow_from_the_size_of_the_data(name):
    for study in FILES[name]["studies"]("gpu"):
        assert "epochs" in study.about and study.budget.steps <= 4000


def test_size_for_a_data_set():
    assert size_for("gpu", 1000, 3, batch_size=100).steps == 30
    assert size_for("gpu", batch_size=100).steps == SIZES["gpu"].steps


def test_own_data():
    (glue,) = FILES["glue"]["studies"]("gpu", subset="rte", data="RTE")
    assert (
        glue.task_settings["subset"] == "rte" and glue.task_settings["path"] == "RTE" and glue.decision.split == "dev"
    )
    (papers,) = FILES["summarization"]["studies"]("cpu", data="papers.jsonl")
    assert papers.task == "arxiv" and papers.task_settings["path"] == "papers.jsonl"
    (text,) = FILES["language_modelling"]["studies"]("small", data="book.txt")
    assert text.task == "text_file" and text.task_settings["lengths"] == [1]
    gpu = FILES["language_modelling"]["studies"]("gpu")
    assert [study.name for study in gpu] == ["language-modelling-gpu-books", "language-modelling-gpu-wikitext2-valid"]

"""The top of a study: what the data are, and the floor and ceiling of the task as lines, in a table and in the verdict."""

import re

import pytest
from comparison_findings import findings

from whence.report.comparison import page
from whence.report.comparison.baseline_lines import choose_baselines, near_values
from whence.report.comparison.data_facts import data_section, data_sentences
from whence.report.comparison.units import choose_units
from whence.report.comparison.verdicts import headline, verdict_lines

DATA = {
    "items": {"train": 800, "test": 100, "validation": 100},
    "classes": {"<neg>": {"train": 600, "test": 75, "validation": 75}, "pos": {"train": 200, "test": 25, "validation": 25}},
    "lengths": {"unit": "words", "min": 1, "median": 7, "p90": 23, "max": 99, "limit": 64, "truncated": 0.034},
    "duplicates": {"repeated_rows": 12, "across_parts": {"test": 3}, "conflicting_texts": 2, "conflicting_rows": 5},
    "unknown": {"train": 0.0, "test": 0.05},
    "bad_rows": {"count": 7, "reasons": {"empty text": 7}, "first": ["line 3: empty text"]},
    "split": "by seed 0",
    "tokens": "words; a vocabulary of 500",
}  # fmt: skip


def level(name, kind, **values):
    return {"name": name, "kind": kind, "about": f"About {name}.", "splits": {"test": values, "8x": values}}


@pytest.fixture
def data_findings():
    whole = findings()
    study = whole["studies"][0]
    study["data"] = DATA
    study["baselines"] = [
        level("chance", "constant", accuracy=0.25), level("majority class", "constant", accuracy=0.6, mcc=0.0),
        level("bag of words", "rule", accuracy=0.7, mcc=0.4), level("best possible", "ceiling", accuracy=1.0),
    ]  # fmt: skip
    study["scores"] = {arm["name"]: {"accuracy": 0.8, "macro_f1": 0.75, "mcc": 0.5} for arm in study["arms"]}
    names = [arm["name"] for arm in study["arms"]]
    study["constant"] = {"name": "majority class", "value": 0.6, "beaten_by": names[1:], "not_beaten_by": names[:1]}
    return whole


def test_the_facts_in_sentences():
    said = " ".join(data_sentences(DATA))
    for words in (
        "7 rows left out: line 3: empty text; …", "2 texts with different labels (5 rows)", "3 rows of test (3 %)",
        "3.4 % of the inputs are longer than the context of 64", "800 train, 100 test, 100 validation", "<neg>, has 75 %",
        "median 7, 90 % at most 23, longest 99", "12 rows with the text of another row", "5 % of test",
    ):  # fmt: skip
        assert words in said, words
    assert said.index("left out") < said.index("800 train")  # problems come first
    assert data_sentences({}) == [] and data_section({}) == ""
    assert "&lt;neg&gt;" in data_section(DATA) and "<neg>" not in data_section(DATA)


def test_the_page_shows_facts_lines_and_scores(data_findings):
    whole = page(data_findings)
    first, second, *_ = whole.split('<section class="study"')[1:]
    assert "<h3>Data</h3>" in first and "<h3>Data</h3>" not in second
    assert first.index("<h3>Data</h3>") < first.index('class="results"')
    assert "All metrics and baselines" in first and "macro F1 (%)" in first and "MCC" in first
    assert re.search(r'<line class="reference"[^>]*></line><text class="tick"[^>]*>majority class</text>', first)
    assert (
        "Dotted: majority class 60;" in first.replace(",", ";")
        and "chance" not in re.findall("Dotted: [^;]*", first)[0]
    )
    assert "does not beat a constant answer (majority class: 60" in whole


def test_lines_are_the_best_of_each_kind_in_the_metric_shown(data_findings):
    study = data_findings["studies"][0]
    lines = choose_baselines(study, choose_units(study))
    assert [(line.name, line.values["test"]) for line in lines] == [("majority class", 60.0), ("bag of words", 70.0)]
    study["metric"] = "mcc"
    assert [line.name for line in choose_baselines(study, choose_units(study))] == ["majority class", "bag of words"]
    assert near_values(lines, "test", [62.0, 72.0]) == [60.0, 70.0]
    assert near_values(lines, "test", [90.0, 92.0]) == [] and near_values(lines, "test", []) == []


def test_an_arm_without_proof_is_not_said_to_lose_to_a_constant_answer(data_findings):
    constant = data_findings["studies"][0]["constant"]
    constant["inconclusive"] = constant["not_beaten_by"]
    text = page(data_findings)
    assert "is not shown to beat a constant answer (majority class: 60" in text and "does not beat" not in text


def test_no_arm_beats_a_constant_answer_comes_first(data_findings):
    study = data_findings["studies"][0]
    study["constant"]["beaten_by"] = []
    assert headline(study).startswith("No arm beats a constant answer (majority class: 60")
    assert verdict_lines(study)[1] == "No arm beats a constant answer (majority class: 60 %)."
    study["constant"]["inconclusive"] = study["constant"]["not_beaten_by"][:1]
    assert headline(study).startswith("No arm is shown to beat a constant answer (majority class: 60")
    study["constant"]["inconclusive"] = []
    study["comparison"] = None
    assert headline(study).startswith("No arm beats a constant answer")


def test_mcc_is_no_percentage(data_findings):
    study = data_findings["studies"][0]
    study["metric"], study["comparison"] = "mcc", None
    assert choose_units(study).label == "MCC" and choose_units(study).value_factor == 1
    study["metric"] = "balanced_accuracy"
    assert choose_units(study).label == "balanced accuracy (%)" and choose_units(study).value_factor == 100

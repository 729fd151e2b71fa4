"""The translation study: the arms of the protocol and those with position vectors, and a small form that runs in seconds."""

import gzip
import runpy
from dataclasses import replace

import pytest

from whence import records
from whence.lab.runner import run_study
from whence_papers import FOLDER

FILE = runpy.run_path(str(FOLDER / "studies/translation.py"))
PROTOCOL = runpy.run_path(str(FOLDER / "studies/epar/protocol.py"))


@pytest.mark.parametrize("scale", FILE["SCALES"])
def test_the_arms_and_the_decision(scale):
    (study,) = FILE["studies"](scale)
    assert study.arms[:7] == PROTOCOL["ARMS"] and [arm.name for arm in study.arms[7:]] == [
        "Learned + EPAR",
        "Sinusoidal + EPAR",
    ]
    assert study.decision.metric == "bleu" and study.decision.alpha == 0.01 and study.comparisons == 8
    assert study.task_settings["translations"] == study.task_settings["test_pairs"] > 0
    if scale != "small":
        assert study.seeds == (42, 43, 44, 45, 46)
    assert study.task == ("wmt14" if scale == "source" else "multi30k")


def test_the_small_form_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    (tmp_path / "multi30k").mkdir()
    for stem in ("train", "val", "test_2016_flickr"):
        for language, text in (("en", "a man number {} sleeps ."), ("de", "ein mann nummer {} schläft .")):
            lines = "".join(text.format(number) + "\n" for number in range(20))
            (tmp_path / f"multi30k/{stem}.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    (study,) = FILE["studies"]("small")
    arms = tuple(arm for arm in study.arms if arm.name in ("rotary", "Learned + EPAR"))
    study = replace(study, arms=arms, seeds=study.seeds[:1], decision=replace(study.decision, comparisons=None))
    outcome = run_study(study, tmp_path / "out", jobs=1)
    assert len(outcome.completed) == 2
    for run in study.runs():
        row = records.read(outcome.folder / run.file_name)["result"]["evaluations"][-1]["splits"]["test"]
        assert row["value"] == row["bleu"] and {"chrf", "cross_entropy", "correct"} <= row.keys()

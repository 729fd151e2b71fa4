"""``whence.compare``, the command as a function."""

import sys

import pytest

import whence
from whence import Alibi, Position, Rotary, WhenceError
from whence.cli.app import app
from whence.lab.arms import Arm

BELL = """
import torch
import whence

class Bell(whence.Position):
    def bias(self, distance, length):
        return torch.exp(-(distance / 3.0) ** 2)
"""
SMALL = {"seeds": 2, "settings": {"steps": 2, "layers": 1}, "budget": "5m"}


def test_classes_texts_and_arms_are_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_bell.py").write_text(BELL)
    import own_bell

    try:
        positions = [Rotary, own_bell.Bell, "alibi; lr=1e-2", Arm("steep", "Alibi(scale=2)")]
        found = whence.compare(positions, ["retrieval"], **SMALL, out="out")
    finally:
        del sys.modules["own_bell"]
    (study,) = found.studies
    assert [arm["name"] for arm in study["arms"]] == ["Rotary", "own_bell:Bell", "alibi; lr=1e-2", "steep"]
    assert all(len(arm["values"][study["split"]]) == 2 for arm in study["arms"])
    assert found.report.is_file() and (found.unfinished_runs, found.problems) == (0, [])
    assert study["verdict"] in str(found) and f"report: {found.report}" in repr(found)
    assert "8 of 8" in capsys.readouterr().err
    app(  # the command finds the records of the function
        [
            *("compare", "--position", "Rotary", "--position", "alibi; lr=1e-2", "--task", "retrieval", "--seeds", "2"),
            *("--steps", "2", "--layers", "1", "--out", "out"),
        ],
        standalone_mode=False,
    )
    assert "of 4" not in capsys.readouterr().err


def test_a_failed_run_is_a_problem_and_no_exit(tmp_path, monkeypatch):
    monkeypatch.setattr("whence.lab.training.train", lambda *arguments, **others: 1 / 0)
    found = whence.compare(["none", "alibi"], ["retrieval"], **SMALL, out=tmp_path)
    assert len(found.problems) == 4 and "ZeroDivisionError" in str(found)


class Own(Position):
    pass


@pytest.mark.parametrize("position", [Alibi(2), 3, type("Own", (Position,), {"__module__": "__main__"}), Rotary()])
def test_what_no_record_can_name_is_refused(tmp_path, position):
    with pytest.raises(WhenceError, match=r"whence.compare\(positions=...\).*'\./bell.py:Bell"):
        whence.compare([position], out=tmp_path)


def test_errors_come_before_any_work(tmp_path):
    for wrong, match in (
        ({"budget": "soon"}, "--budget"), ({"baseline": "rotary"}, "--baseline"), ({"settings": {"layer": 2}}, "layer"),
        ({"until": "later"}, "--until"), ({"sweep": ["lr"]}, "--sweep"), ({"metric": "beauty"}, "--metric"),
        ({"data_options": {"text_column": "a"}}, "--text-column"),
    ):  # fmt: skip
        with pytest.raises(WhenceError, match=match):
            whence.compare(["none", "alibi"], ["retrieval"], **wrong, out=tmp_path)
    assert not list(tmp_path.iterdir())

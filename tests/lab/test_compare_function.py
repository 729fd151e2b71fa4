"""``whence.compare``: the command in a process of its own, from Python."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

import whence
from whence import Alibi, Position, Rotary, WhenceError
from whence.lab.comparison import name_code, to_words
from whence.lab.tasks import Task

BELL = """
import torch
import whence

class Bell(whence.Position):
    def bias(self, distance, length):
        return torch.exp(-(distance / 3.0) ** 2)
"""
SMALL = {"task": "retrieval", "steps": 2, "layers": 1, "seeds": 2, "jobs": 1}


def test_it_is_the_command_and_leaves_the_session_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_bell.py").write_text(BELL)
    import own_bell

    torch.manual_seed(5)
    random.seed(5)
    states = torch.get_rng_state(), random.getstate()
    try:
        with torch.inference_mode():
            found = whence.compare(Rotary, own_bell.Bell, "alibi; lr=1e-2", **SMALL, out=tmp_path / "out")
    finally:
        del sys.modules["own_bell"]
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    (study,) = found.studies
    assert [arm["name"] for arm in study["arms"]] == ["Rotary", "own_bell:Bell", "alibi; lr=1e-2"]
    assert all(len(arm["values"][study["split"]]) == 2 for arm in study["arms"])
    assert found.report.is_file() and [page.is_file() for page in found.study_reports] == [True]
    assert found.folder == tmp_path / "out" and (found.unfinished_runs, found.problems) == (0, [])
    assert "2 seeds cannot decide" in found.notes[0]
    for text in (study["verdict"], f"report: {found.report}", f"note: {found.notes[0]}"):
        assert text in str(found) and text in repr(found)
    assert "6 of 6" in capsys.readouterr().err
    record = json.loads(next(found.report.parent.glob("*/Rotary-*-seed0.json")).read_text())
    assert record["command"].startswith(
        "whence compare --position Rotary --position own_bell:Bell --position 'alibi; lr"
    )
    assert "--json" not in record["command"]


def test_what_is_wrong_is_one_error(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(BELL.replace("torch.exp", "torch.expp"))
    for positions, options, message in (
        (["alibi", "./broken.py:Bell"], SMALL, r"^broken.py, line 7, in bias: AttributeError"),
        (["alibi"], {"lengths": "a"}, r"^--lengths got 'a', but it lists multiples"),
    ):
        with pytest.raises(WhenceError, match=message):
            whence.compare(*positions, **options, out="out")
    assert not (tmp_path / "out").exists()


def test_an_interrupt_stops_the_command_and_is_raised(tmp_path):
    code = (
        f"import whence; whence.compare('none', task='retrieval', steps=100000, seeds=1, jobs=1, out={str(tmp_path)!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (claims := [*tmp_path.glob("*/*")]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert claims
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in errors
    assert list(tmp_path.glob("**/*checkpoint*"))  # of the run, which the same call resumes


class Own(Position):
    pass


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Alibi(2), r"'Alibi\(\.\.\.\)'"), (3, r"'\./mine.py:Name"), (Rotary().rotate, "mine.py"), (Task, "mine.py:Name"),
        (type("Own", (Position,), {"__module__": "__main__"}), "'./mine.py:Own'"),
        (type("Own", (Position,), {"__qualname__": "Outer.Own"}), "the class Outer.Own"), (["alibi"], "mine.py:Name"),
    ],
)  # fmt: skip
def test_what_no_record_can_name_is_refused(value, remedy):
    with pytest.raises(WhenceError, match=rf"compare\(\*positions\) got .*{remedy}"):
        whence.compare(value)


def test_options_are_those_of_the_command():
    assert name_code("", Own, Position) == f"{__name__}:Own" and name_code("", Rotary, Position) == "Rotary"
    assert [*to_words("baseline", Rotary)] == ["--baseline", "Rotary"]
    assert [*to_words("task", ["copy", "recall"])] == ["--task", "copy", "--task", "recall"]
    assert [*to_words("margin", 0)] == ["--margin", "0"] and not [*to_words("pairs", False)]
    with pytest.raises(WhenceError, match=r"compare\(task=...\) got"):
        [*to_words("task", Own)]

"""``whence.compare``: the command in a process of its own, from Python."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.main import get_command

import whence
from whence import Alibi, Position, Rotary, WhenceError
from whence.cli.app import app
from whence.lab.comparison import REPEATED, describe_end, name_code, to_words
from whence.lab.tasks import Task
from whence.position.expression import ModelDims, build_position

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
    assert "2 seeds are too few" in found.notes[0]
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
    two_lines = BELL.replace("        return", '        raise ValueError("first\\nsecond")\n        return')
    (tmp_path / "two.py").write_text(
        f"import atexit\natexit.register(print, 'bye', file=__import__('sys').stderr)\n{two_lines}"
    )
    for positions, options, message in (
        (
            ["alibi", "./two.py:Bell"],
            SMALL,
            r"^two.py, line 9, in bias: ValueError: first \(WHENCE_TRACEBACK=1 shows the traceback\)$",
        ),
        (["alibi", "./broken.py:Bell"], SMALL, r"^broken.py, line 7, in bias: AttributeError"),
        (["alibi"], {"lengths": "a"}, r"^--lengths got 'a', but it lists multiples"),
    ):
        with pytest.raises(WhenceError, match=message):
            whence.compare(*positions, **options, out="out")
    assert not (tmp_path / "out").exists()


def list_commands(folder):
    """The processes that run ``whence compare`` into a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            words = path.read_bytes().decode(errors="replace").split("\0")
            if any("child_process" in word for word in words) and str(folder) in words:
                found.append(int(path.parent.name))
    return found


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(), reason="it reads the command lines of processes from /proc"
)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_the_program_ends_the_command_with_a_checkpoint(tmp_path, end):
    code = (
        "import signal, whence; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        f"whence.compare('none', task='retrieval', steps=100000, seeds=1, jobs=1, out={str(tmp_path)!r})"
    )
    lines = tmp_path / "lines.txt"  # a pipe that nobody reads may be full
    with lines.open("w") as target:
        process = subprocess.Popen([sys.executable, "-c", code], stderr=target)
    try:
        wait_for(lambda: list(tmp_path.glob("*/checkpoints/*")))  # the lock of the run
        assert len(list_commands(tmp_path)) == 1
        time.sleep(2)  # the first steps
        assert not list(tmp_path.glob("*/checkpoints/*.safetensors"))
        process.send_signal(end)
        assert process.wait(timeout=90) != 0
        wait_for(lambda: not list_commands(tmp_path))
    finally:
        process.kill()
        process.wait()
        for number in list_commands(tmp_path):
            os.kill(number, signal.SIGKILL)
    assert ("KeyboardInterrupt" in lines.read_text()) == (end == signal.SIGINT)
    assert list(tmp_path.glob("*/checkpoints/*.safetensors"))  # of the run, which the same call resumes


class Own(Position):
    pass


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Alibi(2), r"'Alibi\(\.\.\.\)'"), (3, r"'\./mine.py:Name"), (Rotary().rotate, "mine.py"), (Task, "mine.py:Name"),
        (type("Own", (Position,), {"__module__": "__main__"}), "'./mine.py:Own'"),
        (type("Own", (Position,), {"__qualname__": "Outer.Own"}), "the class Outer.Own"), (["alibi"], "one by one"),
        (Rotary() + Alibi(2), r"'Rotary\(\) \+ Epar\(\)'"),
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
    assert [*to_words("set", {"max_grad_norm": None})] == ["--set", "max_grad_norm=None"] and [
        *to_words("seeds", np.int64(2))
    ] == ["--seeds", "2"]
    assert [*to_words("sweep", {"lr": np.array([0.1, 0.2])})] == ["--sweep", "lr=0.1,0.2"]
    assert [*to_words("out", "~/x")] == ["--out", str(Path.home() / "x")]
    for name, value in (("task", Own), ("layers", [1, 2]), ("budget", {"m": 2}), ("executor", dict), ("data", {1, 2})):
        with pytest.raises(WhenceError, match=rf"compare\({name}=...\) got"):
            [*to_words(name, value)]
    several = {one.opts[0] for one in get_command(app).commands["compare"].params if getattr(one, "multiple", False)}
    assert several == {f"--{name}" for name in REPEATED}


def test_a_class_of_a_file_that_was_named_by_its_path_is_refused(tmp_path):
    (tmp_path / "bell.py").write_text(BELL)
    bell = type(build_position(f"{tmp_path / 'bell.py'}:Bell", ModelDims(heads=2, head_dim=4, embed_dim=8, context=8)))
    with pytest.raises(WhenceError, match=r"pass a text such as './mine.py:Bell'"):
        name_code("compare(*positions)", bell, Position)


def test_the_end_of_a_command_without_a_document():
    progress = ["1 of 2, retrieval, alibi, seed 0"]
    assert "signal 9 (Killed)" in describe_end(-9, progress, "")
    assert describe_end(0, [], "Usage: whence compare") == "Usage: whence compare"
    assert "exit code 143" in describe_end(143, progress, "") and progress[0] in describe_end(143, progress, "")

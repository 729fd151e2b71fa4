"""Help texts, exit codes and one-line errors of every command."""

import json
import runpy
import sys

import pytest

import whence
from whence.position.catalogue import SHORT_NAMES

SMALL = ["--task", "retrieval", "--position", "none", "--position", "alibi", "--seeds", "1", "--steps", "4"]


def test_help_names_every_command_and_has_examples(run_whence):
    whole = run_whence("--help")
    assert whole.returncode == 0
    for command in ("compare", "studies", "run", "report", "show", "doctor"):
        assert command in whole.stdout
    assert "Epar(learnable=True)" in run_whence("compare", "--help").stdout
    for command in ("compare", "studies", "run", "report", "show", "doctor", "probe"):
        message = run_whence(command, "--help").stdout
        assert "Example" in message and f"whence {command}" in message.split("Example")[1], command


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["compare", "--position", "flurb"], "unknown mechanism flurb"),
        (["compare", "--task", "chess"], "chess"),
        (["compare", "--baseline", "rotary", "--position", "none"], "--baseline got 'rotary'"),
        (["compare", "--config", "none.toml"], "no file none.toml"),
        (["compare", "--seeds", "0"], "greater than or equal to 1"),
        (["run", "nothing"], "no study nothing"),
        (["report", "nowhere"], "no folder nowhere"),
        (["show", "Alibi(x=1)"], "x"),
        (["list"], "whence got 'list', but there is no such command; whence show lists the mechanisms"),
        (["show", "alibi", "--out", "alibi.doc"], "alibi.doc"),
        (["show", "alibi", "--out", "none/alibi.png"], "none/alibi.png"),
    ],
)
def test_invalid_requests_print_one_sentence_and_exit_with_2(run_whence, tmp_path, arguments, message):
    done = run_whence(*arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_show_without_a_mechanism_lists_them(run_whence, tmp_path):
    done = run_whence("show")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and not list(tmp_path.iterdir())
    for name in SHORT_NAMES:
        assert any(line.split(maxsplit=1)[0] == name and len(line.split()) > 3 for line in lines if line)
    listed = json.loads(run_whence("show", "--json").stdout)["mechanisms"]
    assert [one["name"] for one in listed] == list(SHORT_NAMES)


def test_a_misspelled_name_of_whence_has_a_suggestion():
    for wrong, right in (("PoPE", "Pope"), ("FoPE", "Fope"), ("atend", "attend")):
        with pytest.raises(AttributeError, match=f"{wrong}'; did you mean {right}"):
            getattr(whence, wrong)
    assert not hasattr(whence, "__wrapped__") and not hasattr(whence, "zzz")


FAULTY = """
import contextlib
import torch
from whence import Position

class Faulty(Position):
    def bias(self, distance, length):
        return torch.zeros(2) @ torch.zeros(3)

@contextlib.contextmanager
def around():
    yield

class Failing:
    def run(self, execute, runs, folder, on_progress):
        return [(run, KeyError("x")) for run in runs]
"""


def test_an_error_in_the_users_code_is_one_line(run_whence, tmp_path, monkeypatch):
    (tmp_path / "faulty.py").write_text(FAULTY)
    order = ["compare", "--task", "retrieval", "--position", "./faulty.py:Faulty", "--seeds", "1", "--steps", "2"]
    for command in (["show", "./faulty.py:Faulty"], [*order, "--jobs", "1"]):
        done = run_whence(*command)
        (line,) = [line for line in done.stderr.splitlines() if "faulty.py, line" in line]
        assert done.returncode == 1 and "faulty.py, line 8, in bias: RuntimeError: " in line
        assert "WHENCE_TRACEBACK=1" in line and "Traceback" not in done.stderr
    order[order.index("./faulty.py:Faulty")] = "none"
    done = run_whence(*order, "--executor", "./faulty.py:Failing")
    assert done.returncode == 1 and ", seed 0 of retrieval failed: KeyError: 'x'" in done.stderr
    monkeypatch.setenv("WHENCE_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        run_whence("show", "./faulty.py:Faulty")


def test_an_error_of_whence_keeps_its_traceback(run_whence, tmp_path, monkeypatch):
    """Also where the user's context manager encloses it."""
    from whence import plotting, user_code
    from whence.plugins import load_module
    from whence.statistics import samples

    (tmp_path / "faulty.py").write_text(FAULTY)
    around = load_module("./faulty.py", "").around

    def fail():
        with around():
            samples.mean(object())

    with pytest.raises(TypeError) as caught:
        fail()
    assert user_code.find_user_frame(caught.value) is None
    monkeypatch.setattr(plotting, "show", None)  # called by whence
    with pytest.raises(TypeError):
        run_whence("show", "alibi")


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", *SMALL, "--out", "/proc/nope"],
        ["compare", *SMALL, "--out", "rev.csv/x"],
        ["show", "alibi", "--out", "/proc/x.png"],
    ],
)
def test_an_output_path_that_cannot_be_created_is_one_sentence(run_whence, tmp_path, arguments):
    (tmp_path / "rev.csv").write_text("")
    done = run_whence(*arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert arguments[-1] in done.stderr and "choose another" in done.stderr


def test_a_package_that_fails_to_import_is_not_called_missing(tmp_path, monkeypatch):
    from whence.errors import MissingExtra, require_package

    (tmp_path / "half_installed.py").write_text("import nonesuch_package")
    (tmp_path / "old_package.py").write_text("from json import nothing_such")
    monkeypatch.syspath_prepend(tmp_path)
    for package, reason in (("half_installed", "nonesuch_package"), ("old_package", "nothing_such")):
        with pytest.raises(MissingExtra, match=rf"installed {package} fails to import.*{reason}.*pip install"):
            require_package(package, "drawing", "plot")


def test_python_m_whence_names_the_missing_extra(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "whence.cli.app", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("whence", run_name="__main__")
    assert stopped.value.code == 2 and 'pip install "whence[cli]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, package",
    [
        (["compare", *SMALL, "--jobs", "1"], "accelerate"),
        (["show", "alibi"], "matplotlib"),
        (["probe", "--quick"], "transformers"),
    ],
)
def test_a_missing_package_is_one_line(run_whence, tmp_path, monkeypatch, arguments, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    done = run_whence(*arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert package in line and "pip install" in line

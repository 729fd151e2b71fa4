"""The command line: what it says, how it ends, and that a small comparison goes through to its page."""

import subprocess
import sys

import pytest

SMALL = ["--task", "retrieval", "--position", "none", "--position", "alibi", "--seeds", "1", "--steps", "4"]


def whence(*arguments, cwd):
    code = "from whence.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, timeout=300
    )  # fmt: skip


def test_help_names_every_command_and_has_examples(tmp_path):
    whole = whence("--help", cwd=tmp_path)
    assert whole.returncode == 0
    for command in ("compare", "studies", "run", "report", "show", "doctor"):
        assert command in whole.stdout
    assert "Epar(learn=True)" in whence("compare", "--help", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["compare", "--position", "flurb"], "no mechanism flurb"),
        (["compare", "--task", "chess"], "a task is one of"),
        (["compare", "--baseline", "rotary", "--position", "none"], "the baseline is one of the arms"),
        (["compare", "--config", "none.toml"], "no file none.toml"),
        (["compare", "--seeds", "0"], "greater than or equal to 1"),
        (["run", "nothing"], "the studies here are: none"),
        (["report", "nowhere"], "no study.json"),
        (["show", "Alibi(x=1)"], "a setting 'x'"),
    ],
)
def test_bad_requests_end_with_one_sentence_and_2(tmp_path, arguments, said):
    done = whence(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_a_small_comparison_and_its_page(tmp_path):
    done = whence("compare", *SMALL, "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = tmp_path / "build" / "compare" / "report.html"
    first = page.read_text()
    assert "alibi" in first and "\x1b[" not in done.stdout + done.stderr  # no terminal, no colour
    assert "1 of 2" in done.stderr
    again = whence("report", "build/compare", "--out", "again.html", cwd=tmp_path)
    assert again.returncode == 0 and (tmp_path / "again.html").stat().st_size > 10_000
    record = next((tmp_path / "build" / "compare").glob("*/*seed0.json"))
    record.write_text("{")
    broken = whence("compare", *SMALL, "--jobs", "1", cwd=tmp_path)
    assert broken.returncode == 1 and f"{record.name} is left alone" in broken.stderr


def test_on_a_terminal_there_are_bars(tmp_path):
    # a terminal takes another way than a pipe, and users have terminals
    code = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    run = [sys.executable, "-c", "from whence.cli import main; main()", "compare", *SMALL, "--jobs", "1"]
    done = subprocess.run([sys.executable, "-c", code, *run], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout[-800:]
    assert "2/2" in done.stdout and "report: build/compare/report.html" in done.stdout


def test_options_from_a_file(tmp_path):
    (tmp_path / "mine.toml").write_text('task = ["retrieval"]\nposition = ["none"]\nseeds = 1\nsteps = 2\n')
    assert whence("compare", "--config", "mine.toml", "--jobs", "1", cwd=tmp_path).returncode == 0
    (tmp_path / "bad.toml").write_text("sedes = 1\n")
    assert "sedes" in whence("compare", "--config", "bad.toml", cwd=tmp_path).stderr


def test_doctor_and_show(tmp_path):
    assert "extra lab" in whence("doctor", cwd=tmp_path).stdout
    shown = whence("show", "alibi", cwd=tmp_path)
    assert shown.returncode == 0 and (tmp_path / "position.png").stat().st_size > 1000

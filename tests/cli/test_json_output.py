"""``--json``: one document on stdout, everything else on stderr. The tests of probe, mend, bench and claims check theirs."""

import json
import sys

import pytest

from whence.cli import json_output

SMALL = ["--task", "retrieval", "--position", "none", "--seeds", "2", "--steps", "2", "--jobs", "1", "--out", "out"]


def test_compare_and_its_report(run_whence, tmp_path):
    done = run_whence("compare", *SMALL, "--position", "alibi", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["command"] == "compare" and found["report"] == "out/report.html"
    assert found["problems"] == [] and found["unfinished_runs"] == 0 and "report: out/report.html" in done.stderr
    (study,), (own,) = found["studies"], found["study_reports"]
    assert (tmp_path / own).parent.parent == tmp_path / "out" and (tmp_path / own).name == "report.html"
    assert (tmp_path / own).read_text() == (tmp_path / "out/report.html").read_text()
    assert [arm["name"] for arm in study["arms"]] == ["none", "alibi"] and study["verdict"]
    assert all(set(arm["values"]["test"]) == {"0", "1"} for arm in study["arms"])
    assert study["comparison"]["arms"]["alibi"]["kind"] == "undecided"
    again = json.loads(run_whence("report", "out", "--json").stdout)
    assert again["reports"] == [{"kind": "studies", "report": "out/report.html", "studies": [study]}]


def test_a_failed_run_is_in_the_document_and_in_the_exit_code(run_whence, tmp_path):
    (tmp_path / "faulty.py").write_text(
        "class Failing:\n"
        "    def run(self, execute, runs, folder, on_progress):\n"
        "        return [(run, KeyError('x')) for run in runs]\n"
    )
    done = run_whence("compare", *SMALL, "--executor", "./faulty.py:Failing", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and len(found["problems"]) == 2 and "KeyError" in found["problems"][0]


def test_a_usage_error_prints_no_document(run_whence):
    done = run_whence("compare", "--task", "chess", "--json")
    assert done.returncode == 2 and done.stdout == "" and "chess" in done.stderr
    assert sys.stdout is not sys.stderr  # it was given back


def test_studies(run_whence, tmp_path):
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/broken.py").write_text("studies = 1 / 0\n")
    rows = {row["file"]: row for row in json.loads(run_whence("studies", "--json").stdout)["studies"]}
    assert "ZeroDivisionError" in rows["broken"]["error"]


def test_the_commands_with_the_option_are_those_of_the_page():
    import re
    from pathlib import Path

    import typer

    from whence.cli.app import app

    commands = typer.main.get_command(app).commands
    having = {name for name, one in commands.items() if any("--json" in option.opts for option in one.params)}
    text = (Path(__file__).parents[2] / "docs/command-line.md").read_text().partition("## Results for scripts")[2]
    documented = re.findall(r"^\| (`.*?`) \|", text.partition("\n## ")[0], re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(documented))) == having


def test_numbers_that_are_not_finite_are_null(capsys):
    with json_output.json_document("example", True) as results:
        print("a message")
        results["values"] = (1.0, float("inf"), {"deep": float("nan")})
    output = capsys.readouterr()
    assert json.loads(output.out)["values"] == [1.0, None, {"deep": None}] and output.err == "a message\n"


@pytest.mark.parametrize("words, expected", [("whence comp", "compare"), ("whence compare --pos", "--position")])
def test_the_shell_completes_commands_and_options(words, expected, run_whence, monkeypatch):
    monkeypatch.setenv("_WHENCE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert expected in run_whence().stdout.split()

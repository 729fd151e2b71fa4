"""``whence claims``: the table, one line a claim in a pipe, filters, details, the page, and how it ends."""

import copy
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from whence.errors import WhenceError
from whence_papers import FOLDER
from whence_papers.ledger import command, verdicts


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the ledger and nothing else."""
    shutil.copytree(FOLDER / "claims", tmp_path / "claims")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def judged_once(judged_ledger, monkeypatch):
    """The command judges nothing again: it gets the verdicts of those claims that it asks for."""

    def judge(sources, folders):
        ids = {claim.id for source in sources for claim in source.claims}
        found = copy.deepcopy(judged_ledger)
        for source in found["sources"]:
            source["claims"] = [claim for claim in source["claims"] if claim["id"] in ids]
        return found

    monkeypatch.setattr(verdicts, "judge_sources", judge)


def test_one_line_a_claim_in_a_pipe(judged_once, capsys):
    command.claims()
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert all(len(line.split("\t")) == 5 for line in lines) and len(lines) > 150
    tested, apart = map(int, re.findall(r"(\d+) (?:claims|more by definition):", output.err))
    assert "\x1b[" not in output.out and tested + apart == len(lines) and apart > 20


def test_json_has_every_claim_with_its_verdict(judged_once, capsys):
    command.claims(source=["003"], as_json=True)
    found = json.loads(capsys.readouterr().out)
    verdicts = [claim["verdict"] for source in found["sources"] for claim in source["claims"]]
    assert found["command"] == "claims" and len(verdicts) == sum(found["counts"].values()) + sum(
        found["identities"].values()
    )


def test_filters(judged_once, capsys):
    command.claims(source=["003"], verdict=["arithmetic-wrong"])
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line.startswith("pointer-") and "\tarithmetic wrong\t" in line for line in lines)


def test_details_of_one_claim(here, capsys):
    command.claims(id_=["epar-retention-ratio"])
    output = capsys.readouterr().out
    for part in (
        "≠ arithmetic wrong",
        "“Information retention improves by 28.3× (Enhanced formula)”",
        "28.3",
        "2.15",
        "arguments",
        "claims/records/epar-retention-ratio.json",
        "does not agree",
    ):
        assert part in output


def test_update_computes_what_was_deleted(here, capsys):
    for path in (here / "claims").glob("records*"):  # packed or not
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    command.claims(source=["pointer"], update=True, folder=here / "claims")
    output = capsys.readouterr()
    assert "pointer-additive-parameters: written" in output.err and "394,240" in output.out


@pytest.mark.parametrize(
    "options, expected_text",
    [
        ({"source": ["007"]}, "the sources are epar (000), prior (001)"),
        ({"verdict": ["maybe"]}, "the verdicts are reproduced, not reproduced"),
        ({"id_": ["epar-retention-ration"]}, "did you mean epar-retention-ratio"),
        ({"folder": Path("nowhere")}, "no folder nowhere"),
    ],
)
def test_bad_requests_are_one_sentence(here, options, expected_text):
    with pytest.raises(WhenceError) as refused:
        command.claims(**options)
    assert expected_text in str(refused.value)


@pytest.mark.parametrize("width", [60, 150])
def test_the_table_fits_its_terminal(judged_ledger, width):
    screen = io.StringIO()
    command.print_table(judged_ledger, Console(width=width, file=screen, force_terminal=True))
    output = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    assert "epar-improvement-arxiv" in output and "arithmetic" in output
    assert max(map(len, output.splitlines())) <= width and "…" not in output  # nothing is cut off


def test_the_command_ends_as_the_others_do(here, whence_here):
    assert "whence claims --id epar-retention-ratio" in whence_here("claims", "--help").stdout
    bad = whence_here("claims", "--id", "nothing")
    assert bad.returncode == 2 and "there is no such claim" in bad.stderr and "Traceback" not in bad.stderr


def test_a_page_of_one_source(here, capsys):
    command.claims(source=["prior"], page=Path("build/claims.html"))
    assert capsys.readouterr().out == "page: build/claims.html\n"
    text = (here / "build" / "claims.html").read_text()
    assert "prior-unbuilt" in text and "epar-defaults" not in text and not list(here.rglob("*.part"))

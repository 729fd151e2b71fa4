"""The tables of papers/README.md and the pages of docs/papers/ agree with the ledger and name commands that exist."""

import re

import pytest

import papers_table
from whence_papers.ledger.claims import SIGNS


def test_tables_and_pages_are_up_to_date(judged_ledger, monkeypatch):
    monkeypatch.setattr(papers_table, "judge_all", lambda *folders: judged_ledger)
    pages = papers_table.generate()
    assert {page.name for page in papers_table.PAGES.glob("*.md")} == {page.name for page in pages} - {"README.md"}
    for page, text in pages.items():
        assert page.read_text() == text, "run: python tools/papers_table.py"
    *_, total = pages[papers_table.RECORDS].split("<!-- end provenance -->")[0].strip().splitlines()
    counts = [int(cell) for cell in total.strip("| ").split(" | ")[1:]]
    assert counts[0] > 1000 and counts[7] == 0, "a record has no command; run: python tools/pack_records.py --again"


def test_every_claim_has_one_verdict_and_every_record_a_command():
    text = papers_table.README.read_text().split("<!-- end overview -->")
    total = sum(map(int, re.findall(r"\d+", text[0].rsplit("| all |", 1)[1])))
    rows = [row for row in text[1].splitlines() if row.startswith("|")]
    verdicts = re.findall(f"[{''.join(SIGNS.values())}] [a-z0-9-]+", "\n".join(row.split(" | ")[-1] for row in rows))
    assert len(verdicts) == total
    for row in (row for row in rows if "`" in row):
        has_command, has_record = "`whence " in row or "`python " in row, "/" in row.split(" | ")[2]
        assert has_command and (has_record or "○" in row), row  # an open claim names the command that makes its record


def test_an_unknown_study_has_no_command():
    claim = {"method": "read", "source": "epar", "record": "results/epar_when/no-such-study-0123456789ab"}
    with pytest.raises(KeyError, match="no-such-study"):
        papers_table.command_for(claim, {})


def test_items_of_the_sources_name_commands_and_records_that_exist():
    text = papers_table.README.read_text().split("<!-- items -->")[1].split("<!-- end items -->")[0]
    rows = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in text.strip().splitlines()[2:]]
    commands = papers_table.study_commands()
    studies = {command.split()[2] for command in commands.values()} | {"epar/all"}
    assert len(rows) > 20 and {row[0].partition(",")[0] for row in rows} == {
        "EPAR",
        "Prior",
        "Survey",
        "Pointer",
        "Speeches",
    }
    for item, command, record, result in rows:
        for name in re.findall(r"whence run ([a-z_/]+)", command):
            assert name in studies, item
        for name in re.findall(r"--only ([a-z-]+)", command):
            assert name in commands, item
        for run in re.findall(r"whence run [a-z_/]+ --(?:scale|data) [a-z]+", command):
            assert run in commands.values(), item
        for path in re.findall(r"`([^`]+)`", record):
            folder = papers_table.FOLDER / path.rstrip("/")
            assert folder.is_dir() or folder.with_name(f"{folder.name}.zip").is_file(), item
        assert command != "none" or result.startswith(("not yet", "not reproduced")), item

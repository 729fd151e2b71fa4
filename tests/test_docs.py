"""README and docs/ stay true: tables are generated, code runs, commands and links exist."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import generate_docs as docs

ROOT = docs.ROOT
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def named(path):
    return path.name


def test_the_readme_is_short():
    assert len(README.splitlines()) < 120


@pytest.mark.parametrize("page", docs.generated())
def test_generated_tables_are_up_to_date(page):
    text = (ROOT / "docs" / page).read_text()
    assert docs.render(text, docs.generated()[page]) == text, "run: make docs"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=named)
def test_code_runs(page, tmp_path, monkeypatch):
    if page.name == "extending.md":
        pytest.skip("its code is files, which tests/test_extending.py runs")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)


def commands():
    for page in PAGES:
        if page.name == "extending.md":  # tests/test_extending.py runs its commands
            continue
        for block in blocks(page, "bash"):
            for line in block.splitlines():
                for part in line.partition("#")[0].split("&&"):
                    words = shlex.split(part)
                    if words and words[0] in ("whence", "make"):
                        yield pytest.param(words, id=" ".join(words))


@pytest.mark.parametrize("words", list(commands()))
def test_commands_exist(words):
    import typer

    from whence.cli.app import app

    if words[0] == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
        return
    group = typer.main.get_command(app)
    assert words[1] in group.commands
    group.commands[words[1]].make_context(words[1], words[2:])  # refuses unknown options and arguments


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target


def test_first_example_draws_something(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(blocks(ROOT / "README.md", "python")[0], "README.md", "exec"), {})
    assert Path("bell.png").stat().st_size > 10_000

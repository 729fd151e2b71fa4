"""README and docs/ stay true: tables are generated, code runs, commands and links exist."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import generate_docs as docs
from whence import QueryTable, Rows, WhenceError, explain

ROOT = docs.ROOT
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "RELEASING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
#: pages that the site generates; `make site` refuses dead links to them
GENERATED = ("mechanisms/", "reference/", "project/", "papers/index.md")
README = (ROOT / "README.md").read_text()


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def write_files(page, folder):
    """Write the blocks of a page that begin with a comment with their path."""
    text = (ROOT / "docs" / page).read_text()
    for match in re.finditer(r"```(?:python|toml)\n# (\S+\.(?:py|toml))\n(.*?)```", text, re.DOTALL):
        (folder / match[1]).parent.mkdir(parents=True, exist_ok=True)
        (folder / match[1]).write_text(match[2])


def named(path):
    return path.name


def test_the_readme_is_short():
    assert len(README.splitlines()) < 120


@pytest.mark.parametrize("page", docs.generated_parts())
def test_generated_tables_are_up_to_date(page):
    text = (ROOT / "docs" / page).read_text()
    assert docs.render(text, docs.generated_parts()[page]) == text, "run: make docs"


@pytest.mark.parametrize("name", ["flex", "sdpa", "blockwise", "reference"])
def test_the_table_of_backends_lists_content_terms_where_they_run(name):
    """``triton`` needs a GPU to say more."""
    (row,) = (line for line in docs.backends().splitlines() if line.startswith(f"| `{name}`"))
    effects = row.split("|")[3].split(", ")
    q, table = torch.randn(1, 2, 4, 8), QueryTable(2, 8).requires_grad_(False)
    try:
        explain(q, q, q, position=table, causal=True, backend=name)
        runs = True
    except WhenceError:
        runs = False
    assert ("content_bias" in effects) == runs


@pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile", "ignore:.*torch.jit.script:DeprecationWarning"
)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=named)
def test_code_runs(page, tmp_path, monkeypatch):
    if page.name == "context-parallelism.md":
        pytest.skip("tests/parallel runs its program in four processes")
    if page.parent.name == "tutorials":
        pytest.skip("tests/test_tutorials.py runs it and compares what it prints")
    if page.name == "extending.md":
        pytest.skip("its code is files, which tests/test_extending.py runs")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)
    if page.name == "README.md":
        assert Path("bell.png").stat().st_size > 10_000  # the first example draws something


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
def test_commands_exist(words, tmp_path, monkeypatch):
    import typer

    from whence.cli.app import app

    write_files("comparing.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    if words[0] == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
        return
    group = typer.main.get_command(app)
    if words[1].startswith("--"):
        assert any(words[1] in option.opts for option in group.params)
        return
    assert words[1] in group.commands
    group.commands[words[1]].make_context(words[1], words[2:])  # refuses unknown options and arguments


def test_the_study_file_runs(whence_here, tmp_path, monkeypatch):
    write_files("comparing.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    done = whence_here("run", "mine", "--scale", "quick", "--jobs", 1, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert (
        "Do steeper slopes help" in Path("out/report.html").read_text()
        and len(list(Path("out").rglob("*-seed*.json"))) == 15
    )


def test_the_config_file_sets_the_options(whence_here, tmp_path, monkeypatch):
    write_files("comparing.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    done = whence_here("compare", "--config", "mine.toml", "--seeds", 1, "--steps", 1, "--jobs", 1)
    assert done.returncode == 0, done.stderr
    records = [path.name for path in Path("build/mine").rglob("*-seed*.json")]
    assert len(records) == 4 and all("seed0" in name for name in records)  # two tasks, two mechanisms


def test_the_items_file_is_valid(tmp_path):
    from whence.probe.tasks import load_items
    from whence.probe.tasks.user_tasks import FIELDS

    page = ROOT / "docs" / "probing.md"
    (tmp_path / "items.jsonl").write_text(blocks(page, "json")[0])
    task = load_items(None, str(tmp_path / "items.jsonl"))
    assert len(task.items) == 2 and task.slots == 3 and task.items[1].rivals == ("Ada",)
    assert re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE)[: len(FIELDS)] == list(FIELDS)


def test_every_field_of_rows_is_documented():
    for field in fields(Rows):
        assert f"\n        {field.name}: " in Rows.__doc__


def test_every_field_of_a_probe_task_is_documented():
    from whence.probe import ProbeTask

    text = (ROOT / "docs" / "probing.md").read_text().partition("## Your own task")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == {field.name for field in fields(ProbeTask)}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        linked = page.parent / target if target else page
        if not linked.exists() and linked.resolve().is_relative_to(ROOT / "docs"):
            assert linked.resolve().relative_to(ROOT / "docs").as_posix().startswith(GENERATED), target
            continue
        assert linked.exists(), target
        headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, f"{target}#{anchor}"

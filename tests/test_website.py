"""The site of the documentation: every page has its place, generated pages are complete, links move with their pages.

`make site` builds it strictly, in CI too.
"""

import doctest
import inspect
import re
import sys

import pytest
import yaml

import api_tables
import mkdocs_hooks
import papers_pages
from website import curves, docstrings, links, mechanisms, reference
from whence.position.catalogue import CATALOGUE, SHORT_NAMES
from whence.position.rotary_scaling import Scaling

ROOT = mkdocs_hooks.ROOT


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without importing what it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
SETTINGS = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def list_pages(nav):
    if isinstance(nav, str):
        return [nav]
    return [page for one in (nav.values() if isinstance(nav, dict) else nav) for page in list_pages(one)]


@pytest.fixture(scope="module")
def gallery():
    documented = {}
    return mechanisms.mechanism_pages(documented), documented


@pytest.mark.parametrize(
    "module", [api_tables, papers_pages, mkdocs_hooks, curves, docstrings, links, reference], ids=lambda m: m.__name__
)
def test_examples_of_the_tools(module):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


def test_every_page_is_in_the_navigation_once():
    listed = [page for page in list_pages(SETTINGS["nav"]) if not page.startswith("GENERATED ")]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(listed) == len(set(listed)) and pages <= set(listed)
    generated = {*links.PAGES.values(), "mechanisms/index.md", "reference/commands.md"}
    assert set(listed) - pages <= generated


def test_the_site_is_strict_and_loads_nothing_from_a_network():
    assert SETTINGS["strict"] is True and SETTINGS["theme"]["font"] is False
    # with --quiet mkdocs counts no warnings, so that nothing is strict
    assert "/mkdocs build --strict\n" in (ROOT / "Makefile").read_text()
    assert not {"extra_javascript", "google_analytics"} & set(SETTINGS)
    assert mkdocs_hooks.NETWORK.search('<link rel="stylesheet" href="https://fonts.example/a.css">')
    assert mkdocs_hooks.NETWORK.search("<script async src='//cdn.example/a.js'></script>")
    assert not mkdocs_hooks.NETWORK.search(
        '<a href="https://keepachangelog.com">x</a><script src="assets/a.js"></script>'
    )


def test_every_mechanism_has_a_page_with_formula_picture_and_cost(gallery):
    pages, documented = gallery
    kinds = {type(getattr(position, "scaling", None) or position) for position in (e.make(4, 16) for e in CATALOGUE)}
    assert {"Proportional", "Yarn"} <= {kind.__name__ for kind in kinds}
    assert set(pages) == {"mechanisms/index.md", *(f"mechanisms/{kind.__name__}.md" for kind in kinds)}
    assert set(documented) == {f"{kind.__module__}.{kind.__name__}" for kind in kinds}
    for path, text in pages.items():
        assert "<path" in text, path
        if path != "mechanisms/index.md":
            assert "## When to use it\n\nUse it " in text, (
                f"{path}: its module's docstring needs a paragraph that begins with 'Use it'"
            )
            formula = text.partition("## Formula\n\n")[2]
            kind = next(k for k in kinds if path.endswith(f"/{k.__name__}.md"))
            docstring = inspect.getdoc(kind if issubclass(kind, Scaling) else sys.modules[kind.__module__])
            assert formula.startswith("    ") == docstring.partition("\n")[2].lstrip("\n").startswith("    "), path
            assert formula and "## Cost\n\n" in text and "\n::: whence.position." in text, path
        for drawn in re.findall(r'<path d="(.*?)"', text):
            assert drawn.count("L") > 50 and "nan" not in drawn, path


def test_costs_are_counted(gallery):
    pages, _ = gallery
    row = next(line for line in pages["mechanisms/Alibi.md"].splitlines() if line.startswith("| Alibi |"))
    assert "for each distance | 0 |" in row and "`triton`" in row and row.endswith("| exact |")
    row = next(line for line in pages["mechanisms/T5Bias.md"].splitlines() if line.startswith("| T5Bias |"))
    assert "| 256 |" in row  # 32 buckets of 8 heads
    row = next(line for line in pages["mechanisms/Shaw.md"].splitlines() if line.startswith("| Shaw |"))
    assert "for each pair of query and key" in row and "`triton`" in row and "`flex`" not in row
    row = next(line for line in pages["mechanisms/Cope.md"].splitlines() if line.startswith("| Cope |"))
    assert "`triton`" in row and "`flex`" not in row
    row = next(line for line in pages["mechanisms/Dape.md"].splitlines() if line.startswith("| Dape |"))
    assert "`triton`" in row and "`flex`" not in row
    row = next(
        line for line in pages["mechanisms/SelfExtendRotary.md"].splitlines() if line.startswith("| SelfExtendRotary |")
    )
    assert row.count("`") == 4  # blockwise and reference alone
    row = next(line for line in pages["mechanisms/Fire.md"].splitlines() if line.startswith("| Fire |"))
    assert "for each query and distance" in row and "`flex` if frozen" in row and "`triton`" in row
    assert all(f"`{name}`" in "".join(pages.values()) for name in SHORT_NAMES)


def test_every_command_is_on_its_page():
    from typer.main import get_command

    from whence.cli.app import app

    text = reference.commands_page()
    for name, command in get_command(app).commands.items():
        section = text.partition(f"\n## `whence {name}`\n")[2].partition("\n## ")[0]
        assert f"](#whence-{name})" in text and all(f"`{option.opts[0]}" in section for option in command.params[:3]), (
            name
        )
        assert "...\n" not in section.partition("**Usage**")[0], name
        assert not command.epilog or (
            "Examples:\n\n```bash\nwhence " in section and section.rstrip().endswith("```")
        ), name

"""What PyPI and the repository's host read: versions, citation, templates, type markers."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import whence

ROOT = Path(__file__).parents[1]
PROJECTS = [ROOT / "pyproject.toml", ROOT / "papers/pyproject.toml"]
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def test_one_version_everywhere():
    papers = (ROOT / "papers/src/whence_papers/__init__.py").read_text()
    assert re.search(r'__version__ = "(.*)"', papers)[1] == whence.__version__
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == whence.__version__


def test_the_citation_has_what_its_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0" and {"message", "title"} <= set(citation)
    assert citation["authors"] and all(set(author) == {"name"} for author in citation["authors"])


@pytest.mark.parametrize("path", PROJECTS, ids=["whence", "papers"])
def test_the_declared_python_versions_begin_with_the_required_one(path):
    project = tomllib.loads(path.read_text())["project"]
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={declared[0]}"
    assert (path.parent / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_papers_install_the_scores_of_their_studies():
    """Each is an extra of whence; a study that its README names must run after the documented install."""
    (line,) = [one for one in tomllib.loads(PROJECTS[1].read_text())["project"]["dependencies"] if "whence" in one]
    assert {"lab", "report", "summarization", "translation"} <= set(re.findall(r"\w+", line))


@pytest.mark.parametrize("path", PROJECTS, ids=["whence", "papers"])
def test_the_page_of_a_package_index_needs_no_repository(path):
    """Without images, which lie in the repository, and without links to files; the README itself has them."""
    project = tomllib.loads(path.read_text())
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert hook["fragments"] == [{"path": "README.md"}] and "readme" in project["project"]["dynamic"]
    readme = text = (path.parent / "README.md").read_text()
    for one in hook["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    links = re.findall(r"\]\((.*?)\)", text)
    assert "](" in readme and "![" not in text and all(link.startswith(("http", "#")) for link in links)
    removed = [line for line in readme.splitlines() if "](" not in line and line not in text.splitlines()]
    assert removed == [] and text.count("\n#") == readme.count("\n#")


def test_the_changelog_has_the_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(.*?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    assert (
        versions[0] == ("Unreleased", "")
        and versions[1][0] == whence.__version__
        and all(day for _, day in versions[1:])
    )


@pytest.mark.parametrize("package", ["src/whence", "papers/src/whence_papers"])
def test_packages_are_marked_as_typed(package):
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_the_host_requires(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    names = [field["id"] for field in form["body"]]
    assert len(names) == len(set(names)) and any(f.get("validations", {}).get("required") for f in form["body"])
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes") and field["attributes"]["label"]


def test_commands_of_the_checklists_exist():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "RELEASING.md", ROOT / ".github/PULL_REQUEST_TEMPLATE.md"):
        used = re.findall(r"`make ([a-z0-9-]+)", page.read_text())
        assert used and set(used) <= targets

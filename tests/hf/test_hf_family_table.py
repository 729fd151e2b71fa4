"""Every family does what its row of docs/families.md says, and the page is the one that the record gives."""

import json
import tomllib

import pytest
import transformers
from families import COLUMNS, FAMILIES
from family_cells import PAGE, RECORD, ROOT, Row, newest, page

RECORDED = json.loads(RECORD.read_text())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_matches_its_row(family):
    """All but the compile column, which takes seconds a family and is measured when the record is written."""
    if not family.available:
        pytest.skip(f"transformers {transformers.__version__} has no {family.config}")
    expected = {column: text for column, text in family.expected.items() if column != "compile"}
    assert Row(family).cells() == expected


def test_the_newest_run_measured_the_table():
    assert newest(RECORDED)["families"] == {family.name: family.expected for family in FAMILIES}


def test_the_oldest_supported_version_was_measured():
    """With the bound in pyproject.toml; what differs there stands on the page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [
        bound for extra in project["optional-dependencies"].values() for bound in extra if "transformers>=" in bound
    ]
    oldest = bounds[0].split(">=")[1].split(",")[0]
    assert any(run["transformers"].startswith(oldest) for run in RECORDED["runs"])


def test_the_page_matches_the_record():
    assert PAGE.read_text() == page(RECORDED)
    assert "| " + " | ".join(COLUMNS) + " |" in PAGE.read_text()

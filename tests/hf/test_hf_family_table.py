"""Every family does what its row of docs/families.md says, and the page is the one that the record gives."""

import json

import pytest
import transformers
from families import COLUMNS, FAMILIES
from family_cells import PAGE, RECORD, Row, page

RECORDED = json.loads(RECORD.read_text())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_cell_of_a_family_is_what_the_table_says(family):
    """All but the compile column, which takes seconds a family and is measured when the record is written."""
    if not family.available:
        pytest.skip(f"transformers {transformers.__version__} has no {family.config}")
    expected = {column: text for column, text in family.expected.items() if column != "compile"}
    assert Row(family).cells() == expected


def test_the_record_is_the_table():
    assert RECORDED["families"] == {family.name: family.expected for family in FAMILIES}
    newest = max(RECORDED["runs"], key=lambda run: tuple(map(int, run["transformers"].split("."))))
    assert newest["agree"] == newest["families"] == len(FAMILIES) and newest["compile"]


def test_the_page_is_made_from_the_record():
    assert PAGE.read_text() == page(RECORDED)
    assert "| " + " | ".join(COLUMNS) + " |" in PAGE.read_text()

"""What is said of the sources that made a claim's records."""

import pytest

from whence import records
from whence_papers.ledger.page import add_provenance, describe_sources


@pytest.fixture
def place(tmp_path):
    for folder, values in {"good": (True, True), "bad": (True, False, None), "old": (None,)}.items():
        for number, value in enumerate(values):
            record = {"provenance": {"source_matches_commit": value}} if value is not None else {"n": 1}
            records.write(tmp_path / folder / f"{number}.json", record)
    return tmp_path


def test_records_of_other_sources_are_counted(place):
    assert describe_sources(f"{place}/good") == "made by the sources of the commit that the record names"
    assert describe_sources(f"{place}/bad").startswith("1 of 2 records were made by other sources")
    assert describe_sources(f"{place}/good, {place}/bad").startswith("1 of 4 records")
    assert describe_sources(f"{place}/bad/1.json and 0.json").startswith("1 of 1 records")
    found = {"provenance": {"source_matches_commit": False, "sources": {"commit": "0" * 40}}}
    records.write(place / "bad" / "3.json", found)
    assert describe_sources(f"{place}/bad").endswith("the commits of 1 of these are found and stored")


def test_nothing_is_said_where_nothing_is_known(place):
    rows = [{"record": f"{place}/old"}, {"record": ""}, {"record": f"{place}/none/1.json"}]
    add_provenance(rows)
    assert [row["sources"] for row in rows] == ["", "", ""]

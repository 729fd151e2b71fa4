"""The published data: what is said when it is missing, how it is fetched, and that it is the data we know."""

import hashlib
import os
import sys
import types
from pathlib import Path

import pytest

from whence import MissingExtra, WhenceError
from whence.lab.data.downloads import fetch
from whence.lab.tasks import load
from whence_papers import downloads

TASK = "whence_papers.pointer.next_location.task:NextPlaceTask"
SETS = {"geolife": downloads.GEOLIFE, "foursquare": downloads.FOURSQUARE, "speeches": downloads.SPEECHES}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name, path", [("geolife", "geolife_stays.csv"), ("foursquare", "foursquare_train.csv")])
def test_missing_data_says_what_to_run(folder, name, path):
    with pytest.raises(WhenceError) as error:
        load(TASK, data=name)
    assert str(error.value) == (
        f"task 'next_place' got no mobility/{path} in {folder}, but WHENCE_DATA must name the folder that contains it; run: "
        f"python -m whence_papers.downloads {name}."
    )


def test_a_bad_row_of_the_data_is_named(folder):
    (folder / "mobility").mkdir()
    (folder / "mobility" / "geolife_stays.csv").write_text(
        "user_id,location_id,start_day,start_min,weekday\n1,2,x,4,5\n"
    )
    with pytest.raises(WhenceError, match=r"geolife_stays.csv with invalid rows: line 2 \(start_day='x'"):
        load(TASK, data="geolife")


@pytest.mark.parametrize("name", SETS)
def test_fetching(folder, monkeypatch, tmp_path_factory, name):
    served = tmp_path_factory.mktemp("server") / "file.csv"
    served.write_text("visits")
    requests = []

    def retrieve(address, known_hash, progressbar):
        requests.append((address, known_hash))
        return str(served)

    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtra, match="needs pooch"):
        fetch(name, downloads.SETS)
    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    written = fetch(name, downloads.SETS)
    assert [path.name for path in written] == list(SETS[name]) and written[0].read_text() == "visits"
    assert all(address.startswith("https://") and checksum.startswith("sha256:") for address, checksum in requests)
    assert fetch(name, downloads.SETS) == []  # what is there stays as it is


@pytest.mark.parametrize("name", SETS)
def test_the_checksums_are_those_of_the_real_files(name):
    real = Path(os.environ.get("WHENCE_DATA", "nowhere")) / ("speeches" if name == "speeches" else "mobility")
    if not real.is_dir():
        pytest.skip(f"WHENCE_DATA names no folder with {name}")
    for path, (_, checksum) in SETS[name].items():
        assert checksum == f"sha256:{hashlib.sha256((real / path).read_bytes()).hexdigest()}"


def test_settings_that_cannot_be():
    with pytest.raises(WhenceError, match="one of 'geolife', 'foursquare', 'world'"):
        load(TASK, data="gowalla")
    with pytest.raises(WhenceError, match="days=0"):
        load(TASK, data="world", days=0)

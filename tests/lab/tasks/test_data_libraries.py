"""Parquet files and Hugging Face datasets, with the libraries themselves and without a network."""

import sys

import pytest

from whence.errors import MissingExtra, WhenceError
from whence.lab import data_options
from whence.lab.data.tables import read_table
from whence.lab.tasks import load

ROWS = [(f"{'good fine' if n % 4 else 'bad poor'} film number {n}", "pos" if n % 4 else "neg") for n in range(80)]
COLUMNS = {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}


def refused(data, **options):
    with pytest.raises(WhenceError) as error:
        load_data(data, **options)
    return str(error.value)


def load_data(data, **options):
    name, settings = data_options.file_task(str(data), **options)
    return load(name, **settings)


def test_parquet_needs_an_extra(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"a\.parquet.*pyarrow.*whence\[data\]"):
        read_table(tmp_path / "a.parquet", ["text"])


def write_parquet(path, columns):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path)
    return path


def test_a_parquet_file_gives_the_task_of_a_csv_file(tmp_path):
    task = load_data(write_parquet(tmp_path / "a.parquet", COLUMNS))
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *map(",".join, ROWS)]))
    assert task.settings["data_hash"] == load_data(tmp_path / "a.csv").settings["data_hash"]
    missing = COLUMNS | {"label": [None, "", *COLUMNS["label"][2:]]}
    said = refused(write_parquet(tmp_path / "b.parquet", missing))
    assert "2 bad rows" in said and "row 1: no label" in said and "row 2: empty label" in said
    numbers = COLUMNS | {"label": [None if n == 3 else n % 2 for n in range(80)], "picture": [b"\x00"] * 80}
    said = refused(write_parquet(tmp_path / "c.parquet", numbers))
    assert "1 bad row of 80" in said and "row 4: no label" in said
    assert load_data(tmp_path / "c.parquet", skip_bad_rows=True).class_names == ("0", "1")
    (tmp_path / "d.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    assert "d.parquet" in (said := refused(tmp_path / "d.parquet")) and "write it again" in said


def test_files_of_one_split_are_read_together(tmp_path):
    for number, own in enumerate((slice(0, 30), slice(30, 60))):
        columns = {name: values[own] for name, values in COLUMNS.items()}
        write_parquet(tmp_path / f"train-{number:05}-of-00002.parquet", columns)
    write_parquet(tmp_path / "test-00000-of-00001.parquet", {name: values[60:] for name, values in COLUMNS.items()})
    assert load_data(tmp_path).describe_data()["items"] == {"train": 60, "test": 20}


def test_datasets_need_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"hf:owner/name.*datasets.*whence\[data\]"):
        data_options.file_task("hf:owner/name")


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets")


@pytest.fixture
def parts(datasets, tmp_path, monkeypatch):
    """A dataset with named labels, hidden labels in test, and a split of another name."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    texts, labels = COLUMNS["text"], [int(label == "pos") for label in COLUMNS["label"]]

    def build(texts, labels):
        return datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features)

    return datasets.DatasetDict(
        {
            "train": build(texts[:60], labels[:60]), "validation": build(texts[60:], labels[60:]),
            "test": build(texts[:5], [-1] * 5), "unsupervised": build(texts[:7], labels[:7]),
        }
    )  # fmt: skip


def test_a_saved_dataset(parts, tmp_path):
    parts.save_to_disk(tmp_path / "saved")
    task = load_data(f"hf:{tmp_path / 'saved'}")
    facts = task.describe_data()
    assert task.class_names == ("neg", "pos") and facts["items"] == {"train": 60, "test": 20}  # validation decides
    hidden, other = facts["notes"]
    assert "split test with 5 rows" in hidden and "hidden" in hidden and "split unsupervised with 7 rows" in other
    parts["train"].save_to_disk(tmp_path / "single")  # without splits, so the rows are split here
    assert load_data(f"hf:{tmp_path / 'single'}").describe_data()["items"] == {"train": 48, "test": 6, "validation": 6}
    (tmp_path / "nothing").mkdir()
    assert "hf:" in (said := refused(f"hf:{tmp_path / 'nothing'}")) and "save_to_disk" in said


def test_a_dataset_as_it_is_published(parts, tmp_path):
    (tmp_path / "mine" / "data").mkdir(parents=True)
    for split in ("train", "validation"):
        parts[split].to_parquet(tmp_path / "mine" / "data" / f"{split}-00000-of-00001.parquet")
    assert load_data(f"hf:{tmp_path / 'mine'}").describe_data()["items"] == {"train": 60, "test": 20}
    assert "hf:FOLDER" in refused(tmp_path / "mine")


def test_without_a_network(datasets, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)  # does not try again for half a minute
    said = refused("hf:stanfordnlp/imdb")
    assert "hf:stanfordnlp/imdb" in said and "network" in said and "save_to_disk" in said
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names: asked.append(names) or {})
    assert "train" in refused("owner/name/config")  # no such file, so it is a dataset
    assert asked == [("owner/name", "config")]

"""GLUE from files: the format and the metric of each task, pairs of texts, similarity, and generated paraphrases."""

import json

import pytest
import torch

from whence import WhenceError
from whence.lab import data_options, training
from whence.lab.arms import parse_arm
from whence.lab.tasks import load
from whence.lab.tasks.glue import correlate, join_texts

MODEL = {"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.0}
#: header and rows of each task's published tables; {n} makes texts different
TABLES = {
    "sst2": ("SST-2", "sentence\tlabel", ["fine film {n}\t1", "bad film {n}\t0"], "accuracy"),
    "cola": ("CoLA", None, ["src\t1\t\tBo sleeps {n}.", "src\t0\t*\tsleeps {n} Bo."], "mcc"),
    "mrpc": ("MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", ["1\t1\t2\ta {n}\tb {n}", "0\t1\t2\tc {n}\td {n}"], "binary_f1"),
    "qqp": ("QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", ["0\t1\t2\tWho {n}?\tWhat {n}?\t1", "0\t1\t2\tWhen {n}?\tWhy {n}?\t0"], "binary_f1"),
    "stsb": ("STS-B", "index\tsentence1\tsentence2\tscore", ["0\ta b {n}\ta c {n}\t3.8", "0\ta b {n}\tc d\t0.400"], "pearson"),
    "mnli": ("MNLI", "index\tsentence1\tsentence2\tgold_label", ["0\ta {n}\tb\tneutral", "0\tc {n}\td\tentailment", "0\te {n}\tf\tcontradiction"], "accuracy"),
    "qnli": ("QNLI", "index\tquestion\tsentence\tlabel", ["0\tWho {n}?\tBo.\tentailment", "0\tWhy {n}?\tBo.\tnot_entailment"], "accuracy"),
    "rte": ("RTE", "index\tsentence1\tsentence2\tlabel", ["0\ta {n}\tb\tentailment", "0\tc {n}\td\tnot_entailment"], "accuracy"),
    "wnli": ("WNLI", "index\tsentence1\tsentence2\tlabel", ["0\ta {n}\tb\t1", "0\tc {n}\td\t0"], "accuracy"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("glue")
    for subset, (name, header, rows, _) in TABLES.items():
        (path / "glue" / name).mkdir(parents=True)
        dev = ("dev_matched", "dev_mismatched") if subset == "mnli" else ("dev",)
        for part, count in (("train", 12), *((one, 4) for one in dev)):
            lines = [row.format(n=n) for n in range(count) for row in rows]
            text = "\n".join([*([header] if header else []), *lines]) + "\n"
            (path / "glue" / name / f"{part}.tsv").write_text(text)
    return path


@pytest.mark.parametrize("subset", TABLES)
def test_every_subset(folder, monkeypatch, subset):
    monkeypatch.setenv("WHENCE_DATA", str(folder))
    _, _, rows, metric = TABLES[subset]
    task = load("glue", subset=subset, context=16)
    splits = {"dev", "dev_mismatched"} if subset == "mnli" else {"dev"}
    assert task.metric == metric and task.higher_is_better and set(task.splits()) == splits
    assert task.describe_data()["items"] == {"train": 12 * len(rows), **dict.fromkeys(splits, 4 * len(rows))}
    pairs = subset not in ("sst2", "cola")
    assert all(("<sep>" in task.decode(row)) is pairs for row in task.train.tokens)
    model = task.build_model(MODEL, parse_arm("rotary"), 0)
    row = training.evaluate_split(task, model, "dev", torch.device("cpu"))
    assert row["num_targets"] == 4 * len(rows) and ("pearson" in row) is (subset == "stsb")
    found = task.baselines()
    assert all(metric in entry["splits"]["dev"] for entry in found.values())
    assert len(load("glue", subset=subset, context=16, items=3, test_items=2).train.labels) == 3


def test_labels_are_those_of_the_file(folder, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(folder))
    task = load("glue", subset="mnli", context=16)
    texts = [" ".join(task.decode(row)).split(" ")[0] for row in task.train.tokens]
    assert {text: int(label) for text, label in zip(texts, task.train.labels, strict=True)} == {"a": 1, "c": 0, "e": 2}


def test_similarity_is_learned_and_correlated(folder, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(folder))
    task = load("glue", subset="stsb", context=16)
    assert task.num_classes == 26 and set(task.train.labels.tolist()) == {19, 2}
    model = task.build_model(MODEL, parse_arm("rotary"), 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(15):
        batch = task.train_batch(8, torch.Generator().manual_seed(step))
        training.compute_loss(task, model, batch, training.count_targets(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    predicted = task.predict_similarity(model, "dev")
    row = training.evaluate_split(task, model, "dev", torch.device("cpu"))
    assert row["value"] == row["pearson"] == correlate(predicted, task.similarities["dev"])["pearson"] > 0.9
    assert predicted.min() >= 0 and predicted.max() <= 5
    assert task.baselines()["shared words"]["splits"]["dev"]["pearson"] == pytest.approx(1)
    task.hold_out_validation()
    assert set(task.score_predictions(model, "validation")) == {"pearson", "spearman"}


def test_json_lines_with_the_names_of_hugging_face(tmp_path):
    rows = [{"premise": f"a {n}", "hypothesis": "b", "label": n % 3, "idx": n} for n in range(9)]
    for name in ("train", "validation_matched"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = load("glue", subset="mnli", path=str(tmp_path), context=8)
    assert task.train.labels.tolist() == [0, 1, 2] * 3 and task.settings["file"] == tmp_path.name
    (cola := tmp_path / "cola").mkdir()
    for name in ("train", "dev"):
        (cola / f"{name}.jsonl").write_text(
            "\n".join(json.dumps({"sentence": f"s {n}", "label": n % 2}) for n in range(4))
        )
    assert load("glue", subset="cola", path=str(cola), context=8).train.labels.tolist() == [0, 1, 0, 1]
    name, settings = data_options.file_task(str(cola), ["glue"], subset="cola")
    assert name == "glue" and load(name, **settings).metric == "mcc"
    with pytest.raises(WhenceError, match=r"without the column premise"):
        load("glue", subset="mnli", path=str(cola))


def test_wrong_settings_and_files(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    with pytest.raises(WhenceError, match=r"glue/RTE.*train.tsv"):
        load("glue", subset="rte")
    with pytest.raises(WhenceError, match=r"subset='snli'.*'rte'"):
        load("glue", subset="snli")
    path = tmp_path / "glue/RTE"
    path.mkdir(parents=True)
    (path / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n")
    with pytest.raises(WhenceError, match=r"no dev.tsv"):
        load("glue", subset="rte")
    (path / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    with pytest.raises(WhenceError, match=r"'maybe' as the label at line 2 of train.tsv.*entailment"):
        load("glue", subset="rte")


def test_long_pairs_keep_both_texts():
    assert join_texts([[5] * 9, [6] * 9], 7) == [5, 5, 5, 1, 6, 6, 6]
    assert join_texts([[5], [6] * 9], 7) == [5, 1, 6, 6, 6, 6, 6]


def test_paraphrases_need_the_order_of_words():
    task = load("paraphrases", pairs=400, test_pairs=100)
    found = {name: entry["splits"]["test"]["accuracy"] for name, entry in task.baselines().items()}
    assert found["bag of words"] < 0.7 and found["majority class"] < 0.65
    assert task.splits() == {"test": 12} and "binary_f1" in task.baselines()["majority class"]["splits"]["test"]

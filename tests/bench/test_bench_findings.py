"""Intervals, verdicts and pages from records that are written by hand. None of it needs the harness."""

import json

import pytest

from whence import records
from whence.bench.bench_folder import PLAN
from whence.bench.corpus_counts import bootstrap_corpus, count_matches
from whence.bench.findings import collect_findings, compare_benchmarks, mean_interval
from whence.errors import WhenceError
from whence.probe.identity import text_checksum
from whence.report.bench import comparison_page, page

IDENTITY = {"kind": "weights", "attached": [], "dtype": "float32", "device": "cpu"}
SETTINGS = {"items": None, "shots": 0, "max_length": 64, "max_new_tokens": None, "chat": False}


def write_folder(folder, values, model="before", hash_="0" * 16, **changes):
    """A folder with one record, as ``whence bench`` writes it."""
    plan = {"model": model, "identity": IDENTITY, "settings": SETTINGS}
    key = text_checksum(plan)
    records.write(folder / PLAN, {"format": 1, "plan": plan, "hash": key, "model": {"name": model}, "command": None})
    rows = [
        {
            "item": str(n),
            "values": {"acc": value},
            "answer": "x",
            "counts": {},
            "prompt_hash": "h",
            "shortened": n == 0,
        }
        for n, value in enumerate(values)
    ]
    record = {
        "kind": "benchmark", "plan": key, "benchmark": "glue", "task": "sst2", "hash": hash_, "files": {"dev.tsv": "a" * 64},
        "metric": "acc", "corpus": [], "higher_is_better": {"acc": True}, "scores": {"acc": sum(values) / len(values)},
        "items": len(rows), "rows": rows, "seconds": 1.0, "started": "2026-01-01T00:00:00", "environment": {}, **changes,
    }  # fmt: skip
    records.write(folder / f"glue-sst2-{hash_}.json", record)
    return folder


def test_a_score_with_its_interval_and_a_page(tmp_path):
    folder = write_folder(tmp_path / "one", [1.0] * 9 + [0.0])
    findings = collect_findings(folder)
    (metric,) = findings["tasks"][0]["metrics"]
    assert metric["score"] == pytest.approx(90) and metric["interval"] == pytest.approx(
        [59.58, 98.21], abs=0.01
    )  # Wilson
    assert findings["tasks"][0]["shortened"] == 1
    text = page(findings)
    assert '<th scope="col" class="text">metric</th>' in text and '<th scope="col">items</th>' in text
    assert "90.0% (59.6 to 98.2)" in text and "fewer than 20 items" in text and "glue: sst2" in text


def test_means_of_other_values_have_a_bootstrap_interval():
    low, high = mean_interval([0.2, 0.4, 0.6, 0.8] * 10)
    assert 0.4 < low < 0.5 < high < 0.6
    assert mean_interval([0.5] * 4) is None  # no variance


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([0.0] * 60, [1.0] * 50 + [0.0] * 10, "better"),
        ([1.0] * 50 + [0.0] * 10, [0.0] * 60, "worse"),
        ([1.0, 0.0] * 4, [0.0, 1.0] * 4, "undecided"),
        ([0.5] * 400, [0.5 + 0.001 * (n % 2) for n in range(400)], "equivalent"),
        ([0.5] * 40, [0.5 + 0.001 * (n % 2) for n in range(40)], "better"),  # small, but sure
        ([0.5] * 40, [0.5 + 0.001 * (-1) ** n for n in range(40)], "undecided"),  # too few to exclude rare large ones
    ],
)
def test_verdicts_of_two_models(tmp_path, before, after, verdict):
    folders = [write_folder(tmp_path / name, own, name) for name, own in (("before", before), ("after", after))]
    findings = compare_benchmarks(*folders)
    (task,) = findings["tasks"]
    assert task["verdict"] == verdict and task["items"] == len(before)
    text = comparison_page(findings)
    assert f"1 {verdict}" in text and "after compared with before" in text


def test_pairs_are_the_common_items(tmp_path):
    folders = [write_folder(tmp_path / name, [0.0, 1.0] * n, name) for n, name in ((4, "before"), (2, "after"))]
    assert compare_benchmarks(*folders)["tasks"][0]["items"] == 4


def test_chrf_below_one_is_no_share(tmp_path):
    """A poor translation has 0.5 of 100 points; that is no accuracy of 50 %."""
    folders = []
    for name, points in (("before", 0.0), ("after", 0.5)):
        rows = [
            {"item": str(n), "values": {"sentence_chrf": points}, "answer": "x", "counts": {}, "prompt_hash": "h", "shortened": False}
            for n in range(300)
        ]  # fmt: skip
        changes = {"rows": rows, "metric": "sentence_chrf", "scores": {"sentence_chrf": points}}
        changes["higher_is_better"] = {"sentence_chrf": True}
        folders.append(write_folder(tmp_path / name, [0.0] * 300, name, **changes))
    (metric,) = collect_findings(folders[1])["tasks"][0]["metrics"]
    assert metric["score"] == 0.5 and metric["unit"] == ""
    (task,) = compare_benchmarks(*folders)["tasks"]
    assert task["means"] == [0, 0.5] and task["verdict"] == "equivalent" and task["contrast"]["interval"]["high"] < 2


def add_record(folder, like, **changes):
    """Another record beside one of a folder."""
    record = records.read(folder / like) | changes
    name = f"{record['benchmark']}-{record['task']}-{record['hash']}.json"
    records.write(folder / name, record)
    return folder


def test_tasks_that_were_not_asked_for_change_no_interval(tmp_path):
    sides = {"before": [0.0, 1.0] * 30, "after": [1.0, 1.0, 1.0, 0.0] * 15}
    folders = [write_folder(tmp_path / name, own, name) for name, own in sides.items()]
    asked = {("glue", "sst2"): "0" * 16}
    alone = compare_benchmarks(*folders)
    for folder in folders:
        for task in ("cola", "rte"):
            add_record(folder, f"glue-sst2-{'0' * 16}.json", task=task)
    add_record(folders[1], f"glue-sst2-{'0' * 16}.json", task="wnli")
    found = compare_benchmarks(*folders, hashes=asked)
    assert (
        found["tasks"] == alone["tasks"] and found["only"] == [] and "corrected for 1 task at" in comparison_page(found)
    )
    every = compare_benchmarks(*folders)
    assert [task["task"] for task in every["tasks"]] == ["cola", "rte", "sst2"] and every["only"] == ["wnli"]
    ends = [task["contrast"]["interval"]["high"] for task in (*found["tasks"], every["tasks"][-1])]
    assert ends[0] < ends[1]


def test_the_version_that_was_asked_for_is_compared(tmp_path):
    folders = [write_folder(tmp_path / name, [0.0, 1.0], name) for name in ("before", "after")]
    add_record(folders[1], f"glue-sst2-{'0' * 16}.json", hash="1" * 16, started="2026-02-01T00:00:00")
    (task,) = compare_benchmarks(*folders, hashes={("glue", "sst2"): "0" * 16})["tasks"]
    assert task["items"] == 2
    with pytest.raises(WhenceError, match="two versions of glue sst2"):
        compare_benchmarks(*folders, hashes={("glue", "sst2"): "1" * 16})
    with pytest.raises(WhenceError, match="without a common task"):
        compare_benchmarks(*folders, hashes={("glue", "cola"): "0" * 16})


def test_an_earlier_version_of_a_task_is_named(tmp_path):
    folder = write_folder(tmp_path / "one", [0.0, 1.0])
    write_folder(folder, [1.0, 1.0], hash_="1" * 16, started="2026-02-01T00:00:00")
    findings = collect_findings(folder)
    assert [task["hash"] for task in findings["tasks"]] == ["1" * 16] and findings["older"] == [
        "glue sst2 of 2026-01-01T00:00:00"
    ]
    assert "2026-01-01T00:00:00" in page(findings)


def test_what_cannot_be_compared(tmp_path):
    one, other = (write_folder(tmp_path / name, [0.0, 1.0], name) for name in ("one", "other"))
    write_folder(other, [0.0, 1.0], "other", hash_="1" * 16, started="2026-02-01T00:00:00")
    with pytest.raises(WhenceError, match=r"two versions of glue sst2.*run whence bench again"):
        compare_benchmarks(one, other)
    elsewhere = write_folder(tmp_path / "x", [1.0], "x", benchmark="squad")
    with pytest.raises(WhenceError, match="without a common task"):
        compare_benchmarks(one, elsewhere)


def test_a_changed_plan_or_a_foreign_record_is_an_error(tmp_path):
    folder = write_folder(tmp_path / "one", [0.0, 1.0])
    content = json.loads((folder / PLAN).read_text())
    record = folder / f"glue-sst2-{'0' * 16}.json"
    record.write_text(record.read_text().replace(content["hash"], "f" * 16))
    with pytest.raises(WhenceError, match="of another plan"):
        collect_findings(folder)
    content["plan"]["model"] = "another"
    (folder / PLAN).write_text(json.dumps(content))
    with pytest.raises(WhenceError, match="not a plan with its own hash"):
        collect_findings(folder)


def test_corpus_metrics_have_intervals_from_counts_of_the_items():
    pytest.importorskip("sacrebleu")
    answers = ["a b c d e", "a b c x y", "p q r s t", "a q c d e"]
    counts = [count_matches("bleu", answer, "a b c d e") for answer in answers]
    draws = bootstrap_corpus("bleu", counts)
    assert min(draws) < 30 < max(draws) and len(set(draws)) > 20
    assert bootstrap_corpus("bleu", counts[:1] * 3) == pytest.approx([100.0] * 500)
    assert set(bootstrap_corpus("ter", [count_matches("ter", "a b", "a c")] * 2)) == {50.0}

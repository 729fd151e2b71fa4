"""``whence discover``: from options to records, a mechanism and a report."""

import json
from functools import partial
from types import SimpleNamespace

import pytest

import whence
from whence.cli.discover_model import Parts
from whence.discover import challenger, discovery, studies
from whence.position.expression import ModelDims, build_position
from whence.report.record_page import render_records

SMALL = [
    "--task", "recall", "--quick", "--seeds", "2", "--steps", "2", "--heads", "2", "--embed-dim", "8", "--ffn-dim", "8", "--lengths", "1x",
    "--no-challenger", "--jobs", "1", "--acts-on", "both",
]  # fmt: skip


@pytest.mark.parametrize(
    "options, parts",
    [
        (["--task", "flurb"], ("flurb", "unknown", "the tasks are lm, retrieval")),
        (["--task", "lm", "--acts-on", "rotation"], ("--acts-on", "'rotation'", "scale or both", "pass bias")),
        (["--smoothness", "0,-1"], ("--smoothness", "'0,-1'", "0,0.003")),
        (["--budget", "soon"], ("--budget", "'soon'", "20m")),
        (["--task", "lm", "--context", "4"], ("4 tokens", "at least 10", "--context")),
        (["--data", "missing.txt"], ("--data", "missing.txt", "check the path")),
        (["--task", "lm", "--model", "quick"], ("--task", "'lm'", "leave out")),
        (["--model", "./nowhere"], ("whence discover --model ./nowhere", "no such folder", "check the path")),
        (["--tokens", "bytes"], ("--tokens", "no --data", "add --data")),
    ],
)
def test_wrong_input_is_one_line_before_any_work(run_whence, tmp_path, options, parts):
    done = run_whence("discover", *options)
    assert done.returncode == 2 and all(part in done.stderr for part in parts)
    assert "Traceback" not in done.stderr and not (tmp_path / "build").exists()


def test_a_small_discovery_resumes_and_writes_everything(run_whence, tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "RIVALS", ("alibi",))
    monkeypatch.setattr(discovery, "discover", partial(discovery.discover, pairs=False))  # quicker
    monkeypatch.setitem(studies.QUICK_TASK_SETTINGS, "recall", {"tokens": 16, "symbols": 4, "interval": 4, "items": 8})
    stopped = run_whence("discover", *SMALL, "--budget", "0.001s")
    assert stopped.returncode == 0 and "run the command again to resume" in stopped.stderr
    done = run_whence("discover", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [part in done.stderr for part in ("1 of 4", "2 of 4", "3 of 4", "4 of 4")] == [True] * 4
    assert sorted(document["studies"][0]["comparison"]["arms"]) == ["alibi", "table"]
    assert len(document["studies"]) == 1 and document["smoothness"]["chosen"] in (0.0, 0.01)
    heads = {
        hook: sorted(head for kind in kinds for head in kind["heads"]) for hook, kinds in document["kinds"].items()
    }
    assert heads == {"bias": [0, 1], "scale": [0, 1]}
    position = build_position(f"{tmp_path / document['mechanism']}:Discovered()", ModelDims(2, 4, 8, 16))
    whence.check(position)
    page = (tmp_path / document["report"]).read_text()
    learning = document["learning"]  # two steps teach nothing
    assert learning["baseline"] in ("chance", "a marked symbol") and not learning["better"]
    assert all("The task was not learned" in text for text in (page, done.stderr))
    assert "Ranking" in page and "Which formula" in page and "alibi" in page and "src=" not in page
    (tmp_path / document["report"]).unlink()
    reported = run_whence("report", document["folder"], "--json")
    assert json.loads(reported.stdout)["reports"][0]["kinds"] == document["kinds"], reported.stderr
    again = (tmp_path / document["report"]).read_text()
    assert "Ranking" in again and "alibi" in again  # the comparison was found beside the discovery
    assert "alibi" in render_records(tmp_path / document["folder"])
    assert "2 of 6 runs are those of the free table" in page and "existed before this plan" not in page + again
    edited = tmp_path / document["mechanism"]
    edited.unlink()
    without = run_whence("report", document["folder"])
    assert without.returncode == 0 and f"no file {document['mechanism']}" in without.stderr
    assert f"writes it again: whence discover {' '.join(SMALL)}" in without.stderr and not edited.exists()
    shown = run_whence("discover", *SMALL, "--no-compare")
    assert f"report without a comparison: {document['report']}" in shown.stdout and "naming" not in shown.stderr
    assert f"compare --heads 2 --position {document['mechanism']}:Discovered --position rotary\n" in shown.stdout
    edited.write_text(edited.read_text() + "# mine\n")
    refused = run_whence("discover", *SMALL)
    assert refused.returncode == 2 and "edited" in refused.stderr and "rename your file" in refused.stderr
    assert "naming" not in refused.stderr and "seed 0" not in refused.stderr  # records were read


def test_the_smoothness_with_the_best_validation_value_is_chosen(monkeypatch, tmp_path):
    tables = studies.build_tables_study("recall", "bias", 2, settings={"steps": 2}, quick=True)
    tuning = studies.build_smoothness_study(tables, (0.0, 0.01), 2)
    found = {"smoothness=0": 0.2, "smoothness=0.01": 0.7}
    monkeypatch.setattr(studies, "read_value", lambda run, folder: found[run.arm.name])
    chosen, record = studies.choose_smoothness(tables, tuning, tmp_path, (0.0, 0.01))
    assert record["chosen"] == 0.01 and "smoothness=0.01" in chosen.arms[0].position  # recall: higher is better
    monkeypatch.setattr(studies, "read_value", lambda run, folder: None)
    with pytest.raises(whence.errors.WhenceError, match=r"smoothness.*failed or diverged.*other values"):
        studies.choose_smoothness(tables, tuning, tmp_path, (0.0, 0.01))
    (tmp_path / "own.txt").write_text("a line of text\n" * 2000)
    quick = studies.build_tables_study(
        "text_file", "scale", 2, task_settings={"path": str(tmp_path / "own.txt")}, quick=True
    )
    assert quick.task_settings["context"] == 32 and quick.task_settings["blocks"] == 32
    assert studies.choose_size("text_file", True).settings["embed_dim"] == 32
    judged = studies.build_comparison(quick, tmp_path / "discovered.py")
    assert [study.decision.split for study in judged] == [
        "test",
        "16x",
    ]  # a text of one's own also has a validation split
    comparison = studies.build_comparison(chosen, tmp_path / "discovered.py")
    assert [arm.name for arm in comparison[0].arms] == ["discovered", "table", "epar", "alibi", "power", "rotary"]
    assert [study.decision.split for study in comparison] == ["test", "16x"]
    assert all(study.decision.baseline == "discovered" and study.comparisons == 10 for study in comparison)


def test_the_profiles_of_a_pretrained_model(run_whence, tmp_path, monkeypatch):
    stopped = run_whence("discover", "--model", "quick", "--seeds", "2", "--context", "64", "--budget", "0.001s")
    assert stopped.returncode == 0 and "run the command again to resume" in stopped.stderr
    (part,) = tmp_path.glob("build/discover/*/parts/*.json")  # the first text; the second is measured next
    written = part.stat().st_mtime_ns
    monkeypatch.setattr(Parts, "remove", lambda self: None)
    done = run_whence("discover", "--model", "quick", "--seeds", "2", "--context", "64", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert sum(document["families"].values()) == len(document["heads"]) and "text 2 of 2" in done.stderr
    assert part.stat().st_mtime_ns == written
    (tmp_path / document["report"]).unlink()
    reported = json.loads(run_whence("report", document["folder"], "--json").stdout)["reports"][0]
    assert reported["heads"] == document["heads"] and "Which curve" in (tmp_path / document["report"]).read_text()
    assert "Which curve" in render_records(tmp_path / document["folder"])
    again = run_whence("discover", "--model", "quick", "--seeds", "2", "--context", "64", "--json")
    assert json.loads(again.stdout) == document and "text 2 of 2" not in again.stderr
    short = run_whence("discover", "--model", "quick", "--context", "100000")
    assert short.returncode == 2 and "tokens" in short.stderr and "longer text" in short.stderr


def test_stored_tables_are_named_again_with_another_number_of_kinds_and_without_weights(tmp_path, monkeypatch):
    import numpy as np

    from whence.discover import Curves

    distances = np.arange(12.0)
    shapes = np.stack([-0.3 * distances, 3 * np.exp(-((distances - 5) ** 2))])
    curves = Curves(distances, shapes + 0.02 * np.random.default_rng(0).normal(size=(3, 2, 12)))
    facts = {"layers": 1, "heads": 2, "context": 12, "seeds": [0, 1, 2]}
    study = SimpleNamespace(hash="abc", spec=dict)
    monkeypatch.setattr(discovery, "load_curves", lambda study, folder: ({"bias": curves}, facts))
    path = tmp_path / "discovery.json"
    first = discovery.load_or_name(path, tmp_path, study, {}, search=None)
    mechanism = discovery.write_mechanism_file(first, tmp_path / "discovered.py")
    monkeypatch.setattr(discovery, "load_curves", None)
    monkeypatch.setattr(discovery, "has_weights", lambda study, folder: False)
    assert discovery.load_or_name(path, tmp_path, study, {}, search=None) == first
    second = discovery.load_or_name(path, tmp_path, study, {}, max_kinds=1, search=None)
    assert [len(one["hooks"]["bias"]["kinds"]) for one in (first, second)] == [2, 1]
    assert second["tables"] == first["tables"] and not mechanism.exists()
    with pytest.raises(whence.errors.WhenceError, match=r"discovery\.json of other tables.*--out"):
        discovery.load_or_name(path, tmp_path, SimpleNamespace(hash="other"), {}, search=None)


def test_the_challenger_meets_the_named_formula_on_held_out_knots():
    pytest.importorskip("gplearn")
    import numpy as np

    from whence.discover import Curves, name_formula

    d = np.arange(12.0)
    curves = Curves(d, -0.4 * np.log1p(d) + 0.02 * np.random.default_rng(0).normal(size=(3, 1, 12)))
    naming = name_formula(curves, pairs=False)
    found = challenger.challenge(curves, 0, naming.fit, challenger.Search(30, 3))
    assert set(found["expression"]) >= {"text", "bits", "held_out"} and len(found["curve"]) == 12
    assert found["wins"] == all(found["expression"][key] < found["named"][key] for key in ("bits", "held_out"))
    assert found["named"]["held_out"] < 5

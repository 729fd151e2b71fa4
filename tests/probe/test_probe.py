"""A whole probe of the tiny model: its records, resuming, its analyses."""

import json
import shutil

import pytest
from small_probe import PLAN, load_findings

from whence.cli.app import app
from whence.errors import WhenceError
from whence.probe import analyses, likelihood, measurement
from whence.probe.curves import curve
from whence.probe.findings import findings
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import ProbedModel, byte_tokenizer, tiny_random_model
from whence.report.probe import page
from whence.report.probe.figures import explanations_figure


def test_every_piece_has_its_record(probed):
    _, folder, result, output = probed
    names = {path.name for path in folder.glob("*.json")}
    assert {
        "plan.json",
        "key-value-001-0002.json",
        "key-value-closed-book-0000.json",
        "needle-oracle-0000.json",
    } <= names
    assert [done for done, _, _, _ in output] == list(range(1, len(result) + 1))
    places = [words.rpartition(", ")[2] for _, _, words, _ in output if words.startswith("key-value")]
    assert list(dict.fromkeys(places)) == [*(f"gold in slot {n}" for n in (1, 2, 3)), "closed book", "oracle"]
    record = json.loads((folder / "key-value-002-0000.json").read_text())
    assert [row["item"] for row in record["rows"]] == [0, 1] and record["condition"] == 2
    slots = record["attention"]["slots"]
    assert (len(slots), len(slots[0]), len(slots[0][0])) == (2, 4, 3)


def test_a_stopped_probe_resumes_without_measuring_twice(probed, monkeypatch):
    base, folder, result, _ = probed
    gone = folder / "key-value-001-0000.json"
    before = gone.read_text()
    gone.unlink()
    computed_files = []
    real = measurement.make_record
    monkeypatch.setattr(
        measurement, "make_record", lambda *about: computed_files.append(about[2].file_name) or real(*about)
    )
    output = []
    _, again = measurement.measure(tiny_random_model(layers=2), PLAN, base, lambda *about: output.append(about))
    assert computed_files == [gone.name]
    assert [words for _, _, words, read in output if not read] == ["key-value, 3 keys, gold in slot 2"]
    clock = {"seconds": 0, "started": ""}
    assert {**json.loads(before), **clock} == {**json.loads(gone.read_text()), **clock}
    assert [{**one, **clock} for one in again] == [{**one, **clock} for one in result]


@pytest.mark.parametrize("terminal", [False, True])
def test_the_time_left_is_that_of_new_work_alone(terminal, monkeypatch, capsys):
    """Two records are read in no time and two are made in ten seconds each: the last takes ten more, not three."""
    from rich.console import Console

    from whence.cli import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: terminal))
    monkeypatch.setenv("COLUMNS", "120")
    with progress.probe_progress() as notify:
        for done, (read, seconds) in enumerate([(True, 0.01), (True, 0.3), (False, 10), (False, 10)], 1):
            now[0] += seconds
            notify(done, 5, f"piece {done}", read)
    output = capsys.readouterr().err
    assert "about 10 s left" in output and "about 3 s left" not in output
    if not terminal:
        assert output.splitlines()[:3] == [
            "1 of 5, piece 1; already measured", "2 of 5, piece 2; already measured",
            "3 of 5, piece 3; about 20 s left",
        ]  # fmt: skip


@pytest.mark.usefixtures("no_figures")
def test_a_model_with_windows_is_probed_to_the_end(tmp_path):
    """Positions and masks cannot be handed to it: what needs them is left out, and the page is written all the same."""
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer = byte_tokenizer()
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=32,
    )  # fmt: skip
    about = {"type": "mistral", "parameters": 1, "layers": 2}
    windowed = ProbedModel("windowed", MistralForCausalLM(config).eval(), tokenizer, about)
    folder, _ = measurement.measure(windowed, PLAN, tmp_path)
    analyses.explain(windowed, PLAN, folder, lambda *about: None)
    report_data = findings(folder, "whence probe windowed")
    assert not report_data["explanation"].get("mask-or-encoding") and report_data["explanation"]["geometry"]
    assert "Does the position of the answer matter?" in page(report_data)
    assert explanations_figure(report_data) is not None


@pytest.mark.usefixtures("no_figures")
def test_parts_and_minutes_leave_records_that_the_whole_probe_reads(tmp_path, capsys):
    def run(*options):
        app(["probe", "--quick", "--task", "needle", "--out", str(tmp_path), *options], standalone_mode=False)
        return capsys.readouterr()

    output = run("--only", "measure", "--minutes", "0")
    [folder] = tmp_path.iterdir()
    assert "stopped after 0 minutes" in output.out and len(list(folder.glob("needle-*.json"))) == 1
    assert "done: measure" in run("--only", "measure").out and len(list(folder.glob("needle-*.json"))) == 5
    assert "done: explain" in run("--only", "explain").out and not (folder / "report.html").exists()
    instance = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert "report:" in run().out and "Where does the answering token look?" in (folder / "report.html").read_text()
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")} == instance
    with pytest.raises(WhenceError, match=r"guess.*measure, explain"):
        run("--only", "guess")


def test_broken_and_foreign_records_are_named(probed, tmp_path):
    _, folder, _, _ = probed
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    path = copy / "needle-000-0000.json"
    whole = path.read_text()
    path.write_text(whole[:100])
    with pytest.raises(WhenceError, match=r"needle-000-0000\.json, corrupt at line"):
        measurement.measure(tiny_random_model(layers=2), PLAN, tmp_path)
    path.write_text(whole.replace(json.loads(whole)["task_hash"], "0" * 16))
    with pytest.raises(WhenceError, match="with other items"):
        measurement.measure(tiny_random_model(layers=2), PLAN, tmp_path)


def test_a_planted_bias_comes_out_as_planted(monkeypatch, tmp_path):
    def score_and_attend(lm, prompts, scored, num_captured):  # reads the first and the last slot, and nothing between
        seen = [prompt.gold in (None, 0, len(prompt.slots) - 1) for prompt in prompts]
        return [[0.0 if one else -2.0] + [-1.0] * len(prompts[0].rivals) for one in seen], []

    monkeypatch.setattr(measurement, "score_and_attend", score_and_attend)
    plan = Plan("quick", (TaskSpec("key-value", 12, 5, {"pairs": 9}),))
    _, result = measurement.measure(tiny_random_model(layers=1), plan, tmp_path)
    instance = curve(result, "likelihood")
    assert [point["mean"] for point in instance["points"]] == [1, 0, 0, 0, 1]
    assert (
        instance["gap"] == 1
        and instance["gap_p"] < 0.001
        and instance["worst"] == 2
        and instance["baselines"]["oracle"]["mean"] == 1
    )
    wrong = [row for record in result if record["condition"] == 4 for row in record["rows"]]
    assert all(row["chosen_slot"] != 4 for row in wrong) and all(row["probability"] < 0.1 for row in wrong)


def test_analyses_run_once_and_belong_to_their_plan(probed, monkeypatch):
    _, folder, _, _ = probed
    assert set(load_findings(probed)["explanation"]) == {"attention", *analyses.ANALYSES}
    monkeypatch.setattr(analyses, "ANALYSES", dict.fromkeys(analyses.ANALYSES, lambda *about: 1 / 0))
    analyses.explain(tiny_random_model(layers=2), PLAN, folder, lambda *about: None)
    other = Plan("quick", PLAN.tasks, items_per_record=3)
    with pytest.raises(WhenceError, match="of another plan"):
        analyses.explain(tiny_random_model(layers=2), other, folder, lambda *about: None)


def test_folders_may_be_texts_and_progress_need_not_be_reported(probed):
    base, folder, measured, _ = probed
    lm = tiny_random_model(layers=2)
    again, read = measurement.measure(lm, PLAN, str(base))
    analyses.explain(lm, PLAN, str(folder))
    assert again == folder and len(read) == len(measured) and findings(str(folder))["command"] == ""


@pytest.mark.parametrize(
    "function", [measurement.measure, analyses.explain, lambda lm, *_: likelihood.score_choices(lm, [])]
)
def test_a_bare_model_is_refused(function, tmp_path):
    with pytest.raises(
        WhenceError, match=r"got a LlamaForCausalLM, .*; pass probe\.ProbedModel\(name, model, tokenizer\)"
    ):
        function(tiny_random_model().model, PLAN, str(tmp_path))
    assert not list(tmp_path.iterdir())

"""From records to findings: every number is that of a record, and after a first report the records are enough."""

import base64
import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from whence import WhenceError, records
from whence.lab import checkpoints, observe, results, runner, tasks
from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_folder import task_facts
from whence.lab.study_task import build_model
from whence.models import attention_maps
from whence.statistics import AnalysisPlan, compare_paired, summary

STUDY = Study(
    name="little", question="what is found", task="retrieval",
    task_settings={"pairs": 2, "keys": 16, "values": 4, "items": 20},
    model={"embed_dim": 16, "heads": 2, "layers": 2, "ffn_dim": 16}, arms=(parse_arm("none"), parse_arm("alibi")), seeds=(3, 5),
    budget=Budget(steps=4, batch_size=8, evaluate_every=2), decision=Decision(baseline="none", split="2x", alpha=0.1),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return runner.run_study(STUDY, tmp_path_factory.mktemp("results")).folder


@pytest.fixture(scope="module")
def findings(folder):
    return results.collect_findings([folder], "little", "whence run little")["studies"][0]


def recorded(folder, name):
    runs = [run for run in STUDY.runs() if run.arm.name == name]
    return {str(run.seed): records.read(folder / run.file_name) for run in runs}


def test_every_value_is_a_records(folder, findings):
    for one in findings["arms"]:
        instance = recorded(folder, one["name"])
        last = {seed: record["result"]["evaluations"][-1]["splits"] for seed, record in instance.items()}
        for split in ("test", "2x", "4x", "8x"):
            assert one["values"][split] == {seed: row[split]["value"] for seed, row in last.items()}
        assert [row["step"] for row in one["curves"]["3"]["evaluations"]] == [2, 4]
        assert one["curves"]["5"]["losses"] == instance["5"]["result"]["losses"]
        assert one["summary"] == summary(list(one["values"]["2x"].values()), 0.9).to_json()
        assert one["numbers"] == instance["3"]["numbers"]
    assert (findings["metric"], findings["higher_is_better"]) == ("accuracy", True)
    assert (findings["lengths"], findings["trained_length"]) == ({"test": 5, "2x": 9, "4x": 17, "8x": 33}, 5)


def test_studies_of_one_report_are_one_family_unless_a_spec_says_otherwise(folder, tmp_path):
    assert results.collect_findings([folder], "", "")["studies"][0]["comparison"]["m"] == 1
    both = results.collect_findings([folder, folder], "", "")["studies"]
    assert [(one["comparison"]["m"], one["comparison"]["alpha"]) for one in both] == [(2, 0.1)] * 2
    stated = dataclasses.replace(STUDY, decision=dataclasses.replace(STUDY.decision, comparisons=5))
    assert results.widen_family(stated, 2) is stated
    found = results.collect_study(STUDY, folder, comparisons=1000)  # too small a share of alpha
    assert found["comparison"] is None and "1000 comparisons" in found["why_no_comparison"]


def test_the_comparison_is_the_one_announced(findings):
    values = {
        one["name"]: {int(seed): 100 * value for seed, value in one["values"]["2x"].items()} for one in findings["arms"]
    }
    (contrast,) = compare_paired(values, AnalysisPlan(baseline="none", alpha=0.1, unit="points")).contrasts
    arm = findings["comparison"]["arms"]["alibi"]
    assert (arm["difference"], arm["corrected_p"], arm["kind"]) == (contrast.estimate, contrast.p, contrast.verdict)


def test_maps_and_mass_are_those_of_the_trained_weights(folder, findings):
    run = next(run for run in STUDY.runs() if run.arm.name == "alibi" and run.seed == 3)
    task = tasks.load(STUDY.task, **STUDY.task_settings)
    model = build_model(run, task)
    checkpoints.load_weights(observe.weights_path(run, folder), model)
    seen = findings["observations"]["alibi"]
    assert seen["seed"] == 3 and len(seen["examples"]) == 3
    for example, batch in zip(seen["examples"], task.examples(3), strict=True):
        assert example["tokens"] == task.decode(batch.tokens[0])
        maps = attention_maps(model, batch.tokens)[:, 0]
        for layer, head in ((0, 0), (1, 1)):
            drawn = torch.frombuffer(bytearray(base64.b64decode(example["maps"][layer][head])), dtype=torch.uint8)
            assert (drawn.view(5, 5) / 255 - maps[layer, head]).abs().max() <= 0.5001 / 255
    batch = task.evaluation("test")[0]
    maps = attention_maps(model, batch.tokens)
    here = torch.arange(5)
    near = maps.mean((1, 2))[:, here, here].mean(-1)  # what each layer's rows give to their own token
    assert [row[0] for row in seen["mass"]["by_layer"]] == pytest.approx(near.tolist(), abs=1e-5)
    assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in seen["mass"]["by_layer"])


def test_records_alone_are_enough_for_a_second_report(folder, findings, monkeypatch, tmp_path):
    """Weights are not kept with a project, and whoever reads the records may not have the data."""
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(tasks, "load", lambda *a, **k: pytest.fail("it read the data again"))
    assert results.collect_study(STUDY, tmp_path) == findings
    (tmp_path / "observations.json").unlink()
    assert results.collect_study(STUDY, tmp_path)["observations"] is None  # without weights either


def test_a_packed_study_stays_as_it_is(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "study", ignore=shutil.ignore_patterns("task.json"))
    packed = shutil.make_archive(str(tmp_path / "study"), "zip", tmp_path / "study")
    shutil.rmtree(tmp_path / "study")
    before = Path(packed).read_bytes()
    assert results.collect_study(STUDY, tmp_path / "study")["arms"]
    assert list(tmp_path.iterdir()) == [Path(packed)] and Path(packed).read_bytes() == before


def test_a_study_that_is_not_finished_is_looked_at_anew(folder, tmp_path):
    (tmp_path / "weights").mkdir()
    weights = [observe.weights_path(run, folder) for run in STUDY.runs()[:2]]
    (tmp_path / "weights" / weights[0].name).write_bytes(weights[0].read_bytes())
    assert set(observe.load_observations(STUDY, tmp_path)) == {"none"}
    (tmp_path / "weights" / weights[1].name).write_bytes(weights[1].read_bytes())
    assert (
        set(observe.load_observations(STUDY, tmp_path)) == {"none", "alibi"}
        and (tmp_path / "observations.json").exists()
    )


def test_where_records_were_made(folder, findings):
    assert [(one["runs"], one["environment"]["source_hash"]) for one in findings["ran"]] == [(4, records.source_hash())]
    instance = [record for name in ("none", "alibi") for record in recorded(folder, name).values()]
    assert findings["ran"][0]["started"] == min(record["started"] for record in instance)
    instance[2] = instance[2] | {"environment": {"commit": "other"}, "started": "2001-01-01T00:00:00Z"}
    assert [(one["runs"], one["started"]) for one in results.group_environments(instance)] == [
        (1, "2001-01-01T00:00:00Z"), (3, findings["ran"][0]["started"])
    ]  # fmt: skip


def test_a_task_shows_its_panels_and_remarks_from_the_records_and_the_simple_rules(folder, monkeypatch):
    given = []
    kind = SimpleNamespace(
        panels=lambda runs, baselines: given.append((runs, baselines)) or ["shown"],
        remarks=lambda runs, baselines: [f"{name}: {len(own)} seeds" for name, own in runs.items()],
    )
    monkeypatch.setattr(results.tasks, "find_task_class", lambda task: kind)
    facts = task_facts(STUDY, folder)
    monkeypatch.setattr(results, "task_facts", lambda *_: facts)
    monkeypatch.setattr(results, "load_observations", lambda *_, **__: None)
    collected = results.collect_study(STUDY, folder)
    assert collected["panels"] == ["shown"] and collected["remarks"] == ["none: 2 seeds", "alibi: 2 seeds"]
    ((runs, baselines),) = given
    assert list(runs) == ["none", "alibi"] and [record["seed"] for record in runs["alibi"]] == [3, 5]
    assert list(baselines) == ["chance", "a value of the input", "best possible"]


def test_missing_and_foreign_records_are_no_values(folder, tmp_path):
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    first, second = STUDY.runs()[:2]
    (tmp_path / first.file_name).unlink()
    (tmp_path / second.file_name).write_text("{")
    part = results.collect_study(STUDY, tmp_path)
    assert [set(one["values"]["test"]) for one in part["arms"]] == [{"5"}, {"5"}]
    assert part["comparison"] is None and part["why_no_comparison"] == "not every seed of none has a record"


def test_records_that_cannot_be_read_are_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / folder.name)
    broken = next((tmp_path / folder.name).glob("*seed3.json"))
    broken.write_text("{")
    (output,) = results.collect_study(STUDY, tmp_path / folder.name)["problems"]
    assert broken.name in output and "left alone" in output


def test_a_spec_that_was_changed_is_refused(folder, tmp_path):
    kept = json.loads((folder / "study.json").read_text())
    assert results.load_study(folder).hash == STUDY.hash
    kept["spec"]["seeds"] = [3, 5, 7]
    (tmp_path / "study.json").write_text(json.dumps(kept))
    with pytest.raises(WhenceError, match="does not match its hash"):
        results.load_study(tmp_path)
    assert dataclasses.replace(STUDY, seeds=(3, 5, 7)).hash != STUDY.hash


@pytest.mark.parametrize("key", ["environment", "numbers", "parameters", "started", "wall_seconds"])
def test_a_record_without_a_key_is_named_with_it(folder, tmp_path, key):
    shutil.copytree(folder, tmp_path / folder.name)
    broken = tmp_path / folder.name / STUDY.runs()[0].file_name
    stored = json.loads(broken.read_text())
    del stored[key]
    broken.write_text(json.dumps(stored))
    (found,) = results.collect_findings([broken.parent], "", "")["studies"]
    assert found["problems"] == [f"{broken.name} is left alone: it has no {key}"]


def test_a_plan_without_its_spec_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / folder.name)
    (tmp_path / folder.name / "study.json").write_text('{"hash": "1"}')
    with pytest.raises(WhenceError, match=rf"{folder.name}/study.json without spec"):
        results.load_study(tmp_path / folder.name)

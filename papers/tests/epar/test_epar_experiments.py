"""The four EPAR experiments, quick: every file the source lists, drawn from records that are computed once."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
import torch

from whence import WhenceError
from whence.lab.experiment import load_or_compute, run_experiment
from whence_papers.epar import experiments, theory
from whence_papers.epar.experiments import optimal_position, setup, tables
from whence_papers.epar.experiments.trained_heads import compute_attention

LISTED = {
    "position": [
        "attention_weights_heatmap.png", "position_effect_matrix.png", "position_correlation.png",
        "average_attention_distribution.png", "information_importance_distribution.png", "position_score_distribution.png",
        "attention_statistics.png", "position_effect_analysis.png", "position_attention_analysis.png",
    ],
    "optimal": [
        "verification_results.png", "consistency_verification.png", "position_score_analysis.png",
        "comprehensive_performance_score.png", "consistency_vs_ranking_correlation.png",
        "information_type_radar_comparison.png", "standard_deviation_analysis.png", "verification_report.txt",
    ],
    "parameter": [
        "alpha_parameter_sensitivity.png", "beta_parameter_sensitivity.png", "combined_parameter_sensitivity.png",
        "parameter_combination_heatmap.png", "enhanced_performance_analysis.png", "position_correlation_comparison.png",
        "alpha_parameter_data.csv", "beta_parameter_data.csv", "parameter_sensitivity_report.txt",
    ],
    "adaptive": [
        "adaptive_attention_analysis.png", "attention_weights_heatmap.png", "attention_entropy_distribution.png",
        "task_weights_distribution.png", "content_importance_distribution.png", "task_type_distribution.png",
        "content_type_distribution.png", "position_attention_analysis.png", "parameter_sensitivity_alpha.png",
        "parameter_sensitivity_beta.png", "parameter_sensitivity_gamma.png",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The records of all experiments, quick, computed once; drawing takes longer and is done in one test only."""
    folder, threads = tmp_path_factory.mktemp("epar"), torch.get_num_threads()
    for experiment in experiments.ALL:
        load_or_compute(experiment, folder, quick=True)
    torch.set_num_threads(threads)
    return folder


@pytest.fixture
def copied(out, tmp_path):
    """The records alone, to be damaged."""
    shutil.copytree(out / "epar", tmp_path / "epar")
    return tmp_path


def no_computing(experiment):
    def compute(spec, inputs, progress):
        raise AssertionError("nothing is computed twice")

    return replace(experiment, compute=compute, needs=tuple(map(no_computing, experiment.needs)))


@pytest.mark.usefixtures("no_layout")
def test_a_second_run_computes_nothing_and_every_listed_file_is_drawn(out):
    for experiment in experiments.ALL:
        run_experiment(no_computing(experiment), out, quick=True)
    for folder, names in LISTED.items():
        for name in names:
            path = out / "output" / folder / name
            assert path.stat().st_size > 500, name
            if name.endswith(".png"):
                assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000
    assert not list(out.rglob("*.part"))


def test_a_record_says_where_it_comes_from(out):
    for experiment in experiments.ALL:
        record = json.loads(experiment.record_path(out, quick=True).read_text())
        assert record["experiment"] == experiment.name and record["quick"] is True
        assert set(record["inputs"]) == {need.name for need in experiment.needs}
        assert len(record["environment"]["source_hash"]) == 64 and "torch" in record["environment"]["packages"]


def test_csv_numbers_are_the_records(out, tmp_path):
    swept = json.loads((out / "epar/quick/parameter_sensitivity.json").read_text())
    tables.write_parameter_sensitivity(swept, tmp_path)
    for number in ("alpha", "beta", "gamma"):
        sweep = swept["results"]["sweeps"][number]
        rows = list(csv.DictReader((tmp_path / f"{number}_parameter_data.csv").open()))
        forms = 1 if number == "gamma" else 2
        assert len(rows) == len(sweep["at"]) * len(swept["spec"]["seeds"]) * 2 * forms
        for row in rows:
            place = sweep["at"].index(float(row[number]))
            head = swept["spec"]["seeds"].index(int(row["seed"]))
            for measure, values in sweep[row["weights"]][row["form"]].items():
                assert float(row[measure]) == values[place][head]
    verified = json.loads((out / "epar/quick/optimal_position.json").read_text())
    tables.write_optimal_position(verified, tmp_path)
    rows = list(csv.DictReader((tmp_path / "verification_data.csv").open()))
    assert len(rows) == 3 * 3 * 5 * verified["spec"]["runs"]
    for row in rows[:: len(rows) // 50]:
        cell = verified["results"]["values"][row["weights"]][row["form"]][row["pattern"]]
        head = verified["spec"]["seeds"].index(int(row["seed"]))
        assert all(float(row[measure]) == cell[measure][head][int(row["run"])] for measure in cell)


def test_the_full_spec_is_not_taken_for_the_quick_one(out):
    with pytest.raises(AssertionError, match="nothing is computed twice"):
        load_or_compute(no_computing(experiments.ADAPTIVE_ATTENTION), out)


def test_a_changed_record_changes_the_report(copied):
    path = copied / "epar/quick/optimal_position.json"
    record = json.loads(path.read_text())
    tables.write_optimal_position(record, copied)
    before = (copied / "verification_report.txt").read_text()
    for head in record["results"]["values"]["trained"]["enhanced"]["structured"]["ranking"]:
        head[:] = [-0.987] * len(head)
    path.write_text(json.dumps(record))
    tables.write_optimal_position(
        load_or_compute(no_computing(experiments.OPTIMAL_POSITION), copied, quick=True), copied
    )
    after = (copied / "verification_report.txt").read_text()
    assert "-0.987" in after and "-0.987" not in before


def test_a_broken_record_is_named_and_left_alone(copied):
    path = copied / "epar/quick/parameter_sensitivity.json"
    path.write_text(path.read_text()[:1000])
    with pytest.raises(WhenceError, match=r"parameter_sensitivity\.json.*line"):
        run_experiment(experiments.PARAMETER_SENSITIVITY, copied, quick=True)
    assert len(path.read_text()) == 1000
    path.write_text('{"spec": {}}')
    with pytest.raises(WhenceError, match=r"parameter_sensitivity\.json without experiment"):
        run_experiment(experiments.PARAMETER_SENSITIVITY, copied, quick=True)
    assert not (copied / "output").exists()


def test_a_record_of_another_spec_or_of_other_heads_is_refused(copied):
    heads = copied / "epar/quick/trained_heads.json"
    record = json.loads(heads.read_text())
    record["results"]["heads"]["start"][0]["bias"][0] += 1
    heads.write_text(json.dumps(record))
    with pytest.raises(WhenceError, match=r"position_effect\.json, computed from other trained_heads"):
        load_or_compute(experiments.POSITION_EFFECT, copied, quick=True)
    record["spec"]["lr"] = 1.0
    heads.write_text(json.dumps(record))
    with pytest.raises(WhenceError, match=r"trained_heads\.json of another spec"):
        load_or_compute(experiments.TRAINED_HEADS, copied, quick=True)


def test_token_norms_are_importances_and_the_target_attention_is_local():
    sizes = setup.Setup(length=16, runs=5)
    importance, x = setup.make_sequences("random", sizes, 0)
    assert torch.allclose(theory.importance(x), importance, atol=1e-12)
    flat = setup.target_attention(torch.ones(1, 16, dtype=torch.float64), sizes)[0]
    assert torch.allclose(flat.sum(-1), torch.ones(16, dtype=torch.float64)) and int(flat[5].argmax()) == 5
    assert float(flat[0, 4] / flat[0, 0]) == pytest.approx(torch.e**-1, rel=1e-6)  # a reach of a quarter of 16 tokens


def test_scores_of_known_attention():
    """Attention to the key itself makes V equal to I: everything agrees; the wanted attention agrees with the task."""
    sizes = setup.Setup(length=16, runs=5)
    importance = theory.make_pattern("random", 16, 3, rows=4)
    own = optimal_position.score_positions(
        torch.eye(16, dtype=torch.float64).expand(4, 16, 16), importance, sizes, seed=0
    )
    assert own["value_part"] == own["position_part"] == [1.0] * 4 and own["ranking"] == pytest.approx([1.0] * 4)
    assert max(own["guess"]) < 1
    right = optimal_position.score_positions(setup.target_attention(importance, sizes), importance, sizes, seed=0)
    assert right["true_position"] == [1.0] * 4 and right["true_ranking"] == pytest.approx([1.0] * 4)
    assert all(0 < spread < 1 for spread in right["spread"])


def test_attention_of_a_saved_head_by_hand(out):
    """The record's weights, multiplied out in plain torch, give the attention that experiments look at."""
    record = json.loads((out / "epar/quick/trained_heads.json").read_text())
    heads, sizes = record["results"]["heads"], experiments.OPTIMAL_POSITION.quick
    _, x = setup.make_sequences("sparse", sizes, 1)
    saved = {name: torch.tensor(heads["basic"][1][name]).double() for name in ("to_queries", "bias", "to_keys")}
    scores = (x @ saved["to_queries"].mT + saved["bias"]) @ (x @ saved["to_keys"].mT).mT / sizes.head_dim**0.5
    places = torch.arange(sizes.length)
    factor = sizes.alpha * torch.exp(-sizes.beta * (places[:, None] - places).abs() / sizes.length)
    by_hand = torch.softmax(scores * factor, -1)
    assert torch.allclose(compute_attention(x, "trained", "basic", 1, heads, sizes), by_hand, atol=1e-12)


def test_the_source_form_per_row_never_changes_which_key_comes_first(out):
    record = json.loads((out / "epar/quick/adaptive_attention.json").read_text())
    models = record["results"]["models"]
    assert all(one["first_key_moved"] == 0 for one in models["row"])
    assert any(one["first_key_moved"] > 0 for one in models["task"] + models["fused"])

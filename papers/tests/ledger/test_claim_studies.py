"""Readings of studies from made-up records: what is missing is waited for, seeds make intervals, differences are tested."""

import runpy
from dataclasses import replace

import pytest
from made_up_records import ARMS, write_records

from whence import records
from whence.errors import WhenceError
from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_folder import study_folder
from whence_papers import FOLDER
from whence_papers.ledger import LedgerFolders, MissingEvidence, load_sources
from whence_papers.ledger.command import format_details
from whence_papers.ledger.comparisons import contrast_figures
from whence_papers.ledger.evidence import KNOWN_NAMES
from whence_papers.ledger.study_records import READERS, compare_study, find_study
from whence_papers.ledger.verdicts import judge, to_json

CLAIMS = {claim.id: claim for source in load_sources(FOLDER / "claims", KNOWN_NAMES) for claim in source.claims}
PROTOCOL = runpy.run_path(str(FOLDER / "studies/epar/protocol.py"))


def study(name, arms=ARMS, seeds=(0, 1, 2, 3, 4)):
    return Study(
        name=name, question="made up", task="speeches_classify", arms=arms, seeds=seeds,
        budget=Budget(epochs=1, evaluate_every=1), decision=Decision(baseline=arms[0].name),
    )  # fmt: skip


def seeds_about(levels, step=0.001):
    """Five values for each arm: a level, a part that all arms of a seed share, and a small part of their own."""
    return {
        name: [level + step * (seed + 0.2 * ((2 * seed + 3 * place) % 5)) for seed in range(5)]
        for place, (name, level) in enumerate(levels.items())
    }


def verdict(name, results):
    return judge(CLAIMS[name], LedgerFolders(FOLDER / "claims", results))


def test_a_study_that_is_not_there_is_waited_for(tmp_path):
    judgement = verdict("speeches-encoder-accuracy", tmp_path)
    assert judgement.verdict == "open" and "the study speeches-encoder-none" in judgement.reason


def test_seeds_that_are_missing_are_waited_for(tmp_path):
    spec = study("speeches-encoder-none", ARMS[:1])
    write_records(tmp_path, spec, {"sinusoidal": [0.85, 0.86]})
    judgement = verdict("speeches-encoder-accuracy", tmp_path)
    assert (
        judgement.verdict == "open"
        and judgement.reason == "waits for 3 of 5 seeds of speeches-encoder-none, sinusoidal"
    )


@pytest.mark.parametrize(
    "values, expected",
    [([0.84, 0.85, 0.86, 0.83, 0.87], "reproduced"), ([0.90, 0.905, 0.91, 0.895, 0.90], "not reproduced")],
)
def test_a_figure_of_one_run_is_held_against_the_seeds(tmp_path, values, expected):
    folder = write_records(tmp_path, study("speeches-encoder-none", ARMS[:1]), {"sinusoidal": values})
    judgement = verdict("speeches-encoder-accuracy", tmp_path)
    assert judgement.verdict == expected and f"{100 * sum(values) / 5:.2f} (mean of 5 runs" in judgement.reason
    assert judgement.evidence.record == folder.as_posix()


def test_a_running_mean_is_a_figure_of_its_own(tmp_path):
    spec = study("speeches-printed-encoder", ARMS[:1])
    folder = write_records(tmp_path, spec, {"sinusoidal": [0.9, 0.91, 0.92, 0.93, 0.94]}, split="train")
    for run in spec.runs():
        record = records.read(folder / run.file_name)
        record["result"]["evaluations"][-1]["training"] = {"value": 0.87 + 0.005 * run.seed}
        records.write(folder / run.file_name, record)
    judgement = verdict("speeches-encoder-training-running", tmp_path)
    assert judgement.evidence.figures["running_mean"] == pytest.approx([87, 87.5, 88, 88.5, 89])
    assert judgement.verdict == "reproduced"


def test_an_evaluation_by_its_number(tmp_path):
    rows = [
        [0.30 + 0.02 * seed, *[0.5] * 3, 0.57 + 0.02 * seed, *[0.6] * 4, 0.75 + 0.01 * seed, 0.9] for seed in range(5)
    ]
    write_records(tmp_path, study("speeches-encoder-none", ARMS[:1]), {"sinusoidal": rows})
    judgement = verdict("speeches-encoder-curve", tmp_path)
    assert judgement.evidence.figures["after_5"] == pytest.approx([57, 59, 61, 63, 65])
    assert judgement.verdict == "reproduced"
    write_records(tmp_path, study("speeches-encoder-none", ARMS[:1]), {"sinusoidal": [row[:4] for row in rows]})
    with pytest.raises(WhenceError, match="evaluation 5 of sinusoidal, which has 4, but a figure names an evaluation"):
        verdict("speeches-encoder-curve", tmp_path)


def test_diverged_seeds_are_said_and_too_few_left_are_too_few(tmp_path):
    spec = study("speeches-encoder-none", ARMS[:1])
    write_records(tmp_path, spec, {"sinusoidal": [0.84, 0.85, 0.86, 0.83, 0.87]}, diverged=(1,))
    judgement = verdict("speeches-encoder-accuracy", tmp_path)
    assert "4 runs" in judgement.reason and "1 seed diverged" in judgement.reason
    write_records(tmp_path, spec, {"sinusoidal": [0.84, 0.85, 0.86, 0.83, 0.87]}, diverged=(1, 2, 3))
    assert verdict("speeches-encoder-accuracy", tmp_path).reason.startswith("waits for more seeds")


@pytest.mark.parametrize(
    "alibi, expected, words",
    [
        ([0.90, 0.905, 0.91, 0.895, 0.90], "reproduced", "better than sinusoidal by 4.98 points"),
        ([0.85, 0.88, 0.83, 0.85, 0.86], "undecided", "ALiBi, 1.1 is undecided: "),
        ([0.851, 0.859, 0.849, 0.85, 0.853], "equivalent", "ALiBi, 1.1 is equivalent to sinusoidal within 1 points"),
        ([0.70, 0.71, 0.72, 0.70, 0.71], "not reproduced", "worse than sinusoidal"),
    ],
)
def test_a_difference_is_tested_and_the_sources_runs_are_judged(tmp_path, alibi, expected, words):
    own = [0.85, 0.86, 0.848, 0.851, 0.852]
    write_records(tmp_path, study("speeches-alibi-none"), {"sinusoidal": own, "ALiBi, 1.1": alibi})
    judgement = verdict("speeches-alibi-better", tmp_path)
    assert judgement.verdict == expected and words in judgement.reason
    assert "one run of each arm, which allows no test" in judgement.reason


def test_one_arm_against_several(tmp_path):
    arms = tuple(Arm(name, "Alibi()") for name in ("EPAR", "none", "rotary", "alibi", "t5"))
    spec = replace(study("epar-when-02", arms), question="Length: 1024 tokens")
    levels = {"EPAR": 0.9, "rotary": 0.8, "alibi": 0.9, "none": 0.5, "t5": 0.5}
    write_records(tmp_path, spec, seeds_about(levels))
    judgement = verdict("epar-when-long", tmp_path)
    numbers = judgement.evidence.figures
    assert numbers["direction_against_rotary"] == 1 and numbers["gain_over_rotary"] == pytest.approx(10, abs=0.1)
    assert numbers["direction_against_alibi"] == 0 and judgement.verdict == "equivalent"
    assert numbers["gain_over_rotary_low"] < numbers["gain_over_rotary"] < numbers["gain_over_rotary_high"]
    assert "better than rotary by 10 points" in judgement.reason
    small, large = (READERS["against"](LedgerFolders(results=tmp_path), "epar-when-02", "EPAR", ["rotary"], "accuracy", "test",
                                       comparisons=size)[0] for size in (4, 64))  # fmt: skip
    assert large["gain_over_rotary_low"] < small["gain_over_rotary_low"]  # a larger family has wider intervals
    write_records(tmp_path, replace(spec, name="epar-when-04"), {})
    with pytest.raises(WhenceError, match="the study that asks 'Importance: in waves'"):
        verdict("epar-when-structured", tmp_path)


@pytest.mark.parametrize(
    "claim, metric, split, levels, rule, expected",
    [
        ("epar-when-shuffled-squad", "token_f1", "shuffled", (0.08, 0.07), ("rule", 0.2), "not testable"),
        ("epar-when-shuffled-squad", "token_f1", "shuffled", (0.08, 0.07), ("constant", 0.2), "not testable"),
        ("epar-when-shuffled-squad", "token_f1", "shuffled", (0.28, 0.07), ("rule", 0.2), "reproduced"),
        ("epar-when-shuffled-squad", "token_f1", "shuffled", (0.08, 0.07), ("ceiling", 0.2), "reproduced"),
        ("epar-when-shuffled-squad", "exact_match", "shuffled", (0.08, 0.07), ("rule", 0.2), "reproduced"),
        ("epar-when-shuffled-squad", "token_f1", "test", (0.08, 0.07), ("rule", 0.2), "reproduced"),
        ("prior-helps-alone", "perplexity", "test", (9.0, 8.0), ("rule", 7.0), "not testable"),  # lower is better
        ("prior-helps-alone", "perplexity", "test", (9.0, 6.0), ("rule", 7.0), "reproduced"),
    ],
)
def test_arms_below_a_simple_rule_test_nothing(tmp_path, claim, metric, split, levels, rule, expected):
    arguments = CLAIMS[claim].arguments
    arms = (*arguments["others"], arguments["arm"])
    spec = study(arguments["study"], tuple(Arm(name, "Alibi()") for name in arms))
    spec = replace(spec, decision=replace(spec.decision, split=arguments["split"]))
    folder = write_records(
        tmp_path, spec, seeds_about(dict(zip(arms, levels, strict=True)), 0.0001), split=arguments["split"]
    )
    entry = {"kind": rule[0], "splits": {split: {metric: rule[1]}}, "about": ""}
    records.write(folder / "baselines.json", {"baselines": {"simple": entry}})
    judgement = verdict(claim, tmp_path)
    assert judgement.verdict == expected and judgement.evidence.record == folder.as_posix()
    if expected == "not testable":
        words = (f"no arm reaches the {rule[0]} 'simple'", "It has 20 points; the best arm, none, has 8.0")
        assert words[0] in judgement.reason and (metric == "perplexity" or words[1] in judgement.reason)
        details = format_details(to_json(judgement))
        assert "not judged: the claim is not testable" in details and "no result yet" not in details


@pytest.mark.parametrize(
    "half, quarter, expected",
    [(0.9, 0.5, "reproduced"), (0.5, 0.9, "reproduced"), (0.8, 0.8, "equivalent"), (0.5, 0.5, "not reproduced")],
)
def test_one_arm_that_is_better_is_enough(tmp_path, half, quarter, expected):
    levels = {"alpha 1.0": 0.8, "alpha 0.5": half, "alpha 0.25": quarter}
    spec = study("epar-numbers-noise", tuple(Arm(name, "Epar()") for name in levels))
    write_records(tmp_path, spec, seeds_about(levels))
    judgement = verdict("epar-when-noisy", tmp_path)
    assert judgement.verdict == expected and "alpha 0.25 " in judgement.reason


@pytest.mark.parametrize("claim, text", [("", "books"), ("-words", "wikitext2")])
@pytest.mark.parametrize("best, expected", [("EPAR, enhanced", "reproduced"), ("shaw", "not reproduced")])
def test_the_protocol_can_come_out_either_way(tmp_path, claim, text, best, expected):
    spec = {one.name: one for one in PROTOCOL["studies"]("gpu")}[f"epar-protocol-gpu-{text}"]
    spec = replace(spec, seeds=(0, 1, 2, 3, 4))
    levels = {arm.name: 4.0 if arm.name == best else 4.2 for arm in spec.arms}
    write_records(tmp_path, spec, seeds_about(levels, 0.01))
    judgement = verdict(f"epar-result-language-model{claim}", tmp_path)
    assert judgement.verdict == expected
    assert ("EPAR, enhanced is undecided: " in judgement.reason) == (best == "shaw")
    runs = verdict("epar-significance-runs", tmp_path)
    if text == "wikitext2":
        assert runs.verdict == "reproduced" and "1 of 6 differences from rotary reach 0.01 with 5 seeds" in runs.reason


def test_all_arms_of_a_study_count_for_a_comparison(tmp_path):
    """With the study's other arms the spread is known better, and a pair that is not the baseline's counts among all pairs."""
    arms = tuple(Arm(name, "Alibi()") for name in ("a", "b", "c", "d"))
    spec = replace(study("speeches-alibi-none", arms), decision=Decision(baseline="a", comparisons=30))
    folder = write_records(tmp_path, spec, seeds_about({"a": 0.80, "b": 0.81, "c": 0.80, "d": 0.82}))
    folders = LedgerFolders(results=tmp_path)
    own = compare_study(folders, spec, folder, ["a", "b"], "accuracy", "test")
    assert own.plan.family == "baseline" and own.plan.share == 0.1 and len(own.contrasts) == 3
    pairs = compare_study(folders, spec, folder, ["b", "c"], "accuracy", "test")
    assert pairs.plan.family == "pairs" and len(pairs.contrasts) == 6
    assert contrast_figures(pairs, "b", "c")["direction"] == -contrast_figures(pairs, "c", "b")["direction"] == 1
    next(folder.glob("d-*-seed3.json")).unlink()  # an unfinished arm is left out unless the claim names it
    folders = LedgerFolders(results=tmp_path)  # a judgement reads an arm once
    assert len(compare_study(folders, spec, folder, ["b", "c"], "accuracy", "test").contrasts) == 3
    with pytest.raises(MissingEvidence, match="1 of 5 seeds of speeches-alibi-none, d"):
        compare_study(folders, spec, folder, ["a", "d"], "accuracy", "test")


def test_a_study_is_found_in_a_folder_of_its_own(tmp_path):
    spec = study("speeches-encoder-none", ARMS[:1])
    folder = write_records(tmp_path / "some/where", spec, {"sinusoidal": [0.84, 0.85, 0.86, 0.83, 0.87]})
    assert verdict("speeches-encoder-accuracy", tmp_path).evidence.record == folder.as_posix()
    write_records(tmp_path, spec, {})
    with pytest.raises(WhenceError, match=r"got some/where/speeches-encoder-none-.* and speeches-encoder-none-"):
        find_study(LedgerFolders(results=tmp_path), spec.name)


@pytest.mark.parametrize("level, expected", [(0.9, "reproduced"), (0.5, "undecided"), (0.2, "not reproduced")])
def test_an_experiments_record_decides(tmp_path, level, expected):
    assert "`whence run epar/adaptive_attention`" in verdict("epar-adaptive-helps", tmp_path).reason
    seeds = {"none": [0.50, 0.51, 0.49, 0.50, 0.52], "fused": [level + 0.01 * n for n in range(5)]}
    models = {name: [{"splits": {"test": value}} for value in rows] for name, rows in seeds.items()}
    records.write(tmp_path / "epar/adaptive_attention.json", {"results": {"models": models}})
    assert verdict("epar-adaptive-helps", tmp_path).verdict == expected


def test_the_gain_of_trained_heads(tmp_path):
    assert "`whence run epar/optimal_position`" in verdict("epar-ranking-gain-trained", tmp_path).reason
    for gains, expected in (((0.08, 0.15), "reproduced"), ((0.08, 0.5), "not reproduced")):
        values = {
            form: {
                pattern: {"ranking": [[0.4 + 0.01 * head + gain * (form == "enhanced") * (1 + 0.1 * head)] for head in range(4)]}
                for pattern, gain in zip(("structured", "clustered"), gains, strict=True)
            }
            for form in ("basic", "enhanced")
        }  # fmt: skip
        records.write(tmp_path / "epar/optimal_position.json", {"results": {"values": {"trained": values}}})
        judgement = verdict("epar-ranking-gain-trained", tmp_path)
        assert judgement.verdict == expected and "structured 0.415 to 0.507" in judgement.reason


def test_two_studies_and_three_splits(tmp_path):
    none, keys = study("speeches-encoder-none", ARMS[:1]), study("speeches-encoder-keys", ARMS[:1])
    write_records(tmp_path, none, {"sinusoidal": [0.84, 0.85, 0.86, 0.83, 0.87]})
    write_records(tmp_path, keys, {"sinusoidal": [0.94, 0.95, 0.96, 0.93, 0.97]})
    judgement = verdict("speeches-padding-harmless", tmp_path)
    assert judgement.verdict == "not reproduced" and "speeches-encoder-keys is better" in judgement.reason
    assert "Welch's test, not paired: the records do not show equal data" in judgement.reason
    for spec in (none, keys):
        for path in study_folder(spec, tmp_path).glob("*seed*.json"):
            records.write(path, records.read(path) | {"task": {"data_hash": "one"}})
    # seeds vary together: the difference of each pair is 0.8 to 1.2 points, the seeds differ by up to 4
    for path, more in zip(sorted(study_folder(keys, tmp_path).glob("*seed*.json")), (8, 9, 10, 11, 12), strict=True):
        stored = records.read(path)
        other = records.read(study_folder(none, tmp_path) / path.name)["result"]["evaluations"][-1]
        stored["result"]["evaluations"][-1]["splits"]["test"]["value"] = other["splits"]["test"]["value"] + more / 1000
        records.write(path, stored)
    judgement = verdict("speeches-padding-harmless", tmp_path)
    assert judgement.verdict == "not reproduced" and "paired by seed" in judgement.reason  # Welch's test has p = 0.3
    assert "better than speeches-encoder-none by 1 points" in judgement.reason and "Welch" not in judgement.reason
    spec = study("speeches-decoder", ARMS[:1])
    folder = study_folder(spec, tmp_path)
    for split, level, apart in (("obama", 370.0, 0), ("wbush", 450.0, 1), ("hbush", 371.0, 4)):
        rows = [[2 * level, level + seed + apart * (-1) ** seed] for seed in range(5)]
        write_records(tmp_path, spec, {"sinusoidal": rows}, split=split)
        for path in folder.glob("*seed*.json"):  # the splits of one run stand in one record
            stored, extra = records.read(path), tmp_path / f"{split}-{path.name}"
            records.write(extra, stored)
    for path in folder.glob("*seed*.json"):
        stored = records.read(path)
        for split in ("obama", "wbush"):
            other = records.read(tmp_path / f"{split}-{path.name}")["result"]["evaluations"]
            for own, more in zip(stored["result"]["evaluations"], other, strict=True):
                own["splits"] |= more["splits"]
        records.write(path, stored)
    judgement = verdict("speeches-decoder-order", tmp_path)
    assert judgement.evidence.figures["wbush_direction"] == -1 and judgement.evidence.figures["hbush_direction"] == 0
    assert judgement.verdict == "undecided"
    assert verdict("speeches-decoder-falls-here", tmp_path).verdict == "reproduced"


def test_two_folders_of_one_study_are_refused_and_a_changed_spec_too(tmp_path):
    spec = study("speeches-encoder-none", ARMS[:1])
    folder = write_records(tmp_path, spec, {"sinusoidal": [0.84] * 5})
    other = write_records(tmp_path, replace(spec, seeds=(7, 8)), {})
    with pytest.raises(WhenceError, match="the study speeches-encoder-none"):
        find_study(LedgerFolders(results=tmp_path), spec.name)
    (other / "study.json").unlink()
    stored = records.read(folder / "study.json")
    stored["spec"]["seeds"] = [0]
    records.write(folder / "study.json", stored)
    with pytest.raises(WhenceError, match="does not match its hash"):
        verdict("speeches-encoder-accuracy", tmp_path)


def test_the_time_of_a_step(tmp_path):
    reading = READERS["step_time"]
    with pytest.raises(MissingEvidence, match="make gpu-bench"):
        reading(LedgerFolders(benchmarks=tmp_path), "epar", "flash")
    record = {
        "rows": [{"variant": "flash", "milliseconds": [10.0, 11.0, 10.0]}, {"variant": "epar", "milliseconds": [10.2, 10.2, 30.0]}],
        "spec": {"tokens": 4096}, "environment": {"machine": {"accelerator": "a GPU"}},
    }  # fmt: skip
    records.write(tmp_path / "train_step.json", record)
    judgement, _ = reading(LedgerFolders(benchmarks=tmp_path), "epar", "flash")
    assert judgement["more_percent"] == pytest.approx(2.0) and "a GPU" in judgement["words"]
    # another model on another kernel does not decide what the mechanism costs
    folders = LedgerFolders(FOLDER / "claims", tmp_path, tmp_path)
    waiting = judge(CLAIMS["epar-cost-time"], folders)
    assert waiting.verdict == "open" and "times of epar and none in one run" in waiting.reason
    record["rows"].append({"variant": "none", "milliseconds": [10.1, 10.1, 10.1]})
    records.write(tmp_path / "train_step.json", record)
    assert judge(CLAIMS["epar-cost-time"], folders).verdict == "reproduced"
    record["rows"].append({"variant": "power prior", "milliseconds": [11.1, 11.1, 11.1]})
    records.write(tmp_path / "train_step.json", record)
    prior = judge(CLAIMS["prior-efficiency"], LedgerFolders(FOLDER / "claims", tmp_path, tmp_path))
    assert prior.verdict == "not reproduced" and "our bound is at most 5" in prior.reason  # the source gives none

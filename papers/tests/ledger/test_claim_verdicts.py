"""Verdicts follow records: change what was found, and the verdict changes; and the committed records are what is found."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from whence import records
from whence.errors import WhenceError
from whence_papers import FOLDER
from whence_papers.ledger import LedgerFolders, load_sources
from whence_papers.ledger.claims import FigureCheck
from whence_papers.ledger.computations import COMPUTATIONS
from whence_papers.ledger.evidence import KNOWN_NAMES, nearly_equal, run_computation, to_plain, update_records
from whence_papers.ledger.trained_models import COMPARISONS
from whence_papers.ledger.verdicts import (
    EQUIVALENT,
    NOT_REPRODUCED,
    OPEN,
    REPRODUCED,
    UNDECIDED,
    UNTESTABLE,
    WRONG,
    evaluate_check,
    judge,
    prediction_interval,
)

HERE = LedgerFolders(
    FOLDER / "claims", FOLDER / "results", Path(__file__).resolve().parents[3] / "benchmarks" / "records"
)
CLAIMS = [claim for source in load_sources(HERE.claims, KNOWN_NAMES) for claim in source.claims]
COMPUTED = [claim for claim in CLAIMS if claim.method == "compute" and records.exists(HERE.record_path(claim.id))]
GIVEN = [claim for claim in COMPUTED if claim.by not in COMPARISONS]  # the figures of the others follow from values
#: seconds, trained models or data; compared with a witness elsewhere
SLOW = ("optimal_position", "prediction", "speeches_counts", "spline_reconstruction", "attention_additivity")


def named(claims):
    return [claim.id for claim in claims]


def on_the_side(check, agrees):
    """A number that agrees with a check, or does not."""
    step = max(1.0, 2 * check.within, 0.1 * abs(check.number))
    side = {"equals": 0.0, "at_most": -step, "below": -step, "at_least": step, "above": step}[check.relation]
    if agrees:
        return check.number + side
    return check.number + (step if check.relation == "equals" else -side)


@pytest.mark.parametrize("claim", GIVEN, ids=named(GIVEN))
def test_a_verdict_flips_when_its_record_is_changed(claim, tmp_path):
    folders = LedgerFolders(tmp_path)
    record = records.read(HERE.record_path(claim.id))
    good, bad = {}, {}
    for check in claim.checks:
        many = isinstance(record["figures"][check.figure], list)
        for figures, agrees in ((good, True), (bad, False)):
            value = on_the_side(check, agrees)
            figures[check.figure] = [value] * len(record["figures"][check.figure]) if many else value
            name, _, end = check.figure.rpartition("_")
            other = f"{name}_{'high' if end == 'low' else 'low'}"
            if end in ("low", "high") and other in record["figures"]:  # an interval that is all on one side
                figures[other] = value
    if len({check.figure for check in claim.checks}) < len(claim.checks):  # a range: the middle of its ends agrees
        good = {check.figure: sum(c.number for c in claim.checks) / len(claim.checks) for check in claim.checks}
    for figures, expected in ((good, REPRODUCED), (bad, WRONG if claim.arithmetic else NOT_REPRODUCED)):
        records.write(folders.record_path(claim.id), record | {"figures": record["figures"] | figures})
        assert judge(claim, folders).verdict == expected


def test_one_wrong_figure_of_several_is_enough(tmp_path):
    claim = next(claim for claim in CLAIMS if claim.id == "speeches-encoder-parameters")
    record = records.read(HERE.record_path(claim.id))
    assert judge(claim, HERE).verdict == REPRODUCED
    record["figures"]["classifier"] += 1
    records.write(LedgerFolders(tmp_path).record_path(claim.id), record)
    judgement = judge(claim, LedgerFolders(tmp_path))
    assert judgement.verdict == WRONG and judgement.reason == "classifier 6,804, but the source says 6,803"


def test_what_the_sources_got_wrong_is_found_again():
    """The findings that were known before the ledger, by the ledger's own figures."""
    known = {
        "epar-improvement-wikitext": (WRONG, "2.98"), "epar-improvement-wmt": (REPRODUCED, "1.72"),
        "epar-improvement-squad": (WRONG, "1.32"), "epar-improvement-glue": (WRONG, "1.06"),
        "epar-improvement-arxiv": (WRONG, "5.24"), "epar-defaults": (NOT_REPRODUCED, "beta: 1 in the text, 2"),
        "epar-retention-enhanced": (REPRODUCED, "78.9"), "epar-retention-basic": (WRONG, "36.79"),
        "epar-retention-ratio": (WRONG, "2.15"), "epar-retention-ratio-medium": (WRONG, "1.43"),
        "epar-retention-together": (WRONG, "beta 3.58, where the enhanced one keeps 67.6 %, 24 times"),
        "epar-monotonicity-factor": (REPRODUCED, "0"), "epar-monotonicity-attention": (NOT_REPRODUCED, "score -"),
        "epar-score-level": (NOT_REPRODUCED, "e-1"), "epar-derived-position": (NOT_REPRODUCED, "0"),
        "epar-consistency-reports": (NOT_REPRODUCED, "0.6578"), "epar-theorem-2": (UNTESTABLE, "without stating"),
        "epar-adaptive": (NOT_REPRODUCED, "rows reordered 0"), "epar-cached-matrix": (NOT_REPRODUCED, "0.000"),
        "prior-baseline": (NOT_REPRODUCED, "0.2034"), "prior-learnable": (NOT_REPRODUCED, "logarithm"),
        "prior-start": (NOT_REPRODUCED, "0.95"), "prior-new": (NOT_REPRODUCED, "0"),
        "pointer-additive-parameters": (WRONG, "394,240"), "pointer-dot-parameters-code": (NOT_REPRODUCED, "8,470"),
        "pointer-example-softmax": (WRONG, "0.153 0.171 0.198 0.211 0.268"), "pointer-example-office": (WRONG, "0.466"),
        "pointer-example-additive": (WRONG, "0.075 0.091 0.274 0.151 0.409"),
        "pointer-bias-ablation": (NOT_REPRODUCED, "-0.06"), "pointer-index": (REPRODUCED, "last visit 1"),
        "speeches-encoder-parameters": (REPRODUCED, "368,320"), "speeches-decoder-parameters": (REPRODUCED, "29,860"),
        "speeches-vocabulary": (REPRODUCED, "5,755"), "speeches-alibi-learned": (NOT_REPRODUCED, "0"),
        "speeches-encoder-unseen-sentences": (NOT_REPRODUCED, "551"), "speeches-alibi-margin": (NOT_REPRODUCED, "-1.0"),
    }  # fmt: skip
    for claim in CLAIMS:
        if claim.id in known:
            judgement = judge(claim, HERE)
            verdict, shown = known.pop(claim.id)
            assert judgement.verdict == verdict and shown in judgement.reason, (
                claim.id,
                judgement.verdict,
                judgement.reason,
            )
    assert not known


QUICK = [claim for claim in COMPUTED if claim.by in COMPUTATIONS and claim.by not in SLOW]


@pytest.mark.parametrize("claim", QUICK, ids=named(QUICK))
def test_committed_records_are_what_is_found_now(claim):
    stored = records.read(HERE.record_path(claim.id))
    assert (
        stored["claim"] == claim.id
        and stored["computation"] == claim.by
        and stored["arguments"] == to_plain(claim.arguments)
    )
    assert nearly_equal(stored["figures"], to_plain(run_computation(claim, HERE)))


def test_every_record_belongs_to_a_claim_and_every_pure_claim_has_one():
    files = {name.removesuffix(".json") for name in records.RecordFolder(HERE.claims / "records").names()}
    computing = {claim.id: claim for claim in CLAIMS if claim.method == "compute"}
    assert files <= set(computing)
    assert {name for name, claim in computing.items() if claim.by in COMPUTATIONS} <= files


def test_update_writes_once_and_leaves_what_is_the_same(tmp_path):
    shutil.copy(HERE.claims / "pointer.toml", tmp_path)
    folders = LedgerFolders(tmp_path)
    claims = [
        c for source in load_sources(tmp_path, KNOWN_NAMES) for c in source.claims if c.id.startswith("pointer-example")
    ]
    assert {judge(claim, folders).verdict for claim in claims} == {OPEN, UNTESTABLE}
    assert [outcome for _, outcome in update_records(claims, folders)] == ["written"] * 7
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert [outcome for _, outcome in update_records(claims, folders)] == ["unchanged"] * 7
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.json")}


def test_update_adds_the_command_and_replaces_records_of_other_sources(tmp_path):
    claims = [claim for claim in CLAIMS if claim.id == "pointer-example-office"]
    folders = LedgerFolders(tmp_path)
    path = folders.record_path(claims[0].id)
    stored = records.read(HERE.record_path(claims[0].id))
    assert stored["command"] == "whence claims --update --id pointer-example-office"
    without = {key: value for key, value in stored.items() if key != "command"}
    records.write(path, without | {"provenance": {"source_matches_commit": True}})
    assert [outcome for _, outcome in update_records(claims, folders)] == ["unchanged"]
    assert records.read(path)["command"] == stored["command"]
    records.write(path, stored | {"provenance": {"source_matches_commit": False}})
    assert [outcome for _, outcome in update_records(claims, folders)] == ["written"]
    assert "provenance" not in records.read(path)


def test_every_record_has_a_command():
    for claim in COMPUTED:
        assert records.read(HERE.record_path(claim.id))["command"].startswith("whence claims --update"), claim.id


@pytest.mark.parametrize(
    "figures, expected",
    [
        ({"x_low": 1.0, "x_high": 2.0}, REPRODUCED),
        ({"x_low": -1.0, "x_high": 2.0}, UNDECIDED),
        ({"x_low": -2.0, "x_high": -1.0}, NOT_REPRODUCED),
        ({"x_low": -1.0}, NOT_REPRODUCED),  # not an interval
        ({"x_low": 1.0, "x_low_verdict": "undecided"}, UNDECIDED),
        ({"x_low": -1.0, "x_low_verdict": "equivalent"}, EQUIVALENT),
        ({"x_low": 1.0, "x_low_verdict": "equivalent"}, REPRODUCED),
    ],
)
def test_statistics_decide_between_not_reproduced_undecided_and_equivalent(tmp_path, figures, expected):
    claim = replace(
        next(claim for claim in CLAIMS if claim.id == "pointer-example-office"),
        checks=(FigureCheck("x_low", "above", 0.0, "0"),), arithmetic=False,
    )  # fmt: skip
    folders = LedgerFolders(tmp_path)
    records.write(folders.record_path(claim.id), records.read(HERE.record_path(claim.id)) | {"figures": figures})
    assert judge(claim, folders).verdict == expected


def test_a_record_of_other_figures_counts_for_nothing(tmp_path):
    claim = next(claim for claim in CLAIMS if claim.id == "pointer-example-office")
    record = records.read(HERE.record_path(claim.id))
    records.write(LedgerFolders(tmp_path).record_path(claim.id), record | {"arguments": {"scores": [1.0]}})
    judgement = judge(claim, LedgerFolders(tmp_path))
    assert judgement.verdict == OPEN and "other arguments" in judgement.reason
    LedgerFolders(tmp_path).record_path(claim.id).write_text("{")
    with pytest.raises(WhenceError, match=r"pointer-example-office\.json, corrupt"):
        judge(claim, LedgerFolders(tmp_path))
    records.write(LedgerFolders(tmp_path).record_path(claim.id), record | {"figures": {}})
    with pytest.raises(WhenceError, match="pointer-example-office, got no number 'of_place'"):
        judge(claim, LedgerFolders(tmp_path))


def test_the_interval_of_a_further_run_against_its_simulation():
    import numpy as np

    drawn = np.random.default_rng(0).normal(50, 3, (4000, 6))
    inside = 0
    for *ours, new in drawn.tolist():
        low, high = prediction_interval(ours)
        inside += low <= new <= high
    assert 0.94 < inside / 4000 < 0.96
    assert prediction_interval([1.0, 1.0, 1.0]) == (1.0, 1.0)


@pytest.mark.parametrize(
    "relation, number, agrees, state",
    [
        ("equals", 84.9, True, ""), ("equals", 99.0, False, ""), ("above", 80.0, True, ""), ("above", 95.0, False, ""),
        ("at_most", 70.0, False, ""), ("at_most", 84.9, False, UNDECIDED), ("at_most", 85.1, True, UNDECIDED),
        ("below", 86.1, True, ""), ("at_least", 85.9, False, UNDECIDED), ("at_least", 86.1, False, ""),
    ],
)  # fmt: skip
def test_seeds_are_held_by_that_interval(relation, number, agrees, state):
    """The interval of the mean is 84.02 to 85.98, that of a further run 82.6 to 87.4."""
    check = FigureCheck("x", relation, number, str(number), 0.05 if relation == "equals" else 0.0)
    judgement = evaluate_check(check, [84.0, 85.0, 86.0, 85.5, 84.5])
    assert (judgement.agrees, judgement.state) == (agrees, state) and "(mean of 5 runs" in judgement.result


def test_a_ratio_is_held_by_its_logarithm():
    """The interval of the mean of these ratios includes 1.1; that of their logarithms does not."""
    values = [1312.0, 672.9, 445.7]
    check = FigureCheck("x", "at_most", 1.1, "1.1")
    assert evaluate_check(check, values).state == UNDECIDED
    judgement = evaluate_check(replace(check, ratio=True), values)
    assert judgement.fails and judgement.result.startswith("732.8 (geometric mean of 3 runs, its interval 18")
    with pytest.raises(WhenceError, match="a ratio is above 0"):
        evaluate_check(replace(check, ratio=True), [1.0, -1.0, 2.0])


@pytest.mark.parametrize("chance, expected", [(0.85, UNDECIDED), (0.5, REPRODUCED)])
@pytest.mark.parametrize("relation, number", [("equals", 0.87), ("above", 0.7)])
def test_agreement_that_a_random_answer_also_has_is_undecided(tmp_path, relation, number, chance, expected):
    claim = next(claim for claim in CLAIMS if claim.id == "epar-consistency-all")
    claim = replace(claim, checks=(replace(claim.checks[0], relation=relation, number=number),))
    assert claim.checks[0].chance == "chance_enhanced"
    folders, own = LedgerFolders(tmp_path), [0.84, 0.85, 0.86, 0.87]
    figures = {"consistency_enhanced": own, "chance_enhanced": [chance + 0.01, chance, chance, chance - 0.01]}
    records.write(folders.record_path(claim.id), records.read(HERE.record_path(claim.id)) | {"figures": figures})
    judgement = judge(claim, folders)
    assert judgement.verdict == expected
    assert ("a random answer has 0.85" in judgement.reason) == (expected == UNDECIDED)


def test_nothing_that_is_not_finite_is_judged(tmp_path):
    claim = next(claim for claim in CLAIMS if claim.id == "pointer-example-office")
    path = LedgerFolders(tmp_path).record_path(claim.id)
    path.parent.mkdir()
    record = records.read(HERE.record_path(claim.id)) | {"figures": {"of_place": math.nan}}
    path.write_text(json.dumps(record))
    with pytest.raises(WhenceError, match="no number 'of_place'"):
        judge(claim, LedgerFolders(tmp_path))

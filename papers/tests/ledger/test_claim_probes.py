"""Readings of probes from made-up records: what was planted is found, and what is missing is waited for."""

from types import SimpleNamespace

import pytest

from whence import records
from whence.errors import WhenceError
from whence.probe import run_folder
from whence.probe.plan import Plan, TaskSpec, at_lengths
from whence_papers import FOLDER
from whence_papers.ledger import LedgerFolders, MissingEvidence, load_sources
from whence_papers.ledger.evidence import KNOWN_NAMES
from whence_papers.ledger.probe_records import READERS, gold_position
from whence_papers.ledger.verdicts import judge

CLAIMS = {claim.id: claim for source in load_sources(FOLDER / "claims", KNOWN_NAMES) for claim in source.claims}
ITEMS = 100


def probed(results, correct, lengths=(), name="smollm2"):
    """A probe whose items are right with these shares at three places, by label."""
    task_specs = [TaskSpec("key-value", ITEMS, 3, {"pairs": 5})]
    plan = Plan(name, at_lengths(task_specs, lengths) if lengths else tuple(task_specs), items_per_record=50)
    tasks = [one.build() for one in plan.tasks]
    folder = run_folder.open_folder(SimpleNamespace(about={"type": "llama"}), plan, results / "probe", tasks)
    about = records.read(folder / "plan.json")
    for task in about["tasks"]:
        for file in run_folder.record_names(plan, task):
            first = int(file[-9:-5])
            where = next(
                (p for p in task["gold_slots"] if file == run_folder.record_name(task["task"], p, first)), "oracle"
            )
            share = correct[task["task"]][task["gold_slots"].index(where)] if where != "oracle" else 1
            rows = [{"item": i, "correct": (i * 37 + 11) % ITEMS < share * ITEMS} for i in range(first, first + 50)]
            records.write(folder / file, {"plan": plan.hash, "condition": where, "rows": rows})
    return folder


def with_task(claim, **settings):
    from dataclasses import replace

    return replace(CLAIMS[claim], arguments={**CLAIMS[claim].arguments, **settings})


@pytest.mark.parametrize(
    "shares, u_shape, order",
    [
        ((0.9, 0.3, 0.8), "reproduced", "reproduced"),
        ((0.9, 0.3, 0.31), "undecided", "reproduced"),
        ((0.9, 0.3, 0.1), "not reproduced", "reproduced"),
        ((0.5, 0.5, 0.5), "not reproduced", "not reproduced"),  # no difference on any item
    ],
)
def test_a_planted_curve_is_judged(tmp_path, shares, u_shape, order):
    probed(tmp_path, {"key-value": shares})
    folders = LedgerFolders(results=tmp_path)
    assert judge(with_task("survey-u-shape", task="key-value"), folders).verdict == u_shape
    assert judge(with_task("survey-order-matters", task="key-value"), folders).verdict == order
    result, where = gold_position(folders, "smollm2", "key-value", "likelihood")
    assert result["first_over_middle"] == pytest.approx(100 * (shares[0] - shares[1])) and "probe/smollm2-" in where


@pytest.mark.parametrize("middle, verdict", [(0.2, "reproduced"), (0.6, "undecided"), (0.8, "not reproduced")])
def test_a_middle_that_sinks_with_length(tmp_path, middle, verdict):
    probed(tmp_path, {"key-value-of-3": (0.8, 0.6, 0.8), "key-value-of-6": (0.8, middle, 0.8)}, lengths=(3, 6))
    claim = with_task("survey-longer-worse", tasks=["key-value-of-3", "key-value-of-6"])
    assert judge(claim, LedgerFolders(results=tmp_path)).verdict == verdict


@pytest.mark.parametrize(
    "cubic, texts, monotone, doubtful",
    [
        ((50, 20, 0.95), 64, "reproduced", "not reproduced"),
        ((50, 20, 0.5), 64, "not reproduced", "reproduced"),
        ((50, 30, 0.95), 64, "not reproduced", "reproduced"),
        ((0, 0, 0.0), 64, "undecided", "undecided"),  # no method finds a channel in either order
        ((50, 20, 0.95), 8, "open", "open"),
    ],
)
def test_a_smoothing_method_that_finds_nothing_decides_nothing(tmp_path, cubic, texts, monotone, doubtful):
    folder = probed(tmp_path, {"key-value": (1, 1, 1)})
    keys = ("channels", "by_chance", "rank_correlation_in_other_texts")
    fits = {"cubic": cubic, "segmented": (0, 0, 0.0), "window": (0, 0, 0.0)}
    numbers = {name: dict(zip(keys, values, strict=True)) for name, values in fits.items()}
    record = {"answer": False, "rule": "a rule", "settings": {"texts": texts, "tokens": 1000}, "numbers": numbers}
    records.write(folder / "hypothesis-one-way.json", record)
    folders = LedgerFolders(results=tmp_path)
    judgement = judge(CLAIMS["survey-dimension-monotone"], folders)
    assert judgement.verdict == monotone and (texts == 8 or "window finds no channel" in judgement.reason)
    assert judge(CLAIMS["survey-dimension-doubtful"], folders).verdict == doubtful


@pytest.mark.parametrize("answer, verdict", [(True, "not reproduced"), (False, "reproduced"), (None, "undecided")])
def test_hypotheses_and_explanations(tmp_path, answer, verdict):
    folder = probed(tmp_path, {"key-value": (1, 1, 1)})
    records.write(folder / "hypothesis-scaling-helps.json", {"answer": answer, "rule": "a rule"})
    folders = LedgerFolders(results=tmp_path)
    assert judge(CLAIMS["survey-scaling-empirical"], folders).verdict == verdict
    cases = [{"before": 0.1, "after": 0.1 + (0.1 if i % 10 else -0.05)} for i in range(50)]
    records.write(folder / "explain-emphasis-weight.json", {"result": {"factor": 2.0, "items": 10, "rows": cases}})
    assert judge(CLAIMS["survey-attention-causes"], folders).verdict == "open"  # the score was not doubled yet
    for against, verdict in ((5, "reproduced"), (25, "undecided"), (45, "not reproduced")):
        # attention falls throughout; the answer falls with it but for some
        rows = [
            {"before": 0.2, "after": 0.3 if i < against else 0.1, "attention_before": 0.2, "attention_after": 0.1}
            for i in range(50)
        ]
        records.write(folder / "explain-emphasis-score.json", {"result": {"factor": 2.0, "items": 10, "rows": rows}})
        assert judge(CLAIMS["survey-attention-causes"], folders).verdict == verdict
    figures = READERS["slot_emphasis"](folders, "smollm2")[0]
    assert (
        figures["with_attention"] == pytest.approx(0.1)
        and "attention to the slot rises in 0%, its answer becomes likelier in 90%" in figures["words"]
    )
    layer = {"rank": 300, "low_frequencies": 0.1}
    part = {"texts": 32, "tokens": 512, "layers": [layer, layer, layer, layer]}
    records.write(folder / "explain-geometry.json", {"result": part})
    assert judge(CLAIMS["survey-low-rank"], folders).verdict == "open"
    for rank, verdict in ((30, "reproduced"), (300, "not reproduced")):
        own = {"rank": rank, "low_frequencies": 0.8}
        halves = [own, {**own, "rank": 400}, {**own, "rank": 9}, None]
        part["layers"] = [{**layer, "in_both_halves": half} for half in halves]
        records.write(folder / "explain-geometry.json", {"result": part})
        assert judge(CLAIMS["survey-low-rank"], folders).verdict == verdict


@pytest.mark.parametrize("cropped, shares, causes, unproven", [(3, (2, 4), "reproduced", "reproduced"),
                                                                (3, (5, 6), "reproduced", "not reproduced"),
                                                                (0.5, (2, 4), "not reproduced", "reproduced")])  # fmt: skip
def test_two_experiments_on_the_mask_may_contradict_each_other(tmp_path, cropped, shares, causes, unproven):
    folder = probed(tmp_path, {"key-value": (1, 1, 1)})
    far, near = ([{"change_in_span": far} for far in each] for each in ((9, cropped), (1, 1)))
    shifted = {"shifted encoding": near, "cropped mask": far}
    runs = {"rank_correlation": 0.9}
    left = {
        "mask alone": [{"position_share": share, **runs} for share in shares],
        "encoding alone": [{"position_share": 5, **runs}] * 2,
        "untouched": [runs, runs],
    }
    elsewhere = {name: row[::-1] for name, row in shifted.items()}
    numbers = {"channel": 3, "arms": shifted | left, "arms_in_the_second_span": elsewhere}
    record = {"answer": None, "rule": "a rule", "numbers": numbers, "settings": {"texts": 64, "tokens": 1000}}
    folders = LedgerFolders(results=tmp_path)

    def with_arm(name, halves):
        return {**record, "numbers": {**numbers, "arms": {**numbers["arms"], name: halves}}}

    for silent in (
        {**record, "settings": {"texts": 8, "tokens": 1000}},
        {**record, "numbers": {**numbers, "channel": None}},
        with_arm("untouched", [runs, {"rank_correlation": 0.1}]),  # a channel that does not follow position
        with_arm("encoding alone", [{"position_share": -0.1, **runs}] * 2),  # nothing but noise
    ):
        records.write(folder / "hypothesis-from-mask.json", silent)
        assert judge(CLAIMS["survey-mask-causes"], folders).verdict == "open"
    records.write(folder / "hypothesis-from-mask.json", record)
    assert judge(CLAIMS["survey-mask-causes"], folders).verdict == causes
    assert judge(CLAIMS["survey-mask-unproven"], folders).verdict == unproven


@pytest.mark.parametrize("alone, verdict", [(0.02, "reproduced"), (0.3, "not reproduced")])
def test_attention_that_is_nearer_with_positions_than_without(tmp_path, alone, verdict):
    folder = probed(tmp_path, {"key-value": (1, 1, 1)})
    result = {"ranges": [[0, 1], [1, 2], [2, 8], [8, 64], [64, 128]], "attention": [[[0.0, 0.7, 0.1, 0.0, 0.01]]]}
    records.write(folder / "explain-distance.json", {"result": result})
    other = probed(tmp_path, {"key-value": (1, 1, 1)}, name="another")  # whose hypotheses are none of this model's
    records.write(other / "explain-distance.json", {"result": result})
    records.write(other / "hypothesis-one-way.json", {"answer": None})
    folders = LedgerFolders(results=tmp_path)
    assert judge(CLAIMS["survey-near-favoured-trained"], folders).verdict == "open"
    result["one_position"] = [[[0.0, alone, alone, 0.0, 0.01]]]
    records.write(folder / "explain-distance.json", {"result": result})
    assert judge(CLAIMS["survey-near-favoured-trained"], folders).verdict == verdict
    with pytest.raises(MissingEvidence, match="longer than 200"):
        READERS["near_and_far"](folders, "smollm2", near=[1, 8], far=[200, 300])
    figures = READERS["near_and_far"](folders, "smollm2", near=[1, 8], far=[64, 128])[0]
    assert figures["near_over_far"] == pytest.approx((0.7 + 6 * 0.1) / 7 / 0.01) and figures[
        "without_positions"
    ] == pytest.approx(100 * alone)


def test_what_is_missing_is_waited_for(tmp_path):
    folders = LedgerFolders(results=tmp_path)
    for name, settings in {
        "gold_position": {"task": "documents", "score": "likelihood"},
        "gold_position_by_length": {"tasks": ["a", "b"], "score": "likelihood"},
        "hypothesis": {"hypothesis": "one-way"},
        "monotone_channels": {},
        "mask_or_positions": {},
        "slot_emphasis": {},
        "positional_part": {},
        "near_and_far": {"near": [1, 8], "far": [64, 128]},
    }.items():
        with pytest.raises(MissingEvidence, match="a probe of smollm2"):
            READERS[name](folders, "smollm2", **settings)
    folder = probed(tmp_path, {"key-value": (1, 1, 1)})
    (folder / run_folder.record_name("key-value", 0, 50)).unlink()
    with pytest.raises(MissingEvidence, match="all records of key-value"):
        gold_position(folders, "smollm2", "key-value", "likelihood")
    probed(tmp_path, {"key-value": (1, 1, 1)}, name="another")
    (tmp_path / "probe" / "copy").mkdir()
    (tmp_path / "probe" / "copy" / "plan.json").write_text((folder / "plan.json").read_text())
    with pytest.raises(WhenceError, match="one probe of smollm2"):
        gold_position(folders, "smollm2", "key-value", "likelihood")

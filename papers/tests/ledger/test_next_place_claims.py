"""Readings of studies of next places, of experiments and of times, from made-up records and by hand."""

from pathlib import Path

import pytest
from made_up_records import FACTS

from whence import records
from whence.lab.arms import Arm
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_folder import study_folder, write_spec
from whence_papers import FOLDER
from whence_papers.ledger import LedgerFolders, load_sources
from whence_papers.ledger.evidence import KNOWN_NAMES
from whence_papers.ledger.next_location_records import READERS
from whence_papers.ledger.verdicts import judge

CLAIMS = {claim.id: claim for source in load_sources(FOLDER / "claims", KNOWN_NAMES) for claim in source.claims}
NAMES = ("Recency", "no position", "no pointer", "no position-from-end", "neither", "additive")
STUDY = Study(
    name="next-location", question="made up", task="whence_papers.pointer.next_location.task:NextPlaceTask", seeds=(0, 1, 2, 3, 4),
    arms=tuple(Arm(name, "NoPosition()") for name in NAMES), budget=Budget(epochs=1), decision=Decision(baseline=NAMES[0]),
)  # fmt: skip
LEVELS = {
    "Recency": 52.5,
    "no position": 52.45,
    "no pointer": 28.6,
    "no position-from-end": 50.5,
    "neither": 50.4,
    "additive": 50,
}
NOISE = (-0.3, 0.2, 0.0, 0.25, -0.15)
MORE = {"acc@5": 29.5, "acc@10": 32, "mrr": 13.5, "ndcg@10": 18, "f1": -4}  # over Acc@1


def part(accuracy, seen, right):
    """A test part whose users a and b were asked 60 and 40 things, 50 and 30 of which training has."""
    metrics = {"acc@1": accuracy / 100} | {name: (accuracy + more) / 100 for name, more in MORE.items()}
    countings = {
        "all": metrics,
        "by_user": {"acc@1": 0.45},
        "by_user_seen": {"acc@1": 0.4},
        "seen": {"acc@1": seen / 100},
    }
    users = {"1": [60, right[0] + 5, 50, right[0]], "2": [40, right[1], 30, right[1]]}
    return {"value": accuracy / 100, "metrics": countings, "users": users}


def write(results, levels=LEVELS, bias=(0.5, 0.3, 0.1, 0.0, -0.1, -0.2, -0.3, -0.4, -9.0), seen=None, lost=()):
    folder = study_folder(STUDY, results)
    write_spec(STUDY, folder)
    for run in STUDY.runs():
        noise = NOISE[(run.seed + NAMES.index(run.arm.name)) % 5]
        level = levels[run.arm.name] + noise
        right = (25, 15) if run.arm.name == "no pointer" else (35, 17)
        test = part(level, (seen or levels)[run.arm.name] + noise, right)
        done = {"status": "done", "losses": [], "evaluations": [{"step": 1, "splits": {"test": test}}]}
        gone = {"status": "diverged", "step": 3, "reason": "NaN", "last_good_checkpoint": None}
        shift = {
            "from_end": [float(n + 1) for n in range(9)],
            "bias": [NOISE[run.seed] * (n == 0) + b for n, b in enumerate(bias)],
        }
        records.write(
            folder / run.file_name,
            {
                "hash": STUDY.hash, "arm": run.arm.name, "seed": run.seed,
                "result": gone if (run.arm.name, run.seed) in lost else done, "notes": {"shape": shift}, **FACTS,
            },
        )  # fmt: skip
    return folder


def verdict(name, results, benchmarks=Path("none")):
    return judge(CLAIMS[name], LedgerFolders(FOLDER / "claims", results, benchmarks))


def test_what_is_missing_is_waited_for(tmp_path):
    missing = [name for name, claim in CLAIMS.items() if claim.by in READERS]
    assert len(missing) >= 12
    for name in missing:
        assert verdict(name, tmp_path).reason.startswith("waits for the study next-")
    folder = write(tmp_path)
    path = next(folder.glob("no-pointer-*-seed3.json"))
    kept = records.read(path)
    path.unlink()
    assert verdict("pointer-pointer", tmp_path).reason == "waits for 1 of 5 seeds of next-location, no pointer"
    records.write(path, {key: value for key, value in kept.items() if key != "environment"})
    reason = verdict("pointer-pointer", tmp_path).reason
    assert reason.startswith("waits for 1 of 5 seeds of next-location, no pointer: ")
    assert reason.endswith(f"{path.name} is left alone: it has no environment")


def test_published_figures_against_the_seeds(tmp_path):
    write(tmp_path)
    judgement = verdict("pointer-geolife-ablation", tmp_path)
    assert judgement.verdict == "not reproduced" and "mrr 66.00 (mean of 5 runs" in judgement.reason
    assert judgement.evidence.figures["mrr"] == pytest.approx([52.5 + noise + 13.5 for noise in NOISE])
    write(tmp_path, LEVELS | {"Recency": 51.5})
    assert verdict("pointer-geolife-ablation", tmp_path).verdict == "reproduced"


@pytest.mark.parametrize(
    "level, mean, surely",
    [
        (51.8, "reproduced", "reproduced"),
        (51.5, "reproduced", "undecided"),
        (51.3, "not reproduced", "undecided"),
        (51.0, "not reproduced", "not reproduced"),
    ],
)
def test_reaching_a_figure_is_said_of_the_mean_and_of_the_lower_end(tmp_path, level, mean, surely):
    """Mean 51.5 is above 51.4, and its interval is not: t(4) = 2.776, deviation 0.2318, so 51.5 - 0.288."""
    write(tmp_path, LEVELS | {"Recency": level})
    assert verdict("pointer-geolife-reached", tmp_path).verdict == mean
    judgement = verdict("pointer-geolife-surely", tmp_path)
    assert judgement.verdict == surely
    assert judgement.evidence.figures["acc1_low"] == pytest.approx(level - 2.776445 * 0.231840 / 5**0.5, abs=1e-4)
    for expected_text in ("mean over users 45.00", "answers that occur in training 51.", "interval over users"):
        assert expected_text in judgement.reason


def test_differences_are_tested(tmp_path):
    write(tmp_path)
    for name, expected, expected_text in (
        ("pointer-bias-study", "equivalent", "Recency is equivalent to no position within 1 points"),
        ("pointer-bias-study-alone", "equivalent", "equivalent to neither"),
        ("pointer-from-end-embedding", "reproduced", "change -2.00 (mean"),
        ("pointer-pointer", "reproduced", "change -23.90 (mean"),
        ("pointer-against-additive", "reproduced", "no position is better than additive by 2.45 points"),
        ("pointer-seen-targets", "reproduced", "direction 1"),
    ):
        judgement = verdict(name, tmp_path)
        assert judgement.verdict == expected and expected_text in judgement.reason, (name, judgement.reason)


def test_a_counting_is_its_own(tmp_path):
    write(tmp_path, seen=LEVELS | {"no pointer": 52.6})
    assert verdict("pointer-pointer", tmp_path).verdict == "reproduced"
    assert "On answers that occur in training: +0.10 points" in verdict("pointer-pointer", tmp_path).reason
    assert verdict("pointer-seen-targets", tmp_path).verdict == "equivalent"


def test_whose_answers_make_the_gain(tmp_path):
    """Recency is right 52 times where training has the answer and 5 times else, the other 40 and 5 times."""
    write(tmp_path)
    judgement = verdict("pointer-unseen-targets", tmp_path)
    assert set(judgement.evidence.figures["share_of_gain_at_unseen"]) == {0.0} and judgement.verdict == "reproduced"
    folder = study_folder(STUDY, tmp_path)
    for path in folder.glob("Recency-*"):
        stored = records.read(path)
        stored["result"]["evaluations"][0]["splits"]["test"]["users"]["1"][1] += 15
        records.write(path, stored)
    judgement = verdict("pointer-unseen-targets", tmp_path)
    assert (
        judgement.evidence.figures["share_of_gain_at_unseen"] == pytest.approx([15 / 27] * 5)
        and judgement.verdict == "not reproduced"
    )
    assert "12 more of 80 questions whose answer occurs in training, and 15 more of 20" in judgement.reason
    stored["result"]["evaluations"][0]["splits"]["test"]["users"]["1"][1] -= 12
    records.write(path, stored)  # one seed on the other side: the interval of the mean includes a half
    assert verdict("pointer-unseen-targets", tmp_path).verdict == "undecided"


def test_seeds_that_diverged_are_left_out_of_both(tmp_path):
    write(tmp_path, lost={("no pointer", 2), ("Recency", 0)})
    changes = verdict("pointer-pointer", tmp_path).evidence.figures["change"]
    assert changes == pytest.approx([-23.9 + NOISE[(seed + 2) % 5] - NOISE[seed] for seed in (1, 3, 4)])


FORMS = Study(
    name="next-location-forms-foursquare", question="made up", task=STUDY.task, seeds=(0, 1, 2),
    arms=(Arm("day known", "NoPosition()"), Arm("day unknown", "Alibi()")), budget=Budget(epochs=1),
    decision=Decision(baseline="day known", split="delivered"),
)  # fmt: skip


@pytest.mark.parametrize(
    "right, expected",
    [
        (30, ("not reproduced", "reproduced")),
        (20, ("not reproduced", "undecided")),
        (8, ("undecided", "not reproduced")),
    ],
)
def test_a_prediction_beside_what_is_reported_and_beside_rules(tmp_path, right, expected):
    """Five users were asked 50 things each, 40 of which training has; the rules know about 20 of both."""
    folder = study_folder(FORMS, tmp_path)
    write_spec(FORMS, folder)
    users = {str(user): [50, right + user % 2, 40, right + user % 2] for user in range(5)}
    rules = {str(user): [50, 20 + user // 2 % 2, 40, 20 + user // 2 % 2] for user in range(5)}
    metrics = {"all": {"acc@1": right / 50}, "seen": {"acc@1": right / 40}}
    for run in FORMS.runs():
        reported = 0.4 + (0.5 if right == 8 else 0.01) * run.seed
        test = {"value": reported, "users": users, "metrics": {"all": {"acc@1": reported}}}
        splits = {
            "test": test,
            "delivered": {"value": 0.3, "users": users, "metrics": {**metrics, "all": {"acc@1": 0.3}}},
        }
        done = {"status": "done", "losses": [], "evaluations": [{"step": 1, "splits": splits}]}
        records.write(
            folder / run.file_name,
            {"hash": FORMS.hash, "arm": run.arm.name, "seed": run.seed, "result": done, **FACTS},
        )
    habit = {"users": rules, "metrics": {name: {"acc@1": 0.4} for name in ("all", "seen")}, "value": 0.4}
    worse = habit | {"metrics": {name: {"acc@1": 0.1} for name in ("all", "seen")}}
    records.write(folder / "baselines.json", {"hash": FORMS.hash, "baselines": {"worse": worse, "habit": habit}})
    lost, beaten = (verdict(f"pointer-checkins-{name}", tmp_path) for name in ("delivered", "rules"))
    assert (lost.verdict, beaten.verdict) == expected
    assert lost.evidence.figures["lost"][0] == pytest.approx(10)
    gains = [right + user % 2 - 20 - user // 2 % 2 for user in range(5)]
    assert beaten.evidence.figures["seen_gain"] == pytest.approx(100 * sum(gains) / 200)
    assert beaten.evidence.figures["all_gain"] == pytest.approx(100 * sum(gains) / 250)
    assert "On answers that occur in training day unknown has" in beaten.reason and "'habit' 40.00" in beaten.reason


@pytest.mark.parametrize(
    "bias, expected",
    [
        ((0.5, 0.3, 0.1, 0.0, -0.1, -0.2, -0.3, -0.4, 7.0), "reproduced"),
        ((0.0,) * 9, "not reproduced"),
        ((-0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.3, 0.5, 0.0), "not reproduced"),
    ],
)
def test_the_learned_bias(tmp_path, bias, expected):
    write(tmp_path, bias=bias)
    judgement = verdict("pointer-bias-recent", tmp_path)
    assert judgement.verdict == expected
    assert judgement.evidence.figures["last_over_others"] == pytest.approx(
        [bias[0] - bias[7] + noise for noise in NOISE]
    )


@pytest.mark.parametrize("with_it, expected", [(0.01, "reproduced"), (0.05, "undecided"), (0.09, "not reproduced")])
def test_an_experiment(tmp_path, with_it, expected):
    assert verdict("pointer-coverage", tmp_path).reason == (
        f"waits for the record {tmp_path}/pointer/coverage.json (`whence run coverage`)"
    )
    rows = {arm: {"repeated_words, longer": [level + wobble * n * (n - 3) for n in range(5)]} for arm, level, wobble in
            (("without coverage", 0.05, 0.001), ("with coverage", with_it, 0.002))}  # fmt: skip
    records.write(tmp_path / "pointer/coverage.json", {"results": {"arms": rows}})
    assert verdict("pointer-coverage", tmp_path).verdict == expected


@pytest.mark.parametrize("additive, expected", [(12.0, "reproduced"), (8.0, "not reproduced")])
def test_times(tmp_path, additive, expected):
    assert "benchmarks/pointers.py" in verdict("pointer-efficient", tmp_path, tmp_path).reason
    times = {"additive": [additive, 90.0, additive], "dot product, Recency": [10.0, 10.0, 99.0]}
    record = {
        "results": {name: {"milliseconds": row} for name, row in times.items()},
        "about": {"turns": 3, "batch": 2, "visits": 5, "embed_dim": 4}, "environment": {"machine": {"processor": "a CPU"}},
    }  # fmt: skip
    records.write(tmp_path / "pointers.json", record)
    judgement = verdict("pointer-efficient", tmp_path, tmp_path)
    assert judgement.verdict == expected and judgement.evidence.figures["times_as_long"] == pytest.approx(additive / 10)

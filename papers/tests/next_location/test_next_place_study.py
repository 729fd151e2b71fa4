"""A study of next places from its spec to its page, its weights and its predictions."""

import csv
import json
from dataclasses import replace
from datetime import date

import pytest
import torch
from typer.testing import CliRunner

from whence import WhenceError, records
from whence.cli.app import app
from whence.lab import run_execution, runner, training
from whence.lab.arms import Arm
from whence.lab.results import collect_findings
from whence.lab.study import Budget, Decision, Study
from whence.lab.tasks import load
from whence.report.comparison import page
from whence_papers import FOLDER
from whence_papers.pointer.next_location.figures import (
    accuracy_over_users,
    initial_bias,
    main,
    metrics_on_test,
    prediction_figure,
    report_panels,
    study_figure,
)
from whence_papers.pointer.next_location.predictor import ELSEWHERE, Predictor
from whence_papers.pointer.next_location.visits import Visit, sort_by_time

TASK = "whence_papers.pointer.next_location.task:NextPlaceTask"
STUDY = Study(
    name="next",
    question="where next",
    task=TASK,
    task_settings={"data": "world"},
    model={"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.0},
    arms=(Arm("Recency", "Recency(max_length=32)"), Arm("no pointer", "NoPosition()", {"answers": "generate"})),
    seeds=(0,),
    budget=Budget(epochs=2, batch_size=128, lr=1e-2, evaluate_every=1, patience=1),
    decision=Decision(baseline="Recency"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    outcome = runner.run_study(STUDY, tmp_path_factory.mktemp("results"))
    assert len(outcome.completed) == 2 and not outcome.problems
    return outcome.folder


def weights(folder, name):
    return next((folder / "weights").glob(f"{name}*.safetensors"))


def test_records_hold_every_counting_the_shape_and_the_simple_rules(folder):
    runs = {run.arm.name: records.read(folder / run.file_name) for run in STUDY.runs()}
    record = runs["Recency"]
    *on_the_way, last = record["result"]["evaluations"]
    assert [list(row["splits"]) for row in on_the_way] == [["valid"]] * len(on_the_way)
    assert set(last["splits"]) == {"valid", "test"} and last["step"] == record["result"]["best_step"]
    best = max(row["splits"]["valid"]["value"] for row in on_the_way)
    assert last["splits"]["valid"]["value"] == best  # what is kept is what was best, found again from its weights
    assert set(last["splits"]["test"]["metrics"]) == {"all", "seen", "by_user", "by_user_seen"}
    assert len(record["notes"]["shape"]["bias"]) == load(TASK, data="world").context
    assert runs["no pointer"]["notes"] == {"shape": {}, "generated": {"seen": 1.0}, "next_day": "known"}
    simple = records.read(folder / "baselines.json")["baselines"]
    assert set(simple) == {"last visited", "most frequent", "most frequent lately", "Markov", "the world's own rules"}
    # a model beats chance by far, and not the world's own rules, which stand in the same tables
    rules, test = simple["the world's own rules"], last["splits"]["test"]
    assert rules["cross_entropy"] < test["cross_entropy"] < 3.0
    assert test["value"] < rules["value"] + 3 * (rules["value"] / test["num_targets"]) ** 0.5


def test_a_run_that_diverged_has_a_record_too(tmp_path, monkeypatch):
    def diverging(model, *others, **named):
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(torch.nan)
        raise training.DivergenceError(3, "the loss became nan")

    monkeypatch.setattr(training, "train", diverging)
    record = run_execution.execute_run(STUDY.runs()[0], tmp_path)
    assert record["result"]["status"] == "diverged" and record["notes"] == {}
    assert report_panels({"Recency": [record]}, {}) == []


def test_an_ablation_is_part_of_the_hash_and_of_the_model(folder):
    bare = [Arm(arm.name, arm.position) for arm in STUDY.arms]
    assert replace(STUDY, arms=tuple(bare)).hash != STUDY.hash
    assert "generator.weight" in checkpoints_in(folder, "no pointer") and not [
        name for name in checkpoints_in(folder, "no pointer") if name.startswith("pointer")
    ]


def checkpoints_in(folder, arm):
    from safetensors import safe_open

    with safe_open(weights(folder, arm.replace(" ", "-")), "pt") as file:
        return list(file.keys())


def test_the_page_shows_rules_countings_and_the_learned_shape(folder, tmp_path):
    findings = collect_findings([folder], "next", "whence run next")
    kinds = [(one["kind"], one["title"]) for one in findings["studies"][0]["panels"]]
    assert [kind for kind, _ in kinds] == [*["table"] * 6, "lines"]
    every, seen = findings["studies"][0]["panels"][:2]
    assert every["head"] == seen["head"] == ["", "Acc@1", "Acc@5", "Acc@10", "MRR", "NDCG@10", "weighted F1"]
    metrics = records.read(folder / STUDY.runs()[0].file_name)["result"]["evaluations"][-1]["splits"]["test"]["metrics"]
    for table, counting in ((every, "all"), (seen, "seen")):
        (own,) = [row for row in table["rows"] if row[0] == "Recency"]
        assert own[4] == f"{100 * metrics[counting]['mrr']:.2f}" and own[6] == f"{100 * metrics[counting]['f1']:.2f}"
    assert json.loads(json.dumps(findings["studies"][0]["panels"])) == findings["studies"][0]["panels"]
    text = page(findings)
    for expected_text in (
        "most frequent lately",
        "Acc@1 in four ways of counting",
        "visits from the end",
        "mean over users",
    ):
        assert expected_text in text
    assert "Evaluation on test" not in text  # one value a run makes no line
    assert report_panels({}, {}) == []
    (row,) = [row for row in findings["studies"][0]["panels"][0]["rows"] if row[0] == "the world's own rules"]
    assert float(row[1]) == pytest.approx(100 * best_of_the_world(), abs=0.01)


def best_of_the_world():
    """The share of test answers that are the most likely place, by the world's rule written out again."""
    from whence_papers.pointer.next_location.world import HALF, World

    world = World()
    people, right, questions = world.draw_people(), 0, 0
    by_user = {}
    for visit in world.parts()["test"]:
        by_user.setdefault(visit.user, []).append(visit)
    for user, own in by_user.items():
        for at, visit in enumerate(own):
            past = [v for v in own[:at] if v.day >= visit.day - 7]
            if visit.day - own[0].day < 7 or len(past) < 3:
                continue
            odds = [0.5 * float(p) for p in people.habits[int(user.split()[1]), past[-1].minute * 4 // 1440]]
            weights = [HALF**back for back in range(len(past) - 1, -1, -1)]
            for weight, v in zip(weights, past, strict=True):
                odds[int(v.place.split()[1])] += 0.4 * weight / sum(weights)
            right += odds.index(max(odds)) == int(visit.place.split()[1])
            questions += 1
    return right / questions


def test_intervals_over_seeds_and_over_people():
    def test_part(right):
        return {"users": {str(user): [10 * user, own, 0, 0] for user, own in enumerate(right, 1)}}

    first, second = test_part([4, 10, 24]), test_part([6, 12, 26])
    findings = accuracy_over_users([first, second])
    assert findings.mean == pytest.approx(41 / 60)  # 5, 11 and 25 of 10, 20 and 30
    off = [5 - 410 / 60, 11 - 820 / 60, 25 - 1230 / 60]
    error = (sum(x * x for x in off) / 2 * 3) ** 0.5 / 60
    assert findings.interval.high == pytest.approx(41 / 60 + 4.302653 * error, abs=1e-5)


def test_each_table_counts_its_own_way():
    metrics = {
        counting: {"acc@1": at / 10, "mrr": at / 20} for at, counting in enumerate(("all", "seen", "by_user"), 1)
    }
    test = {"metrics": metrics, "value": 0.1, "users": {"1": [2, 1, 2, 1]}}
    run = {"result": {"status": "done", "evaluations": [{"splits": {"test": test}}]}, "seed": 0, "notes": {}, "spec": STUDY.spec()}  # fmt: skip
    every, seen, counted, *_ = report_panels({"a": [run]}, {"rule": test})
    for rows, first in ((every["rows"], "10.00"), (seen["rows"], "20.00")):
        assert [row[1] for row in rows] == [first] * 2 and rows[0][4] == rows[1][4] == f"{float(first) / 2:.2f}"
    assert [row[1:] for row in counted["rows"]] == [["10.00", "20.00", "30.00", "–"]] * 2


def test_a_factor_is_drawn_as_it_is_and_a_bias_moved_to_a_mean_of_0():
    def run(shape):
        test = {"metrics": {}, "value": 0.5, "users": {"1": [2, 1, 2, 1]}}
        return {"result": {"status": "done", "evaluations": [{"splits": {"test": test}}]}, "seed": 3, "notes": {"shape": shape}, "spec": STUDY.spec()}  # fmt: skip

    runs = {"a": [run({"from_end": [1.0, 2.0], "bias": [2.0, 4.0]})], "b": [run({"from_end": [1.0, 2.0], "score_scale": [1.0, 0.5]})]}  # fmt: skip
    added, times = (one for one in report_panels(runs, {}) if one["kind"] == "lines")
    assert added["lines"] == {"a": {"3": [[1.0, -1.0], [2.0, 1.0]]}} and times["lines"] == {
        "b": {"3": [[1.0, 1.0], [2.0, 0.5]]}
    }


def test_the_figure_of_a_study_comes_from_its_records(folder, tmp_path):

    runs = {run.arm.name: [records.read(folder / run.file_name)] for run in STUDY.runs()}
    left, *panels = study_figure(runs, records.read(folder / "baselines.json")["baselines"]).axes
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["Recency", "no pointer"]
    told = [text.get_text() for text in left.get_legend().get_texts()]
    assert told == [
        "all questions, as in the source",
        "answers that occur in training",
        "best baseline: the world's own rules",
    ]
    drawn = sorted({round(float(x), 4) for line in left.get_lines() for x in line.get_xdata()})
    labels = [
        100 * metrics_on_test(findings[0], counting)["acc@1"]
        for findings in runs.values()
        for counting in ("all", "seen")
    ]
    assert {round(value, 4) for value in labels} <= set(drawn)
    [right] = panels  # one for each arm with a bias
    assert right.get_title(loc="left") == "Recency" and right.get_xlabel().startswith("visits from the end")
    _, seed, mean, *_ = right.get_lines()
    assert (
        len(seed.get_xdata()) == len(runs["Recency"][0]["notes"]["shape"]["bias"])
        and mean.get_label() == "mean of the seeds"
    )
    main(folder, tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 20_000


def test_the_bias_before_training_is_drawn_unless_it_is_random():
    start = initial_bias({"position": "Alibi(slope=[0.5], learnable=True)"}, 3)
    assert start == pytest.approx([0.5, 0.0, -0.5])
    assert initial_bias({"position": "NoPosition()"}, 3) is None


def visits(user="person 1", last="place 4"):
    return [Visit(user, f"place {at % 3}", at // 4, 60 + 360 * (at % 4), 0, 300.0) for at in range(50)] + [
        Visit(user, last, 12, 1200, 0)
    ]


def test_predictions_are_those_of_the_model(folder):
    predictor = Predictor.from_weights(weights(folder, "Recency"), "test")
    (prediction,) = predictor.predict(visits(), top_k=100)
    assert prediction.known and len(prediction.history) + prediction.before == 51
    assert min(visit.day for visit in prediction.history) == 12 - 7
    assert sum(share for _, share in prediction.places) == pytest.approx(1, abs=1e-5)
    assert [share for _, share in prediction.places] == sorted((share for _, share in prediction.places), reverse=True)
    assert sum(prediction.weights) == pytest.approx(1, abs=1e-5)
    # by hand, through the task's own table
    task = load(TASK, data="world")
    assert predictor.numbers == task.numbers
    from whence_papers.pointer.next_location.histories import Histories, Table

    table = Table.from_visits([*prediction.history, Visit("person 1", "place 0", 12, 1300, 0)], task.numbers)
    end = torch.tensor([len(prediction.history)])
    batch = Histories(table, torch.tensor([0]), end).batch(torch.tensor([0]))
    log_p = predictor.model(batch.tokens, key_mask=batch.key_mask, extras=batch.extras)[0].detach()
    for name, share in prediction.places:
        if name != ELSEWHERE:
            assert share == pytest.approx(float(log_p[task.numbers.place(name)].exp()), rel=1e-4, abs=1e-7)


def test_places_of_ones_own_are_named_and_strangers_said(folder):
    predictor = Predictor.from_weights(weights(folder, "Recency"), "test")
    (prediction,) = predictor.predict(sort_by_time(visits("eve", "the gym")), top_k=100)
    shares = dict(prediction.places)
    assert not prediction.known and shares["the gym"] == pytest.approx(
        (1 - prediction.generated_share) * prediction.weights[-1], rel=1e-4
    )
    assert ELSEWHERE in shares and sum(shares.values()) == pytest.approx(1, abs=1e-5)
    (alone,) = Predictor.from_weights(weights(folder, "no-pointer"), "test").predict(visits("eve", "the gym"))
    assert alone.weights is None and alone.generated_share == 1.0
    assert len(prediction_figure([prediction, alone]).axes) == 4


def test_days_that_cannot_be_predicted(folder):
    predictor = Predictor.from_weights(weights(folder, "Recency"), "test")
    for day, expected_text in (
        (11, r"person 1 \(last visit on day 12\)"),
        (30, r"predict\(day=day 30\).*person 1 \(no visit in the 7 days before day 30; 3 are needed\)"),
    ):
        with pytest.raises(WhenceError, match=expected_text):
            predictor.predict(visits(), day=day)
    several = [visit for number in range(8) for visit in visits(f"user {number}")]
    with pytest.raises(WhenceError, match=r"user 2 \([^)]*\) and 5 more, but"):
        predictor.predict(several, day=11)
    with pytest.raises(WhenceError, match=r"user 2 \([^)]*\), but"):
        predictor.predict([visit for visit in several if visit.user < "user 3"], day=11)


def test_users_without_a_recent_visit_are_skipped(folder, tmp_path):
    predictor = Predictor.from_weights(weights(folder, "Recency"), "test")
    later = [visit._replace(user="late", day=visit.day + 20) for visit in visits()]
    both = [*visits(), *later]
    assert [one.user for one in predictor.predict(both, day=33)] == ["late"]
    assert predictor.skipped_users(both, 33) == {"person 1": "no visit in the 7 days before day 33; 3 are needed"}
    assert predictor.skipped_users(both, 12) == {"late": "last visit on day 32"}
    assert [one.user for one in predictor.predict(both)] == ["person 1", "late"]
    path = tmp_path / "visits.csv"
    rows = [f"{v.user},{v.place},{v.day},{v.minute},{v.weekday}" for v in both]
    path.write_text("\n".join(["user_id,location_id,start_day,start_min,weekday", *rows]))
    done = call(weights(folder, "Recency"), path, "--day", "33", "--out", tmp_path / "next.png")
    assert done.exit_code == 0 and "late: next location on day 33" in done.output
    assert "skipped person 1: no visit in the 7 days before day 33" in done.output


def call(*arguments):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_the_command(folder, tmp_path):
    rows = [f"{v.user},{v.place},{v.day},{v.minute},{v.weekday}" for v in visits() + visits("eve", "the gym")]
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["user_id,location_id,start_day,start_min,weekday", *rows]))
    done = call(weights(folder, "Recency"), path, "--out", tmp_path / "next.png")
    assert done.exit_code == 0, done.output
    assert "person 1: next location assumed on day 12, from 31 visits; 20 older visits ignored" in done.output
    assert "the day of the last visit stands in for it" in done.output and "pass --day" in done.output
    assert "eve: next location" in done.output and "user not in training" in done.output
    assert "pointer " in done.output and (tmp_path / "next.png").stat().st_size > 10_000
    assert "person 1" not in call(weights(folder, "Recency"), path, "--user", "eve", "--out", tmp_path / "n.png").output
    found = json.loads(call(weights(folder, "Recency"), path, "--json", "--out", tmp_path / "next.csv").stdout)
    assert found["command"] == "predict" and found["skipped"] == {}
    person, eve = found["predictions"]
    assert (person["user"], person["known"], eve["known"]) == ("person 1", True, False) and len(person["places"]) == 5
    assert sum(visit["weight"] for visit in person["pointer"]) == pytest.approx(1, abs=1e-4)
    refusals = [
        ((weights(folder, "Recency"), path, "--user", "bob"), "users of visits.csv are person 1, eve"),
        ((weights(folder, "Recency"), path, "--day", "soon"), "a day is a whole number or a date"),
        ((tmp_path / "none.safetensors", path), "trained weights; run `whence run next_location`, which trains where"),
        ((path, path), "complete safetensors file"),
        ((weights(folder, "Recency"), path, "--out", tmp_path / "next.doc"), "extension must be one of csv, "),
        ((weights(folder, "Recency"), path, "--out", tmp_path / "none" / "next.png"), "existing folder"),
    ]
    for arguments, expected_text in refusals:
        assert expected_text in str(call(*arguments).exception)
    path.write_text(path.read_text() + "\neve,home,1,9999,0\n")
    bad = call(weights(folder, "Recency"), path)
    assert isinstance(bad.exception, WhenceError) and "line 104 (start_min='9999'" in str(bad.exception)


def test_predictions_as_a_table_name_every_user(folder, tmp_path):
    """One row for each place, one for each user that cannot be predicted, and days as dates."""
    dated = [v._replace(user=user, day=739023 + v.day) for user in ("eve", "ann") for v in visits(user, "the gym")]
    rows = [f"{v.user},{v.place},{date.fromordinal(v.day)},{v.minute}" for v in dated if v.user == "eve"]
    rows += [f"{v.user},{v.place},{date.fromordinal(v.day)},{v.minute}" for v in dated[-2:]]
    path, out = tmp_path / "visits.csv", tmp_path / "next.csv"
    path.write_text("\n".join(["user_id,location_id,start_day,start_min", *rows]))
    named = [option for user in ("eve", "ann", "bob") for option in ("--user", user)]
    done = call(weights(folder, "Recency"), path, "--top-k", 2, "--out", out, *named)
    assert done.exit_code == 0, done.output
    assert (
        "skipped bob: no visit in visits.csv" in done.output
        and "predictions of 1 user (1 not in training):" in done.output
    )
    head, *table = list(csv.reader(out.open()))
    assert head == ["user_id", "day", "next_day", "rank", "location_id", "probability", "note"]
    assert [row[:4] for row in table[:2]] == [["eve", "2024-05-29", "assumed", str(rank)] for rank in (1, 2)]
    assert float(table[0][5]) >= float(table[1][5]) > 0 and table[0][6] == "user not in training"
    notes = {row[0]: row[6] for row in table[2:]}
    assert notes["bob"].startswith("skipped: no visit") and "2 visits in the 7 days before 2024-05-29" in notes["ann"]
    assert "existing folder" in str(call(weights(folder, "Recency"), path, "--out", tmp_path / "no/next.csv").exception)


def test_weights_of_other_tasks_are_refused(tmp_path):
    from whence.lab.checkpoints import save_weights

    path = tmp_path / "other.safetensors"
    save_weights(path, torch.nn.Linear(2, 2), {"spec": {"task": "copy"}, "task": {}})
    with pytest.raises(WhenceError, match="weights of copy"):
        Predictor.from_weights(path, "test")
    save_weights(path, torch.nn.Linear(2, 2))
    with pytest.raises(WhenceError, match="without a spec"):
        Predictor.from_weights(path, "test")


def test_the_committed_study_is_sound():
    import os
    from pathlib import Path

    from whence.lab.study_files import load_study_file

    studies = load_study_file(FOLDER / "studies" / "next_location.py")
    assert [(len(study.runs()), study.decision.baseline) for study in studies] == [
        (10, "day known"), (50, "Recency"), (10, "LSTM pointer-generator"), (10, "one layer"),
    ]  # fmt: skip
    (checkins,) = load_study_file(FOLDER / "studies" / "next_location.py", options={"data": "foursquare"})
    assert checkins.model == studies[0].model and checkins.seeds == studies[0].seeds
    assert all("duration" not in arm.model["reads"] for arm in checkins.arms)  # they have none
    with pytest.raises(WhenceError, match=r"--data got 'gowalla'.*foursquare.*--visits"):
        load_study_file(FOLDER / "studies" / "next_location.py", options={"data": "gowalla"})
    if os.environ.get("WHENCE_DATA") and (Path(os.environ["WHENCE_DATA"]) / "mobility").is_dir():
        for study in studies:
            runner.validate_study(study)

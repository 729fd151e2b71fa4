"""The two forms of the question: with the day of the next visit, as in the source, and without it, as a prediction has it."""

import html
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from whence import WhenceError, records
from whence.cli.app import app
from whence.lab import runner
from whence.lab.arms import Arm
from whence.lab.results import collect_study
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_files import load_study_file
from whence.lab.tasks import load
from whence.report.comparison.sentences import summary_lines
from whence.report.comparison.verdicts import verdict_section
from whence_papers import FOLDER
from whence_papers.pointer.next_location.histories import split_by_days, trim_to_next_day
from whence_papers.pointer.next_location.predictor import Predictor
from whence_papers.pointer.next_location.remarks import describe_forms, describe_rules
from whence_papers.pointer.next_location.visits import Visit, read_visits
from whence_papers.pointer.next_location.world import World

TASK = "whence_papers.pointer.next_location.task:NextPlaceTask"
OTHERS = ["user", "time", "weekday", "from_end"]


def own_file(folder, days=80):
    visits = World(people=3, places=10, days=days).visits()
    rows = [f"{v.user},{v.place},2024-{1 + v.day // 28:02}-{1 + v.day % 28:02}T{v.minute // 60:02}:{v.minute % 60:02}" for v in visits]  # fmt: skip
    path = folder / "my.csv"
    path.write_text("\n".join(["user_id,location_id,time", *rows]))
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Both forms on a small file of visits."""
    return Study(
        name="forms",
        question="where next",
        task=TASK,
        task_settings={"data": str(own_file(tmp_path_factory.mktemp("visits"))), "window": "last"},
        model={"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.0},
        arms=(
            Arm("day known", "Recency(max_length=32)", {"reads": [*OTHERS, "ago"]}),
            Arm("day unknown", "Recency(max_length=32)", {"reads": [*OTHERS, "before_last"]}),
        ),
        seeds=(0,),
        budget=Budget(epochs=1, batch_size=128, lr=1e-2, evaluate_every=1, patience=1),
        decision=Decision(baseline="day known", split="delivered"),
    )


@pytest.fixture(scope="module")
def folder(study, tmp_path_factory):
    outcome = runner.run_study(study, tmp_path_factory.mktemp("results"))
    assert len(outcome.completed) == 2 and not outcome.problems
    return outcome.folder


@pytest.fixture(scope="module")
def runs(study, folder):
    return {run.arm.name: [records.read(folder / run.file_name)] for run in study.runs()}


def weights(folder, name):
    return next((folder / "weights").glob(f"{name}*.safetensors"))


def test_records_say_which_form_and_score_both(study, runs):
    for arm, (record,) in runs.items():
        assert record["task"]["window"] == "last" and f"day {record['notes']['next_day']}" == arm
        assert set(record["result"]["evaluations"][-1]["splits"]) == {"valid", "test", "delivered"}
    known, unknown = (runs[arm][0]["result"]["evaluations"][-1]["splits"] for arm in runs)
    assert known["test"]["cross_entropy"] != known["delivered"]["cross_entropy"]
    assert unknown["test"] == unknown["delivered"]  # it does not read the day
    assert (
        "window" not in load(TASK, data=study.task_settings["data"]).settings
    )  # as in the records of the source's form


def test_scores_as_delivered_are_those_of_predictions(study, folder):
    """The visits of a test question, put to the predictor, get the probabilities that the split delivered is scored by."""
    task = load(TASK, **study.task_settings)
    part = task.parts["test"]
    row = int((part.table.day[part.target] > part.table.day[part.target - 1]).nonzero()[3])
    first, target = int(part.first[row]), int(part.target[row])
    user = task.numbers.users[int(part.table.user[target]) - 1]
    visits = split_by_days(read_visits(Path(study.task_settings["data"]), "test"))["test"]
    days = [visit for visit in visits if visit.user == user]
    end = next(i for i, v in enumerate(days) if v.day == int(part.table.day[target]) and v.minute // 15 + 1 == int(part.table.time[target]))  # fmt: skip
    for arm in ("day-known", "day-unknown"):
        predictor = Predictor.from_weights(weights(folder, arm), "test")
        (prediction,) = predictor.predict(days[:end], top_k=3)
        assert len(prediction.history) == target - first
        batch = part.batch(torch.tensor([row]))
        extras = {**batch.extras, "ago": batch.extras["before_last"]}
        log_p = predictor.model(batch.tokens, key_mask=batch.key_mask, extras=extras)[0].detach()
        for name, share in prediction.places:
            assert share == pytest.approx(float(log_p[task.numbers.place(name)].exp()), rel=1e-4)
    trimmed = trim_to_next_day(batch, 7)
    assert trimmed.tokens.shape[1] < batch.tokens.shape[1]  # a day passes between the two visits


def test_weights_that_are_missing_are_trained_again_and_records_stay(study, folder, tmp_path):
    """A clone has the committed records and no weights; whence predict needs the weights."""
    own, run = tmp_path / folder.name, study.runs()[1]
    shutil.copytree(folder, own)
    before, kept = (own / run.file_name).read_bytes(), load_file(own / "weights" / run.weights_name)
    (own / "weights" / run.weights_name).unlink()
    outcome = runner.run_study(study, tmp_path)
    assert [one.arm.name for one in outcome.completed] == ["day unknown"] and len(outcome.existing) == 1
    assert outcome.notes == [f"{run.file_name} has no weights, so the run is trained again; the record stays"]
    again = load_file(own / "weights" / run.weights_name)
    assert all(torch.equal(again[name], kept[name]) for name in kept) and (own / run.file_name).read_bytes() == before
    assert not runner.run_study(study, tmp_path).completed
    record = records.read(own / run.file_name)
    stored = record["result"]["evaluations"][-1]["splits"]["delivered"]["value"]
    record["result"]["evaluations"][-1]["splits"]["delivered"]["value"] = 0.25
    (note,) = runner.describe_retrained(run, own, record)
    assert "score 0.2500 on delivered" in note and f"{stored:.4f}" in note


def test_a_day_is_refused_by_weights_that_do_not_use_it(folder):
    predictor = Predictor.from_weights(weights(folder, "day-unknown"), "test")
    visits = [Visit("ann", f"place {at % 3}", 739023 + at, 500, 0) for at in range(5)]
    with pytest.raises(WhenceError, match=r"--day got 2024-05-24.*without the day of the next visit.*leave out --day"):
        predictor.predict(visits, day=739030)
    (prediction,) = predictor.predict(visits)
    assert prediction.next_day == "unknown" and predictor.next_day == "unknown"
    known = Predictor.from_weights(weights(folder, "day-known"), "test")
    assert [known.predict(visits, day)[0].next_day for day in (None, 739028)] == ["assumed", "given"]


def test_the_verdict_names_forms_and_rules(study, folder, runs):
    study = collect_study(study, folder)
    text = " ".join(study["remarks"])
    assert (
        "in the source: day known. " in text
        and "like a prediction: day unknown. " in text
        and "(delivered): day known" in text
    )
    shown = verdict_section([study], {})
    assert all(html.escape(remark) in shown for remark in study["remarks"])
    assert f"  {study['remarks'][0]}" in summary_lines([study])
    (table,) = [one for one in study["panels"] if one["title"].startswith("Day of the next visit")]
    assert [row[:2] for row in table["rows"]] == [["day known", "known"], ["day unknown", "unknown"]]
    delivered = runs["day known"][0]["result"]["evaluations"][-1]["splits"]["delivered"]
    assert table["rows"][0][4] == f"{100 * delivered['value']:.2f}"


def test_the_rules_are_beaten_only_beyond_the_spread_of_users(runs):
    record = {**runs["day unknown"][0]}
    users = {str(user): [20, 12, 10, 2] for user in range(1, 9)}
    split = {"users": users, "metrics": {}, "value": 0.6}
    record["result"] = {"status": "done", "evaluations": [{"splits": {"delivered": split}}]}
    metrics = {"all": {"acc@1": 0.5}, "seen": {"acc@1": 0.3}}
    rule = {"users": {str(user): [20, 10 + user % 2, 10, 3] for user in range(1, 9)}, "metrics": metrics, "value": 0.5}
    first, second = describe_rules({"own": [record]}, {"habit": rule})
    assert "Over all questions the best simple rule is 'habit' with 50.00 %. Above it in points: own (+7.5)" in first
    assert (
        "On answers that occur in training" in second
        and "Not shown to be above it for other users: own (-10.0)" in second
    )
    assert describe_rules({}, {"habit": rule}) == [] == describe_rules({"own": [record]}, {})


def test_the_committed_study_of_the_source_says_that_the_day_is_known():
    folder = FOLDER / "results" / "next-location-eaa8537b8a89"
    study = Study.from_spec(records.read(folder / "study.json")["spec"])
    first = [run for run in study.runs() if run.seed == 0]
    runs = {run.arm.name: [records.read(folder / run.file_name)] for run in first}
    (form,) = describe_forms(runs)
    assert form.startswith("Every arm knows the day of the next visit") and "next-location-forms" in form
    everything, seen = describe_rules(runs, records.read(folder / "baselines.json")["baselines"])
    assert "'most frequent lately' with 42.00 %" in everything and "'Markov' with 37.65 %" in seen
    assert "no pointer" in everything.partition("Not shown")[2]


def test_own_visits(tmp_path):
    path = own_file(tmp_path)
    (study,) = load_study_file(FOLDER / "studies" / "next_location.py", options={"visits": str(path)})
    task = load(study.task, **study.task_settings)
    assert len(task.numbers.users) == 3 and "60, 20 and 20 %" in task.describe_data()["split"]
    assert all("duration" not in arm.model["reads"] for arm in study.arms)  # the file has none
    for arm in study.arms:
        task.build_model(study.model | dict(arm.model), arm, 0)
    path.write_text(path.read_text() + "\nperson 0,place 1,2024-12-01T08:00")
    with pytest.raises(WhenceError, match="changed since the study was built"):
        load(study.task, **study.task_settings)
    (changed,) = load_study_file(FOLDER / "studies" / "next_location.py", options={"visits": str(path)})
    assert changed.hash != study.hash


@pytest.mark.parametrize("days, missing", [(1, "train, valid"), (14, "valid, test"), (38, "valid")])
def test_too_few_visits_are_refused_with_the_days_that_are_enough(tmp_path, days, missing):
    def write(days):
        rows = [f"ann,place {day % 3},{739023 + day},600,{day % 7}" for day in range(days)]
        (tmp_path / "my.csv").write_text("\n".join(["user_id,location_id,start_day,start_min,weekday", *rows]))
        return str(tmp_path / "my.csv")

    with pytest.raises(
        WhenceError, match=rf"my.csv with too few visits: no question in {missing}.*about 41 days"
    ) as error:
        load(TASK, data=write(days))
    assert "lower days" not in str(error.value)
    assert all(len(part) for part in load(TASK, data=write(41)).parts.values())


def test_errors_of_own_visits_come_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.csv").write_text("user_id,location_id,time\na,x,soon\n")
    done = CliRunner().invoke(app, ["run", "next_location", "--visits", "my.csv", "--out", "out"])
    assert "--visits" in str(done.exception) and "line 2 (time='soon'" in str(done.exception)
    assert not (tmp_path / "out").exists()

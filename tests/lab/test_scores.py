"""All metrics from the counts in records, and whether an arm beats a constant answer."""

from pathlib import Path

import pytest
import torch

from whence import WhenceError, records
from whence.lab.arms import parse_arm
from whence.lab.scores import collect_baselines, collect_scores, judge_constant
from whence.lab.study import Budget, Decision, Study
from whence.lab.study_task import load_task
from whence.lab.tasks.base import IGNORE_INDEX, Batch, MetricAccumulator, compute_metric
from whence.lab.tasks.metrics import BINARY_METRICS, CLASSIFICATION_METRICS, classification_scores

CONSTANT = [
    {"name": "majority class", "kind": "constant", "about": "", "splits": {"test": {"accuracy": 0.69, "mcc": 0.0}}}
]


def arms(**values):
    return [{"name": name, "values": {"test": dict(enumerate(own))}} for name, own in values.items()]


def judge(values, metric="accuracy", items=1000, higher=True, baselines=CONSTANT):
    return judge_constant(arms(**values), baselines, metric, higher, "test", items, 0.05)


def test_scores_by_their_definitions():
    """Against plain sums over the classes, written out."""
    confusion = [[5, 2, 0], [1, 7, 2], [0, 1, 2]]
    scores = classification_scores(confusion)
    recall = [5 / 7, 7 / 10, 2 / 3]
    precision = [5 / 6, 7 / 10, 2 / 4]
    assert scores["accuracy"] == pytest.approx(14 / 20)
    assert scores["balanced_accuracy"] == pytest.approx(sum(recall) / 3)
    assert scores["macro_f1"] == pytest.approx(
        sum(2 * r * p / (r + p) for r, p in zip(recall, precision, strict=True)) / 3
    )
    # Matthews' correlation is Pearson's correlation of the indicator matrices
    truth = torch.cat([torch.eye(3)[k].repeat(sum(row), 1) for k, row in enumerate(confusion)])
    guess = torch.cat([torch.eye(3)[j].repeat(n, 1) for row in confusion for j, n in enumerate(row)])
    truth, guess = truth - truth.mean(0), guess - guess.mean(0)
    expected = (truth * guess).sum() / ((truth**2).sum() * (guess**2).sum()).sqrt()
    assert scores["mcc"] == pytest.approx(float(expected), rel=1e-5)


PLAIN_FILES = sorted((Path(__file__).parents[2] / "benchmarks" / "records" / "plain_files").glob("*.zip"))


def reference_scores(truth, guess, weights=None):
    """All metrics of classification by scikit-learn."""
    metrics = pytest.importorskip("sklearn.metrics")
    terms = {"sample_weight": weights}
    two = {} if max(*truth, *guess) > 1 else {"binary_f1": metrics.f1_score(truth, guess, zero_division=0, **terms)}
    return two | {
        "accuracy": metrics.accuracy_score(truth, guess, **terms),
        "balanced_accuracy": metrics.balanced_accuracy_score(truth, guess, **terms),
        "macro_f1": metrics.f1_score(truth, guess, average="macro", zero_division=0, **terms),
        "mcc": metrics.matthews_corrcoef(truth, guess, **terms),
    }


def committed_rows(packed):
    """The evaluations on test data of a packed study that have a confusion matrix."""
    store = records.RecordFolder(packed)
    rows = [store.read(name)["result"]["evaluations"][-1]["splits"]["test"] for name in store.names() if "seed" in name]
    return [row for row in rows if "confusion" in row]


@pytest.mark.parametrize("data", ["acceptability", "sst2"])
def test_scores_of_committed_runs_are_those_of_scikit_learn(data):
    (packed,) = [path for path in PLAIN_FILES if data in path.stem]
    rows = committed_rows(packed)
    assert len(rows) > 20
    for row in rows:
        cells = [(true, guess, n) for true, own in enumerate(row["confusion"]) for guess, n in enumerate(own) if n]
        truth, guess, weights = zip(*cells, strict=True)
        assert sum(weights) == row["num_targets"]
        found = {metric: compute_metric(metric, row) for metric in (*CLASSIFICATION_METRICS, *BINARY_METRICS)}
        assert found == pytest.approx(reference_scores(truth, guess, weights))


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_scores_of_predictions_are_those_of_scikit_learn(classes):
    """From logits through the accumulator, in batches, with targets that do not count and a class that never occurs."""
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(400, classes, generator=generator)
    targets = torch.randint(max(2, classes - 1), (400,), generator=generator)
    logits[torch.arange(400), targets] += 1
    targets[::7] = IGNORE_INDEX
    counted = targets != IGNORE_INDEX
    expected = reference_scores(targets[counted].tolist(), logits[counted].argmax(-1).tolist())
    for metric in expected:
        accumulator = MetricAccumulator(metric, num_classes=classes)
        for part, own in zip(logits.split(90), targets.split(90), strict=True):
            accumulator.add(part, Batch(torch.zeros(len(own), 1, dtype=torch.int64), own))
        row = accumulator.result()
        assert compute_metric(metric, row) == pytest.approx(expected[metric]) == row["value"]


@pytest.mark.parametrize(
    "confusion",
    [
        [[5, 2, 0], [1, 7, 2], [0, 1, 2]],
        [[69, 0], [31, 0]],
        [[0, 4], [6, 0]],
        [[3, 1, 0], [0, 4, 0], [0, 0, 0]],
        [[9, 0], [0, 9]],
    ],
)
def test_scores_are_those_of_scikit_learn(confusion):
    truth = [k for k, row in enumerate(confusion) for n in row for _ in range(n)]
    guess = [j for row in confusion for j, n in enumerate(row) for _ in range(n)]
    found, expected = classification_scores(confusion), reference_scores(truth, guess)
    assert ("binary_f1" in found) is (len(confusion) == 2)
    assert found == pytest.approx({metric: expected[metric] for metric in found})


def test_a_class_that_never_occurs_is_left_out():
    assert classification_scores([[3, 1, 0], [0, 4, 0], [0, 0, 0]])["balanced_accuracy"] == pytest.approx(0.875)


def test_every_metric_follows_from_the_record():
    logits = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 0.0], [1.0, 0.0]])
    batch = Batch(torch.zeros(4, 1, dtype=torch.int64), torch.tensor([0, 1, 1, IGNORE_INDEX]))
    row = {}
    for metric in ("accuracy", "balanced_accuracy", "macro_f1", "mcc", "perplexity"):
        accumulator = MetricAccumulator(metric, num_classes=2)
        accumulator.add(logits, batch)
        row = accumulator.result()
        assert row["confusion"] == [[1, 0], [1, 1]] and row["value"] == compute_metric(metric, row)
    assert "confusion" not in MetricAccumulator("accuracy").__dict__ or MetricAccumulator("accuracy").confusion is None
    record = {"result": {"status": "done", "evaluations": [{"splits": {"test": row}}]}}
    scores = collect_scores({"none": [record, record], "lost": []}, "test")
    assert set(scores) == {"none"} and scores["none"]["accuracy"] == pytest.approx(2 / 3)
    old = {"result": {"status": "done", "evaluations": [{"splits": {"test": {"value": 0.5}}}]}}
    assert collect_scores({"none": [old]}, "test") == {}


def test_no_arm_beats_a_constant_answer():
    found = judge({"none": [0.69, 0.69, 0.69], "rotary": [0.691, 0.69, 0.689]})
    assert found == {
        "name": "majority class",
        "value": 0.69,
        "beaten_by": [],
        "not_beaten_by": ["none", "rotary"],
        "inconclusive": [],
    }
    # a gap within the sampling error of the test items, equal in all seeds
    close = judge({"none": [0.70, 0.70, 0.70]})
    assert close["beaten_by"] == [] and close["inconclusive"] == ["none"]
    assert judge({"none": [0.70, 0.70, 0.70]}, items=100_000)["beaten_by"] == ["none"]


def test_runs_that_differ_widely_beat_it_if_each_run_does():
    """Accuracy beyond the trained length varies over seeds, so that three seeds have a wide t-interval."""
    levels = [{"name": "chance", "kind": "constant", "about": "", "splits": {"test": {"accuracy": 0.125}}}]
    values = {"bell": [0.186, 0.322, 0.364], "one run": [0.128, 0.322, 0.364], "none": [0.124, 0.125, 0.126]}
    found = judge(values, items=1567, baselines=levels)
    assert found["beaten_by"] == ["bell"] and found["inconclusive"] == ["one run"]
    assert judge(values, items=60, baselines=levels)["beaten_by"] == []
    assert judge(values, items=None, baselines=levels)["inconclusive"] == ["bell", "one run"]


def test_arms_that_beat_it_are_named():
    found = judge({"none": [0.69, 0.69], "rotary": [0.80, 0.81], "unsteady": [0.70, 0.95]})
    assert found["beaten_by"] == ["rotary"] and found["not_beaten_by"] == ["none", "unsteady"]
    assert judge({"none": [0.01, 0.02]}, "mcc")["beaten_by"] == []
    assert judge({"none": [0.5, 0.51]}, "mcc")["beaten_by"] == ["none"]


def test_lower_is_better_for_perplexity():
    levels = [
        {"name": name, "kind": "constant", "about": "", "splits": {"test": {"perplexity": value}}}
        for name, value in (("uniform", 256.0), ("unigram", 20.0))
    ]
    found = judge({"good": [9.0, 9.1], "bad": [21.0, 20.5]}, "perplexity", None, False, levels)
    assert found["name"] == "unigram" and found["beaten_by"] == ["good"]


def test_without_a_constant_or_a_value_nothing_is_judged():
    assert judge({"none": [0.9]}, baselines=[]) is None
    assert judge({"none": []}) is None
    assert judge({"none": [0.9]}, "macro_f1") is None


def test_baselines_of_older_records():
    (entry,) = collect_baselines({"markov": {"value": 0.3, "metrics": {}}, "odd": {}}, "test")
    assert entry == {"name": "markov", "kind": "rule", "about": "", "splits": {"test": {"accuracy": 0.3}}}


def decided_by(task, metric, **settings):
    arm = parse_arm("none")
    decision = Decision(baseline="none", metric=metric)
    return Study("one", "one", task, (arm,), (0,), Budget(steps=1), decision, task_settings=settings)


def test_a_study_can_be_decided_by_any_metric_of_its_task(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"word {n},{n % 2}\n" for n in range(40)))
    for metric in ("balanced_accuracy", "macro_f1", "mcc"):
        task = load_task(decided_by("labelled_file", metric, path=str(tmp_path / "a.csv")))
        assert task.metric == metric and task.higher_is_better and task.metric_accumulator().metric == metric
    assert not load_task(decided_by("labelled_file", "perplexity", path=str(tmp_path / "a.csv"))).higher_is_better
    with pytest.raises(WhenceError, match=r"metric.*'mcc'.*retrieval.*accuracy or perplexity"):
        load_task(decided_by("retrieval", "mcc"))
    with pytest.raises(WhenceError, match=r"metric.*'f2'.*macro_f1"):
        decided_by("retrieval", "f2")

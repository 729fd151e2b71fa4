"""The defaults of built-in tasks in ``whence compare``."""

import pytest

from whence import WhenceError, records
from whence.lab import runner
from whence.lab.default_studies import DEFAULT_POSITIONS, build_studies
from whence.lab.study_task import load_task
from whence.lab.task_defaults import TASK_DEFAULTS
from whence.lab.tasks import TASKS


def test_topics_is_byte_language_modelling_decided_at_eight_times_the_trained_length():
    (study,) = build_studies(("topics",))
    task = load_task(study)
    assert study.decision.baseline == "rotary" in DEFAULT_POSITIONS and study.decision.split == "8x"
    assert task.metric == "perplexity" and not task.higher_is_better and task.vocab_size == 256
    assert task.context == 32 and task.splits()["8x"] == 8 * 32
    (batch, *_) = task.evaluation("8x")
    assert batch.tokens.shape[1] == 8 * 32 and sum(len(one.tokens) for one in task.evaluation("8x")) == 64
    assert study.budget.steps == 250 and study.budget.evaluate_every == 125 and "next byte" in study.question


def test_options_replace_single_defaults_of_topics():
    (study,) = build_studies(("topics",), ("none", "alibi"), context=16, lengths=(2,), settings={"steps": 40})
    assert study.task_settings == {"context": 16, "blocks": 64, "lengths": [1, 2]}
    assert study.decision.split == "2x" and study.decision.baseline == "none"
    assert study.budget.steps == 40 and study.budget.evaluate_every == 10 and study.budget.lr == 3e-3


def test_topics_trains_with_its_defaults(tmp_path):
    (study,) = build_studies(("topics",), ("alibi",), (1,), settings={"steps": 2})
    outcome = runner.run_study(study, tmp_path)
    assert len(outcome.completed) == 1
    (record,) = outcome.folder.glob("*seed0.json")
    assert records.read(record)["result"]["evaluations"][-1]["splits"]["8x"]["value"] < 300  # about that of a guess


@pytest.mark.parametrize("task", [task for task in TASK_DEFAULTS if TASKS[task].is_bundled])
def test_every_default_split_and_baseline_exists(task):
    (study,) = build_studies((task,))
    assert study.decision.split in load_task(study).splits()
    assert study.decision.baseline in [arm.name for arm in study.arms]


@pytest.mark.parametrize("task", ["copy", "recall"])
def test_the_default_margin_belongs_to_the_metric_of_the_task(task):
    def margin(**options):
        (study,) = build_studies((task,), **options)
        return study.decision.margin

    assert margin() == margin(metric="accuracy") == 10 and load_task(build_studies((task,))[0]).metric == "accuracy"
    assert margin(metric="perplexity") is None and margin(metric="perplexity", margin=2.0) == 2
    assert margin(margin=3.0) == 3 and margin(margin=0.0) is None


def test_new_plans_compare_perplexities_by_ratios_and_other_metrics_by_differences():
    def scale(task, **options):
        (study,) = build_studies((task,), **options)
        return study.decision.perplexity_scale

    assert scale("topics") == scale("copy", metric="perplexity") == "log"
    assert scale("topics", metric="accuracy") == scale("copy") == "value"


@pytest.mark.parametrize("margin", [-1.0, float("inf"), float("nan")])
def test_a_margin_is_a_difference(margin):
    with pytest.raises(WhenceError, match=rf"--margin got {margin!r}.*use 0 to claim no equivalence"):
        build_studies(("copy",), margin=margin)

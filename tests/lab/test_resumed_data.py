"""What a trainer must do alike from the start and from the middle, in training and in evaluation, up and down."""

import re
from types import SimpleNamespace

import pytest
import torch

from whence.lab import decisions, default_studies, observe, task_defaults, training
from whence.lab.arms import parse_arm
from whence.lab.early_stopping import EarlyStopping
from whence.lab.study import Budget, Run
from whence.lab.tasks import Batch, load
from whence.lab.tasks.base import IGNORE_INDEX
from whence.position.expression import ModelDims


class Numbered:
    """Seven rows, each its own number."""

    def epoch(self, size, generator):
        for rows in torch.randperm(7, generator=generator).split(size):
            yield Batch(rows[:, None], rows)


@pytest.mark.parametrize("first", range(10))
def test_a_resumed_epoch_continues_with_the_next_batch(first):
    budget = Budget(epochs=3, batch_size=3)
    schedule = training.Schedule(Numbered(), budget)
    assert (schedule.steps_per_epoch, schedule.steps) == (3, 9)

    def rows(start):
        return [batch.targets.tolist() for batch in training.batches(Numbered(), budget, schedule, 4, start)]

    whole = rows(0)
    assert len(whole) == 9 and [len(row) for row in whole] == [3, 3, 1] * 3
    for epoch in range(3):
        assert sorted(row for batch in whole[3 * epoch : 3 * epoch + 3] for row in batch) == list(range(7))
    assert whole[:3] != whole[3:6]  # each epoch in an order of its own
    assert rows(first) == whole[first:]


def evaluations(values):
    return [{"step": 2 * i + 2, "splits": {"dev": {"value": value}}} for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "higher", "step", "stops"),
    [
        ([9.0, 5.0, 6.0], False, 4, False),  # perplexity: the least is best
        ([9.0, 5.0, 6.0, 7.0], False, 4, True),
        ([5.0, 5.0, 6.0], False, 2, True),  # the earliest of equals
        ([0.2, 0.6, 0.5], True, 4, False),
        ([0.2, 0.6, 0.5, 0.6], True, 4, True),
        ([0.2, 0.6, 0.5, 0.7], True, 8, False),
    ],
)
def test_the_best_evaluation_is_saved_for_either_direction(values, higher, step, stops):
    task = SimpleNamespace(higher_is_better=higher, validation="dev", splits=lambda: {"dev": 1, "test": 1})
    budget = Budget(steps=20, evaluate_every=2, patience=2)
    model = torch.nn.Linear(1, 1)
    choice = EarlyStopping(task, budget, rows := [], None)
    for number, row in enumerate(evaluations(values)):
        torch.nn.init.constant_(model.weight, number)
        rows.append(row)
        choice.update(model)
    assert (choice.best_step, choice.should_stop, choice.splits) == (step, stops, ["dev"])
    assert float(choice.best["weight"]) == step // 2 - 1  # the weights at that evaluation


def test_without_patience_nothing_is_chosen():
    task = SimpleNamespace(higher_is_better=True, validation=None, training_splits=lambda: ["test", "2x"])
    choice = EarlyStopping(task, Budget(steps=4), rows := evaluations([0.5, 0.1, 0.1]), None)
    choice.update(torch.nn.Linear(1, 1))
    assert not choice.should_stop and choice.best == {} and choice.splits == ["test", "2x"] and len(rows) == 3


@pytest.mark.parametrize("mode", [True, False])
def test_an_evaluation_leaves_the_mode_of_the_model_as_it_was(mode):
    task = load("retrieval", pairs=2, keys=16, values=4, items=4)
    model = task.build_model(
        {"embed_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 16, "dropout": 0.5}, parse_arm("none"), 0
    )
    model.train(mode)
    result = [training.evaluate(task, model, task.evaluation("test"), torch.device("cpu")) for _ in range(2)]
    assert model.training is mode
    assert result[0] == result[1]  # without dropout, whatever the mode was


def test_attention_by_distance_counts_the_rows_of_real_queries():
    """Two tokens and one of padding: the padded query's row is left out, and so is no key."""
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.0, 0.4, 0.6]]).reshape(1, 1, 3, 3)
    whole = observe.attention_by_distance(weights, None)
    assert whole == {"distance": [0, 1, 2], "by_layer": [[0.783333, 0.216667, 0.0]]}
    padded = observe.attention_by_distance(weights, torch.tensor([[True, True, False]]))
    assert padded["by_layer"] == [[0.875, 0.125, 0.0]]
    left = observe.attention_by_distance(weights, torch.tensor([[False, True, True]]))
    assert left["by_layer"] == [[0.675, 0.325, 0.0]]  # a key before a real query counts wherever it stands


def test_a_table_of_positions_reaches_eight_times_the_trained_length():
    dims = ModelDims(heads=2, head_dim=8, embed_dim=16, context=12, causal=True)
    learned = parse_arm("learned").build(dims)
    x = torch.zeros(1, 1, 16)
    learned.embed(x, torch.tensor([[8 * 12]]))  # the longest evaluation, and the token after it
    assert learned.max_length == 8 * 12 + 1
    assert parse_arm("Learned(max_length=20)").build(dims).max_length == 20


def test_a_process_without_a_row_runs_the_first_one_and_asks_nothing():
    batch = Batch(torch.tensor([[3, 4]]), torch.tensor([[4, 5]]))
    mine = training.shard_batch(batch, 1, 2)
    assert mine.tokens.tolist() == [[3, 4]] and (mine.targets == IGNORE_INDEX).all()
    assert training.shard_batch(batch, 0, 2).targets.tolist() == [[4, 5]]


def test_every_seed_and_step_draws_numbers_of_its_own():
    drawn = {
        torch.rand(1, generator=training.seed_generator(seed, step)).item() for seed in range(3) for step in range(200)
    }
    assert len(drawn) > 590  # of 600; float32 numbers may coincide


def test_names_of_files_and_defaults_that_records_carry():
    """A record is found by these: changed without a reason, finished work would be done again."""
    for task in ("copy", "recall"):
        defaults = task_defaults.TASK_DEFAULTS[task]
        assert defaults["model"] == {"embed_dim": 32, "heads": 4, "layers": 1, "ffn_dim": 64, "dropout": 0.0}
        assert defaults["budget"].items() >= {"steps": 200, "lr": 3e-3}.items()
    assert load("copy").settings.items() >= {"string": 16, "symbols": 16, "items": 256, "seed": 0}.items()
    study = default_studies.build_studies()[0]
    run = Run(study, study.arms[0], 3)
    assert re.fullmatch(r"[\w-]+-[0-9a-f]{6}-seed3\.json", run.file_name)


@pytest.mark.parametrize("metric, unit", [("accuracy", "points"), ("perplexity", "")])
def test_only_shares_are_compared_in_points(metric, unit):
    study = default_studies.build_studies()[0]
    assert decisions.analysis_plan(study, metric, True).unit == unit


def test_one_position_has_one_round():
    (study,) = default_studies.build_studies(("copy",), ("none",))
    assert study.seeds == (0, 1, 2) and study.looks == (3,)

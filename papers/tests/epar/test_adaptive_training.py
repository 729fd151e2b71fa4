"""Trained end to end on a mixture of tasks, task weights come to mean what their names say; the per-row form cannot."""

import inspect

import pytest
import torch

from whence.errors import WhenceError
from whence.lab.study import Budget
from whence_papers.epar.adaptive_training import (
    adapter_factory,
    answer_shares,
    force_task_type,
    measure_by_kind,
    train_adaptive,
)
from whence_papers.epar.places import Places


@pytest.fixture(scope="module")
def trained():
    return train_adaptive("fused", seed=0)


def test_it_learns_all_three_kinds(trained):
    measures = measure_by_kind(trained.model, trained.task)
    assert min(kind["accuracy"] for kind in measures.values()) > 0.9
    assert trained.curves["steps"] == 500 and trained.adapter == "fused"


def test_the_task_weights_point_where_the_task_needs(trained):
    measures = measure_by_kind(trained.model, trained.task)
    assert measures["near"]["near"] > 0.8 and measures["far"]["far"] > 0.8
    assert measures["near"]["slope"] > 2 and measures["far"]["slope"] < -2
    assert measures["near"]["distance"] < measures["far"]["distance"] - 0.2
    marked = measures["anywhere"]
    assert marked["anywhere"] == max(marked[kind] for kind in measures) and abs(marked["slope"]) < 1
    assert marked["anywhere"] > 10 * max(measures["near"]["anywhere"], measures["far"]["anywhere"])
    assert (
        marked["row_scale"] > measures["near"]["row_scale"] + 0.3
        and marked["marked"] > measures["near"]["marked"] + 0.3
    )


def test_task_weights_cause_the_answers(trained):
    """Given a type by hand, the model answers from where that type looks, whatever the input asked for."""
    answers = {
        kind: answer_shares(force_task_type(trained.model, kind), trained.task) for kind in ("near", "anywhere", "far")
    }
    for kind, shares in answers.items():
        assert all(shares[kind] > other[kind] + 0.15 for name, other in answers.items() if name != kind)
    own = answer_shares(trained.model, trained.task)
    assert all(share == pytest.approx(1 / 3, abs=0.12) for share in own.values())


def test_the_per_row_form_stays_ignorant_of_far():
    """A temperature cannot lean toward far keys, and neither can EPAR: the answer is a guess between symbols."""
    row = train_adaptive("row", seed=0, budget=Budget(steps=250, batch_size=32, lr=1e-2, weight_decay=0.0))
    measures = measure_by_kind(row.model, row.task)
    assert measures["far"]["accuracy"] < 0.5 and measures["anywhere"]["accuracy"] > measures["far"]["accuracy"]
    assert "slope" not in measures["near"] and 0 < measures["near"]["row_scale"] <= 1


def test_usage_errors(trained):
    with pytest.raises(WhenceError, match=r"adapter.*'odd'.*none, row, task"):
        adapter_factory("odd", 8)
    with pytest.raises(WhenceError, match=r"task_type.*'up'.*near, anywhere, far"):
        force_task_type(trained.model, "up")


def test_the_default_seed_is_the_one_of_the_records():
    assert inspect.signature(train_adaptive).parameters["seed"].default == 0


def test_answer_shares():
    """A model that repeats its last symbol answers from the near place; one that repeats the first, from the far one."""
    task = Places(count=5)

    def answering(place):
        def model(tokens):
            plain = tokens[:, 1:-1] % task.symbols
            return torch.nn.functional.one_hot(plain[:, [place]], task.vocab_size).float()

        return model

    assert answer_shares(answering(-1), task)["near"] == 1 and answer_shares(answering(-2), task)["near"] < 1
    assert answer_shares(answering(0), task)["far"] == 1

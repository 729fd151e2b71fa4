"""Every metric against plain loops, ties included."""

import math

import pytest
import torch

from whence.lab.tasks import Batch
from whence_papers.pointer.next_location.histories import UNKNOWN
from whence_papers.pointer.next_location.metrics import (
    RankAccumulator,
    compute_metrics,
    rank_metrics,
    target_ranks,
    weighted_f1,
)


def drawn(rows=200, places=15, people=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(6, (rows, places), generator=generator).double()  # many ties
    targets = torch.randint(1, places, (rows,), generator=generator)
    users = torch.randint(1, people + 1, (rows,), generator=generator)
    return scores, targets, users


def rank(row, target):
    """Sorted by score from high to low, and by number where scores are equal."""
    order = sorted(range(len(row)), key=lambda place: (-row[place], place))
    return order.index(target) + 1


def f1(predicted, targets):
    total = 0.0
    for place in set(targets):
        right = sum(s == t == place for s, t in zip(predicted, targets, strict=True))
        precision = right / predicted.count(place) if place in predicted else 0.0
        recall = right / targets.count(place)
        total += targets.count(place) * (2 * precision * recall / (precision + recall) if right else 0.0)
    return total / len(targets)


def test_ranks_with_ties():
    scores, targets, _ = drawn()
    assert target_ranks(scores, targets).tolist() == [
        rank(row, target) for row, target in zip(scores.tolist(), targets.tolist(), strict=True)
    ]


def test_metrics_of_ranks():
    ranks = [1, 1, 2, 4, 7, 10, 11, 40]
    result = rank_metrics(torch.tensor(ranks))
    assert result == pytest.approx(
        {
            "acc@1": 2 / 8, "acc@5": 4 / 8, "acc@10": 6 / 8, "mrr": sum(1 / r for r in ranks) / 8,
            "ndcg@10": sum(1 / math.log2(r + 1) for r in ranks if r <= 10) / 8,
        }
    )  # fmt: skip


def test_weighted_f1():
    generator = torch.Generator().manual_seed(3)
    predicted, targets = torch.randint(6, (2, 80), generator=generator)
    assert weighted_f1(predicted, targets) == pytest.approx(f1(predicted.tolist(), targets.tolist()), abs=1e-12)
    assert weighted_f1(targets, targets) == 1.0
    assert weighted_f1(torch.zeros(4).long(), torch.ones(4).long()) == 0.0


def test_four_countings():
    scores, targets, users = drawn(seed=5)
    ranks = target_ranks(scores, targets)
    predicted = scores.argmax(1)
    result = compute_metrics(ranks, predicted, targets, users)
    rows = list(zip(ranks.tolist(), targets.tolist(), users.tolist(), predicted.tolist(), strict=True))
    assert any(target == UNKNOWN for _, target, _, _ in rows)
    for ending, selection in (("", rows), ("_seen", [row for row in rows if row[1] != UNKNOWN])):
        plain = result["seen" if ending else "all"]
        assert plain["num_targets"] == len(selection)
        assert plain["acc@1"] == pytest.approx(sum(r == 1 for r, *_ in selection) / len(selection))
        assert plain["f1"] == pytest.approx(f1([row[3] for row in selection], [row[1] for row in selection]))
        each = [
            [r for r, _, user, _ in selection if user == person] for person in {user for _, _, user, _ in selection}
        ]
        assert result[f"by_user{ending}"]["mrr"] == pytest.approx(
            sum(sum(1 / r for r in own) / len(own) for own in each) / len(each)
        )


def test_an_accumulator_adds_batches_up():
    scores, targets, users = drawn(seed=7)
    whole, parts = RankAccumulator(), RankAccumulator()
    tokens = torch.zeros(len(targets), 1).long()
    whole.add(scores, Batch(tokens, targets, None, {"user": users}))
    for rows in torch.arange(len(targets)).split(33):
        parts.add(scores[rows], Batch(tokens[rows], targets[rows], None, {"user": users[rows]}))
    assert parts.result()["metrics"] == whole.result()["metrics"]
    result = whole.result()
    assert result["value"] == result["metrics"]["all"]["acc@1"] == result["correct"] / result["num_targets"]
    assert [sum(column) for column in zip(*result["users"].values(), strict=True)] == [
        len(targets), result["correct"], int((targets != UNKNOWN).sum()),
        int(((targets != UNKNOWN) & (target_ranks(scores, targets) == 1)).sum()),
    ]  # fmt: skip

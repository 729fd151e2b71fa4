"""Metrics of next-location prediction (accuracy at k, mean reciprocal rank, NDCG@10, weighted F1) and simple baselines.

The rank of a target is 1 plus the number of places with a higher score, plus the number of places with an equal score and
a lower id. Ties therefore never depend on a sorting algorithm.

Four countings answer different questions:

    all           every question counts once, as in the source: places unseen in training are one place, and a model that
                  predicts "unseen" when an unseen place came next is correct
    seen          only questions whose answer occurs in training
    by_user       each user counts once, over all of the user's questions
    by_user_seen  both

Each baseline rule scores all places, so that it is measured like a model. Ties, and places that a rule does not rank, are
ordered by their frequency in training, then by id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from whence.lab.tasks import Batch, MetricAccumulator
from whence_papers.pointer.next_location.histories import PADDING, UNKNOWN, Table

FIRST = (1, 5, 10)
NDCG_AT = 10


def target_ranks(scores: Tensor, targets: Tensor) -> Tensor:
    """The rank of each target, from 1, among scores ``[B, places]``.

    >>> target_ranks(torch.tensor([[0.1, 0.4, 0.4, 0.1]]).expand(4, 4), torch.arange(4)).tolist()
    [3, 1, 2, 4]
    """
    own = scores.gather(1, targets[:, None])
    before = torch.arange(scores.shape[1], device=scores.device) < targets[:, None]
    return 1 + ((scores > own) | ((scores == own) & before)).sum(1)


def rank_metrics(ranks: Tensor) -> dict[str, float]:
    """Metrics from ranks. NDCG with one correct answer is ``1 / log2(rank + 1)`` within the first ten.

    >>> {name: round(value, 3) for name, value in rank_metrics(torch.tensor([1, 3, 11])).items()}
    {'acc@1': 0.333, 'acc@5': 0.667, 'acc@10': 0.667, 'mrr': 0.475, 'ndcg@10': 0.5}
    """
    place = ranks.double()
    gain = torch.where(ranks <= NDCG_AT, 1 / torch.log2(place + 1), 0.0)
    first = {f"acc@{k}": float((ranks <= k).double().mean()) for k in FIRST}
    return first | {"mrr": float((1 / place).mean()), f"ndcg@{NDCG_AT}": float(gain.mean())}


def weighted_f1(predicted: Tensor, targets: Tensor) -> float:
    """F1 of each target place, weighted by its number of targets.

    >>> round(weighted_f1(torch.tensor([1, 1, 2, 3]), torch.tensor([1, 2, 2, 2])), 4)
    0.5417
    """
    size = int(torch.maximum(predicted.max(), targets.max())) + 1
    count = lambda places: torch.bincount(places, minlength=size).double()  # noqa: E731
    right, wanted = count(targets[predicted == targets]), count(targets)
    f1 = 2 * right / (count(predicted) + wanted).clamp(min=1)
    return float((f1 * wanted).sum() / wanted.sum())


def compute_metrics(ranks: Tensor, predicted: Tensor, targets: Tensor, users: Tensor) -> dict[str, dict[str, float]]:
    """Every metric in every counting. A counting without questions is left out."""
    metrics = {}
    for ending, counts in (("", torch.ones_like(targets, dtype=torch.bool)), ("_seen", targets != UNKNOWN)):
        if not bool(counts.any()):
            continue
        own, who = ranks[counts], users[counts]
        each = [rank_metrics(own[who == user]) for user in who.unique()]
        metrics["all" if not ending else "seen"] = {
            **rank_metrics(own), "f1": weighted_f1(predicted[counts], targets[counts]), "num_targets": int(counts.sum()),
        }  # fmt: skip
        metrics[f"by_user{ending}"] = {name: sum(row[name] for row in each) / len(each) for name in each[0]}
    return metrics


class RankAccumulator(MetricAccumulator):
    """Accumulates all metrics and each user's correct answers in addition to the lab's accuracy."""

    def __init__(self) -> None:
        super().__init__("accuracy")
        self.rows: list[Tensor] = []

    def add(self, answers: Tensor, batch: Batch) -> None:
        super().add(answers, batch)
        ranks = target_ranks(answers, batch.targets)
        self.rows.append(torch.stack([ranks, answers.argmax(1), batch.targets, batch.extras["user"]]).cpu())

    def result(self) -> dict[str, Any]:
        ranks, predicted, targets, users = torch.cat(self.rows, 1)
        # argmax may return any of several equal scores; accuracy follows the ranks
        correct = int((ranks == 1).sum())
        return super().result() | {
            "value": correct / len(ranks), "correct": correct, "metrics": compute_metrics(ranks, predicted, targets, users),
            "users": {str(int(user)): _user_counts(ranks, targets, users == user) for user in users.unique()},
        }  # fmt: skip


def _user_counts(ranks: Tensor, targets: Tensor, own: Tensor) -> list[int]:
    """Questions and correct answers, then the same for answers that occur in training."""
    in_training = own & (targets != UNKNOWN)
    return [int(own.sum()), int((ranks[own] == 1).sum()), int(in_training.sum()), int((ranks[in_training] == 1).sum())]


Rule = Callable[[Batch], Tensor]


class Counts:
    """Counts of the training visits: visits per user and place, and transitions."""

    def __init__(self, table: Table, size: int) -> None:
        self.size = size
        overall = torch.bincount(table.place, minlength=size).double()
        self.overall = overall / overall.sum()
        people = int(table.user.max()) + 1
        self.own = torch.zeros(people, size, dtype=torch.float64)
        self.own.index_put_((table.user, table.place), torch.ones((), dtype=torch.float64), accumulate=True)
        self.after: dict[tuple[int, int], Counter[int]] = {}  # sparse: few pairs occur
        places, users = table.place.tolist(), table.user.tolist()
        for user, following, here, there in zip(users, users[1:], places, places[1:], strict=False):
            if user == following:
                self.after.setdefault((user, here), Counter())[there] += 1

    def habits(self, users: Tensor) -> Tensor:
        """Visits of these users per place; zero for unknown users."""
        has_history = users < len(self.own)
        return self.own[users.clamp(max=len(self.own) - 1)] * has_history[:, None]


def last_visited(counts: Counts, batch: Batch) -> Tensor:
    """Rank places by the time of their last visit, the latest first."""
    places = torch.arange(1, batch.tokens.shape[1] + 1, dtype=torch.float64).expand(batch.tokens.shape)
    scores = torch.zeros(len(batch.tokens), counts.size, dtype=torch.float64)
    scores = scores.scatter_reduce(1, batch.tokens, places, "amax")
    return _break_ties(scores, counts.overall)


def most_frequent(counts: Counts, batch: Batch) -> Tensor:
    """Rank places by the user's visits in training."""
    return _break_ties(counts.habits(batch.extras["user"]), counts.overall)


def most_frequent_lately(counts: Counts, batch: Batch) -> Tensor:
    """Rank places by their visits in the history; ties by the last visit."""
    scores = torch.zeros(len(batch.tokens), counts.size, dtype=torch.float64)
    scores = scores.scatter_add(1, batch.tokens, torch.ones_like(batch.tokens, dtype=torch.float64))
    recent = last_visited(counts, batch)
    return _break_ties(scores, recent / (recent.amax(1, keepdim=True) + 1))


def markov(counts: Counts, batch: Batch) -> Tensor:
    """Rank places by the user's transitions from the last place; without such a transition, by visits in training."""
    last = batch.tokens.gather(1, _lengths(batch)[:, None] - 1)[:, 0].tolist()
    after = torch.zeros(len(last), counts.size, dtype=torch.float64)
    for row, step in enumerate(zip(batch.extras["user"].tolist(), last, strict=True)):
        for place, often in counts.after.get(step, {}).items():
            after[row, place] = often
    habits = most_frequent(counts, batch)
    return _break_ties(after, habits / (habits.amax(1, keepdim=True) + 1))


RULES: Mapping[str, Callable[[Counts, Batch], Tensor]] = {
    "last visited": last_visited,
    "most frequent": most_frequent,
    "most frequent lately": most_frequent_lately,
    "Markov": markov,
}


def evaluate_rules(counts: Counts, batches: list[Batch]) -> dict[str, dict[str, object]]:
    """Evaluate every rule on the batches of one split with the metrics of models."""
    metrics = {}
    for name, rule in RULES.items():
        accumulator = RankAccumulator()
        for batch in batches:
            accumulator.add(rule(counts, batch), batch)
        metrics[name] = {
            key: value for key, value in accumulator.result().items() if key != "cross_entropy"
        }  # scores of rules are not probabilities
    return metrics


def _break_ties(scores: Tensor, otherwise: Tensor) -> Tensor:
    """Add a tie breaker below 1 to integer scores. Padding is never an answer."""
    whole = scores + otherwise * 0.5
    return whole.index_fill(1, torch.tensor([PADDING]), -1.0)


def _lengths(batch: Batch) -> Tensor:
    assert batch.key_mask is not None
    return batch.key_mask.sum(1)

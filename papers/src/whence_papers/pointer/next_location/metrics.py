"""How well next places are predicted: accuracy among the first k, mean reciprocal rank, NDCG@10, weighted F1.

The rank of a target is 1 plus the number of places with a higher score, plus, where scores are equal, the number of those
with a lower number: with ties the lower number stands first, so a result never depends on how something was sorted.

Four countings stand side by side, because they answer different questions:

    all       every question counts once, as the source counts: places unseen in training are one place, and a model that
              says "unseen" when an unseen place came next is right
    seen      only questions whose answer training has
    by_user   each user counts once, over all of the user's questions
    by_user_seen
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.lab.tasks import Batch, MetricAccumulator
from whence_papers.pointer.next_location.histories import UNKNOWN

FIRST = (1, 5, 10)
NDCG_AT = 10


def ranks_of(scores: Tensor, targets: Tensor) -> Tensor:
    """The rank of each target, from 1, among scores ``[B, places]``.

    >>> ranks_of(torch.tensor([[0.1, 0.4, 0.4, 0.1]]).expand(4, 4), torch.arange(4)).tolist()
    [3, 1, 2, 4]
    """
    own = scores.gather(1, targets[:, None])
    before = torch.arange(scores.shape[1], device=scores.device) < targets[:, None]
    return 1 + ((scores > own) | ((scores == own) & before)).sum(1)


def by_rank(ranks: Tensor) -> dict[str, float]:
    """What follows from ranks alone; NDCG with one right answer is ``1 / log2(rank + 1)`` within the first ten.

    >>> {name: round(value, 3) for name, value in by_rank(torch.tensor([1, 3, 11])).items()}
    {'acc@1': 0.333, 'acc@5': 0.667, 'acc@10': 0.667, 'mrr': 0.475, 'ndcg@10': 0.5}
    """
    place = ranks.double()
    gain = torch.where(ranks <= NDCG_AT, 1 / torch.log2(place + 1), 0.0)
    first = {f"acc@{k}": float((ranks <= k).double().mean()) for k in FIRST}
    return first | {"mrr": float((1 / place).mean()), f"ndcg@{NDCG_AT}": float(gain.mean())}


def weighted_f1(said: Tensor, targets: Tensor) -> float:
    """F1 of each place that was a target, weighted by how often it was.

    >>> round(weighted_f1(torch.tensor([1, 1, 2, 3]), torch.tensor([1, 2, 2, 2])), 4)
    0.5417
    """
    size = int(torch.maximum(said.max(), targets.max())) + 1
    count = lambda places: torch.bincount(places, minlength=size).double()  # noqa: E731
    right, wanted = count(targets[said == targets]), count(targets)
    f1 = 2 * right / (count(said) + wanted).clamp(min=1)
    return float((f1 * wanted).sum() / wanted.sum())


def measured(ranks: Tensor, said: Tensor, targets: Tensor, users: Tensor) -> dict[str, dict[str, float]]:
    """Every metric in every counting; a counting that nothing falls into is left out."""
    found = {}
    for ending, counts in (("", torch.ones_like(targets, dtype=torch.bool)), ("_seen", targets != UNKNOWN)):
        if not bool(counts.any()):
            continue
        own, who = ranks[counts], users[counts]
        each = [by_rank(own[who == user]) for user in who.unique()]
        found["all" if not ending else "seen"] = {
            **by_rank(own), "f1": weighted_f1(said[counts], targets[counts]), "asked": int(counts.sum()),
        }  # fmt: skip
        found[f"by_user{ending}"] = {name: sum(row[name] for row in each) / len(each) for name in each[0]}
    return found


class RankTally(MetricAccumulator):
    """The lab's counts, and beside them all metrics and each user's right answers."""

    def __init__(self) -> None:
        super().__init__("accuracy")
        self.rows: list[Tensor] = []

    def add(self, answers: Tensor, batch: Batch) -> None:
        super().add(answers, batch)
        ranks = ranks_of(answers, batch.targets)
        self.rows.append(torch.stack([ranks, answers.argmax(1), batch.targets, batch.extras["user"]]).cpu())

    def result(self) -> dict[str, Any]:
        ranks, said, targets, users = torch.cat(self.rows, 1)
        # argmax may take any of equals, ranks take the first: the value is the one that ranks give
        right = int((ranks == 1).sum())
        return super().result() | {
            "value": right / len(ranks), "right": right, "metrics": measured(ranks, said, targets, users),
            "users": {str(int(user)): _shares(ranks, targets, users == user) for user in users.unique()},
        }  # fmt: skip


def _shares(ranks: Tensor, targets: Tensor, own: Tensor) -> list[int]:
    """Asked and right, then the same for places that training has."""
    seen = own & (targets != UNKNOWN)
    return [int(own.sum()), int((ranks[own] == 1).sum()), int(seen.sum()), int((ranks[seen] == 1).sum())]

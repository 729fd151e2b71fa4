"""Rules that anyone should beat. Each gives scores for all places, so that it is measured as a model is.

Ties and places that a rule says nothing about are ordered by how often training has them, then by number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from whence.lab.tasks import Batch
from whence_papers.pointer.next_location.histories import PADDING, Table
from whence_papers.pointer.next_location.metrics import RankTally

Rule = Callable[[Batch], Tensor]


class Counts:
    """What training visits say: how often each user is at each place, and what follows what."""

    def __init__(self, table: Table, size: int) -> None:
        self.size = size
        overall = torch.bincount(table.place, minlength=size).double()
        self.overall = overall / overall.sum()
        people = int(table.user.max()) + 1
        self.own = torch.zeros(people, size, dtype=torch.float64)
        self.own.index_put_((table.user, table.place), torch.ones((), dtype=torch.float64), accumulate=True)
        self.after: dict[tuple[int, int], Counter[int]] = {}  # few of all pairs ever happen
        places, users = table.place.tolist(), table.user.tolist()
        for user, following, here, there in zip(users, users[1:], places, places[1:], strict=False):
            if user == following:
                self.after.setdefault((user, here), Counter())[there] += 1

    def habits(self, users: Tensor) -> Tensor:
        """How often these users are at each place; who is unknown has no habits."""
        known = users < len(self.own)
        return self.own[users.clamp(max=len(self.own) - 1)] * known[:, None]


def last_visited(counts: Counts, batch: Batch) -> Tensor:
    """The place of the last visit, then the one before it, and so on."""
    places = torch.arange(1, batch.tokens.shape[1] + 1, dtype=torch.float64).expand(batch.tokens.shape)
    scores = torch.zeros(len(batch.tokens), counts.size, dtype=torch.float64)
    scores = scores.scatter_reduce(1, batch.tokens, places, "amax")
    return _then(scores, counts.overall)


def most_frequent(counts: Counts, batch: Batch) -> Tensor:
    """The user's most frequent place in training."""
    return _then(counts.habits(batch.extras["user"]), counts.overall)


def most_frequent_lately(counts: Counts, batch: Batch) -> Tensor:
    """The most frequent place of the history; of equals the one visited last."""
    scores = torch.zeros(len(batch.tokens), counts.size, dtype=torch.float64)
    scores = scores.scatter_add(1, batch.tokens, torch.ones_like(batch.tokens, dtype=torch.float64))
    recent = last_visited(counts, batch)
    return _then(scores, recent / (recent.amax(1, keepdim=True) + 1))


def markov(counts: Counts, batch: Batch) -> Tensor:
    """What the user did most often after the last place; where training has no such step, the user's habits."""
    last = batch.tokens.gather(1, _lengths(batch)[:, None] - 1)[:, 0].tolist()
    after = torch.zeros(len(last), counts.size, dtype=torch.float64)
    for row, step in enumerate(zip(batch.extras["user"].tolist(), last, strict=True)):
        for place, often in counts.after.get(step, {}).items():
            after[row, place] = often
    habits = most_frequent(counts, batch)
    return _then(after, habits / (habits.amax(1, keepdim=True) + 1))


RULES: Mapping[str, Callable[[Counts, Batch], Tensor]] = {
    "last visited": last_visited,
    "most frequent": most_frequent,
    "most frequent lately": most_frequent_lately,
    "Markov": markov,
}


def measured_rules(counts: Counts, batches: list[Batch]) -> dict[str, dict[str, object]]:
    """Every rule over the batches of one split, measured as models are."""
    found = {}
    for name, rule in RULES.items():
        tally = RankTally()
        for batch in batches:
            tally.add(rule(counts, batch), batch)
        found[name] = {key: value for key, value in tally.result().items() if key != "surprise"}  # these are no odds
    return found


def _then(scores: Tensor, otherwise: Tensor) -> Tensor:
    """Whole scores, and below 1 what orders those that are equal; padding is never an answer."""
    whole = scores + otherwise * 0.5
    return whole.index_fill(1, torch.tensor([PADDING]), -1.0)


def _lengths(batch: Batch) -> Tensor:
    assert batch.key_mask is not None
    return batch.key_mask.sum(1)

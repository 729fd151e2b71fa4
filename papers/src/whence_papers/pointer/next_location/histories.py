"""From visits to what is asked: the visits of the last days, and the place that came next.

The rule is that of the published GeoLife sequences. Each user's days are split 60 / 20 / 20; within a part a visit is asked
about when at least ``days`` days of that part lie before it, and when its history, the visits of the ``days`` days before
its own day, holds at least three. Places that training does not have share one number, ``UNKNOWN``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from whence.lab.tasks import Batch
from whence_papers.pointer.next_location.visits import Visit

PADDING, UNKNOWN = 0, 1
SHORTEST = 3  # visits of a history
SHARES = {"train": 0.6, "valid": 0.8}  # where each part ends, as a share of a user's days; the rest is for testing
TIME_STEP, TIMES = 15, 96  # minutes, and how many such steps a day has
DURATION_STEP, DURATIONS = 30, 96  # minutes; stays of more than two days are as long as two days


@dataclass(frozen=True)
class Numbers:
    """Names as numbers. Places of training count from 2, users from 1; whoever is not there is unknown.

    A user who is unknown is 0: the model then knows nothing of habits.

    >>> numbers = Numbers.of([Visit("ann", "home", 0, 480, 0), Visit("ann", "work", 0, 540, 0)])
    >>> numbers.place("work"), numbers.place("moon"), numbers.user("ann"), numbers.user("bob"), numbers.size
    (3, 1, 1, 0, 4)
    """

    places: tuple[str, ...]
    users: tuple[str, ...]
    _place: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _user: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_place", {name: at for at, name in enumerate(self.places, UNKNOWN + 1)})
        object.__setattr__(self, "_user", {name: at for at, name in enumerate(self.users, 1)})

    @classmethod
    def of(cls, training: Iterable[Visit]) -> Numbers:
        """Every place and user of the training visits, in the order in which they appear."""
        visits = list(training)
        return cls(tuple(dict.fromkeys(v.place for v in visits)), tuple(dict.fromkeys(v.user for v in visits)))

    @property
    def size(self) -> int:
        """How many numbers places have, with padding and unknown."""
        return len(self.places) + UNKNOWN + 1

    def place(self, name: str) -> int:
        return self._place.get(name, UNKNOWN)

    def user(self, name: str) -> int:
        return self._user.get(name, 0)

    def name(self, number: int) -> str:
        """The place of a number, for people."""
        return {PADDING: "(padding)", UNKNOWN: "(a place not in training)"}.get(number) or self.places[number - 2]


@dataclass(frozen=True)
class Table:
    """Visits as columns of numbers, in time within each user."""

    place: Tensor  # [V] all of them int64
    user: Tensor
    day: Tensor
    time: Tensor  # quarter of an hour of the day, from 1
    weekday: Tensor  # from 1
    duration: Tensor  # half hours, from 1; 0 where it is not known

    @classmethod
    def of(cls, visits: Sequence[Visit], numbers: Numbers) -> Table:
        """0 is left to padding in every column but the day's."""
        rows = [
            (
                numbers.place(v.place), numbers.user(v.user), v.day, v.minute // TIME_STEP + 1, v.weekday + 1,
                0 if v.duration is None else min(int(v.duration) // DURATION_STEP, DURATIONS - 1) + 1,
            )
            for v in visits
        ]  # fmt: skip
        return cls(*torch.tensor(rows, dtype=torch.int64).unbind(1))


@dataclass(frozen=True)
class Histories:
    """Questions over one table: the visits ``first[i]`` to ``target[i] - 1`` lead to the visit ``target[i]``."""

    table: Table
    first: Tensor  # [N] int64
    target: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.first)

    @property
    def lengths(self) -> Tensor:
        return self.target - self.first

    def batch(self, rows: Tensor) -> Batch:
        """Some questions together, padded on the right to the longest of them."""
        day = self.table.day[self.target[rows]]
        batch = gathered(self.table, self.first[rows], self.lengths[rows], day)
        return Batch(batch.tokens, self.table.place[self.target[rows]], batch.key_mask, batch.extras)


def gathered(table: Table, first: Tensor, lengths: Tensor, day: Tensor) -> Batch:
    """Histories that begin at ``first``, seen from a day; nothing is asked yet, so the targets are empty."""
    here = torch.arange(int(lengths.max()))
    key_mask = here < lengths[:, None]
    places = (first[:, None] + here).clamp(max=len(table.place) - 1)
    columns = {name: getattr(table, name)[places] * key_mask for name in ("place", "time", "weekday", "duration")}
    # how many days ago, from 1 for the day itself; 0 is padding
    ago = (day[:, None] - table.day[places] + 1) * key_mask
    tokens = columns.pop("place")
    return Batch(tokens, tokens.new_empty(0), key_mask, {**columns, "ago": ago, "user": table.user[first]})


def split_by_days(visits: Iterable[Visit]) -> dict[str, list[Visit]]:
    """Each user's visits in three parts by day: the first 60 % of the days, the next 20 %, the rest.

    >>> week = [Visit("a", "x", day, 0, 0) for day in range(11)]
    >>> {name: [v.day for v in part] for name, part in split_by_days(week).items()}
    {'train': [0, 1, 2, 3, 4, 5], 'valid': [6, 7], 'test': [8, 9, 10]}
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    visits = list(visits)
    for v in visits:
        first[v.user] = min(v.day, first.get(v.user, v.day))
        last[v.user] = max(v.day, last.get(v.user, v.day))
    parts: dict[str, list[Visit]] = {"train": [], "valid": [], "test": []}
    for v in visits:
        done, whole = v.day - first[v.user], last[v.user] - first[v.user]
        part = next((name for name, share in SHARES.items() if done < share * whole), "test")
        parts[part].append(v)
    return parts


def histories_of(visits: Sequence[Visit], numbers: Numbers, days: int = 7) -> Histories:
    """Every question of one part, by the rule above."""
    first, target = [], []
    begin, start = 0, 0  # of the user, and of the window
    for at, visit in enumerate(visits):
        if at == 0 or visit.user != visits[at - 1].user:
            begin = start = at
        while visits[start].day < visit.day - days:
            start += 1
        if visit.day - visits[begin].day >= days and at - start >= SHORTEST:
            first.append(start)
            target.append(at)
    return Histories(Table.of(visits, numbers), torch.tensor(first).long(), torch.tensor(target).long())

"""Questions from visits: the visits of the last days, and the place that came next. Also loads the published data sets.

The rule is that of the published GeoLife sequences. Each user's days are split 60 / 20 / 20. Within a part, a visit is a
question if at least ``days`` days of that part precede it and its history (the visits of the ``days`` days before its own
day) holds at least three visits. Places that do not occur in training share one id, ``UNKNOWN``.

The published rule counts the days of a history back from the day of the next visit (``window="next"``). A prediction does
not know that day. ``window="last"`` has the same questions and counts back from the day of the last visit, so that its
histories hold at least the same visits.

Data sets in the folder of WHENCE_DATA: GeoLife (Zheng et al. 2010), stays of 45 users, detected and clustered with
trackintel by Hong et al. (arXiv 2212.01953). Foursquare in New York (Yang et al. 2015), check-ins of 535 users, split by
Wang et al. (arXiv 2308.15197), in which places that do not occur in training already share one id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from whence.lab.data.corpora import data_file
from whence.lab.tasks import Batch
from whence_papers.downloads import ORIGINS
from whence_papers.pointer.next_location.visits import Visit, read_visits

PADDING, UNKNOWN = 0, 1
SHORTEST = 3  # visits in a history
SHARES = {"train": 0.6, "valid": 0.8}  # end of each part as a share of a user's days; the rest is the test part
TIME_STEP, TIMES = 15, 96  # minutes per step and steps per day
DURATION_STEP, DURATIONS = 30, 96  # minutes per step; longer stays count as two days


@dataclass(frozen=True)
class LocationIds:
    """Ids of places and users. Places of the training part have ids from 2, users from 1.

    Places that do not occur in training have the id ``UNKNOWN``, unknown users have 0.

    >>> numbers = LocationIds.from_visits([Visit("ann", "home", 0, 480, 0), Visit("ann", "work", 0, 540, 0)])
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
    def from_visits(cls, training: Iterable[Visit]) -> LocationIds:
        """Number every place and user of the training visits in the order in which they appear."""
        visits = list(training)
        return cls(tuple(dict.fromkeys(v.place for v in visits)), tuple(dict.fromkeys(v.user for v in visits)))

    @property
    def size(self) -> int:
        """Number of place ids, padding and unknown included."""
        return len(self.places) + UNKNOWN + 1

    def place(self, name: str) -> int:
        return self._place.get(name, UNKNOWN)

    def user(self, name: str) -> int:
        return self._user.get(name, 0)

    def name(self, number: int) -> str:
        """The name of a place id."""
        return {PADDING: "(padding)", UNKNOWN: "(a place not in training)"}.get(number) or self.places[number - 2]


@dataclass(frozen=True)
class Table:
    """Visits as integer columns, sorted by time within each user."""

    place: Tensor  # all columns are [V] int64
    user: Tensor
    day: Tensor
    time: Tensor  # quarter of an hour of the day, from 1
    weekday: Tensor  # from 1
    duration: Tensor  # half hours, from 1; 0 if unknown

    @classmethod
    def from_visits(cls, visits: Sequence[Visit], numbers: LocationIds) -> Table:
        """Build the columns. 0 is padding in every column except ``day``."""
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
    """Questions over one table: the visits ``first[i]`` to ``target[i] - 1`` are the history of the visit ``target[i]``."""

    table: Table
    first: Tensor  # [N] int64
    target: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.first)

    @property
    def lengths(self) -> Tensor:
        return self.target - self.first

    def batch(self, rows: Tensor) -> Batch:
        """A batch of questions, padded on the right to the longest history. ``extras["ago"]`` shows the day of the target."""
        day = self.table.day[self.target[rows]]
        batch = gather_histories(self.table, self.first[rows], self.lengths[rows], day)
        return Batch(batch.tokens, self.table.place[self.target[rows]], batch.key_mask, batch.extras)


def gather_histories(table: Table, first: Tensor, lengths: Tensor, day: Tensor) -> Batch:
    """Gather histories that begin at ``first``, relative to ``day``, the day of the next visit. The targets are empty."""
    here = torch.arange(int(lengths.max()))
    key_mask = here < lengths[:, None]
    places = (first[:, None] + here).clamp(max=len(table.place) - 1)
    columns = {name: getattr(table, name)[places] * key_mask for name in ("place", "time", "weekday", "duration")}
    # days ago, 1 for the same day; 0 is padding
    ago = (day[:, None] - table.day[places] + 1) * key_mask
    before_last = (table.day[first + lengths - 1][:, None] - table.day[places] + 1) * key_mask
    tokens = columns.pop("place")
    extras = {**columns, "ago": ago, "before_last": before_last, "user": table.user[first]}
    return Batch(tokens, tokens.new_empty(0), key_mask, extras)


def trim_to_next_day(batch: Batch, days: int) -> Batch:
    """Drop the visits more than ``days`` days before the day of the next visit: from ``window="last"`` to ``"next"``."""
    assert batch.key_mask is not None
    dropped = (batch.extras["ago"] > days + 1).sum(1, keepdim=True)  # the oldest visits; padding has 0
    lengths = batch.key_mask.sum(1, keepdim=True) - dropped
    here = torch.arange(int(lengths.max()), device=lengths.device)
    key_mask = here < lengths
    places = (here + dropped).clamp(max=batch.tokens.shape[1] - 1)
    moved = {name: x if x.ndim == 1 else x.gather(1, places) * key_mask for name, x in batch.extras.items()}
    return Batch(batch.tokens.gather(1, places) * key_mask, batch.targets, key_mask, moved)


def split_by_days(visits: Iterable[Visit]) -> dict[str, list[Visit]]:
    """Split each user's visits by day: the first 60 % of the days, the next 20 %, the rest.

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


WINDOWS = ("next", "last")


def build_histories(visits: Sequence[Visit], numbers: LocationIds, days: int = 7, window: str = "next") -> Histories:
    """Build every question of one part by the rule in the module docstring.

    Args:
        window: the visit from whose day the days of a history count back, ``"next"`` or ``"last"``.
    """
    first, target = [], []
    begin, start, longer = 0, 0, 0  # first visit of the user, and of the window of each kind
    for at, visit in enumerate(visits):
        if at == 0 or visit.user != visits[at - 1].user:
            begin = start = longer = at
        while visits[start].day < visit.day - days:
            start += 1
        while longer < at and visits[longer].day < visits[at - 1].day - days:
            longer += 1
        if visit.day - visits[begin].day >= days and at - start >= SHORTEST:
            first.append(start if window == "next" else longer)
            target.append(at)
    return Histories(Table.from_visits(visits, numbers), torch.tensor(first).long(), torch.tensor(target).long())


Parts = dict[str, list[Visit]]


def load_geolife(subject: str) -> Parts:
    """Load GeoLife stays, split by days within each user."""
    return split_by_days(read_visits(data_file(subject, ORIGINS["geolife"], "mobility/geolife_stays.csv"), subject))


def load_foursquare(subject: str) -> Parts:
    """Load Foursquare check-ins, which have no duration. The parts are separate files."""
    return {
        part: read_visits(data_file(subject, ORIGINS["foursquare"], f"mobility/foursquare_{part}.csv"), subject)
        for part in ("train", "valid", "test")
    }


PUBLISHED = {"geolife": load_geolife, "foursquare": load_foursquare}

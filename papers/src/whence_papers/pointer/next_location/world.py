"""Synthetic visits with known next-place probabilities, so that the best possible score is known.

Each person has a home, a workplace and a few habitual places. The next place has the distribution

    P(next) = habit  * H(next | person, part of the day)
            + lately * sum of w_j over the visits of the last days with place_j = next,   w_j halves with every visit back
            + explore / places

A generator can memorize the first term, a pointer with recency can copy the second, and the third is noise. Everything
the distribution depends on is in the history and the user of a question, so a model can reach the best score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.pointer.next_location.histories import TIMES, UNKNOWN, Histories, LocationIds, split_by_days
from whence_papers.pointer.next_location.visits import MINUTES_A_DAY, Visit

PARTS_OF_DAY = 4  # night, morning, afternoon, evening
VISITS_A_DAY = 4  # one per part
HABITS = 3  # habitual places besides home and work
HALF = 0.5  # factor of a visit's weight per visit back
HOME, WORK = 0, 1  # indices into a person's places


class People(NamedTuple):
    """The habits and homes of all people."""

    habits: Tensor  # H: [people, parts of the day, places], rows sum to 1
    homes: list[int]


@dataclass(frozen=True)
class World:
    """The parameters of the world. ``visits`` samples it, ``probabilities`` returns the true distribution.

    >>> world = World(people=2, places=12, days=20)
    >>> len(world.visits()) == 2 * 20 * VISITS_A_DAY
    True
    """

    people: int = 12
    places: int = 40
    days: int = 80
    habit: float = 0.5
    lately: float = 0.4
    history: int = 7  # days
    seed: int = 0

    def __post_init__(self) -> None:
        if self.places < HABITS + 3 or self.people < 1 or self.days < 2 * self.history or self.history < 1:
            got = f"{self.people} people, {self.places} places, {self.days} days"
            rule = f"people >= 1, places >= {HABITS + 3} and days >= 2 * history are needed"
            raise usage_error("World", got, rule, "raise these arguments")
        if self.habit < 0 or self.lately < 0 or self.habit + self.lately > 1:
            got = f"habit={self.habit}, lately={self.lately}"
            raise usage_error("World", got, "habit and lately are at least 0 and sum to at most 1", "lower them")

    def draw_people(self) -> People:
        """Draw the people from the seed."""
        generator = torch.Generator().manual_seed(self.seed)
        table = torch.zeros(self.people, PARTS_OF_DAY, self.places, dtype=torch.float64)
        homes = []
        for person in range(self.people):
            own = torch.randperm(self.places, generator=generator)[: HABITS + 2]
            homes.append(int(own[HOME]))
            for part in range(PARTS_OF_DAY):
                weights = torch.rand(len(own), generator=generator, dtype=torch.float64) * 0.3
                weights[WORK if part in (0, 1) else HOME] += 1.0  # work after night and morning, home after the rest
                table[person, part, own] = weights / weights.sum()
        return People(table, homes)

    def next_probabilities(self, people: People, person: int, part: int, past: list[int]) -> Tensor:
        """Probability of each place after a history that ends in a part of the day, ``[places]``."""
        weights = HALF ** torch.arange(len(past) - 1, -1, -1, dtype=torch.float64)
        lately = torch.zeros(self.places, dtype=torch.float64).index_add(0, torch.tensor(past), weights)
        explore = 1 - self.habit - self.lately
        return self.habit * people.habits[person, part] + self.lately * lately / lately.sum() + explore / self.places

    def visits(self) -> list[Visit]:
        """Sample the visits of all people."""
        people = self.draw_people()
        generator = torch.Generator().manual_seed(self.seed + 1)
        visits: list[Visit] = []
        for person in range(self.people):
            lived: list[tuple[int, int]] = []  # day and place
            for day in range(self.days):
                for part in range(PARTS_OF_DAY):
                    past = [place for then, place in lived if then >= day - self.history]
                    if past:
                        before = (part - 1) % PARTS_OF_DAY
                        chance = self.next_probabilities(people, person, before, past)
                        place = int(torch.multinomial(chance, 1, generator=generator))
                    else:
                        place = people.homes[person]
                    lived.append((day, place))
                    minute = part * MINUTES_A_DAY // PARTS_OF_DAY + 60
                    visits.append(Visit(f"person {person}", f"place {place}", day, minute, day % 7, 300.0))
        return visits

    def parts(self) -> dict[str, list[Visit]]:
        """The visits, split like the published data."""
        return split_by_days(self.visits())

    def probabilities(self, histories: Histories, numbers: LocationIds) -> Tensor:
        """True probability of each place id for every question: ``[N, ids]``.

        Near the start of a part, a history may be shorter than the person's past. Questions start on the seventh day of
        a part, where the history is complete.
        """
        people, table = self.draw_people(), histories.table
        unseen = self.places - len(numbers.places)
        if unseen:
            got = f"{unseen} of {self.places} places that do not occur in training"
            raise usage_error("World.probabilities", got, "every place must occur in training", "raise days")
        names = [int(name.split()[1]) for name in numbers.places]
        column = torch.tensor([numbers.place(f"place {place}") for place in range(self.places)])
        rows = []
        for first, target in zip(histories.first.tolist(), histories.target.tolist(), strict=True):
            recent = table.day[first:target] >= table.day[target] - self.history
            past = [names[number - UNKNOWN - 1] for number in table.place[first:target][recent].tolist()]
            person = int(numbers.users[int(table.user[target]) - 1].split()[1])
            part = (int(table.time[target - 1]) - 1) * PARTS_OF_DAY // TIMES
            chance = self.next_probabilities(people, person, part, past)
            rows.append(torch.zeros(numbers.size, dtype=torch.float64).index_add(0, column, chance))
        return torch.stack(rows)


def best_accuracy(probabilities: Tensor) -> float:
    """Accuracy of always predicting the most likely place.

    >>> best_accuracy(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    0.625
    """
    return float(probabilities.double().amax(1).mean())


def best_cross_entropy(probabilities: Tensor) -> float:
    """Cross-entropy in nats of the true distribution, the smallest possible on average."""
    return float(torch.special.entr(probabilities.double()).sum(1).mean())

"""A made-up world of visits whose next-place probabilities are known, so that the best possible score is known too.

Each person has a home, a workplace and a few places of habit. After a visit in a part of the day the next place is

    P(next) = habit  * H(next | person, part of the day)
            + lately * sum of w_j over the visits of the last days with place_j = next,   w_j falls by half every visit back
            + explore / places

so part of it must be learned by heart (a generator can), part must be copied from the history (a pointer with recency
can), and part cannot be known. Everything it depends on stands in a question's history and user, so a model can reach it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whence.errors import usage_error
from whence_papers.pointer.next_location.histories import TIMES, UNKNOWN, Histories, Numbers, split_by_days
from whence_papers.pointer.next_location.visits import MINUTES_A_DAY, Visit

PARTS_OF_DAY = 4  # night, morning, afternoon, evening
VISITS_A_DAY = 4  # one in each part
HABITS = 3  # places of one's own beside home and work
HALF = 0.5  # what is left of a visit's weight one visit later
HOME, WORK = 0, 1  # the first two of one's own places


class People(NamedTuple):
    """What everyone does."""

    habits: Tensor  # H: [people, parts of the day, places], each row adding up to 1
    homes: list[int]


@dataclass(frozen=True)
class World:
    """The rules of the world; ``visits`` lives it, ``probabilities`` says what its rules give.

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
            rule = f"it has people, at least {HABITS + 3} places, and days for two histories"
            raise usage_error("World", got, rule, "give more")
        if self.habit < 0 or self.lately < 0 or self.habit + self.lately > 1:
            got = f"habit={self.habit}, lately={self.lately}"
            raise usage_error("World", got, "both are shares, and what is left is exploration", "give shares")

    def people_of(self) -> People:
        """Who lives in this world: decided by its seed alone."""
        drawn = torch.Generator().manual_seed(self.seed)
        table = torch.zeros(self.people, PARTS_OF_DAY, self.places, dtype=torch.float64)
        homes = []
        for person in range(self.people):
            own = torch.randperm(self.places, generator=drawn)[: HABITS + 2]
            homes.append(int(own[HOME]))
            for part in range(PARTS_OF_DAY):
                weights = torch.rand(len(own), generator=drawn, dtype=torch.float64) * 0.3
                weights[WORK if part in (0, 1) else HOME] += 1.0  # nights and mornings lead to work, the rest home
                table[person, part, own] = weights / weights.sum()
        return People(table, homes)

    def chances(self, people: People, person: int, part: int, past: list[int]) -> Tensor:
        """The probability of each place after a past that ends in a part of the day, ``[places]``."""
        weights = HALF ** torch.arange(len(past) - 1, -1, -1, dtype=torch.float64)
        lately = torch.zeros(self.places, dtype=torch.float64).index_add(0, torch.tensor(past), weights)
        explore = 1 - self.habit - self.lately
        return self.habit * people.habits[person, part] + self.lately * lately / lately.sum() + explore / self.places

    def visits(self) -> list[Visit]:
        """Everyone's life."""
        people = self.people_of()
        drawn = torch.Generator().manual_seed(self.seed + 1)
        found: list[Visit] = []
        for person in range(self.people):
            lived: list[tuple[int, int]] = []  # day and place
            for day in range(self.days):
                for part in range(PARTS_OF_DAY):
                    past = [place for then, place in lived if then >= day - self.history]
                    if past:
                        before = (part - 1) % PARTS_OF_DAY
                        chance = self.chances(people, person, before, past)
                        place = int(torch.multinomial(chance, 1, generator=drawn))
                    else:
                        place = people.homes[person]
                    lived.append((day, place))
                    minute = part * MINUTES_A_DAY // PARTS_OF_DAY + 60
                    found.append(Visit(f"person {person}", f"place {place}", day, minute, day % 7, 300.0))
        return found

    def parts(self) -> dict[str, list[Visit]]:
        """The same, split as the published data are."""
        return split_by_days(self.visits())

    def probabilities(self, histories: Histories, numbers: Numbers) -> Tensor:
        """The true probability of each number of a place, for every question: ``[N, numbers]``.

        A part of the data begins anew, so near its start a history may be shorter than the person's own past; questions
        are only asked from the seventh day of a part on, and there it is not.
        """
        people, table = self.people_of(), histories.table
        unseen = self.places - len(numbers.places)
        if unseen:
            got = f"{unseen} of {self.places} places that training never shows"
            raise usage_error("World.probabilities", got, "every place has a number of its own", "live for more days")
        names = [int(name.split()[1]) for name in numbers.places]
        column = torch.tensor([numbers.place(f"place {place}") for place in range(self.places)])
        rows = []
        for first, target in zip(histories.first.tolist(), histories.target.tolist(), strict=True):
            past = [names[number - UNKNOWN - 1] for number in table.place[first:target].tolist()]
            person = int(numbers.users[int(table.user[target]) - 1].split()[1])
            part = (int(table.time[target - 1]) - 1) * PARTS_OF_DAY // TIMES
            chance = self.chances(people, person, part, past)
            rows.append(torch.zeros(numbers.size, dtype=torch.float64).index_add(0, column, chance))
        return torch.stack(rows)


def best_accuracy(probabilities: Tensor) -> float:
    """What the best guesser gets right on average, who always says the most likely place.

    >>> best_accuracy(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    0.625
    """
    return float(probabilities.double().amax(1).mean())


def best_surprise(probabilities: Tensor) -> float:
    """The surprise, in nats, of whoever knows the rules: nobody's is smaller on average."""
    return float(torch.special.entr(probabilities.double()).sum(1).mean())

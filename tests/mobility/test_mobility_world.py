"""The made-up world keeps its own rules, and what it says is best is not beaten."""

import pytest
import torch

from whence import WhenceError
from whence.mobility.histories import Numbers, histories_of
from whence.mobility.metrics import ranks_of
from whence.mobility.world import HALF, World, best_accuracy, best_surprise

WORLD = World(people=4, places=10, days=60)


@pytest.fixture(scope="module")
def known():
    parts = WORLD.parts()
    numbers = Numbers.of(parts["train"])
    histories = histories_of(parts["train"], numbers)
    return parts["train"], numbers, histories, WORLD.probabilities(histories, numbers)


def test_probabilities_are_those_of_the_rule(known):
    visits, numbers, histories, probabilities = known
    assert torch.allclose(probabilities.sum(1), torch.ones(len(probabilities), dtype=torch.float64))
    people = WORLD.people_of()
    for row in (0, len(histories) // 2, len(histories) - 1):
        first, target = int(histories.first[row]), int(histories.target[row])
        past, person = visits[first:target], int(visits[target].user.split()[1])
        weights = [HALF ** (len(past) - 1 - at) for at in range(len(past))]
        part = past[-1].minute * 4 // 1440
        for place in range(10):
            copied = sum(w for w, v in zip(weights, past, strict=True) if v.place == f"place {place}") / sum(weights)
            expected = 0.5 * float(people.habits[person, part, place]) + 0.4 * copied + 0.1 / 10
            assert float(probabilities[row, numbers.place(f"place {place}")]) == pytest.approx(expected, abs=1e-12)


def test_what_happens_is_as_likely_as_it_says(known):
    _, _, histories, probabilities = known
    targets = histories.table.place[histories.target]
    right = (ranks_of(probabilities, targets) == 1).double()
    best, n = best_accuracy(probabilities), len(targets)
    assert abs(float(right.mean()) - best) < 3 * (best * (1 - best) / n) ** 0.5
    surprise = -probabilities.gather(1, targets[:, None]).log()
    assert abs(float(surprise.mean()) - best_surprise(probabilities)) < 3 * float(surprise.std()) / n**0.5


def test_a_seed_is_a_world():
    assert WORLD.visits() == World(people=4, places=10, days=60).visits()
    assert WORLD.visits() != World(people=4, places=10, days=60, seed=1).visits()


@pytest.mark.parametrize("given", [{"places": 5}, {"days": 13}, {"people": 0}, {"habit": 0.7, "lately": 0.4}])
def test_worlds_that_cannot_be(given):
    with pytest.raises(WhenceError, match="World got"):
        World(**given)


def test_a_place_that_training_never_shows_is_said(known):
    visits, _, histories, _ = known
    few = Numbers.of(visits[:3])
    with pytest.raises(WhenceError, match="of 10 places that training never shows"):
        WORLD.probabilities(histories, few)

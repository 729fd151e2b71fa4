"""The made-up world keeps its own rules, and what it says is best is not beaten."""

import pytest
import torch

from whence import WhenceError
from whence.lab.arms import Arm
from whence_papers.pointer.next_location.histories import LocationIds, build_histories
from whence_papers.pointer.next_location.metrics import target_ranks
from whence_papers.pointer.next_location.model import NextPlaceSpec, build_next_place, learned_shape
from whence_papers.pointer.next_location.world import HALF, World, best_accuracy, best_cross_entropy

WORLD = World(people=4, places=10, days=60)


@pytest.fixture(scope="module")
def known():
    parts = WORLD.parts()
    numbers = LocationIds.from_visits(parts["train"])
    histories = build_histories(parts["train"], numbers)
    return parts["train"], numbers, histories, WORLD.probabilities(histories, numbers)


def test_probabilities_are_those_of_the_rule(known):
    visits, numbers, histories, probabilities = known
    assert torch.allclose(probabilities.sum(1), torch.ones(len(probabilities), dtype=torch.float64))
    people = WORLD.draw_people()
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
    right = (target_ranks(probabilities, targets) == 1).double()
    best, n = best_accuracy(probabilities), len(targets)
    assert abs(float(right.mean()) - best) < 3 * (best * (1 - best) / n) ** 0.5
    surprise = -probabilities.gather(1, targets[:, None]).log()
    assert abs(float(surprise.mean()) - best_cross_entropy(probabilities)) < 3 * float(surprise.std()) / n**0.5


def test_a_seed_is_a_world():
    assert WORLD.visits() == World(people=4, places=10, days=60).visits()
    assert WORLD.visits() != World(people=4, places=10, days=60, seed=1).visits()


@pytest.mark.parametrize("settings", [{"places": 5}, {"days": 13}, {"people": 0}, {"habit": 0.7, "lately": 0.4}])
def test_worlds_that_cannot_be(settings):
    with pytest.raises(WhenceError, match="World got"):
        World(**settings)


def test_a_place_that_training_never_shows_is_said(known):
    visits, _, histories, _ = known
    few = LocationIds.from_visits(visits[:3])
    with pytest.raises(WhenceError, match=r"8 of 10 places .*; raise days"):
        WORLD.probabilities(histories, few)


def lived(seed):
    """A life without habits, in which each visit back counts half: who points by recency can know all that can be known."""
    world = World(people=16, places=30, days=60, habit=0.0, lately=0.8, seed=seed)
    visits = world.visits()
    numbers = LocationIds(tuple(f"place {n}" for n in range(30)), tuple(f"person {n}" for n in range(16)))
    histories = build_histories(visits, numbers)
    return histories, best_cross_entropy(world.probabilities(histories, numbers))


@pytest.fixture(scope="module")
def lives():
    return lived(0), lived(7)


@pytest.mark.parametrize("position, near", [("Recency(max_length=33)", True), ("NoPosition()", False)])
def test_a_pointer_learns_the_recency_that_is_there(lives, position, near):
    """Held against the best possible on lives it never saw; its bias falls by log 2 a visit, as the world's does."""
    (histories, _), (others, best) = lives
    spec = NextPlaceSpec(places=32, users=16, days=7, context=32, embed_dim=8, heads=1, layers=0, dropout=0.0, reads=())
    model = build_next_place(spec, Arm("pointer", position), 0)

    def surprise(histories, rows):
        batch = histories.batch(rows)
        log_p = model(batch.tokens, key_mask=batch.key_mask, extras=batch.extras)
        return -log_p.gather(1, batch.targets[:, None]).mean()

    optimizer, drawn = torch.optim.Adam(model.parameters(), lr=0.05), torch.Generator().manual_seed(0)
    for _ in range(80):
        optimizer.zero_grad()
        surprise(histories, torch.randint(len(histories), (256,), generator=drawn)).backward()
        optimizer.step()
    with torch.no_grad():
        above = float(surprise(others, torch.arange(len(others)))) - best
    assert (-0.03 < above < 0.12) if near else above > 0.2
    if near:
        bias = learned_shape(model, 6)["bias"]
        assert -1.0 < (bias[5] - bias[1]) / 4 < -0.4  # log(1/2) is -0.69

"""The simple rules on a life short enough to follow by hand, and on made-up lives against plain loops."""

from collections import Counter
from itertools import pairwise

import torch

from whence_papers.pointer.next_location.histories import LocationIds, Table, build_histories, gather_histories
from whence_papers.pointer.next_location.metrics import (
    Counts,
    last_visited,
    markov,
    most_frequent,
    most_frequent_lately,
)
from whence_papers.pointer.next_location.visits import Visit
from whence_papers.pointer.next_location.world import World


def life(user, places, first=0):
    return [Visit(user, place, first + at // 4, 60 * (at % 4), 0) for at, place in enumerate(places)]


TRAINING = life("ann", "hwhwhghw") + life("bob", "ccch")


def order(rule, user, history, most=4):
    numbers = LocationIds.from_visits(TRAINING)
    counts = Counts(Table.from_visits(TRAINING, numbers), numbers.size)
    visits = life(user, history)
    batch = gather_histories(
        Table.from_visits(visits, numbers), torch.tensor([0]), torch.tensor([len(visits)]), torch.tensor([9])
    )
    ranked = rule(counts, batch)[0].argsort(descending=True, stable=True).tolist()
    return "".join(numbers.name(number)[0] for number in ranked[:most])


def test_last_visited_goes_back_in_time():
    assert order(last_visited, "ann", "wgh") == "hgwc"
    assert order(last_visited, "ann", "hgg") == "ghwc"  # each place once, by its last visit; then by how often
    assert order(last_visited, "ann", "hx")[:2] == "(h"  # a place that training does not have is one too


def test_most_frequent_is_the_users_own():
    assert order(most_frequent, "ann", "ccc") == "hwgc"
    assert order(most_frequent, "bob", "www")[:2] == "ch"
    assert order(most_frequent, "eve", "www")[0] == "h"  # nobody's habits: what is most frequent of all


def test_most_frequent_lately_is_the_historys():
    assert order(most_frequent_lately, "ann", "ccwch") == "chwg"  # of w and h, once each, the last one first
    assert order(most_frequent_lately, "ann", "xxh")[:2] == "(h"


def test_markov_follows_the_last_step_and_falls_back_to_habits():
    assert order(markov, "ann", "gh")[:2] == "wg"  # after h: w three times, g once
    assert order(markov, "ann", "hw")[0] == "h"
    assert order(markov, "ann", "hc") == "hwgc"  # ann never was at c
    assert order(markov, "bob", "hc")[:2] == "ch"


def test_steps_are_counted_as_plain_loops_count_them():
    visits = World(people=3, places=8, days=20).visits()
    numbers = LocationIds.from_visits(visits)
    counts = Counts(Table.from_visits(visits, numbers), numbers.size)
    steps = Counter((a.user, a.place, b.place) for a, b in pairwise(visits) if a.user == b.user)
    by_rule = {
        (numbers.users[user - 1], numbers.name(here), numbers.name(there)): often
        for (user, here), row in counts.after.items()
        for there, often in row.items()
    }
    assert by_rule == dict(steps)
    own = counts.own[numbers.user("person 1")]
    assert own.sum() == 80 and own[numbers.place("place 3")] == sum(
        v.user == "person 1" and v.place == "place 3" for v in visits
    )
    histories = build_histories(visits, numbers)
    scores = markov(counts, histories.batch(torch.arange(len(histories))))
    assert torch.isfinite(scores).all() and (scores[:, 0] < 0).all()  # padding is never said

"""From visits to questions: the published counts, and the rule against plain loops."""

import os
from pathlib import Path

import pytest
import torch

from whence_papers.pointer.next_location.histories import (
    UNKNOWN,
    LocationIds,
    build_histories,
    load_foursquare,
    load_geolife,
    split_by_days,
    trim_to_next_day,
)
from whence_papers.pointer.next_location.visits import Visit


def real_data():
    folder = os.environ.get("WHENCE_DATA")
    if not folder or not (Path(folder) / "mobility").is_dir():
        pytest.skip("WHENCE_DATA names no folder with visits")


def questions(visits, days=7):
    """The rule in plain loops: which visit is asked about, from which earlier ones."""
    result = []
    for at, visit in enumerate(visits):
        own = [other for other in visits if other.user == visit.user]
        if visit.day - min(other.day for other in own) < days:
            continue
        history = [i for i in range(at) if visits[i].user == visit.user and visits[i].day >= visit.day - days]
        if len(history) >= 3:
            result.append((history, at))
    return result


def random_visits(seed=0, people=5, days=100):
    drawn = torch.Generator().manual_seed(seed)
    some = lambda high: int(torch.randint(high, (1,), generator=drawn))  # noqa: E731
    return [
        Visit(f"u{person}", f"p{some(12)}", day, 100 * visit + some(90), day % 7, float(some(4000)))
        for person in range(people)
        for day in range(days)
        if some(3)
        for visit in range(some(4))
    ]


def test_the_rule_against_plain_loops():
    for part in split_by_days(random_visits()).values():
        numbers = LocationIds.from_visits(part)
        result = build_histories(part, numbers)
        expected = questions(part)
        assert len(expected) > 20
        assert [
            (list(range(f, t)), t) for f, t in zip(result.first.tolist(), result.target.tolist(), strict=True)
        ] == expected


def test_batches_hold_what_the_visits_say():
    parts = split_by_days(random_visits(1))
    numbers = LocationIds.from_visits(parts["train"])
    test = parts["test"]
    result = build_histories(test, numbers)
    batch = result.batch(torch.arange(len(result)))
    for row, (history, at) in enumerate(questions(test)):
        question, n = test[at], len(history)
        assert batch.key_mask[row].tolist() == [True] * n + [False] * (batch.tokens.shape[1] - n)
        assert batch.targets[row] == numbers.place(question.place)
        assert batch.extras["user"][row] == numbers.users.index(question.user) + 1
        for place, visit in enumerate(test[i] for i in history):
            assert batch.tokens[row, place] == numbers.place(visit.place)
            assert batch.extras["time"][row, place] == visit.minute // 15 + 1
            assert batch.extras["weekday"][row, place] == visit.weekday + 1
            assert batch.extras["duration"][row, place] == min(int(visit.duration) // 30, 95) + 1
            assert batch.extras["ago"][row, place] == question.day - visit.day + 1
        for column in (batch.tokens, *(batch.extras[name] for name in ("time", "weekday", "duration", "ago"))):
            assert not column[row, n:].any()


def test_a_history_before_the_last_visit_does_not_show_the_day_of_the_next():
    """The same questions; the days count back from the last visit. Knowing the day of the next one gives the source's form."""
    test = split_by_days(random_visits(2))["test"]
    numbers = LocationIds.from_visits(test)
    source, delivered = (build_histories(test, numbers, window=window) for window in ("next", "last"))
    assert torch.equal(source.target, delivered.target) and (delivered.first < source.first).any()
    for first, target in zip(delivered.first.tolist(), delivered.target.tolist(), strict=True):
        own = [i for i in range(target) if test[i].user == test[target].user]
        assert first == min(i for i in own if test[i].day >= test[target - 1].day - 7)
    rows = torch.arange(len(source))
    batch = delivered.batch(rows)
    for row, (first, target) in enumerate(zip(delivered.first.tolist(), delivered.target.tolist(), strict=True)):
        days = [test[target - 1].day - test[i].day + 1 for i in range(first, target)]
        assert batch.extras["before_last"][row, : target - first].tolist() == days
    trimmed, expected = trim_to_next_day(batch, 7), source.batch(rows)
    assert torch.equal(trimmed.tokens, expected.tokens) and torch.equal(trimmed.key_mask, expected.key_mask)
    for name in ("ago", "time", "weekday", "duration", "user"):
        assert torch.equal(trimmed.extras[name], expected.extras[name])


def test_parts_are_cut_by_days_counted_from_each_users_first():
    late = [Visit("late", "x", 700_000 + day, 0, 0) for day in range(11)]
    early = [Visit("early", "x", day, 0, 0) for day in range(11)]
    parts = split_by_days(late + early)
    assert {name: len(part) for name, part in parts.items()} == {"train": 12, "valid": 4, "test": 6}


def test_geolife_has_the_published_questions():
    real_data()
    parts = load_geolife("test")
    numbers = LocationIds.from_visits(parts["train"])
    result = {name: build_histories(part, numbers) for name, part in parts.items()}
    assert {name: len(part) for name, part in result.items()} == {"train": 7424, "valid": 3334, "test": 3502}
    assert (numbers.size, len(numbers.users)) == (1187, 45)
    targets = {name: part.table.place[part.target] for name, part in result.items()}
    assert round(float((targets["test"] == UNKNOWN).double().mean()), 3) == 0.228
    assert not (targets["train"] == UNKNOWN).any()


def test_the_published_list_of_valid_stays_leaves_nothing_out():
    real_data()
    folder = Path(os.environ["WHENCE_DATA"]) / "mobility"
    if not (folder / "geolife_valid_ids.txt").exists():
        pytest.skip("no list of valid stays")
    valid = set((folder / "geolife_valid_ids.txt").read_text().split())
    rows = [line.split(",") for line in (folder / "geolife_stays.csv").read_text().splitlines()[1:]]
    name = {(user, place, int(day), int(minute)): one for one, user, place, _, day, _, minute, _, _ in rows}
    parts = load_geolife("test")
    for part in parts.values():
        for target in build_histories(part, LocationIds.from_visits(part)).target.tolist():
            visit = part[target]
            assert name[visit.user, visit.place, visit.day, visit.minute] in valid


def test_foursquare_has_no_durations_and_its_unseen_places_are_one_already():
    real_data()
    parts = load_foursquare("test")
    assert {name: len(part) for name, part in parts.items()} == {"train": 59701, "valid": 17073, "test": 18598}
    numbers = LocationIds.from_visits(parts["train"])
    assert "1" not in numbers.places
    assert {visit.place for visit in parts["test"] if numbers.place(visit.place) == UNKNOWN} == {"1"}
    assert all(visit.duration is None for visit in parts["test"])

"""Curves from records: intervals, the gap and how large chance makes it, against enumeration."""

import itertools

import pytest
import torch

from whence.errors import WhenceError
from whence.probe.curves import count_wrong_choices, curve, gap_by_chance
from whence.statistics import proportion


def records(table, name="correct", lines=True):
    """One record for each place and line; ``table[place][item]``."""
    instance = [
        {"condition": place, "rows": [{"item": i, name: value} for i, value in enumerate(row)]}
        for place, row in table.items()
    ]
    if lines:
        instance += [{"condition": where, "rows": [{"item": 0, name: True}]} for where in ("closed book", "oracle")]
    return instance


def test_points_are_wilsons_and_the_worst_is_the_lowest():
    result = curve(records({0: [1, 1, 1, 1], 3: [0, 0, 1, 0], 6: [1, 1, 0, 1]}), "likelihood")
    assert [point["slot"] for point in result["points"]] == [0, 3, 6]
    assert result["points"][1]["interval"] == proportion(1, 4).interval.to_json()
    assert (result["average"], result["gap"], result["worst"], result["best"]) == (pytest.approx(8 / 12), 0.75, 3, 0)
    assert result["baselines"]["oracle"]["mean"] == 1.0


def test_gap_by_chance_is_that_of_all_shuffles():
    table = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    gaps = []
    for orders in itertools.product(itertools.permutations(range(3)), repeat=3):
        means = torch.stack([row[list(order)] for row, order in zip(table, orders, strict=True)]).mean(0)
        gaps.append(float(means.max() - means.min()))
    exact = sum(gap >= 1 - 1e-9 for gap in gaps) / len(gaps)
    result = gap_by_chance(table, 0, draws=4000)
    assert result["gap_p"] == pytest.approx(exact, abs=0.02)
    assert result["gap_by_chance"] == pytest.approx(sum(gaps) / len(gaps), abs=0.02)


def test_a_planted_effect_is_seen_and_noise_is_not():
    generator = torch.Generator().manual_seed(0)
    noise = (torch.rand(5, 40, generator=generator) < 0.5).int().tolist()
    assert curve(records(dict(enumerate(noise))), "likelihood")["gap_p"] > 0.05
    planted = {0: [1] * 40, 1: [i % 2 for i in range(40)], 2: [1] * 40}
    assert curve(records(planted), "likelihood")["gap_p"] < 0.01


def test_shares_have_an_interval_that_holds_their_mean():
    result = curve(records({0: [0.1, 0.5, 0.9], 1: [0.2, 0.2, 0.3]}, "probability"), "probability")
    for point in result["points"]:
        assert point["interval"]["low"] <= point["mean"] <= point["interval"]["high"]
    assert result["average_interval"]["low"] < result["average"] < result["average_interval"]["high"]


def test_items_without_every_place_are_left_out_and_equal_ones_claim_no_interval():
    result = curve(records({0: [1, 1, 1], 1: [1, 1]}), "likelihood")
    assert result["items"] == 2 and result["average_interval"] is None


def test_wrong_choices_are_counted_by_slot():
    rows = [{"correct": False, "chosen_slot": 0}, {"correct": False, "chosen_slot": 0}, {"correct": True, "chosen_slot": 2},
            {"correct": False, "chosen_slot": None}]  # fmt: skip
    assert count_wrong_choices([{"condition": 2, "rows": rows}, {"condition": "oracle", "rows": rows}]) == {
        "0": 2,
        "none": 1,
    }


def test_a_curve_needs_places():
    with pytest.raises(WhenceError, match=r"records of 1 slots.*measure more slots"):
        curve(records({0: [1]}), "likelihood")
    with pytest.raises(WhenceError, match="the scores are"):
        curve([], "rouge")


def test_the_interval_of_a_gap_excludes_zero_exactly_where_its_p_is_at_most_five_percent():
    from whence.probe.curves import _gap_interval

    gaps = [number / 1000 for number in range(1, 400)]  # 399 shuffles: 20 of 400 is 0.05
    assert _gap_interval(0.3805, gaps)["low"] > 0  # 19 shuffles reach it
    assert _gap_interval(0.380, gaps)["low"] <= 0  # 20 do
    assert _gap_interval(0.1, [0.0] * 399) is None and _gap_interval(0.1, [0.2] * 3) is None

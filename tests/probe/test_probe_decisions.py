"""One decision rule for the page and the table: the strongest measure leads, and chance alone leads to few claims."""

import pytest
import torch

from whence.probe.curves import ALPHA, curve, decide, gap_by_chance, leading_curve, measures
from whence.report.probe.sentences import few_items_note, headline, section_answer


def records(correct, share):
    """Records with right or wrong and a probability; ``table[place][item]``."""
    instance = [
        {
            "condition": place,
            "rows": [{"item": i, "correct": r, "probability": s} for i, (r, s) in enumerate(zip(*rows, strict=True))],
        }
        for place, rows in enumerate(zip(correct, share, strict=True))
    ]
    alone = [{"item": i, "correct": True, "probability": 1.0} for i in range(len(correct[0]))]
    return [*instance, {"condition": "closed book", "rows": alone}, {"condition": "oracle", "rows": alone}]


def task(name, correct, share):
    own = records(correct, share)
    return {"task": name, "name": name, "items": len(correct[0]), "chance": 0.1, "wrong_choices": {},
            "curves": [curve(own, score) for score in measures(["likelihood"])]}  # fmt: skip


def answered(*tasks, tests=None):
    decided, decision = decide(tasks, tests or 2 * len(tasks))
    return {"tasks": decided, "decision": decision}


#: six items, as the default probe has them: right and wrong say little, the probability falls in every item
RIGHT = [[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 1]]
SHARE = [[0.90 - 0.01 * i - 0.12 * place for i in range(6)] for place in range(5)]


def test_the_measure_that_supports_an_effect_leads():
    """The page once said "no effect can be claimed" by right and wrong above a gap of 38 points with p = 0.0005."""
    result = answered(task("pairs", RIGHT, SHARE))
    [one] = result["tasks"]
    choice, probability = one["curves"]
    assert choice["corrected_p"] >= ALPHA and probability["corrected_p"] < ALPHA
    assert leading_curve(one)["score"] == "probability" and one["supported"]
    output = headline(one)
    assert output.startswith("The probability of the answer is 48 points higher with the gold in slot 1 than in slot 5")
    assert "95% interval" in output and "p = 0.001" in output
    assert section_answer(result).startswith("Yes, in pairs: the probability of the answer is 48 points higher")


def test_the_strongest_task_answers_for_all():
    flat = [[0.5 + 0.01 * ((i * 7 + place * 3) % 5) for i in range(6)] for place in range(5)]
    result = answered(task("flat", RIGHT, flat), task("steep", RIGHT, SHARE))
    assert [one["supported"] for one in result["tasks"]] == [False, True]
    assert section_answer(result).startswith("Yes, in 1 of 2 tasks, most clearly in steep:")
    assert headline(result["tasks"][0]).startswith("Undecided: the strongest measure, ")
    only = answered(task("flat", RIGHT, flat))
    assert section_answer(only).startswith("Undecided: none of 2 tests supports an effect of position (smallest p = ")


def test_the_same_everywhere_is_undecided_and_says_so():
    ones = [[1] * 6] * 5
    result = answered(task("easy", ones, [[1.0] * 6] * 5))
    assert headline(result["tasks"][0]) == (
        "Undecided: accuracy by choice is 100% in every slot, so the task is too easy to show an effect."
    )


def test_a_measure_with_a_gap_leads_one_without_where_no_test_supports_either():
    wrong = [[0] * 2] * 3
    result = answered(task("hard", wrong, [[0.2, 0.3], [0.3, 0.2], [0.25, 0.26]]))
    assert all(one["corrected_p"] == 1 for one in result["tasks"][0]["curves"])
    assert leading_curve(result["tasks"][0])["score"] == "probability"


def test_notes_on_a_hard_task_and_on_a_single_test():
    result = answered(task("hard", [[0] * 6] * 5, [[0.0] * 6] * 5), tests=2)
    assert headline(result["tasks"][0]).endswith("is 0% in every slot, so the task is too hard to show an effect.")
    result["decision"]["tests"] = 1  # generation alone
    assert section_answer(result).startswith("Undecided: the only test does not support an effect of position")


def test_the_family_is_the_plans_even_where_tasks_are_missing():
    small = answered(task("pairs", RIGHT, SHARE))["tasks"][0]["curves"][1]
    large = answered(task("pairs", RIGHT, SHARE), tests=20)["tasks"][0]["curves"][1]
    assert large["corrected_p"] == pytest.approx(20 * small["gap_p"])
    assert small["corrected_p"] == pytest.approx(2 * small["gap_p"])


def test_chance_alone_seldom_leads_to_a_claim():
    """Three tasks by two measures that agree with each other, no effect anywhere: false claims in at most about 5%."""
    generator = torch.Generator().manual_seed(0)
    claims, pages = 0, 200
    for number in range(pages):
        tasks = []
        for _ in range(3):
            share = torch.rand(8, 4, generator=generator, dtype=torch.float64)
            tables = {"likelihood": (share > 0.5).double(), "probability": share}
            curves = [
                {"score": score, "gap": float(t.mean(0).max() - t.mean(0).min()), **gap_by_chance(t, number, draws=400)}
                for score, t in tables.items()
            ]
            tasks.append({"task": "", "curves": curves})
        claims += bool(decide(tasks, 6)[1]["supported"])
    assert claims / pages <= 0.08


def test_the_interval_of_the_gap_agrees_with_its_p_and_covers_the_truth():
    generator = torch.Generator().manual_seed(1)
    covered, drawn = 0, 150
    for number in range(drawn):
        effect = torch.tensor([0.3, 0.1, 0.0, 0.2], dtype=torch.float64)
        table = 0.3 + effect + 0.15 * torch.randn(12, 4, generator=generator, dtype=torch.float64)
        means = table.mean(0)
        result = gap_by_chance(table, number, draws=400)
        ends = result["gap_interval"]
        assert (ends["low"] > 0) == (result["gap_p"] <= ALPHA)
        true = float(effect[means.argmax()] - effect[means.argmin()])
        covered += ends["low"] <= true <= ends["high"]
    assert covered / drawn >= 0.93


def test_panels_with_few_items_are_marked():
    assert few_items_note(1) == "Few items: 1 item per slot, fewer than 20." and few_items_note(20) == ""

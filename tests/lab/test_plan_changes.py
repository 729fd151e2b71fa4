"""A report says how many records are older than the plan that judges them."""

import dataclasses

import pytest
from small_study import ARMS, build_study

from whence.lab import results, runner
from whence.lab.arms import Arm
from whence.lab.plan_changes import describe_plan_change
from whence.lab.sources import pin_sources
from whence.lab.study import Budget
from whence.report.comparison import page
from whence.report.comparison.sentences import summary_lines

FIRST = build_study(arms=ARMS[:2], budget=Budget(steps=1, batch_size=4))


def change(study, **decision):
    return dataclasses.replace(study, decision=dataclasses.replace(study.decision, **decision))


def build_records(study, hour):
    return [{"hash": study.hash, "spec": study.spec(), "started": f"2026-01-01T{hour:02}:00:00Z"} for _ in study.runs()]


@pytest.mark.parametrize(
    "later, differs",
    [
        (change(FIRST, margin=2.0), "in margin."),
        (change(FIRST, metric="accuracy"), "in metric."),
        (change(FIRST, baseline="alibi", alpha=0.1), "in baseline and alpha."),
        (change(FIRST, perplexity_scale="log"), "in scale of perplexities."),
        (
            change(FIRST, perplexity_scale="log", margin=5.0),
            "in margin and scale of perplexities (the margin of 5 is in per cent now).",
        ),
        (dataclasses.replace(FIRST, seeds=(0, 1, 2)), "in seeds."),
        (dataclasses.replace(FIRST, arms=ARMS), "in arms."),
    ],
)
def test_what_was_planned_otherwise_is_named(later, differs):
    text = describe_plan_change(later, build_records(FIRST, 1))
    assert "4 of 4 records existed before this plan" in text and differs in text
    assert ("--until decided" in text) == ("seeds" in differs)  # the advice is about seeds
    assert describe_plan_change(later, build_records(FIRST, 1) + build_records(later, 2)).startswith("4 of ")
    assert describe_plan_change(later, build_records(later, 1)) is None


def test_the_same_number_of_a_margin_has_another_unit_on_another_scale():
    values, ratios = (change(FIRST, margin=2.5, perplexity_scale=scale) for scale in ("value", "log"))
    for before, now, unit in ((values, ratios, "per cent"), (ratios, values, "units of perplexity")):
        text = describe_plan_change(now, build_records(before, 1))
        assert f"theirs in scale of perplexities (the margin of 2.5 is in {unit} now)." in text


def test_records_that_another_plan_added_later_are_no_reason():
    later = change(FIRST, margin=2.0)
    assert describe_plan_change(FIRST, build_records(FIRST, 1)[:2] + build_records(later, 2)[2:]) is None
    renamed = dataclasses.replace(FIRST, name="other")  # its plan is the same
    assert describe_plan_change(renamed, build_records(FIRST, 1)) is None


def test_records_after_a_plan_that_was_written_before_them_are_no_reason():
    """Two studies of one command judge the same runs, which have the hash of the first."""
    later = change(FIRST, split="16x")
    assert describe_plan_change(later, build_records(FIRST, 2), "2026-01-01T01:59:59Z") is None
    text = describe_plan_change(later, build_records(FIRST, 2), "2026-01-01T02:00:01Z")
    assert "4 of 4 records" in text and "in split." in text


def test_another_code_of_an_arm_is_another_plan():
    arms = (*ARMS[:1], Arm("mine", "./mine.py:Mine()"))
    first, later = (dataclasses.replace(FIRST, arms=arms, sources={"./mine.py:Mine": digest}) for digest in "ab")
    text = describe_plan_change(later, build_records(first, 1))
    assert "4 of 4 records" in text and "in the code of mine." in text
    longer = change(later, split="16x")
    assert "in split and the code of mine." in describe_plan_change(longer, build_records(first, 1))
    text = describe_plan_change(longer, build_records(first, 1), expected={first.name: ("split",)})
    assert "theirs in the code of mine." in text  # a command that always judges both splits did not change them


def test_looks_that_were_planned_need_no_recommendation():
    later = change(dataclasses.replace(FIRST, seeds=(0, 1, 2)), looks=(2, 3))
    text = describe_plan_change(later, build_records(FIRST, 1))
    assert "seeds and looks" in text and "--until decided" not in text


def test_terminal_and_page_have_the_note(tmp_path):
    runner.run_study(FIRST, tmp_path)
    later = pin_sources(change(FIRST, margin=2.0))
    findings = results.collect_findings([runner.run_study(later, tmp_path).folder], "a title", "a command")
    note = "4 of 4 records existed before this plan, which differs from theirs in margin."
    assert note in page(findings) and note in "\n".join(summary_lines(findings["studies"]))
    metric = pin_sources(change(FIRST, metric="perplexity"))  # the weights are evaluated again
    findings = results.collect_findings([runner.run_study(metric, tmp_path).folder], "a title", "a command")
    assert "metric or evaluation lengths" in findings["studies"][0]["plan_change"]

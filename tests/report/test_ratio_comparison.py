"""The report of arms that are compared by ratios: differences in per cent, margins as ratios, pairs in both directions."""

import copy
import math
import re

import pytest
from comparison_findings import ARMS, compare_rows, findings

from whence.report.comparison import page
from whence.report.comparison.arm_style import assign_styles
from whence.report.comparison.baseline_lines import BaselineLine, shift_to_ratios
from whence.report.comparison.dot_plots import forest_plot
from whence.report.comparison.sentences import claim_sentences
from whence.report.comparison.tables import pairs_table, results_table
from whence.report.comparison.units import choose_units, difference_unit, reverse_ratio


def perplexities(family="baseline", **decision):
    """The study of perplexities, of which the first arm is the baseline."""
    study = copy.deepcopy(findings()["studies"][1])
    rows = study["arms"]
    study["comparison"] = compare_rows(ARMS, rows, "perplexity", 6, family, **{"perplexity_scale": "log"} | decision)
    return study


def values_of(study, name):
    (arm,) = (arm for arm in study["arms"] if arm["name"] == name)
    return arm["values"]["test"]


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def test_sentences_and_tables_are_in_per_cent():
    study = perplexities()
    arm = study["comparison"]["arms"]["Rotary"]
    ratio = geometric_mean(values_of(study, "Rotary").values()) / geometric_mean(values_of(study, ARMS[0]).values())
    assert arm["difference"] == pytest.approx(100 * (ratio - 1)) and arm["kind"] == "better"
    (sentence,) = (one for one in claim_sentences(study) if one.startswith("Rotary "))
    assert (
        f"better than none by {abs(arm['difference']):.3g} % on Speeches" in sentence and difference_unit(study) == "%"
    )
    table = results_table(study, choose_units(study), assign_styles([study]))
    assert f"−{abs(arm['difference']):.1f}" in table and ">%</th>" in table
    text = page({**findings(), "studies": [study]})
    assert (
        "Difference to none in % of perplexity" in text and "differences of logarithms, shown as ratios in %," in text
    )


def test_by_difference_the_report_is_as_before():
    study = perplexities(perplexity_scale="value")
    assert study["comparison"]["scale"] == "value" and difference_unit(study) == ""
    assert "logarithms" not in page({**findings(), "studies": [study]})
    del study["comparison"]["scale"]  # findings of an earlier version
    assert "logarithms" not in page({**findings(), "studies": [study]})


def test_the_margin_is_drawn_as_a_ratio():
    study = perplexities(margin=25.0)
    chart = forest_plot(study, choose_units(study), assign_styles([study]), set())
    ends = [float(at) for at in re.findall(r'class="margin" x1="([\d.]+)"', chart)]
    zero = float(re.search(r'class="axis" x1="([\d.]+)"', chart)[1])
    assert len(ends) == 2 and (zero - ends[0]) / (ends[1] - zero) == pytest.approx(20 / 25, abs=0.05)
    text = page({**findings(), "studies": [study]})
    assert "Dashed: the margin of 25 %." in text and "a ratio certainly between 1 / 1.25 and 1.25." in text


def test_a_pair_in_the_other_direction_is_the_inverse_ratio():
    study = perplexities(family="pairs")
    table = pairs_table(study, choose_units(study), assign_styles([study]))
    difference = study["comparison"]["arms"]["Rotary"]["difference"]
    assert f"−{abs(difference):.1f} ▲" in table and f"+{reverse_ratio(difference):.1f} ▼" in table
    assert "row over column in %" in table
    assert (1 + difference / 100) * (1 + reverse_ratio(difference) / 100) == pytest.approx(1)


def test_baselines_of_a_plot_of_ratios_are_ratios():
    (line,) = shift_to_ratios([BaselineLine("chance", {"test": 30.0, "2x": 1.0})], "test", 20.0)
    assert line == BaselineLine("chance", {"test": pytest.approx(50.0)})

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
from whence.report.comparison.line_charts import length_chart
from whence.report.comparison.sentences import claim_sentences
from whence.report.comparison.tables import lengths_table, pairs_table, results_table
from whence.report.comparison.units import choose_units, difference_unit, reverse_ratio, sort_best_first
from whence.report.formatting import format_number
from whence.statistics import summary


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
    units = choose_units(study)
    assert f"−{abs(arm['difference']):.{units.difference_decimals}f}" in table and ">%</th>" in table
    text = page({**findings(), "studies": [study]})
    assert (
        "Difference to none in % of perplexity" in text and "differences of logarithms, shown as ratios in %," in text
    )


def explode(study):
    """The study with values of one arm that vary by many powers of ten."""
    for arm in study["arms"]:
        if arm["name"] == "Alibi":
            powers = (3, 36, 5, 20, 40, 9)
            for split in arm["values"]:
                arm["values"][split] = {str(seed): 1.7 * 10.0**power for seed, power in enumerate(powers)}
    decision = {"perplexity_scale": "log", "margin": 25.0}
    study["comparison"] = compare_rows(ARMS, study["arms"], "perplexity", 6, **decision)
    return study


def test_claim_and_table_have_the_same_geometric_means():
    study = explode(perplexities())
    units, arm = choose_units(study), study["comparison"]["arms"]["Alibi"]
    own, baseline = (values_of(study, name).values() for name in ("Alibi", ARMS[0]))
    expected = geometric_mean(own)
    assert arm["summary"]["mean"] == pytest.approx(expected) and arm["means"][0] == pytest.approx(expected)
    assert study["comparison"]["baseline_summary"]["mean"] == pytest.approx(geometric_mean(baseline))
    logs = summary([math.log(value) for value in own]).interval
    interval = arm["summary"]["interval"]
    assert 0 < interval["low"] == pytest.approx(math.exp(logs.low)) and interval["high"] == pytest.approx(
        math.exp(logs.high)
    )
    shown = format_number(expected, units.decimals)
    table = results_table(study, units, assign_styles([study]))
    assert f">{shown}<" in table and f">{format_number(interval['low'], units.decimals)} to " in table
    assert f">{shown}<br>" in lengths_table(study, units)
    assert f"Alibi at 17 tokens: {shown}" in length_chart(study, units, assign_styles([study]))
    assert sort_best_first(study)[-1]["name"] == "Alibi"
    assert "Means are geometric." in page({**findings(), "studies": [study]})
    study["comparison"] = None  # such as before the last seeds: the means stay geometric
    study["spec"] = {"decision": {"perplexity_scale": "log"}}
    table = results_table(study, choose_units(study), assign_styles([study]))
    assert f">{shown}<" in table and "of the geometric mean over seeds" in table


def test_the_arm_with_the_lower_geometric_mean_is_better():
    study = perplexities()
    for name, values in (("Rotary", (1.1, 1.1, 1.1, 1.1, 1.1, 900.0)), ("Alibi", (30.0,) * 6)):
        for arm in study["arms"]:
            if arm["name"] == name:
                arm["values"]["test"] = {str(seed): value for seed, value in enumerate(values)}
    names = [arm["name"] for arm in sort_best_first(study)]
    assert names.index("Rotary") < names.index("Alibi")
    study["comparison"]["scale"] = "value"
    names = [arm["name"] for arm in sort_best_first(study)]
    assert names.index("Alibi") < names.index("Rotary")


def test_a_sentence_has_one_format_of_numbers():
    study = explode(perplexities())
    for name, arm in study["comparison"]["arms"].items():  # as if claimed
        arm["kind"] = "worse" if name == "Alibi" else arm["kind"]
    (sentence,) = (one for one in claim_sentences(study) if one.startswith("Alibi "))
    assert sentence.count(" × 10") == 2 and "e+" not in sentence
    assert "e+" not in study["comparison"]["arms"]["Alibi"]["verdict"]


def test_constant_baselines_are_ratios_to_the_geometric_mean():
    study = perplexities()
    row = next(arm for arm in study["arms"] if arm["name"] == ARMS[0])["values"]["test"]
    row.update({"0": 400.0, "1": 4.0})
    study["comparison"] = compare_rows(ARMS, study["arms"], "perplexity", 6, perplexity_scale="log")
    level = geometric_mean(row.values()) * 1.1  # a constant answer whose ratio is 10 %
    study["baselines"] = [
        {"name": "chance", "kind": "constant", "about": "", "splits": {"test": {"perplexity": level}}}
    ]
    chart = forest_plot(study, choose_units(study), assign_styles([study]), set())
    at = float(re.search(r'class="reference"[^>]*x1="([\d.]+)"', chart)[1])
    zero = float(re.search(r'class="axis" x1="([\d.]+)"', chart)[1])
    ends, grid = (
        re.findall(pattern, chart) for pattern in (r'class="tick"[^>]*>\+(\d+)<', r'class="grid" x1="([\d.]+)"')
    )
    per_cent = (float(grid[-1]) - zero) / float(ends[-1])
    assert at - zero == pytest.approx(10 * per_cent, abs=0.11)  # coordinates have one decimal


@pytest.mark.parametrize(
    ("margin", "spread", "decimals"), [(0.1, 10.0, 2), (None, 10.0, 1), (5.0, 10.0, 1), (None, 0.02, 3), (5.0, 0.02, 3)]
)
def test_differences_have_the_digits_of_the_margin_and_of_the_intervals(margin, spread, decimals):
    study = perplexities()
    study["comparison"]["margin"] = margin
    for arm in study["comparison"]["arms"].values():
        arm["corrected_interval"] |= {"low": arm["difference"] - spread, "high": arm["difference"] + spread}
    assert choose_units(study).difference_decimals == decimals


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
    decimals = choose_units(study).difference_decimals
    assert f"−{abs(difference):.{decimals}f} ▲" in table and f"+{reverse_ratio(difference):.{decimals}f} ▼" in table
    assert "row over column in %" in table
    assert (1 + difference / 100) * (1 + reverse_ratio(difference) / 100) == pytest.approx(1)


def test_baselines_of_a_plot_of_ratios_are_ratios():
    (line,) = shift_to_ratios([BaselineLine("chance", {"test": 30.0, "2x": 1.0})], "test", 20.0)
    assert line == BaselineLine("chance", {"test": pytest.approx(50.0)})

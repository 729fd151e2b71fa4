"""Verdicts in words: one text with and without the name, the look of the claim, needed seeds, no difference."""

from dataclasses import replace

import pytest

from whence.statistics import AnalysisPlan, Contrast, Interval
from whence.statistics.verdict_texts import describe_contrast, describe_verdict

PLAN = AnalysisPlan(baseline="none", unit="points", margin=1.0, looks=(3, 5))
BETTER = Contrast("rotary", "none", 5.0, Interval(4.75, 5.25, 0.95), 0.00013, "better", 5, (), None, look=2)
UNDECIDED = replace(BETTER, estimate=-0.5, p=0.4, verdict="undecided", look=None, seeds_needed=4)


@pytest.mark.parametrize(
    "terms, short, long",
    [
        ({}, "better than none by 5 points (p = 0.00013)", "(4.75 to 5.25, p = 0.00013, 5 seeds)"),
        ({"estimate": -5.0, "verdict": "worse"}, "worse than none by 5 points (p = 0.00013)", "5 seeds)"),
        ({"look": 1}, "(p = 0.00013, claimed at the look after 3 seeds)", "claimed at the look after 3 seeds"),
        ({"look": 1, "seeds": 3, "note": "later"}, "(p = 0.00013, later)", "3 seeds, later)"),
        ({"missing": (1, 2)}, "better than none by 5 points (p", "5 seeds, without seeds 1 and 2)"),
        ({"verdict": "equivalent"}, "equivalent to none within 1 points", "(4.75 to 5.25, p"),
    ],
)
def test_claims(terms, short, long):
    contrast = replace(BETTER, **terms)
    assert short in describe_verdict(contrast, PLAN)
    sentence = describe_contrast(contrast, PLAN)
    assert sentence.startswith(f"rotary is {contrast.verdict} ") and long in sentence
    assert sentence.partition(" (")[0] == f"rotary is {describe_verdict(contrast, PLAN).partition(' (')[0]}"


@pytest.mark.parametrize(
    "terms, text",
    [
        ({}, "undecided: 0.5 points below none so far (p = 0.4); about 4 more seeds would probably decide"),
        ({"estimate": 0.5, "seeds_needed": 1}, "0.5 points above none so far (p = 0.4); about 1 more seed would"),
        ({"estimate": 0.0}, "undecided: equal to none so far (p = 0.4)"),
        ({"seeds_needed": None}, "more than 1000 seeds would be needed"),
        ({"interval": None, "seeds_needed": None, "note": "no variance"}, "none so far (p = 0.4, no variance)"),
        (
            {"estimate": None, "interval": None, "p": None, "note": "no seeds"},
            "undecided: not compared with none (no seeds)",
        ),
    ],
)
def test_undecided(terms, text):
    contrast = replace(UNDECIDED, **terms)
    assert text in describe_verdict(contrast, PLAN)
    assert describe_contrast(contrast, PLAN).startswith("rotary is undecided")

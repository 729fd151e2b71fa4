"""Corrections for several tests: against their definitions, and what is refused."""

import numpy as np
import pytest
from error_messages import check_error
from hypothesis import given, settings
from hypothesis import strategies as st

from whence.statistics import bonferroni, holm


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1), max_size=8))
def test_corrections(ps):
    assert [bonferroni(p, 4) for p in ps] == [min(1, 4 * p) for p in ps]
    corrected = holm(ps)
    assert all(p <= c <= bonferroni(p, len(ps)) for p, c in zip(ps, corrected, strict=True))
    order = np.argsort(ps, kind="stable")
    steps = [min(1, ps[place] * (len(ps) - rank)) for rank, place in enumerate(order)]
    assert [corrected[place] for place in order] == list(np.maximum.accumulate(steps)) if ps else corrected == []


def test_holm_of_a_known_case():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(
    "call, text",
    [
        (
            lambda: bonferroni(1.2, 3),
            "bonferroni(p) got 1.2, but a p-value lies between 0 and 1; pass the p of a test.",
        ),
        (
            lambda: bonferroni(0.2, 0),
            "bonferroni(m) got 0, but m is a whole number of at least 1; count the comparisons.",
        ),
        (
            lambda: holm([0.2, None]),
            "holm(ps[1]) got None, but a p-value lies between 0 and 1; pass the p of a test.",
        ),
    ],
)
def test_errors(call, text):
    check_error(call, text)

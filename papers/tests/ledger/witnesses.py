"""Computations of the ledger, to be held against another way by the tests of claims."""

import math

import pytest

from whence_papers.ledger.computations import COMPUTATIONS


def witness(name):
    """A computation that a test holds against another way."""
    return COMPUTATIONS[name]


def softmax(scores):
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    return [power / sum(powers) for power in powers]


def close(figures, expected, tolerance=1e-9):
    assert figures == pytest.approx(expected, rel=tolerance, abs=tolerance)

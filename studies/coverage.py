"""Coverage against saying words again: the LSTM pointer-generator on generated texts, with and without."""

from whence.experiments import Experiment
from whence.experiments.coverage import COVERAGE


def experiments() -> list[Experiment]:
    return [COVERAGE]

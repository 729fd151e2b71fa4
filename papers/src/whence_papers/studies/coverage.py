"""Coverage against saying words again: the LSTM pointer-generator on generated texts, with and without."""

from whence.lab.experiment import Experiment
from whence_papers.pointer.coverage import COVERAGE


def experiments() -> list[Experiment]:
    return [COVERAGE]

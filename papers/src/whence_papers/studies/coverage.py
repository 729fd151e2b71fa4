"""Coverage against repetition: the LSTM pointer-generator on synthetic texts, with and without coverage."""

from whence.lab.experiment import Experiment
from whence_papers.pointer.coverage import COVERAGE


def experiments() -> list[Experiment]:
    return [COVERAGE]

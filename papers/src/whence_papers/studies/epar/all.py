"""The four experiments of the EPAR framework, one after the other."""

from whence.lab.experiment import Experiment
from whence_papers.epar import experiments as epar


def experiments() -> list[Experiment]:
    return [*epar.ALL]

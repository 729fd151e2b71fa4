"""All experiments of the EPAR framework."""

from whence.lab.experiment import Experiment
from whence_papers.epar import experiments as epar


def experiments() -> list[Experiment]:
    return [*epar.ALL]

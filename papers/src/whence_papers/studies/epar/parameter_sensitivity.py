"""Experiment 3 of the EPAR framework: alpha, beta and gamma, basic against enhanced."""

from whence.lab.experiment import Experiment
from whence_papers.epar import experiments as epar


def experiments() -> list[Experiment]:
    return [epar.PARAMETER_SENSITIVITY]

"""Experiment 2 of the EPAR framework: the position of maximum benefit, its consistency and ranking."""

from whence.lab.experiment import Experiment
from whence_papers.epar import experiments as epar


def experiments() -> list[Experiment]:
    return [epar.OPTIMAL_POSITION]

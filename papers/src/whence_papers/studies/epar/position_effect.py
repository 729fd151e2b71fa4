"""Experiment 1 of the EPAR framework: the position effect, its properties, and its effect on attention."""

from whence.lab.experiment import Experiment
from whence_papers.epar import experiments as epar


def experiments() -> list[Experiment]:
    return [epar.POSITION_EFFECT]

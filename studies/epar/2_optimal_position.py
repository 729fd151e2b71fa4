"""Experiment 2 of the EPAR framework: the position of maximum benefit, its consistency and ranking."""

from whence.experiments import Experiment, epar


def experiments() -> list[Experiment]:
    return [epar.OPTIMAL_POSITION]

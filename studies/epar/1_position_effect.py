"""Experiment 1 of the EPAR framework: the position effect, its properties, and what it does to attention."""

from whence.experiments import Experiment, epar


def experiments() -> list[Experiment]:
    return [epar.POSITION_EFFECT]

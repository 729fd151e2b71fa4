"""Experiment 3 of the EPAR framework: alpha, beta and gamma, basic against enhanced."""

from whence.experiments import Experiment, epar


def experiments() -> list[Experiment]:
    return [epar.PARAMETER_SENSITIVITY]

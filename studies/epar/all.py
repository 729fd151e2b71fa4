"""The four experiments of the EPAR framework, one after the other."""

from whence.experiments import Experiment, epar


def experiments() -> list[Experiment]:
    return [*epar.ALL]

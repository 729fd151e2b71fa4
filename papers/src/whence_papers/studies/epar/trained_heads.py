"""The heads of the EPAR framework's experiments 1 to 3, trained on a task with a known answer."""

from whence.lab.experiment import Experiment
from whence_papers.epar import experiments as epar


def experiments() -> list[Experiment]:
    return [epar.TRAINED_HEADS]

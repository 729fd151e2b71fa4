"""Experiment 4 of the EPAR framework: attention that adapts to task and content, by terms on keys and per row."""

from whence.lab.experiment import Experiment
from whence_papers.epar import experiments as epar


def experiments() -> list[Experiment]:
    return [epar.ADAPTIVE_ATTENTION]

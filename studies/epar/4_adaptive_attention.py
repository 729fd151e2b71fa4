"""Experiment 4 of the EPAR framework: attention that adapts to task and content, on keys and per row."""

from whence.experiments import Experiment, epar


def experiments() -> list[Experiment]:
    return [epar.ADAPTIVE_ATTENTION]

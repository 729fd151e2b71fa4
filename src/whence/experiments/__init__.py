"""Experiments of the sources, done again: each computes its numbers into one record and draws everything from that."""

from whence.experiments.experiment import Experiment, perform

__all__ = ["Experiment", "perform"]

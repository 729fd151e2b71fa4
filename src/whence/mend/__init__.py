"""Interventions: changes to a pretrained model for the length of a ``with`` block, such as cures for positional bias."""

from whence.mend.catalogue import CURES
from whence.mend.cure import Cure
from whence.mend.log_n import LogN
from whence.mend.parallel_windows import ParallelWindows
from whence.mend.pine import Pine
from whence.mend.protocol import AttentionTemperature, Intervention, identify_intervention, load_intervention

__all__ = [
    "CURES",
    "AttentionTemperature",
    "Cure",
    "Intervention",
    "LogN",
    "ParallelWindows",
    "Pine",
    "identify_intervention",
    "load_intervention",
]

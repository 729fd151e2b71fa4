"""Interventions: changes to a pretrained model for the length of a ``with`` block, such as cures for positional bias."""

from whence.mend.buckets import AttentionBuckets
from whence.mend.calibration import AttentionCalibration
from whence.mend.catalogue import CURES
from whence.mend.cure import Cure
from whence.mend.dual_chunk import DualChunk
from whence.mend.in2 import IN2
from whence.mend.log_n import LogN
from whence.mend.ms_poe import MsPoE
from whence.mend.parallel_windows import ParallelWindows
from whence.mend.pine import Pine
from whence.mend.protocol import AttentionTemperature, Intervention, identify_intervention, load_intervention
from whence.mend.reorder import ReorderDocuments
from whence.mend.scale_channel import ScaleChannel
from whence.mend.self_extend import SelfExtend
from whence.mend.stable_mask import StableMaskCure
from whence.mend.string_positions import StringPositions

__all__ = [
    "AttentionCalibration",
    "ReorderDocuments",
    "ScaleChannel",
    "CURES",
    "AttentionTemperature",
    "Cure",
    "DualChunk",
    "Intervention",
    "LogN",
    "ParallelWindows",
    "Pine",
    "MsPoE",
    "SelfExtend",
    "StableMaskCure",
    "StringPositions",
    "AttentionBuckets",
    "IN2",
    "identify_intervention",
    "load_intervention",
]

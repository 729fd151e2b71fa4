"""The built-in cures by name, in the order of tables."""

from __future__ import annotations

from whence.mend.buckets import AttentionBuckets
from whence.mend.calibration import AttentionCalibration
from whence.mend.cure import Cure
from whence.mend.dual_chunk import DualChunk
from whence.mend.in2 import IN2
from whence.mend.log_n import LogN
from whence.mend.ms_poe import MsPoE
from whence.mend.parallel_windows import ParallelWindows
from whence.mend.pine import Pine
from whence.mend.reorder import ReorderDocuments
from whence.mend.scale_channel import ScaleChannel
from whence.mend.self_extend import SelfExtend
from whence.mend.stable_mask import StableMaskCure
from whence.mend.string_positions import StringPositions

CLASSES: tuple[type[Cure], ...] = (
    ScaleChannel,
    AttentionCalibration,
    ReorderDocuments,
    LogN,
    MsPoE,
    ParallelWindows,
    Pine,
    SelfExtend,
    DualChunk,
    StringPositions,
    StableMaskCure,
    AttentionBuckets,
    IN2,
)  # fmt: skip

CURES: dict[str, type[Cure]] = {kind.name: kind for kind in CLASSES}

"""The built-in cures by name, in the order of tables."""

from __future__ import annotations

from whence.mend.cure import Cure
from whence.mend.log_n import LogN
from whence.mend.parallel_windows import ParallelWindows
from whence.mend.pine import Pine

CLASSES: tuple[type[Cure], ...] = (
    LogN,
    ParallelWindows,
    Pine,
)  # fmt: skip

CURES: dict[str, type[Cure]] = {kind.name: kind for kind in CLASSES}

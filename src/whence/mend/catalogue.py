"""The built-in cures by name, in the order of tables."""

from __future__ import annotations

from whence.mend.cure import Cure
from whence.mend.log_n import LogN

CLASSES: tuple[type[Cure], ...] = (
    LogN,
)  # fmt: skip

CURES: dict[str, type[Cure]] = {kind.name: kind for kind in CLASSES}

"""whence: what position does to attention.

Write how position shapes attention once, as a small differentiable function of distance; ``attend`` runs it the same in
training and in cached decoding, alone or combined.
"""

import importlib
from typing import TYPE_CHECKING, Any

from whence.attention import (
    Attention,
    Backend,
    Explanation,
    KVCache,
    attend,
    explain,
    register_backend,
    without_embedding,
)
from whence.errors import MissingExtra, WhenceError
from whence.position import Position, Rows, Sum, catalogue
from whence.position.catalogue import *  # noqa: F403

if TYPE_CHECKING:
    from whence.checks import CheckFailed, Report, check
    from whence.drawing import show

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``check``, ``show`` and ``hf`` are loaded when they are first used, so that importing whence loads torch alone."""
    if name in ("check", "CheckFailed", "Report"):
        from whence import checks

        return getattr(checks, name)
    if name == "show":
        from whence.drawing import show

        return show
    if name == "hf":
        return importlib.import_module("whence.hf")
    raise AttributeError(f"module 'whence' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Attention", "Backend", "CheckFailed", "Explanation", "KVCache", "MissingExtra", "Position", "Report", "Rows", "Sum",
    "WhenceError", "attend", "check", "explain", "register_backend", "show", "without_embedding",
]  # fmt: skip
__all__ += catalogue.__all__

"""whence: position in transformer attention.

A position mechanism is a small differentiable function of distance, written once. ``attend`` computes it identically in
training and in cached decoding, on every backend, alone or in a sum.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

with warnings.catch_warnings():  # torch warns at import if NumPy is absent; whence does not need it
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch as _torch  # noqa: F401

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
from whence.errors import MissingExtra, NonFiniteHook, UnknownArgument, WhenceError
from whence.position import CoordinateTable, DistanceTable, Position, Rows, Sum, catalogue, from_score_mod
from whence.position.catalogue import *  # noqa: F403

if TYPE_CHECKING:
    from whence.checks import CheckFailed, Report, check
    from whence.lab.comparison import Comparison, compare
    from whence.plotting import show

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Load ``check``, ``compare``, ``show`` and ``hf`` on first use, so that ``import whence`` imports torch alone."""
    if name in ("check", "CheckFailed", "Report"):
        from whence import checks

        return getattr(checks, name)
    if name in ("compare", "Comparison"):
        from whence.lab import comparison

        return getattr(comparison, name)
    if name == "show":
        from whence.plotting import show

        return show
    if name == "hf":
        return importlib.import_module("whence.hf")
    text = f"module 'whence' has no attribute {name!r}"
    if not name.startswith("_"):
        from whence.plugins import did_you_mean

        text = "; ".join(filter(None, (text, did_you_mean(name, __all__, ""))))
    raise AttributeError(text)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Attention", "Backend", "CheckFailed", "Comparison", "CoordinateTable", "DistanceTable", "Explanation", "KVCache", "MissingExtra", "NonFiniteHook", "Position",
    "Report", "Rows", "Sum", "UnknownArgument", "WhenceError", "attend", "check", "compare", "explain", "from_score_mod", "register_backend", "show", "without_embedding",
]  # fmt: skip
__all__ += catalogue.__all__

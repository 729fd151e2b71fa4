"""scipy, of the extra ``lab``, loaded when one of its parts is first needed."""

from __future__ import annotations

import importlib
from typing import Any

from whence.errors import missing_extra


def scipy(feature: str, part: str) -> Any:
    """A part of scipy by its name."""
    try:
        return importlib.import_module(f"scipy.{part}")
    except ImportError as error:
        raise missing_extra(f"whence.probe.arrays.{feature}", "lab", "scipy") from error

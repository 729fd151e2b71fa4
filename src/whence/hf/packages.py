"""transformers and its companions are imported when something here is used, and named when they are absent."""

from __future__ import annotations

import importlib
from typing import Any

from whence.errors import missing_extra


def needed(module: str, feature: str) -> Any:
    """A module of the extra ``hf``, imported now."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise missing_extra(feature, "hf", module.split(".")[0]) from None

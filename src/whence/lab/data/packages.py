"""Packages that only some data needs are imported when that data is asked for, and named when they are absent."""

from __future__ import annotations

import importlib
from typing import Any

from whence.errors import missing_extra


def needed(module: str, feature: str) -> Any:
    """An optional module, imported now.

    >>> needed("json", "nothing").loads("1")
    1
    """
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise missing_extra(feature, "lab", package) from None

"""Quantised models: what their arithmetic does across tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def rows_apart(model: nn.Module) -> Iterator[None]:
    """Inside, no row of a batch has an influence on how another is rounded.

    The 8-bit layers of bitsandbytes multiply a column in half precision when one token's entry in it is above a threshold.
    So a later token changes the rounding of earlier ones, which a proof that no token sees the future must not count.
    """
    states: list[Any] = [getattr(module, "state", None) for module in model.modules()]
    found = [(state, state.threshold) for state in states if isinstance(getattr(state, "threshold", None), float)]
    try:
        for state, _ in found:
            state.threshold = 0.0
        yield
    finally:
        for state, threshold in found:
            state.threshold = threshold

"""``still``: a model without dropout for the length of a block, and afterwards again as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block. Every module gets its own mode back, for some may have been frozen by hand.

    >>> model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5).eval())
    >>> with still(model):
    ...     [m.training for m in model.modules()]
    [False, False, False]
    >>> [m.training for m in model.modules()]
    [True, True, False]
    """
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training

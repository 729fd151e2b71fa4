"""No position at all (Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023, arXiv 2305.19466).

A causal model without position encoding can still learn order from its mask. This is the baseline of comparisons.
"""

from __future__ import annotations

from whence.position.base import Position


class NoPosition(Position):
    """Changes nothing.

    >>> NoPosition()
    NoPosition()
    """

"""No position at all (Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023, arXiv 2305.19466).

A causal model without any encoding still learns order from its mask; this is the baseline that every mechanism meets.
"""

from __future__ import annotations

from whence.position.base import Position


class NoPosition(Position):
    """Leaves attention as it is.

    >>> NoPosition()
    NoPosition()
    """

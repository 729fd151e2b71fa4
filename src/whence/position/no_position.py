"""No position at all (Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023, arXiv 2305.19466).

A causal model without position encoding can still learn order from its mask. This is the baseline of comparisons.

Use it as the baseline of every comparison, and in some layers of models whose other layers have a position. An encoder
without any position does not know the order of its tokens.
"""

from __future__ import annotations

from whence.position.base import Position


class NoPosition(Position):
    """Changes nothing.

    >>> NoPosition()
    NoPosition()
    """

"""``show``: one figure of what a mechanism does, over distance, over queries and keys, and to an attention pattern."""

from whence.drawing.figure import show

__all__ = ["show"]

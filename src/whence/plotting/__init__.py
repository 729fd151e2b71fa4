"""``show`` plots what a mechanism does: over distance, over queries and keys, and to an attention pattern."""

from whence.plotting.figure import show

__all__ = ["show"]

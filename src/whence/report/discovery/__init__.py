"""The HTML report of a discovery: learned curves with bands, the formula over them, the ranking, and the comparison."""

from whence.report.discovery.page import page

__all__ = ["page"]

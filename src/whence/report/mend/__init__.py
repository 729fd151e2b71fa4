"""The page of a trial of cures."""

from whence.report.mend.page import page

__all__ = ["page"]

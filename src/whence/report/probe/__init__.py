"""The page of a probe: findings of ``whence.probe`` go in as plain JSON, one self-contained HTML page comes out."""

from whence.report.probe.page import page

__all__ = ["page"]

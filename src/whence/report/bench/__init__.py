"""The pages of one benchmarked model and of two."""

from whence.report.bench.page import comparison_page, page

__all__ = ["comparison_page", "page"]

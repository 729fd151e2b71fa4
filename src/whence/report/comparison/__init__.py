"""The HTML report of a comparison: findings go in as plain JSON, one self-contained page comes out.

    from whence.report.comparison import page
    Path("comparison.html").write_text(page(findings), encoding="utf-8")

The page tests and decides nothing. Verdicts, intervals and p values come from ``whence.statistics``; the page rounds,
sorts and plots them. The only number it computes is the mean of the seeds.
"""

from whence.report.comparison.page import page

__all__ = ["page"]

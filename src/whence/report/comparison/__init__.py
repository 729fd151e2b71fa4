"""The page of a comparison: findings go in as plain JSON, one self-contained HTML page comes out.

    from whence.report.comparison import page
    Path("comparison.html").write_text(page(findings), encoding="utf-8")

Nothing is tested or decided here. The verdicts, intervals and p values are those of ``whence.statistics``; the page
only rounds, sorts and draws, and the one number it makes itself is the plain mean of seeds under a thick line.
"""

from whence.report.comparison.page import page

__all__ = ["page"]

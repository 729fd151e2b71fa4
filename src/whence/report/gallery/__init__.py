"""The gallery: every mechanism with sliders for its arguments, on one self-contained HTML page.

    python -m whence.report.gallery --out build/gallery.html

Python evaluates each mechanism at a grid of settings and exports tables. The page interpolates between them.
"""

from whence.report.gallery.page import write_gallery

__all__ = ["write_gallery"]

"""Studies with the same arms under several conditions: one figure and one table of where the baseline wins."""

from whence_papers.epar.conditions.figure import (
    Cell,
    Row,
    are_comparable,
    build_rows,
    draw_figure,
    format_csv,
    write_figure,
)

__all__ = ["Cell", "Row", "are_comparable", "build_rows", "draw_figure", "format_csv", "write_figure"]

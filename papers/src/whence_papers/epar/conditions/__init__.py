"""Many studies with the same arms, each under another condition: one figure and one table of where the baseline wins."""

from whence_papers.epar.conditions.figure import figure, write_figure
from whence_papers.epar.conditions.rows import Cell, Row, cells_as_csv, comparable, rows

__all__ = ["Cell", "Row", "cells_as_csv", "comparable", "figure", "rows", "write_figure"]

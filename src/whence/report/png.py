"""Write a figure as a PNG file, atomically."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whence.records import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_png(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with replace_file(path) as part:
        FigureCanvasAgg(figure).print_png(str(part))

"""A drawn figure as a PNG file, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_png(drawn: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        FigureCanvasAgg(drawn).print_png(str(part))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)

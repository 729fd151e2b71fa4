"""Image files: check an output path before the work starts, and write a figure as PNG atomically."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from whence.errors import require_package, usage_error
from whence.records import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def require_image_path(path: Path, others: Sequence[str] = ()) -> None:
    """Reject a path whose extension is not that of an image or one of ``others``, or whose folder does not exist."""
    images = require_package("matplotlib.backend_bases", "drawing", "plot").FigureCanvasBase.get_supported_filetypes()
    endings = [*others, *sorted(images)]
    if path.suffix[1:].lower() not in endings:
        raise usage_error("--out", str(path), f"the extension must be one of {', '.join(endings)}", "change it")
    if path.is_dir() or not path.parent.is_dir():
        raise usage_error(
            "--out", str(path), "it must be a file in an existing folder", "create the folder, or name another"
        )


def write_png(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with replace_file(path) as part:
        FigureCanvasAgg(figure).print_png(str(part))

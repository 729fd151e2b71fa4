"""Where a command may put its picture, asked before it works."""

from __future__ import annotations

from pathlib import Path

from whence.errors import require_package, usage_error


def require_picture(path: Path) -> None:
    """A path whose ending is that of a picture, in a folder that is there."""
    endings = require_package("matplotlib.backend_bases", "drawing", "plot").FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise usage_error("--out", str(path), f"a picture ends in one of {', '.join(sorted(endings))}", "name it so")
    if path.is_dir() or not path.parent.is_dir():
        raise usage_error(
            "--out", str(path), "it is a file in a folder that is there", "make the folder, or name another"
        )

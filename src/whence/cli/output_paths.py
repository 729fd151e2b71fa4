"""Checks of output paths, before a command starts its work."""

from __future__ import annotations

from pathlib import Path

from whence.errors import require_package, usage_error


def require_image_path(path: Path) -> None:
    """Reject a path whose extension is not that of an image, or whose folder does not exist."""
    endings = require_package("matplotlib.backend_bases", "drawing", "plot").FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise usage_error("--out", str(path), f"the extension must be one of {', '.join(sorted(endings))}", "change it")
    if path.is_dir() or not path.parent.is_dir():
        raise usage_error(
            "--out", str(path), "it must be a file in an existing folder", "create the folder, or name another"
        )

"""``python -m whence.report.gallery``: write the gallery."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from whence.report.gallery.page import write_gallery


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m whence.report.gallery",
        description="Write a self-contained HTML page with every mechanism and sliders for its arguments.",
        epilog="example: python -m whence.report.gallery --out build/gallery.html",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/gallery.html"), help="Output file (default: %(default)s)."
    )
    parser.add_argument("--jobs", type=int, default=1, help="Processes that evaluate (default: %(default)s).")
    options = parser.parse_args(arguments)
    start, end = time.monotonic(), "\r" if sys.stderr.isatty() else "\n"

    def progress(done: int, total: int, name: str) -> None:
        left = f", about {(time.monotonic() - start) / done * (total - done):.0f} s left" if done else ""
        print(f"{f'[{done + 1}/{total}] {name}{left}':<72}", end=end, file=sys.stderr, flush=True)

    path = write_gallery(options.out, jobs=options.jobs, progress=progress)
    print(f"{'done':<72}", file=sys.stderr)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""``python tools/explore_screenshots.py [FOLDER]``: write the screenshots of ``whence explore`` into docs/ or another folder.

It needs Chromium and the model smollm2 (``make smollm2``). The pictures are small: few colors, and under ``MAX_BYTES``.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from whence.explore.server import running

CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT = 1280, 860
COLORS = 255
MAX_BYTES = 120_000
TEXT = (
    "The library opens at nine. Maria arrived early and waited outside with a book about lighthouses. When the doors "
    "opened, Maria went to the reading room, sat down by the window and opened the book about"
)


def show_mechanisms(page: Any) -> None:
    """One mechanism with its sliders."""
    written = page.locator("#text-A textarea, #text-A input").first
    written.fill("Epar(beta=2)")
    written.press("Enter")
    page.get_by_role("slider", name="gamma").first.wait_for()
    page.locator("#figures-A svg").first.wait_for()


def show_model(page: Any) -> None:
    """The attention of one head of smollm2, and the next tokens with a cure."""
    page.get_by_role("tab", name="Model").click()
    page.locator("#model-text textarea").fill(TEXT)
    change = page.locator("#change input").first
    change.fill("ms-poe")
    change.press("Enter")
    page.locator("#read").click()
    page.locator("#next .share.other").first.wait_for()
    number = page.locator("#layer input[type=number]")
    number.fill("12")
    number.press("Enter")
    page.locator("#attention").get_by_text("Attention, layer 12").wait_for()


def save_small(png: bytes, path: Path) -> None:
    """Write a picture with few colors."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        small = image.convert("RGB").quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        sys.exit(f"{path} has {path.stat().st_size:,} bytes, more than {MAX_BYTES:,}; show less.")
    print(f"{path} ({path.stat().st_size / 1e3:.0f} kB)")


def main(folder: Path) -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as results, running(Path(results)) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for name, show in (("explore.png", show_mechanisms), ("explore-model.png", show_model)):
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.set_default_timeout(240_000)
            page.goto(address)
            page.locator("#figures-A svg").first.wait_for()
            show(page)
            page.mouse.move(0, 0)
            page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
            page.wait_for_timeout(1500)
            save_small(page.screenshot(), folder / name)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs"))

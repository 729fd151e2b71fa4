"""The report in a browser: no requests or errors, working selectors and legend, and no sideways scrolling on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comparison_findings import findings

from whence.report.comparison import page

CHROMIUM = Path("/usr/bin/chromium")
LONG = "a name so long that no table, legend or chart could ever show it whole " * 2


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "comparison.html"
    path.write_text(page(findings()), encoding="utf-8")
    return path.as_uri()


def open_page(browser: Any, address: str, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """The page, and a list that collects console messages, errors and requests."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab, problems = context.new_page(), []
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda request: None if request.url == address else problems.append(request.url))
    tab.on("requestfailed", lambda request: problems.append(request.url))
    tab.goto(address)
    for maps in tab.query_selector_all(".maps"):
        wait_until_drawn(tab, maps, 1)
    return tab, problems


def wait_until_drawn(tab: Any, maps: Any, times: int) -> None:
    tab.wait_for_function("([root, times]) => Number(root.dataset.drawn) >= times", arg=[maps, times])


def pixels(tab: Any, side: str) -> str:
    return tab.evaluate(f"document.querySelector('canvas[data-side={side}]').toDataURL()")


def test_opens_from_a_file_without_errors_or_requests(browser: Any, address: str) -> None:
    tab, problems = open_page(browser, address)
    assert problems == []
    assert tab.evaluate("document.querySelectorAll('svg.chart').length") == 3 * 4 + 2 * 2 + 2
    assert tab.evaluate("document.compatMode") == "CSS1Compat"


@pytest.mark.parametrize("choice, sides", [("example", "both"), ("layer", "both"), ("head", "both"), ("shade", "both"),
                                          ("left", "left"), ("right", "right")])  # fmt: skip
def test_each_selector_changes_its_pictures_by_keyboard(browser: Any, address: str, choice: str, sides: str) -> None:
    tab, problems = open_page(browser, address)
    before = {side: pixels(tab, side) for side in ("left", "right")}
    tab.focus(f"#{choice}-0")
    tab.keyboard.press("ArrowUp" if choice == "right" else "ArrowDown")  # the right one starts at the last arm
    wait_until_drawn(tab, tab.query_selector(".maps"), 2)
    changed = {side for side in before if pixels(tab, side) != before[side]}
    assert changed == ({"left", "right"} if sides == "both" else {sides}) and problems == []


def test_pointer_and_arrow_keys_read_a_cell_in_both_maps(browser: Any, address: str) -> None:
    tab, problems = open_page(browser, address)
    canvas = tab.query_selector("canvas[data-side=left]")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] / 3, "y": box["height"] / 2})
    assert tab.is_visible("#tooltip")
    tooltip = tab.inner_text("#tooltip")
    assert "query “" in tooltip and "key “" in tooltip and "none: 0." in tooltip and "Epar + Rotary: 0." in tooltip
    tab.mouse.move(1, 1)
    assert tab.is_hidden("#tooltip")
    canvas.focus()
    tab.keyboard.press("ArrowDown")
    assert "query “the” (0)" in tab.inner_text("#tooltip") and "none: 1.000" in tab.inner_text("#tooltip")
    tab.keyboard.press("ArrowDown")
    assert "query “quick” (1)" in tab.inner_text(".readout") and problems == []


def test_legend_highlights_an_arm(browser: Any, address: str) -> None:
    tab, problems = open_page(browser, address)
    tab.focus("#study-0 .key[data-arm='2']")
    tab.keyboard.press("Enter")
    assert tab.get_attribute("#study-0 .key[data-arm='2']", "aria-pressed") == "true"
    tab.wait_for_function("() => getComputedStyle(document.querySelector('#study-0 g[data-arm=\"1\"]')).opacity < 0.2")
    assert tab.evaluate("getComputedStyle(document.querySelector('#study-0 g[data-arm=\"2\"]')).opacity") == "1"
    tab.click("#study-0 .key.all")
    tab.wait_for_function("() => getComputedStyle(document.querySelector('#study-0 g[data-arm=\"1\"]')).opacity == 1")
    assert problems == []


def test_dark_is_dark_and_follows_a_change(browser: Any, address: str) -> None:
    tab, problems = open_page(browser, address, scheme="dark")
    lightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    dark = pixels(tab, "left")
    assert tab.evaluate(lightness) < 120
    tab.emulate_media(color_scheme="light")
    assert tab.evaluate(lightness) > 700
    tab.wait_for_function("dark => document.querySelector('canvas[data-side=left]').toDataURL() !== dark", arg=dark)
    assert problems == []


@pytest.mark.parametrize("names", [None, ("none", LONG, LONG.replace(" ", "_"), *map(str, range(18)))])
def test_a_phone_never_scrolls_sideways(
    browser: Any, address: str, names: tuple[str, ...] | None, tmp_path: Path
) -> None:
    if names is not None:
        path = tmp_path / "many.html"
        path.write_text(page(findings(names)), encoding="utf-8")
        address = path.as_uri()
    tab, problems = open_page(browser, address, width=390)
    tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.evaluate("document.body.scrollWidth") <= 390 and problems == []

"""The page in a real browser: every tab, wide and narrow, by keyboard, with errors, and without a network."""

from pathlib import Path

import pytest

from whence.report.html_page import render_page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    pytest.importorskip("gradio", reason="gradio is not installed")
    from whence.explore.server import running

    results = tmp_path_factory.mktemp("results")
    (results / "report.html").write_text(render_page("A small study", "<p>found nothing</p>", "today"))
    with running(results) as started:
        yield started


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def page(address, browser):
    """A page that may reach its own server only; ``outside`` and ``failures`` record what went wrong."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(180_000)  # the first reading imports transformers, beside everything else that CI runs
    page.outside, page.failures = [], []
    page.on("pageerror", lambda error: page.failures.append(str(error)))

    def allow_own(route):
        if route.request.url.startswith(address):
            route.continue_()
        else:
            page.outside.append(route.request.url)
            route.abort()

    page.route(lambda url: not url.startswith(("data:", "blob:")), allow_own)
    page.goto(address)
    page.locator("#figures-A svg").first.wait_for()
    return page


def written(page, name="A"):
    return page.locator(f"#text-{name} textarea, #text-{name} input").first


def wait_for_text(page, part, name="A"):
    selector = f"#text-{name} textarea, #text-{name} input"
    page.wait_for_function("([s, part]) => document.querySelector(s).value.includes(part)", arg=[selector, part])


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def test_a_slider_moved_by_keyboard_changes_text_and_curve(page):
    scale = page.get_by_role("slider", name="scale").first
    scale.wait_for()
    before = page.locator("#figures-A svg").first.get_attribute("aria-label")
    scale.focus()
    page.keyboard.press("ArrowRight")
    wait_for_text(page, "Alibi(scale=1.02)")
    page.wait_for_function(
        "before => document.querySelector('#figures-A svg').getAttribute('aria-label') !== before", arg=before
    )


def test_a_sum_typed_and_an_error_as_a_sentence(page):
    written(page).fill("Alibi(scale=-1)")
    written(page).press("Enter")
    alert = page.locator("#figures-A").get_by_role("alert")
    alert.wait_for()
    assert "scale" in alert.inner_text() and "-1" in alert.inner_text() and "Traceback" not in page.content()
    written(page).fill("rotary + Epar(beta=2)")
    written(page).press("Enter")
    page.get_by_role("slider", name="gamma").first.wait_for()
    assert page.locator("#figures-A").get_by_role("alert").count() == 0
    assert page.locator("#mechanism-A").inner_text().split()[-2:] == ["Rotary", "Epar"]


def test_an_impossible_number_is_moved_into_its_range(page):
    heads = page.get_by_label("number input for Heads")
    for typed in ("0", "", "4"):
        heads.fill(typed)
        heads.press("Enter")
        page.wait_for_timeout(300)
    page.wait_for_function("document.querySelector('#head-in-maps input[type=range]').max === '3'")
    gamma = page.get_by_role("slider", name="gamma").first
    gamma.focus()
    page.keyboard.press("ArrowRight")
    wait_for_text(page, "gamma=")
    assert "Could not" not in page.content()


def test_two_stand_side_by_side(page):
    page.get_by_label("Compare two").check()
    page.locator("#figures-B svg").first.wait_for()
    left, right = (page.locator(f"#figures-{name}").bounding_box() for name in "AB")
    assert left["x"] + left["width"] <= right["x"] and overflow(page) <= 0
    assert abs(left["y"] - right["y"]) < 2  # figures that are compared begin at the same height
    page.wait_for_function(
        """() => ["A", "B"].map(name => [...document.querySelectorAll(`#figures-${name} .wide text[text-anchor=end]`)]
        .map(text => text.textContent).join()).every((texts, _, all) => texts && texts === all[0])"""
    )
    page.get_by_label("Compare two").uncheck()
    page.locator("#figures-B").wait_for(state="hidden")


def test_ones_own_class_and_the_code(page, tmp_path):
    (tmp_path / "bell.py").write_text(
        "from whence import Position\nclass Bell(Position):\n    def bias(self, distance, length):\n        return -distance.abs()\n"
    )
    page.get_by_role("button", name="Your own class").first.click()
    own = page.locator("#own-A textarea, #own-A input").first
    own.fill(f"{tmp_path}/bell.py:Bell")
    own.press("Enter")
    wait_for_text(page, "bell.py:Bell")
    page.locator("#figures-A").get_by_text("your own mechanism").wait_for()
    page.get_by_role("button", name="Code and ONNX").first.click()
    page.locator("#code-A").get_by_text("build_position").first.wait_for()


def test_it_fits_a_narrow_screen(page):
    page.set_viewport_size({"width": 390, "height": 900})
    assert overflow(page) <= 0
    page.wait_for_timeout(200)  # the tabs are laid out after the page
    assert [one.inner_text() for one in page.get_by_role("tab").all() if one.is_visible()] == [
        "Mechanisms",
        "Model",
        "Results",
    ]
    figures, controls = page.locator("#figures-A").bounding_box(), page.locator("#mechanism-A").bounding_box()
    assert figures["y"] > controls["y"] and figures["width"] > 300
    page.set_viewport_size({"width": 1400, "height": 1000})


def test_a_report_is_shown_and_a_missing_folder_is_a_sentence(page):
    page.get_by_role("tab", name="Results").click()
    frame = page.frame_locator("#report iframe")
    frame.get_by_text("found nothing").wait_for()
    folder = page.locator("#results-folder textarea, #results-folder input").first
    folder.fill("/no/such/folder")
    folder.press("Enter")
    alert = page.locator("#results-message").get_by_role("alert")
    alert.wait_for()
    assert "/no/such/folder" in alert.inner_text() and "Folder" in alert.inner_text()
    for width in (390, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        assert overflow(page) <= 0
    page.get_by_role("tab", name="Mechanisms").click()


def test_a_text_through_a_model_and_an_unknown_model(page):
    page.get_by_role("tab", name="Model").click()
    model = page.locator("#model input").first
    model.fill("/no/such/folder")
    model.press("Enter")
    page.locator("#read").click()
    alert = page.locator("#model-error").get_by_role("alert")
    alert.wait_for()
    assert "/no/such/folder" in alert.inner_text()
    model.fill("tiny random model")
    model.press("Enter")
    assert model.input_value() == "tiny random model"
    page.locator("#read").click()
    alert.wait_for(state="detached")  # the second reading has begun
    page.locator("#attention .arcs svg").wait_for()
    page.locator("#next tbody tr").first.wait_for()
    assert page.locator("#next tbody tr").count() == 8
    assert page.locator("#model-error").get_by_role("alert").count() == 0
    layer = page.get_by_role("slider", name="Layer")
    page.wait_for_function("document.querySelector('#layer input[type=range]').max === '2'")  # the tiny model has three
    layer.focus()
    page.keyboard.press("ArrowRight")
    page.locator("#attention").get_by_text("Attention, layer 1, head 0").wait_for()
    page.locator("#layer input[type=number]").fill("99")  # the range was changed by the reading
    page.locator("#attention").get_by_text("Attention, layer 2, head 0").wait_for()
    assert page.locator(".toast-body").count() == 0
    change = page.locator("#change input").first
    change.fill("pine")
    change.press("Enter")
    alert.wait_for()
    assert "empty line" in alert.inner_text()
    assert page.locator("#attention svg").count() == 0  # figures of another change would belong to the text no more
    for width in (390, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        assert overflow(page) <= 0
    page.get_by_role("tab", name="Mechanisms").click()


def test_nothing_came_from_a_network_and_no_script_failed(page):
    """The last test of the page that the others used."""
    assert page.outside == [] and page.failures == []

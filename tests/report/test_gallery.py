"""The gallery: tables that interpolate to the mechanism's own values, on one small self-contained page with sliders."""

import base64
import json
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
import torch

from whence import Alibi, records
from whence.errors import WhenceError
from whence.plotting.effects import compute_attention, compute_effect, compute_sink
from whence.position.catalogue import CATALOGUE, Entry
from whence.report.gallery import page as module
from whence.report.gallery import write_gallery
from whence.report.gallery.__main__ import main
from whence.report.gallery.exhibits import COMPOSITIONS, HEADS, LENGTH, SLIDERS, even, make_exhibit
from whence.report.gallery.tables import SHORTEST_AXIS, TOLERANCE, build_inputs, compute_tables, measure_error

CHROMIUM = Path("/usr/bin/chromium")
ALL = {exhibit.entry.name: exhibit for exhibit in (*map(make_exhibit, CATALOGUE), *COMPOSITIONS)}
QUICK = tuple(entry for entry in CATALOGUE if entry.name in ("Alibi", "Recency"))


@pytest.mark.parametrize("name", ALL)
def test_sliders_start_at_the_catalogue_and_their_ends_can_be_built(name):
    exhibit = ALL[name]
    torch.manual_seed(0)
    expected, built = exhibit.entry.make(HEADS, 16), exhibit.build(exhibit.start)
    assert repr(built).replace("factor=4,", "factor=4.0,") == repr(expected)
    states = expected.state_dict(), built.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.allclose(states[0][key], states[1][key]) for key in states[0])
    for ends in product(*((0, len(slider.stops) - 1) for slider in exhibit.sliders)):
        exhibit.build(ends)


def test_every_mechanism_with_an_effect_of_its_arguments_has_sliders():
    names = {entry.name for entry in CATALOGUE}
    assert SLIDERS.keys() <= names
    zero = {"FreeTable", "Recency"}  # as initialized
    assert names - SLIDERS.keys() == {
        "NoPosition",
        "Dape",
        "GrapeA",
        "ForgetGate",
        *zero,
    }  # Dape, GrapeA and ForgetGate have choices, not numbers


def unpack(packed):
    """The exported numbers by name, ``[settings, rows, columns]``, read as the page reads them."""
    data, at, tables = zlib.decompress(base64.b64decode(packed["data"])), 0, {}
    settings = 1
    for slider in packed["sliders"]:
        settings *= len(slider["knots"])
    for name, table in packed["tables"].items():
        shape = settings, table["rows"], table["columns"]
        size = settings * table["rows"] * table["columns"]
        planes = torch.tensor(list(data[at : at + table["bytes"] * size])).reshape(table["bytes"], *shape)
        differences = sum(plane * 256**n for n, plane in enumerate(reversed(planes)))
        levels = differences.flatten(1).cumsum(1).cumsum(0).reshape(shape) % 256 ** table["bytes"]
        tables[name] = table["low"] + table["step"] * levels.double()
        at += table["bytes"] * size
    assert at == len(data)
    return tables


def interpolate(packed, table, stops):
    """Linear along every slider."""
    grid = table.reshape(*(len(slider["knots"]) for slider in packed["sliders"]), *table.shape[1:])
    for slider, stop in zip(packed["sliders"], stops, strict=True):
        knots = slider["knots"]
        low = max(n for n in range(len(knots)) if knots[n] <= stop)
        share = 0 if knots[low] == stop else (stop - knots[low]) / (knots[low + 1] - knots[low])
        grid = grid[low] if share == 0 else torch.lerp(grid[low], grid[low + 1], share)
    return grid


def own_values(exhibit, stops, grid):
    """The mechanism's own numbers for what the page draws, with every head."""
    inputs, head = build_inputs(exhibit, stops), grid.head or 0
    without, weights = compute_attention(inputs)
    query, key = torch.tril_indices(LENGTH, LENGTH)
    values = {"attention": weights[head, query, key].log10()[None]}
    half = range(LENGTH // 2, LENGTH)
    ratios = [[(weights[:, q, q - d] / without[q, q - d]).log10() for q in half] for d in range(LENGTH // 2)]
    values["ratio"] = torch.stack([torch.stack(one).mean(0) for one in ratios], 1)
    if "sink" in inputs.position.effects:
        values["sink"] = compute_sink(inputs).share
    if inputs.position.effects == {"sink"}:
        values["matrix"] = (1 - values["sink"])[head, :, None].expand(-1, LENGTH).tril().reshape(1, -1)
    else:
        values["matrix"] = compute_effect(inputs).values[head].nan_to_num(0.0).reshape(1, -1)
    return values


def drawn_matrix(grid, shown):
    """The matrix as the page draws it: its own table, or the effect at the distance of query and key."""
    if "matrix" in shown:
        return shown["matrix"]
    index = torch.arange(LENGTH)
    distance = index[:, None] - index
    effect = shown["effect"][grid.head or 0][distance.clamp(min=grid.first_distance) - grid.first_distance]
    return (effect.tril() if grid.causal else effect).reshape(1, -1)


@pytest.mark.parametrize("name", ["Rotary", "Shaw", "LogTemperature", "Sink", "Alibi + Sink"])
def test_interpolated_tables_equal_the_mechanism(name):
    """Each slider may add TOLERANCE of an axis; half again for curves that are not parabolas between two settings."""
    exhibit = ALL[name]
    grid = compute_tables(exhibit)
    packed = json.loads(json.dumps(module.pack_tables(grid)))
    tables = unpack(packed)
    generator = torch.Generator().manual_seed(1)
    drawn = [
        tuple(int(torch.randint(len(slider.stops), (), generator=generator)) for slider in exhibit.sliders)
        for _ in range(6)
    ]
    default = own_values(exhibit, exhibit.start, grid)
    moving = sum(not slider.discrete for slider in exhibit.sliders)
    for stops in (exhibit.start, *drawn):
        exact = own_values(exhibit, stops, grid)
        shown = {key: interpolate(packed, table, stops) for key, table in tables.items()}
        shown["matrix"] = drawn_matrix(grid, shown)
        for key, values in exact.items():
            quantum = packed["tables"][key if key in tables else "effect"]["step"] / SHORTEST_AXIS[key]
            on_grid = all(stop in slider["knots"] for stop, slider in zip(stops, packed["sliders"], strict=True))
            budget = 0 if on_grid else 1.5 * TOLERANCE * moving
            assert measure_error(key, shown[key], values, default[key]) <= budget + quantum, (stops, key)


def test_the_sliders_export_their_own_texts():
    exhibit = make_exhibit(next(entry for entry in CATALOGUE if entry.name == "Alibi"))
    slider = module.pack_tables(compute_tables(exhibit))["sliders"][0]
    assert "arguments" not in slider  # they are the values
    assert slider["values"][0] == "0" and slider["values"][-1] == "4" and slider["values"][slider["start"]] == "1"
    assert ALL["Kerple, log"].write_code((0, 0)).startswith("Kerple(form='log', r1=[0.0625, 0.1875, ")
    with pytest.raises(WhenceError, match=r"slider of scale.*default, 9"):
        even("scale", 0, 4, 1.0).__class__("scale", (0.0, 1.0), 9.0)


def test_page_is_self_contained_and_escapes(tmp_path):
    odd = Entry("<odd> & name", lambda h, d: Alibi(h), 'an "idea" < 1', "arXiv 0000.00000")
    seen = []
    path = write_gallery(
        tmp_path / "new" / "gallery.html",
        entries=(*QUICK, odd),
        compositions=(),
        progress=lambda done, total, name: seen.append((done, total, name)),
    )
    page = path.read_text(encoding="utf-8")
    assert seen == [(0, 3, "Alibi"), (1, 3, "Recency"), (2, 3, "<odd> & name")]
    assert "<odd>" not in page and "&lt;odd&gt; &amp; name" in page and "Composition</a>" not in page
    text = re.sub(r'"data":"[A-Za-z0-9+/=]+"', "", page)
    assert "http://www.w3.org/2000/svg" in text and text.count("http") == 2  # a name and a header, no address
    assert "url(" not in text and "@import" not in text and "src=" not in text
    anchors = re.findall(r'\bid="([^"]*)"', page)
    assert len(set(anchors)) == len(anchors)
    assert {link.removeprefix("#") for link in re.findall(r'href="([^"]*)"', page)} <= set(anchors)
    assert '<input type="range" id="alibi-scale" min="0" max="60" step="1" value="15">' in page
    assert page.count('type="range"') == 1  # Recency has no slider, nor has a mechanism that no slider is written for
    assert "Alibi(scale=1)" in page and QUICK[1].idea in page


def test_workers_write_the_same_page(tmp_path, monkeypatch):
    threads = []

    def start_threads(jobs, context):
        threads.append(jobs)
        return ThreadPoolExecutor(jobs)

    monkeypatch.setattr(module, "ProcessPoolExecutor", start_threads)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    pages = [
        write_gallery(tmp_path / f"{jobs}.html", entries=QUICK, compositions=(), jobs=jobs).read_text()
        for jobs in (1, 2)
    ]
    assert pages[0] == pages[1] and threads == [2]


def test_a_page_above_the_limit_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 20_000)
    with pytest.raises(WhenceError, match=r"more than 20,000; give sliders a smaller range"):
        write_gallery(tmp_path / "gallery.html", entries=QUICK, compositions=())
    assert list(tmp_path.iterdir()) == []


def test_a_failing_mechanism_leaves_the_old_page(tmp_path):
    path = tmp_path / "gallery.html"
    path.write_text("old")

    def fail(heads, head_dim):
        raise RuntimeError("cannot be built")

    with pytest.raises(RuntimeError, match="cannot be built"):
        write_gallery(path, entries=(Entry("Bad", fail, "", ""),))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_write_leaves_the_old_page(tmp_path, monkeypatch):
    path = tmp_path / "gallery.html"
    path.write_text("old")
    monkeypatch.setattr("whence.records.files.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(WhenceError, match="disk full"):
        records.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_command_prints_the_path(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "compute_tables", lambda exhibit: exhibit)
    monkeypatch.setattr(module, "render_article", lambda exhibit: f"<article>{exhibit.entry.name}</article>")
    out = tmp_path / "page.html"
    assert main(["--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert str(out) in captured.out
    assert f"[{len(ALL)}/{len(ALL)}]" in captured.err and "s left" in captured.err
    text = out.read_text()
    assert all(f"<article>{name}</article>" in text for name in ALL)


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "python -m whence.report.gallery --out build/gallery.html" in capsys.readouterr().out


def test_a_slider_moves_the_curve_in_a_browser(tmp_path):
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = write_gallery(tmp_path / "gallery.html", entries=QUICK, compositions=COMPOSITIONS[1:])
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        for width in (1280, 390):
            tab, wrong = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce"), []
            tab.on("console", lambda message, wrong=wrong: wrong.append(message.text))
            tab.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            tab.on("request", lambda request, wrong=wrong: request.url == path.as_uri() or wrong.append(request.url))
            tab.goto(path.as_uri())
            tab.wait_for_function("() => document.querySelectorAll('article[data-drawn]').length === 3")
            maps = "[...document.querySelectorAll('#alibi .map')].map((canvas) => canvas.toDataURL())"
            before = tab.evaluate(maps)
            tab.focus("#alibi-scale")
            tab.keyboard.press("End")
            for _ in range(7):
                tab.keyboard.press("ArrowLeft")
            value = float(tab.inner_text("#alibi output"))
            assert value == pytest.approx(4 - 7 * 4 / 60, abs=1e-5)
            assert tab.get_attribute("#alibi-scale", "aria-valuetext") == tab.inner_text("#alibi output")
            code = tab.inner_text("#alibi code")
            assert code == f"Alibi(scale={tab.inner_text('#alibi output')})"
            assert all(one != other for one, other in zip(before, tab.evaluate(maps), strict=True))
            tab.focus("#alibi .curve svg")
            for _ in range(4):
                tab.keyboard.press("ArrowRight")  # the first press reads distance 0
            shown = [float(number.replace("−", "-")) for number in re.findall(
                r"head \d (\S+?)(?:,|$)", tab.inner_text("#alibi .curve .readout"))]  # fmt: skip
            exact = Alibi(HEADS, scale=value).bias(torch.tensor([3.0]), None)[:, 0].tolist()
            assert shown == [pytest.approx(one, rel=0.01, abs=0.002) for one in exact]
            tab.click("#alibi .reset")
            assert tab.evaluate(maps) == before and tab.inner_text("#alibi output") == "1"
            assert tab.evaluate("document.activeElement.id") == "alibi-scale"
            assert wrong == [] and tab.evaluate("document.documentElement.scrollWidth") == width
        browser.close()

"""The report, table and figures of a probe."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from small_probe import PLAN, load_findings

from whence.cli.app import app
from whence.errors import WhenceError
from whence.probe import measurement, probed_model
from whence.probe.findings import findings
from whence.probe.plan import Plan, TaskSpec, at_lengths
from whence.probe.probed_model import tiny_random_model
from whence.report.probe import figures, page
from whence.report.probe.figures import curves_figure, explanations_figure
from whence.report.record_page import render_records

CHROMIUM = Path("/usr/bin/chromium")


def test_the_table_fits_a_narrow_terminal(probed, capsys, monkeypatch):
    from whence.cli.probe_report import print_table

    monkeypatch.setenv("COLUMNS", "80")
    print_table(load_findings(probed))
    output = capsys.readouterr().out
    assert "…" not in output and all(len(line.rstrip()) <= 80 for line in output.splitlines())
    rows = [line.split()[:2] for line in output.splitlines()]
    assert ["key-value", "choice"] in rows and any(row[:1] == ["probability"] for row in rows)  # both measures
    assert (
        "% by slot" in output
        and "1:" in output
        and "Few items: 3 items per slot, fewer than 20." in " ".join(output.split())
    )
    monkeypatch.setenv("COLUMNS", "40")
    print_table(load_findings(probed))
    output = capsys.readouterr().out
    assert "…" not in output and all(len(line.rstrip()) <= 40 for line in output.splitlines())
    lines = [line.split() for line in output.splitlines()]
    assert ["measure", "%", "by", "slot", "gap", "p"] in lines and ["key-value"] in lines
    assert any(line[:1] == ["probability"] and line[1].startswith("1:") for line in lines)


@pytest.mark.usefixtures("no_layout")
def test_a_page_needs_the_records_alone(probed, tmp_path, monkeypatch, capsys):
    """As on a machine with another Python, whose help topics are other texts, and without the model."""
    monkeypatch.setattr(sys.modules["whence.probe.tasks.needle"], "_words", lambda: ["other", "words"] * 50)
    monkeypatch.setattr(probed_model, "load", lambda *about: 1 / 0)
    copy = shutil.copytree(probed[1], tmp_path / "somewhere" / "else")
    with pytest.raises(WhenceError, match=r"needle.* with other items.*run: whence report"):
        measurement.measure(tiny_random_model(layers=2), PLAN, probed[0])
    app(["report", str(copy.parent)], standalone_mode=False)
    output = capsys.readouterr().out
    assert f"report: {copy / 'report.html'}" in output and f"curves: {copy / 'curves.png'}" in output
    assert f"explanations: {copy / 'explanations.png'}" in output
    assert all((copy / f"{name}.png").read_bytes()[:4] == b"\x89PNG" for name in ("curves", "explanations"))
    assert "needle, 10 words" in (copy / "report.html").read_text()
    monkeypatch.setattr(figures, "find_spec", lambda name: None)  # from here on tables replace them
    monkeypatch.setattr("whence.cli.probe_report.write_figures", lambda *about: None)
    (copy / "needle-oracle-0000.json").unlink()
    (copy / "explain-geometry.json").unlink()
    app(["report", str(copy), "--out", str(tmp_path / "page.html")], standalone_mode=False)
    assert "not measured yet: needle, 10 words" in capsys.readouterr().out
    text = (tmp_path / "page.html").read_text()
    assert "left out: needle, 10 words" in text and "How much of the hidden states" not in text
    assert "left out: needle, 10 words" in render_records(copy)
    kept = copy / "plan.json"
    kept.write_text(kept.read_text().replace('"items_per_record": 2', '"items_per_record": 3'))
    with pytest.raises(WhenceError, match="is not a plan with its own hash"):
        app(["report", str(copy)], standalone_mode=False)


@pytest.mark.usefixtures("no_figures")
def test_records_of_several_machines_are_listed_separately(probed, tmp_path):
    copy = shutil.copytree(probed[1], tmp_path / "copy")
    path = copy / "needle-oracle-0000.json"
    record = json.loads(path.read_text())
    record["environment"]["machine"]["accelerator"] = "a <lent> GPU"
    path.write_text(json.dumps(record))
    ran = findings(copy, "")["ran"]
    assert sorted(one["runs"] for one in ran) == [1, len(list(copy.glob("*.json"))) - 2]
    assert "a &lt;lent&gt; GPU" in page(findings(copy, ""))


@pytest.mark.usefixtures("no_layout")
def test_several_lengths_stand_side_by_side(drawn_page, tmp_path):
    plan = Plan("quick", at_lengths([TaskSpec("key-value", 3, 3)], (2, 4)), texts=3, tokens=48, items_per_record=3)
    folder, _ = measurement.measure(tiny_random_model(layers=1), plan, tmp_path)
    result = findings(folder, "")
    assert [(task["task"], task["slots"]) for task in result["tasks"]] == [("key-value-of-2", 2), ("key-value-of-4", 4)]
    text = page(result)
    assert "key-value: by depth and length" in text and "4 slots, gold in slot 4: " in text
    assert "by depth and length" not in drawn_page
    with pytest.raises(WhenceError, match="key-value-75, but those of key-value, documents, needle can be chosen"):
        at_lengths([TaskSpec("key-value-75", 3)], (10,))


class Document(HTMLParser):
    """Every tag is closed, and the visible text in order."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.words = [], []
        self.feed(text)
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        if self.stack and self.stack[-1] not in ("style", "script"):
            self.words.append(data)


def test_the_page_has_the_curve_first_and_escapes_everything(probed, drawn_page):
    text = drawn_page
    document = Document(text)
    words = " ".join(" ".join(document.words).split())
    order = ["What position does to", "Does the position of the answer matter?", "All measures.",
             "Where does the answering token look?", "In key-value, 3 keys, the first token receives", "Every head",
             "Heads that attend to the gold", "How much of the hidden states is position?", "Position explains",
             "Is it the mask, or the encoding?", "Undecided, because no test is recorded", "Does the answer follow the attention?",
             "How to reproduce"]  # fmt: skip
    at = [words.index(title) for title in order]
    assert at == sorted(at)
    assert "<quick>" not in text
    assert "https://" not in text and "http://" not in text and len(text) < 400_000
    assert "NaN" not in words and "None" not in words
    assert "share of the low frequencies exceeds 100%" in words
    assert (
        "before each row is normalized again, multiplied by 2." in words and "before softmax, multiplied by 2." in words
    )
    assert "Answer and attention changed in the same direction in" in words
    curve = load_findings(probed)["tasks"][0]["curves"][0]
    assert f"slot 1: {100 * curve['points'][0]['mean']:.0f}%" in text
    with pytest.raises(WhenceError, match="run a probe first"):
        page({"tasks": []})


@pytest.mark.usefixtures("no_figures")
def test_the_page_says_which_model_and_which_data_or_that_it_is_not_known(probed):
    result = load_findings(probed)
    result["identity"] = {
        "kind": "weights", "weights": {"sha256": "abc" * 9, "tensors": 9, "unread": ["a"]}, "revision": "main<", "dtype": "float32",
        "device": "cpu", "chat": ["a", "b"], "chat_template": "456" * 9, "tokenizer": "123" * 9, "attached": [],
    }  # fmt: skip
    for task in result["tasks"]:
        task["source"] = "generated & drawn"
    words = " ".join(" ".join(Document(page(result)).words).split())
    assert "SHA-256 abcabcabcabc (1 of 9 tensors were not read)" in words and "revision main<" in words
    assert "tokenizer 123123123123" in words and "prompts chat template" in words and "attached nothing" in words
    assert "Data: generated & drawn." in words and "unknown (older record)" not in words
    served = {"kind": "endpoint", "served_as": "m", "url": "u", "fingerprint": "f"}
    words = " ".join(" ".join(Document(page({**result, "identity": served})).words).split())
    assert "served as m endpoint u fingerprint f" in words
    for task in result["tasks"]:
        del task["source"]
    words = " ".join(Document(page({**result, "identity": None})).words)
    assert "identity unknown (older record)" in words and "source unknown (older record)" in words


def test_the_picture_has_a_panel_for_each_task_with_its_numbers(probed):
    result = load_findings(probed)
    drawn = curves_figure(result)
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [
        "key-value, 3 keys, 3 items (few)",
        "needle, 10 words, 2 items (few)",
    ]
    [curve] = [one for one in result["tasks"][0]["curves"] if one["score"] == "likelihood"]
    plotted = drawn.axes[0].containers[0].lines[0].get_ydata().tolist()
    assert plotted == [100 * point["mean"] for point in curve["points"]]
    names = {line.get_label() for line in drawn.axes[0].lines}
    assert "chance, 33%" in names and any(name.startswith("closed book") for name in names)


def test_the_picture_of_the_explanations_has_a_panel_for_each_with_its_numbers(probed, monkeypatch):
    result = load_findings(probed)
    drawn = explanations_figure(result)
    monkeypatch.setattr(figures, "find_spec", lambda name: None)  # the pages below are read for their sentences
    panels = {axes.get_title(loc="left")[3:]: axes for axes in drawn.axes if axes.get_title(loc="left")}
    assert [axes.get_title(loc="left")[0] for axes in panels.values()] == list("abcdefghij"[: len(panels)])
    parts = result["explanation"]
    own = parts["growth"]["arms"]["own positions"]
    by_layer = {line.get_label(): list(line.get_ydata()) for line in panels["position in channels, by layer"].lines}
    assert by_layer["all channels"] == [pytest.approx(100 * layer["share"]) for layer in own["layers"]]
    assert ("monotone channels, own positions" in by_layer) == any(half["share"] for half in own["selected"])
    assert f"{own['layers'][1]['monotone']} channels are monotone in layer 1" in page(result)
    assert "from layer to layer" not in page({**result, "explanation": {**parts, "growth": None}})  # older records
    task = parts["attention"]["key-value"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in panels["attention to the gold as it moves"].lines}
    gold = [1000 * sum(row[i] for layer in task["gold"] for row in layer) / 8 for i in range(len(task["gold_slots"]))]
    assert lines["gold, mean of all heads"] == [
        [p + 1, pytest.approx(v)] for p, v in zip(task["gold_slots"], gold, strict=True)
    ]
    cells = panels["where each head’s attention goes"].collections
    shades = cells[0].get_facecolor()[:, 3].tolist()
    assert len(cells) == 3 and len(shades) == 2 * 4
    assert shades[4] == pytest.approx(0.03 + 0.97 * task["regions"]["sink"][1][0], abs=1e-3)
    shares = panels["variance of hidden states due to position"].lines[0].get_ydata().tolist()
    assert shares == [100 * layer["beyond_chance"] for layer in parts["geometry"]["layers"]]
    bars = [bar.get_width() for bar in panels["is it the mask, or the encoding?"].patches]
    assert bars == [100 * arm["position_share"] for arm in parts["mask-or-encoding"]["arms"].values()]
    names = [line.get_label() for line in panels["does the answer follow the attention?"].lines]
    assert "untouched" in names and "its weight times 2" in names and "its score times 2" in names
    below = drawn.get_supxlabel()
    assert max(map(len, below.splitlines())) <= 3 * 68  # what is wider is cut off
    told_below = " ".join(below.split())
    assert "3 plain texts" in told_below and "key-value, 3 keys, 1 item, the gold in slot 2" in told_below
    del parts["geometry"], parts["emphasis-score"]
    fewer = explanations_figure(result)
    assert len(fewer.axes) == len(drawn.axes) - 1
    assert not any("score" in line.get_label() for line in fewer.axes[-1].lines)
    with pytest.raises(WhenceError, match="a figure needs at least one"):
        explanations_figure({**result, "explanation": {"attention": {}}})


def test_the_page_opens_in_a_browser_and_fits_a_phone(drawn_page, tmp_path):
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = tmp_path / "report.html"
    path.write_text(drawn_page, encoding="utf-8")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        for width in (1280, 390):
            tab, wrong = browser.new_page(viewport={"width": width, "height": 900}), []
            tab.on("console", lambda message, wrong=wrong: wrong.append(message.text))
            tab.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            tab.on("request", lambda request, wrong=wrong: request.url == path.as_uri() or wrong.append(request.url))
            tab.goto(path.as_uri())
            tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
            assert wrong == [] and tab.evaluate("document.documentElement.scrollWidth") == width
            first = tab.evaluate("document.querySelector('svg.chart').getAttribute('aria-label')")
            assert "accuracy and probability of the answer by the slot of the gold" in first
        browser.close()


def test_svg_is_inline_deterministic_and_has_no_fixed_colors(probe_findings, drawn_page):
    text = drawn_page
    charts = re.findall(r'<svg class="chart".*?</svg>', text, re.S)
    assert page(probe_findings) == text and len(charts) > 12
    ids = re.findall(r'\bid="([^"]+)"', "".join(charts))
    assert len(ids) == len(set(ids))
    for chart in charts:
        assert re.search(r'role="img" aria-label="[^"]+"', chart) and "<title>" in chart and "<metadata" not in chart
        assert not re.search(r"#[0-9a-f]{6}\b", chart) and "var(--ink)" in chart and "<image" not in chart
        links = set(re.findall(r'(?:href="#|url\(#)([^")]+)', chart))
        assert links <= set(re.findall(r'\bid="([^"]+)"', chart))


@pytest.mark.usefixtures("no_figures")
def test_without_matplotlib_the_page_has_the_numbers_as_tables(probed):
    result = load_findings(probed)
    text = page(result)
    words = " ".join(" ".join(Document(text).words).split())
    assert "<svg" not in text and words.count(figures.NO_FIGURES) == 1 and "whence[plot]" in words
    for task in result["tasks"]:
        for point in task["curves"][0]["points"]:
            assert f"slot {point['slot'] + 1} {100 * point['mean']:.0f}% (" in words

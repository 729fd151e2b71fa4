"""A whole probe of the tiny model: its records, going on with them, its explanation, its page, in a browser too."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from whence.cli.app import app
from whence.cli.probe_options import plan_from_options, rerun_command
from whence.errors import WhenceError
from whence.probe import analyses, measurement, probed_model
from whence.probe.curves import curve
from whence.probe.findings import findings
from whence.probe.plan import Plan, TaskSpec, at_lengths, default_plan, full_plan, quick_plan
from whence.probe.probed_model import ProbedModel, byte_tokenizer, tiny_random_model
from whence.report.probe import figures, page
from whence.report.probe.figures import curves_figure, explanations_figure

NAMED = ("task", "items", "score", "dtype", "length")
CHROMIUM = Path("/usr/bin/chromium")
PLAN = Plan(
    "quick",
    (TaskSpec("key-value", 3, 3, {"pairs": 3}), TaskSpec("needle", 2, 2, {"pieces": 2, "words": 5})),
    ("likelihood",), texts=3, tokens=48, intervention_items=1, items_per_record=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def probed(tmp_path_factory):
    base = tmp_path_factory.mktemp("probe")
    lm, said = tiny_random_model(layers=2), []
    folder, found = measurement.measure(lm, PLAN, base, lambda *about: said.append(about))
    analyses.explain(lm, PLAN, folder, lambda *about: None)
    return base, folder, found, said


def load_findings(probed):
    return findings(probed[1], "whence probe <quick>")


def test_the_table_fits_a_narrow_terminal(probed, capsys, monkeypatch):
    from whence.cli.probe_report import print_table

    monkeypatch.setenv("COLUMNS", "80")
    print_table(load_findings(probed))
    said = capsys.readouterr().out
    assert "…" not in said and all(len(line.rstrip()) <= 80 for line in said.splitlines())
    rows = [line.split()[:2] for line in said.splitlines()]
    assert ["key-value", "choice"] in rows and any(row[:1] == ["probability"] for row in rows)  # both measures
    assert (
        "% by slot" in said and "1:" in said and "Few items: 3 items a slot, fewer than 20." in " ".join(said.split())
    )


def test_every_piece_has_its_record(probed):
    _, folder, found, said = probed
    names = {path.name for path in folder.glob("*.json")}
    assert {
        "plan.json",
        "key-value-001-0002.json",
        "key-value-closed-book-0000.json",
        "needle-oracle-0000.json",
    } <= names
    assert [done for done, _, _, _ in said] == list(range(1, len(found) + 1))
    places = [words.rpartition(", ")[2] for _, _, words, _ in said if words.startswith("key-value")]
    assert list(dict.fromkeys(places)) == [*(f"gold in slot {n}" for n in (1, 2, 3)), "closed book", "oracle"]
    record = json.loads((folder / "key-value-002-0000.json").read_text())
    assert [row["item"] for row in record["rows"]] == [0, 1] and record["condition"] == 2
    slots = record["attention"]["slots"]
    assert (len(slots), len(slots[0]), len(slots[0][0])) == (2, 4, 3)


def test_a_stopped_probe_goes_on_and_asks_nothing_twice(probed, monkeypatch):
    base, folder, found, _ = probed
    gone = folder / "key-value-001-0000.json"
    before = gone.read_text()
    gone.unlink()
    asked = []
    real = measurement.make_record
    monkeypatch.setattr(measurement, "make_record", lambda *about: asked.append(about[2].file_name) or real(*about))
    said = []
    _, again = measurement.measure(tiny_random_model(layers=2), PLAN, base, lambda *about: said.append(about))
    assert asked == [gone.name]
    assert [words for _, _, words, read in said if not read] == ["key-value, 3 keys, gold in slot 2"]
    clock = {"seconds": 0, "started": ""}
    assert {**json.loads(before), **clock} == {**json.loads(gone.read_text()), **clock}
    assert [{**one, **clock} for one in again] == [{**one, **clock} for one in found]


@pytest.mark.parametrize("terminal", [False, True])
def test_the_time_left_is_that_of_new_work_alone(terminal, monkeypatch, capsys):
    """Two records are read in no time and two are made in ten seconds each: the last takes ten more, not three."""
    from rich.console import Console

    from whence.cli import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Console, "is_terminal", property(lambda self: terminal))
    monkeypatch.setenv("COLUMNS", "120")
    with progress.probe_progress() as notify:
        for done, (read, seconds) in enumerate([(True, 0.01), (True, 0.3), (False, 10), (False, 10)], 1):
            now[0] += seconds
            notify(done, 5, f"piece {done}", read)
    said = capsys.readouterr().err
    assert "about 10 s left" in said and "about 3 s left" not in said
    if not terminal:
        assert said.splitlines()[:3] == [
            "1 of 5, piece 1; already measured", "2 of 5, piece 2; already measured",
            "3 of 5, piece 3; about 20 s left",
        ]  # fmt: skip


def test_a_model_with_windows_is_probed_to_the_end(tmp_path):
    """Positions and masks cannot be handed to it: what needs them is left out, and the page is written all the same."""
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer = byte_tokenizer()
    config = MistralConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=32,
    )  # fmt: skip
    about = {"type": "mistral", "parameters": 1, "layers": 2}
    windowed = ProbedModel("windowed", MistralForCausalLM(config).eval(), tokenizer, about)
    folder, _ = measurement.measure(windowed, PLAN, tmp_path)
    analyses.explain(windowed, PLAN, folder, lambda *about: None)
    told = findings(folder, "whence probe windowed")
    assert not told["explanation"].get("mask-or-encoding") and told["explanation"]["geometry"]
    assert "Does the position of the answer matter?" in page(told)
    assert explanations_figure(told) is not None


def test_parts_and_minutes_leave_records_that_the_whole_probe_reads(tmp_path, capsys):
    def run(*options):
        app(["probe", "--quick", "--task", "needle", "--out", str(tmp_path), *options], standalone_mode=False)
        return capsys.readouterr()

    said = run("--only", "measure", "--minutes", "0")
    [folder] = tmp_path.iterdir()
    assert "stopped after 0 minutes" in said.out and len(list(folder.glob("needle-*.json"))) == 1
    assert "done: measure" in run("--only", "measure").out and len(list(folder.glob("needle-*.json"))) == 5
    assert "done: explain" in run("--only", "explain").out and not (folder / "report.html").exists()
    made = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert "report:" in run().out and "Where does the answering token look?" in (folder / "report.html").read_text()
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json")} == made
    with pytest.raises(WhenceError, match=r"guess.*measure, explain"):
        run("--only", "guess")


def test_broken_and_foreign_records_are_named(probed, tmp_path):
    _, folder, _, _ = probed
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    path = copy / "needle-000-0000.json"
    whole = path.read_text()
    path.write_text(whole[:100])
    with pytest.raises(WhenceError, match=r"needle-000-0000\.json, corrupt at line"):
        measurement.measure(tiny_random_model(layers=2), PLAN, tmp_path)
    path.write_text(whole.replace(json.loads(whole)["task_hash"], "0" * 16))
    with pytest.raises(WhenceError, match="with other items"):
        measurement.measure(tiny_random_model(layers=2), PLAN, tmp_path)


def test_a_planted_bias_comes_out_as_planted(monkeypatch, tmp_path):
    def score_and_attend(lm, prompts, scored, num_captured):  # reads the first and the last slot, and nothing between
        seen = [prompt.gold in (None, 0, len(prompt.slots) - 1) for prompt in prompts]
        return [[0.0 if one else -2.0] + [-1.0] * len(prompts[0].rivals) for one in seen], []

    monkeypatch.setattr(measurement, "score_and_attend", score_and_attend)
    plan = Plan("quick", (TaskSpec("key-value", 12, 5, {"pairs": 9}),))
    _, found = measurement.measure(tiny_random_model(layers=1), plan, tmp_path)
    made = curve(found, "likelihood")
    assert [point["mean"] for point in made["points"]] == [1, 0, 0, 0, 1]
    assert (
        made["gap"] == 1 and made["gap_p"] < 0.001 and made["worst"] == 2 and made["baselines"]["oracle"]["mean"] == 1
    )
    wrong = [row for record in found if record["condition"] == 4 for row in record["rows"]]
    assert all(row["chosen_slot"] != 4 for row in wrong) and all(row["probability"] < 0.1 for row in wrong)


def test_explanations_are_made_once_and_belong_to_their_plan(probed, monkeypatch):
    _, folder, _, _ = probed
    assert set(load_findings(probed)["explanation"]) == {"attention", *analyses.ANALYSES}
    monkeypatch.setattr(analyses, "ANALYSES", dict.fromkeys(analyses.ANALYSES, lambda *about: 1 / 0))
    analyses.explain(tiny_random_model(layers=2), PLAN, folder, lambda *about: None)
    other = Plan("quick", PLAN.tasks, items_per_record=3)
    with pytest.raises(WhenceError, match="of another plan"):
        analyses.explain(tiny_random_model(layers=2), other, folder, lambda *about: None)


def test_a_page_needs_the_records_alone(probed, tmp_path, monkeypatch, capsys):
    """As on a machine with another Python, whose help topics are other texts, and without the model."""
    monkeypatch.setattr(sys.modules["whence.probe.tasks.needle"], "_words", lambda: ["other", "words"] * 50)
    monkeypatch.setattr(probed_model, "load", lambda *about: 1 / 0)
    copy = shutil.copytree(probed[1], tmp_path / "somewhere" / "else")
    with pytest.raises(WhenceError, match=r"needle.* with other items.*run: whence report"):
        measurement.measure(tiny_random_model(layers=2), PLAN, probed[0])
    app(["report", str(copy.parent)], standalone_mode=False)
    said = capsys.readouterr().out
    assert f"report: {copy / 'report.html'}" in said and f"curves: {copy / 'curves.png'}" in said
    assert f"explanations: {copy / 'explanations.png'}" in said
    assert all((copy / f"{name}.png").read_bytes()[:4] == b"\x89PNG" for name in ("curves", "explanations"))
    assert "needle, 10 words" in (copy / "report.html").read_text()
    (copy / "needle-oracle-0000.json").unlink()
    (copy / "explain-geometry.json").unlink()
    app(["report", str(copy), "--out", str(tmp_path / "page.html")], standalone_mode=False)
    assert "not measured yet: needle, 10 words" in capsys.readouterr().out
    text = (tmp_path / "page.html").read_text()
    assert "left out: needle, 10 words" in text and "How much of the hidden states" not in text
    kept = copy / "plan.json"
    kept.write_text(kept.read_text().replace('"items_per_record": 2', '"items_per_record": 3'))
    with pytest.raises(WhenceError, match="is not a plan with its own hash"):
        app(["report", str(copy)], standalone_mode=False)


def test_records_of_several_machines_are_told_apart(probed, tmp_path):
    copy = shutil.copytree(probed[1], tmp_path / "copy")
    path = copy / "needle-oracle-0000.json"
    record = json.loads(path.read_text())
    record["environment"]["machine"]["accelerator"] = "a <lent> GPU"
    path.write_text(json.dumps(record))
    ran = findings(copy, "")["ran"]
    assert sorted(one["runs"] for one in ran) == [1, len(list(copy.glob("*.json"))) - 2]
    assert "a &lt;lent&gt; GPU" in page(findings(copy, ""))


def test_several_lengths_stand_side_by_side(probed, tmp_path):
    plan = Plan("quick", at_lengths([TaskSpec("key-value", 3, 3)], (2, 4)), texts=3, tokens=48, items_per_record=3)
    folder, _ = measurement.measure(tiny_random_model(layers=1), plan, tmp_path)
    found = findings(folder, "")
    assert [(task["task"], task["slots"]) for task in found["tasks"]] == [("key-value-of-2", 2), ("key-value-of-4", 4)]
    text = page(found)
    assert "key-value: by depth and length" in text and "4 slots, gold in slot 4: " in text
    assert "by depth and length" not in page(load_findings(probed))
    with pytest.raises(WhenceError, match="key-value-75, but those of key-value, documents, needle can be chosen"):
        at_lengths([TaskSpec("key-value-75", 3)], (10,))


def test_the_default_needle_can_be_asked_at_every_length():
    """With as many distractors at each, so that chance is the same."""
    made, _ = plan_from_options("m", False, False, ["needle"], None, None, None, [2, 10, 20])
    names = [one.build().name for one in made.tasks]
    assert [name.partition(", ")[2] for name in names] == [
        "24 words, 1 distractor", "120 words, 1 distractor", "240 words, 1 distractor",
    ]  # fmt: skip
    assert "--length 2 --length 10 --length 20" in rerun_command(made, "cpu")


@pytest.mark.parametrize(
    "options",
    [
        ("", True, False, None, None, None),
        ("", True, False, ["needle"], 5, ["likelihood"], None, [3, 9]),
        ("smollm2", False, True, ["documents", "needle"], None, None, "float32"),
        ("smollm2", False, True, None, 7, None),
        ("some/model", False, False, ["key-value"], None, ["generation"]),
    ],
)
def test_a_plan_names_the_command_that_makes_it(options):
    made, _ = plan_from_options(*options)
    said = rerun_command(made, "cpu").split()
    assert said[:2] == ["whence", "probe"]
    several = {name: [said[i + 1] for i, word in enumerate(said) if word == f"--{name}"] for name in NAMED}
    again = plan_from_options(
        "" if options[1] else said[2], "--quick" in said, "--full" in said, several["task"],
        int(several["items"][0]) if several["items"] else None, several["score"],
        several["dtype"][0] if several["dtype"] else None, [int(one) for one in several["length"]],
    )  # fmt: skip
    assert again[0] == made
    assert rerun_command(made, "cuda").endswith(" --device cuda")


def test_a_plan_of_ones_own_has_no_command():
    assert rerun_command(PLAN, "cpu") == ""


def test_plans_are_what_they_say():
    assert (
        quick_plan().hash
        == quick_plan().hash
        != default_plan("smollm2", True).hash
        != default_plan("smollm2", False).hash
    )
    assert min(asked.items for asked in full_plan("m").tasks) == 400  # Wilson: at most 4.9 points to each side
    made, size = plan_from_options("", True, False, ["needle"], 1, ["likelihood"])
    assert [one.task for one in made.tasks] == ["needle"] and made.tasks[0].items == 1 and size == "quick"


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: plan_from_options("", False, False, None, None, None), "whence probe got no model"),
        (lambda: plan_from_options("m", True, False, None, None, None), "it has its own"),
        (lambda: plan_from_options("", True, False, ["books"], None, None), "this plan has key-value, needle"),
        (lambda: plan_from_options("", True, False, None, None, ["bleu"]), "they are likelihood, generation"),
        (lambda: Plan("m", ()), "no tasks"),
        (lambda: Plan("m", (TaskSpec("needle", 1), TaskSpec("needle", 2))), "a task twice"),
        (lambda: Plan("m", (TaskSpec("needle", 1),), items_per_record=0), "items_per_record=0"),
        (lambda: Plan("m", (TaskSpec("needle", 1),), dtype="int8"), "dtype int8"),
    ],
)
def test_bad_plans_are_refused(call, said):
    with pytest.raises(WhenceError, match=said):
        call()


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


def test_the_page_has_the_curve_first_and_escapes_everything(probed):
    text = page(load_findings(probed))
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


def test_the_page_says_which_model_and_which_data_or_that_it_is_not_known(probed):
    found = load_findings(probed)
    found["identity"] = {
        "kind": "weights", "weights": {"sha256": "abc" * 9, "tensors": 9, "unread": ["a"]}, "revision": "main<", "dtype": "float32",
        "device": "cpu", "chat": ["a", "b"], "chat_template": "456" * 9, "tokenizer": "123" * 9, "attached": [],
    }  # fmt: skip
    for task in found["tasks"]:
        task["source"] = "generated & drawn"
    words = " ".join(" ".join(Document(page(found)).words).split())
    assert "SHA-256 abcabcabcabc (1 of 9 tensors were not read)" in words and "revision main<" in words
    assert "tokenizer 123123123123" in words and "prompts chat template" in words and "attached nothing" in words
    assert "Data: generated & drawn." in words and "unknown (older record)" not in words
    served = {"kind": "endpoint", "served_as": "m", "url": "u", "fingerprint": "f"}
    words = " ".join(" ".join(Document(page({**found, "identity": served})).words).split())
    assert "served as m endpoint u fingerprint f" in words
    for task in found["tasks"]:
        del task["source"]
    words = " ".join(Document(page({**found, "identity": None})).words)
    assert "identity unknown (older record)" in words and "source unknown (older record)" in words


def test_the_picture_has_a_panel_for_each_task_with_its_numbers(probed):
    found = load_findings(probed)
    drawn = curves_figure(found)
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [
        "key-value, 3 keys, 3 items (few)",
        "needle, 10 words, 2 items (few)",
    ]
    [curve] = [one for one in found["tasks"][0]["curves"] if one["score"] == "likelihood"]
    plotted = drawn.axes[0].containers[0].lines[0].get_ydata().tolist()
    assert plotted == [100 * point["mean"] for point in curve["points"]]
    names = {line.get_label() for line in drawn.axes[0].lines}
    assert "chance, 33%" in names and any(name.startswith("closed book") for name in names)


def test_the_picture_of_the_explanations_has_a_panel_for_each_with_its_numbers(probed):
    found = load_findings(probed)
    drawn = explanations_figure(found)
    panels = {axes.get_title(loc="left")[3:]: axes for axes in drawn.axes if axes.get_title(loc="left")}
    assert [axes.get_title(loc="left")[0] for axes in panels.values()] == list("abcdefghi"[: len(panels)])
    parts = found["explanation"]
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
    fewer = explanations_figure(found)
    assert len(fewer.axes) == len(drawn.axes) - 1
    assert not any("score" in line.get_label() for line in fewer.axes[-1].lines)
    with pytest.raises(WhenceError, match="a figure needs at least one"):
        explanations_figure({**found, "explanation": {"attention": {}}})


def test_the_page_opens_in_a_browser_and_fits_a_phone(probed, tmp_path):
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = tmp_path / "report.html"
    path.write_text(page(load_findings(probed)), encoding="utf-8")
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


def test_svg_is_inline_deterministic_and_has_no_fixed_colors(probed):
    found = load_findings(probed)
    text = page(found)
    charts = re.findall(r'<svg class="chart".*?</svg>', text, re.S)
    assert page(found) == text and len(charts) > 12
    ids = re.findall(r'\bid="([^"]+)"', "".join(charts))
    assert len(ids) == len(set(ids))
    for chart in charts:
        assert re.search(r'role="img" aria-label="[^"]+"', chart) and "<title>" in chart and "<metadata" not in chart
        assert not re.search(r"#[0-9a-f]{6}\b", chart) and "var(--ink)" in chart and "<image" not in chart
        links = set(re.findall(r'(?:href="#|url\(#)([^")]+)', chart))
        assert links <= set(re.findall(r'\bid="([^"]+)"', chart))


def test_without_matplotlib_the_page_has_the_numbers_as_tables(probed, monkeypatch):
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    found = load_findings(probed)
    text = page(found)
    words = " ".join(" ".join(Document(text).words).split())
    assert "<svg" not in text and words.count(figures.NO_FIGURES) == 1 and "whence[plot]" in words
    for task in found["tasks"]:
        for point in task["curves"][0]["points"]:
            assert f"slot {point['slot'] + 1} {100 * point['mean']:.0f}% (" in words

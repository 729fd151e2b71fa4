"""Two probes on one page: differences paired by item and slot, refused where the questions differ."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

from whence.cli.app import app
from whence.errors import WhenceError
from whence.probe import measurement
from whence.probe.findings import compare_probes, default_labels, max_t, require_same_items
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import tiny_random_model
from whence.report.probe.comparison import comparison_page, overall, task_answer

PLAN = Plan(
    "quick",
    (TaskSpec("key-value", 12, 3, {"pairs": 3}), TaskSpec("needle", 3, 2, {"pieces": 2, "words": 5})),
    items_per_record=12,
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return measurement.measure(tiny_random_model(layers=1), PLAN, tmp_path_factory.mktemp("plain"))[0]


@pytest.fixture
def changed(plain, tmp_path):
    """The same probe with 30 points more probability in slot 2 of the pairs and 20 less in slot 3, give or take a little."""
    copy = shutil.copytree(plain, tmp_path / "changed")
    for place, more in ((1, 0.3), (2, -0.2)):
        path = copy / f"key-value-{place:03d}-0000.json"
        record = json.loads(path.read_text())
        for number, row in enumerate(record["rows"]):
            row["probability"] += more + 0.01 * (number % 3)
        path.write_text(json.dumps(record))
    return copy


def test_a_planted_difference_is_detected_in_its_slot(plain, changed):
    result = compare_probes(plain, changed, ("before", "after"))
    pairs, needle = result["tasks"]
    assert pairs["lead"] == "probability"
    [measure] = [one for one in pairs["measures"] if one["score"] == "probability"]
    assert [round(cell["difference"], 2) for cell in measure["slots"]] == [0, 0.31, -0.19]
    assert [cell["p"] < 0.05 for cell in measure["slots"]] == [False, True, True]
    assert all(cell["interval"]["low"] < cell["difference"] < cell["interval"]["high"] for cell in measure["slots"][1:])
    message = task_answer(pairs, result)
    assert "after is better with the gold in slot 2; before is better with the gold in slot 3" in message
    assert "the probability of the answer is 31 points higher for after than for before in slot 2" in message
    assert task_answer(needle, result) == "No difference: both have the same results in every slot."
    assert overall(result).startswith("1 of 2 tasks differ, most clearly key-value, 3 keys: after is better")


def test_swapping_the_arms_flips_the_signs(plain, changed):
    result, turned = compare_probes(plain, changed, ("a", "b")), compare_probes(changed, plain, ("b", "a"))
    for one, other in zip(result["tasks"][0]["measures"], turned["tasks"][0]["measures"], strict=True):
        for cell, mirror in zip(one["slots"], other["slots"], strict=True):
            assert cell["difference"] == -mirror["difference"] and cell["p"] == mirror["p"]
    assert "b is better with the gold in slot 2; a is better" in task_answer(result["tasks"][0], result)
    assert "a is better with the gold in slot 3; b is better" in task_answer(turned["tasks"][0], turned)


def test_without_a_decision_the_sentence_says_undecided(plain, changed):
    path = changed / "needle-001-0000.json"
    record = json.loads(path.read_text())
    record["rows"][0]["probability"] += 0.1
    path.write_text(json.dumps(record))
    result = compare_probes(plain, changed, ("before", "after"))
    assert task_answer(result["tasks"][1], result).startswith("Undecided: the probability of the answer is ")


def test_p_is_that_of_all_sign_flips():
    """Two groups of few items: the exact distribution of the largest t, by enumeration."""
    groups = [torch.tensor([[0.5, 0.1], [0.4, -0.2], [0.6, 0.3]], dtype=torch.float64),
              torch.tensor([[0.2], [-0.1], [0.3], [0.25]], dtype=torch.float64)]  # fmt: skip

    def t(values):
        return (values.mean(0).abs() / (values.std(0) / len(values) ** 0.5)).tolist()

    largest = []
    for signs in itertools.product((1.0, -1.0), repeat=7):
        one, other = torch.tensor(signs[:3])[:, None], torch.tensor(signs[3:])[:, None]
        largest.append(max(*t(one * groups[0]), *t(other * groups[1])))
    for group, cells in zip(groups, max_t(groups, draws=20_000), strict=True):
        for observed, cell in zip(t(group), cells, strict=True):
            exact = sum(value >= observed - 1e-9 for value in largest) / len(largest)
            assert cell["p"] == pytest.approx(exact, abs=0.015)


def test_chance_alone_seldom_makes_a_difference_and_intervals_agree_with_p():
    generator = torch.Generator().manual_seed(0)
    claims, drawn = 0, 200
    for number in range(drawn):
        common = torch.randn(10, 1, generator=generator, dtype=torch.float64)
        groups = [
            common + torch.randn(10, 4, generator=generator, dtype=torch.float64),
            torch.randn(8, 3, generator=generator, dtype=torch.float64),
        ]
        cells = [cell for own in max_t([0.1 * group for group in groups], number, draws=500) for cell in own]
        claims += any(cell["p"] <= 0.05 for cell in cells)
        for cell in cells:
            ends = cell["interval"]
            assert (cell["p"] <= 0.05) == (not ends["low"] <= 0 <= ends["high"])
    assert claims / drawn <= 0.08


def test_differences_that_are_all_alike_and_no_differences_at_all():
    [[alike, none]] = max_t([torch.tensor([[0.25, 0.0]] * 9, dtype=torch.float64)], draws=4000)
    assert alike["p"] < 0.01 and alike["interval"] is None
    assert none["p"] == 1 and none["difference"] == 0
    assert alike["no_interval"] == none["no_interval"] == "no variance"


def test_four_items_are_too_few_for_an_interval():
    """Two of 16 flips leave equal differences equal, so their t is infinite in an eighth of the draws."""
    [cells] = max_t([torch.tensor([[1.0, 0.1], [1.0, 0.4], [1.0, 0.2], [1.0, 0.3]], dtype=torch.float64)], draws=4000)
    for cell in cells:
        assert cell["interval"] is None and cell["no_interval"] == "too few items" and cell["p"] > 0.1


@pytest.mark.parametrize(
    "other, message",
    [
        ({"task": "needle"}, r"key-value only in a; needle only in b"),
        ({"hash": "y"}, r"got key-value with different items, but two probes are compared on the same tasks"),
        ({"gold_slots": [0, 2]}, r"key-value with different slots \(1, 2, 3 and 1, 3\)"),
        ({"items": 9, "hash": "y"}, r"key-value with different numbers of items \(12 and 9\)"),
    ],
)
def test_other_tasks_items_or_slots_are_refused_by_name(other, message):
    one = {"task": "key-value", "items": 12, "hash": "x", "gold_slots": [0, 1, 2]}
    require_same_items(Path("a"), Path("b"), [one], [dict(one)])
    with pytest.raises(WhenceError, match=message):
        require_same_items(Path("a"), Path("b"), [one], [one | other])


def test_other_questions_in_the_folders_are_refused(plain, tmp_path):
    copy = shutil.copytree(plain, tmp_path / "other")
    path = copy / "plan.json"
    plan = json.loads(path.read_text())
    plan["tasks"][1]["hash"] = "0" * 16
    path.write_text(json.dumps(plan))
    with pytest.raises(WhenceError, match="needle with different items"):
        compare_probes(plain, copy)
    with pytest.raises(WhenceError, match="a comparison needs two probes"):
        compare_probes(plain, plain)


def test_unfinished_probes_are_refused(plain, changed):
    (changed / "needle-000-0000.json").unlink()
    with pytest.raises(WhenceError, match="changed, which lacks records of needle"):
        compare_probes(plain, changed)


def test_the_command_writes_the_page(plain, changed, tmp_path, capsys):
    out = tmp_path / "page.html"
    options = ["--label", "before", "--label", "a <b>"]
    app(["report", str(plain), str(changed), "--out", str(out), *options], standalone_mode=False)
    message, text = capsys.readouterr().out, out.read_text()
    assert "key-value: a <b> is better with the gold in slot 2" in message and f"report: {out}" in message
    assert "<b>" not in text and "a &lt;b&gt; is better with the gold in slot 2" in text
    assert text.count('<svg class="chart"') == 4
    assert (
        "probability of the answer of both by the slot of the gold. before: slot 1: " in text
    )  # both on the same axes
    with pytest.raises(WhenceError, match="3 folders"):
        app(["report", *[str(plain)] * 3], standalone_mode=False)
    with pytest.raises(WhenceError, match=r"--label.*pass it twice"):
        app(["report", str(plain), str(changed), "--label", "x"], standalone_mode=False)
    with pytest.raises(WhenceError, match="with 0 probes"):
        app(["report", str(plain), str(tmp_path / "nowhere")], standalone_mode=False)


def test_labels_tell_the_two_apart():
    def side(model, attached, hash):
        identity = {"attached": [{"position": one, "layers": [0]} for one in attached]}
        return {"plan": {"model": model, "identity": identity}, "hash": hash}

    assert default_labels([side("org/one", [], "x"), side("org/two", [], "y")]) == ["one", "two"]
    assert default_labels([side("m", [], "x"), side("m", ["Alibi(heads=2)"], "y")]) == ["plain", "Alibi"]
    assert default_labels([side("m", ["Alibi(heads=2)"], "x"), side("m", ["Alibi(heads=4)"], "y")]) == ["x", "y"]
    assert default_labels([side("m", [], "x"), side("m", [], "y")]) == ["x", "y"]
    assert default_labels([side("m", [], "x"), side("m", [], "x")]) == ["first", "second"]


@pytest.mark.usefixtures("no_figures")
def test_the_page_shows_what_the_records_say_of_the_model(plain, changed):
    result = compare_probes(plain, changed)
    result["sides"][1]["identity"] = {
        "kind": "weights", "weights": {"sha256": "abc" * 9, "tensors": 3}, "revision": "fed" * 9, "dtype": "float32",
        "device": "cpu", "chat": None, "tokenizer": "123" * 9, "attached": [{"position": "Alibi()", "layers": [0, 1]}],
    }  # fmt: skip
    result["sides"][0]["identity"] = None
    result["tasks"][0]["source"] = "generated <keys>"
    text = comparison_page(result)
    assert "identity unknown (older record)" in text
    assert "SHA-256 <code>abcabcabcabc</code>" in text and "Alibi() in 2 layers" in text and "raw text" in text
    assert "Data: generated &lt;keys&gt;." in text


def test_the_page_fits_a_phone(plain, changed, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = tmp_path / "page.html"
    path.write_text(
        comparison_page(compare_probes(plain, changed, ("before", "a mechanism with a long name"))), "utf-8"
    )
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for width in (1280, 390):
            tab, wrong = browser.new_page(viewport={"width": width, "height": 900}), []
            tab.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            tab.on("request", lambda request, wrong=wrong: request.url == path.as_uri() or wrong.append(request.url))
            tab.goto(path.as_uri())
            assert wrong == [] and tab.evaluate("document.documentElement.scrollWidth") == width
        browser.close()

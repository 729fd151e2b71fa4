"""The page of a comparison: what it must say, in which order, and that it is whole, escaped and the same each time."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from comparison_findings import ARMS, findings

from whence.errors import WhenceError
from whence.report.comparison import page

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Document(HTMLParser):
    """Well-formedness with a stack, the visible text in order, and all attributes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in {tag}"
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag, f"</{tag}> at line {self.getpos()[0]} closes another tag"

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def made() -> str:
    return page(findings())


@pytest.fixture(scope="module")
def document(made: str) -> Document:
    return Document(made)


def test_is_one_small_page_that_asks_for_nothing(made: str, document: Document) -> None:
    assert len(made.encode()) < 1_000_000
    assert "http://" not in made and "https://" not in made
    assert "@import" not in made and "url(" not in made
    assert not [entry for entry in document.attributes if entry[1] in ("src", "srcset", "action", "data")]
    assert all(value.startswith("#") for _, name, value in document.attributes if name == "href")


def test_same_findings_give_the_same_bytes_and_are_left_alone(made: str) -> None:
    given = findings()
    before = copy.deepcopy(given)
    assert page(given) == made
    assert given == before


def test_ids_are_unique_and_labels_point_to_them(document: Document) -> None:
    ids = [value for _, name, value in document.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    pointed = {v for _, name, v in document.attributes if name in ("for", "aria-labelledby", "aria-describedby")}
    assert pointed <= set(ids)


def test_the_verdict_comes_first_in_the_comparisons_own_words(document: Document) -> None:
    text, studies = document.text, findings()["studies"]
    first = text.index("The verdict")
    assert text.index(findings()["title"], len(findings()["title"])) < first < 300
    for study in studies[:2]:
        for arm in study["comparison"]["arms"].values():
            assert first < text.index(" ".join(arm["verdict"].split())) < text.index(studies[0]["question"])
    assert "Nothing can be claimed." in text and "(5 each would do)" in text
    assert "All 5 arms are better than none." in text
    assert "No comparison was made." in text and studies[2]["why_no_comparison"] in text


def test_order_of_the_parts(document: Document) -> None:
    names = ["The verdict", "Results of each arm", "Every seed", "Beyond the trained length", "Training loss",
             "Where it looks", "How far it looks", "What the positions learned", "What was run"]  # fmt: skip
    at = [document.text.index(name) for name in names]
    assert at == sorted(at)


def test_every_arm_is_in_every_study_and_keeps_its_colour(made: str) -> None:
    for section in made.split('<section class="study"')[1:]:
        for name in ARMS:
            assert section.count(name) >= 4
    for place in range(len(ARMS)):
        looks = set(re.findall(rf'<g class="(arm [^"]+)" data-arm="{place}">', made))
        assert len(looks) == 1
    assert len(set(re.findall(r'<g class="(arm [^"]+)"', made))) == len(ARMS)


def test_table_numbers_are_those_of_the_comparison(document: Document) -> None:
    study = findings()["studies"][0]
    arm = study["comparison"]["arms"]["Alibi"]
    mean, difference = f"{arm['summary']['mean']:.2f}", f"+{arm['difference']:.2f}"
    low, high = arm["corrected_interval"]["low"], arm["corrected_interval"]["high"]
    assert f"Alibi {mean} " in document.text and f" {difference} {low:.2f} to {high:.2f} " in document.text
    assert "seed 1 at step 340" in document.text and "with uncommitted changes" in document.text


def test_a_comparison_in_shares_is_shown_in_percent_too() -> None:
    given = findings()
    study = given["studies"][0]
    comparison = study["comparison"]
    expected = f"+{comparison['arms']['Alibi']['difference']:.2f}"
    for side in [comparison["baseline_summary"], *(arm["summary"] for arm in comparison["arms"].values())]:
        side["mean"], side["deviation"] = side["mean"] / 100, side["deviation"] / 100
    for arm in comparison["arms"].values():
        arm["difference"] /= 100
    assert expected in Document(page(given)).text


def test_all_text_is_escaped() -> None:
    bad = "<script>alert('x')</script>&\"</style>"
    given = findings(("none", bad, "b"))
    for key in ("title", "command", "when"):
        given[key] = bad
    given["environment"]["commit"] = bad
    for study in given["studies"]:
        place = {**study["ran"][0]["environment"], "commit": bad, "machine": {"processor": bad}, "python": bad}
        study["ran"] = [{"environment": place, "runs": 1, "started": bad}]
        for key in ("name", "question", "task", "hash", "about", "why_no_comparison"):
            study[key] = bad
        study["spec"]["x"] = bad
        for arm in study["arms"]:
            arm["position"] = bad
            arm["numbers"] = {"before": {bad: bad}, "after": {bad: bad}}
            arm["diverged"] = [{"seed": 0, "step": 1, "reason": bad}]
        for seen in (study["observations"] or {}).values():
            seen["examples"][0]["tokens"][0] = bad
    text = page(given)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert text.count("<script") == text.count("</script>") == 3  # the maps of two studies, and the one program
    Document(text)


def test_nan_is_never_shown() -> None:
    given = findings()
    nan = float("nan")
    arm = given["studies"][2]["arms"][-1]
    arm["values"] = {split: {"0": nan, "1": None} for split in arm["values"]}
    arm["curves"]["0"]["losses"][3]["loss"] = float("inf")
    arm["curves"]["0"]["evaluations"][3]["splits"]["test"] = nan
    given["studies"][0]["observations"]["Alibi"]["mass"]["by_layer"][0][2] = nan
    text = Document(page(given)).text
    assert not re.search(r"\b(nan|inf|infinity|none,none)\b", text.replace("uncommitted", ""), re.IGNORECASE)
    assert "diverged" in text


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_have_dashes_instead_of_intervals(seeds: int) -> None:
    text = Document(page(findings(seeds=seeds))).text
    assert "more seeds are needed to claim anything" in text


def test_one_arm_and_no_maps() -> None:
    given = findings(("none",), maps=False)
    text = Document(page(given)).text
    assert "there is one arm only" in text and "No attention maps were recorded." in text
    accuracy, perplexity = (study["arms"][0]["summary"] for study in given["studies"][:2])
    assert f"none: {100 * accuracy['mean']:.2f} % accuracy on test." in text
    assert f"none: perplexity {perplexity['mean']:.1f} on test." in text
    low, high = (f"{perplexity['interval'][end]:.1f}" for end in ("low", "high"))
    assert f"The mean of 6 seeds; its 95 % interval is {low} to {high}. Nothing is compared" in text
    assert "The mean of 1 seed. Nothing is compared" in Document(page(findings(("none",), 1, maps=False))).text


def test_the_best_arm_stands_first_whichever_direction_is_better() -> None:
    for study in findings()["studies"][:2]:
        means = {arm["name"]: arm["summary"]["mean"] for arm in study["arms"]}
        order = sorted(means, key=lambda name: means[name], reverse=study["higher_is_better"])
        table = page({**findings(), "studies": [study]}).split('<table class="results">')[1].split("</table>")[0]
        assert sorted(means, key=lambda name: table.index(f">{name}</span>")) == order


def test_where_records_were_made_is_said_once_for_each_place() -> None:
    given = findings()
    first, second, third = given["studies"]
    elsewhere = {**first["ran"][0]["environment"], "machine": {"processor": "Other 1", "cores": 16}, "commit": "c" * 40}
    second["ran"] = [*second["ran"], {"environment": elsewhere, "runs": 7, "started": "2026-11-13T00:00:00Z"}]
    third["ran"] = [{"environment": elsewhere, "runs": 2, "started": "2026-11-12T00:00:00Z"}]
    told = Document(page(given)).text.split("What was run, and how to run it again")[1]
    assert f"{given['command']} runs 18 of Copying; 36 of Speeches first begun 2026-11-14T06:00:00Z commit 0123" in told
    assert "runs 7 of Speeches; 2 of Sorting first begun 2026-11-12T00:00:00Z commit cccc" in told
    assert told.count("Synthetic 9000") == told.count("Other 1, 16 cores") == 1
    # the place where the page was written is no place where anything was measured
    assert f"written from the records on {given['when']}, with commit fedc" in told


def test_a_source_hash_that_is_not_the_commits_is_a_warning() -> None:
    given = findings()
    for matches, words in ((True, "the hash of the commit's sources"), (False, "did not make these runs"), (None, "")):
        given["studies"][0]["ran"][0]["provenance"] = {"source_matches_commit": matches}
        text = Document(page(given)).text.split("source hash", 1)[1].split("versions")[0]
        assert words in text and ("did not make" in text) == (matches is False)


def test_layers_and_heads_are_counted_from_one() -> None:
    made = page(findings())
    for choice in ("layer", "head"):
        options = re.search(rf'data-choice="{choice}">(.*?)</select>', made)
        assert options and re.findall(r">(\d+)</option>", options[1]) == ["1", "2"]
    assert "layer 1: share of attention" in made and "layer 0" not in made


def test_padding_reaches_the_maps() -> None:
    data = re.search(r'id="maps-0">(.*?)</script>', page(findings()))
    assert data
    first, second = json.loads(data[1])["arms"][0]["examples"]
    assert first["padding"] is None
    assert second["padding"] == [token == "<pad>" for token in second["tokens"]] and any(second["padding"])


def test_what_was_learned_is_told_by_layer() -> None:
    given = findings()
    name = "body.layers.{}.attention.position"
    arm = given["studies"][0]["arms"][-1]
    arm["numbers"] = {
        "before": {"body.at_input.0": "width=8", name.format(0): "", name.format(1): "beta=1"},
        "after": {"body.at_input.0": "width=8", name.format(0): "", name.format(1): "beta=2"},
    }
    told = Document(page(given)).text
    assert "input width=8 width=8 layer 2 beta=1 beta=2" in told  # layer 1 has no numbers


def test_parts_of_one_length_stand_open() -> None:
    given = findings()
    given["studies"][0]["lengths"] = dict.fromkeys(("test", "2x", "4x", "8x"), 17)
    made = page(given)
    assert made.count("<details open><summary>Every value on every part") == 1
    assert made.count("<details><summary>Every value at every length") == 2


def test_twenty_one_arms_with_long_names_look_different() -> None:
    names = ("none", *(f"arm {k} {'with a very long name ' * 6}" for k in range(20)))
    text = page(findings(names, maps=False))
    Document(text)
    assert len(set(re.findall(r'<g class="(arm [^"]+)"', text))) == 21


def test_an_arm_that_diverged_with_all_seeds() -> None:
    given = findings()
    arm = given["studies"][2]["arms"][-1]
    arm |= {"values": {}, "curves": {}, "diverged": [{"seed": s, "step": 9, "reason": ""} for s in range(3)]}
    text = Document(page(given)).text
    assert "seed 0 diverged at step 9; seed 1 diverged at step 9; seed 2 diverged at step 9" in text


def test_examples_that_do_not_fit_are_left_out_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.report.comparison import maps

    given, whole = findings(), len(page(findings()))
    monkeypatch.setattr(maps, "ROOM", 30_000)
    some = page(given)
    assert len(some) < whole and "1 of 2 examples were left out" in some
    monkeypatch.setattr(maps, "ROOM", 10)
    assert "too large for this page" in page(given)


def test_refuses_what_is_no_comparison() -> None:
    empty: dict[str, Any] = {**findings(), "studies": []}
    with pytest.raises(WhenceError, match=r"page\(findings\) got no studies, but a page is about at least one arm"):
        page(empty)
    wrong = findings()
    wrong["studies"][0]["observations"]["none"]["examples"][0]["tokens"].append("more")
    with pytest.raises(WhenceError, match=r"a map of 576 bytes for 'none', layer 0, head 0, but 25 tokens have 625"):
        page(wrong)

"""The comparison report: its content and order, valid and escaped HTML, deterministic output."""

from __future__ import annotations

import copy
import json
import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from comparison_findings import ARMS, compare_rows, findings

from whence.errors import WhenceError
from whence.report.comparison import baseline_lines, page
from whence.report.comparison.arm_style import assign_styles
from whence.report.comparison.baseline_lines import NameBesideLine, baseline_losses, place_names
from whence.report.comparison.dot_plots import forest_plot
from whence.report.comparison.units import choose_units
from whence.report.comparison.verdicts import headline

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
def html_text() -> str:
    return page(findings())


@pytest.fixture(scope="module")
def document(html_text: str) -> Document:
    return Document(html_text)


def test_page_is_small_and_self_contained(html_text: str, document: Document) -> None:
    assert len(html_text.encode()) < 1_000_000
    assert "http://" not in html_text and "https://" not in html_text
    assert "@import" not in html_text and "url(" not in html_text
    assert not [entry for entry in document.attributes if entry[1] in ("src", "srcset", "action", "data")]
    assert all(value.startswith("#") for _, name, value in document.attributes if name == "href")


def test_page_is_deterministic_and_does_not_change_its_input(html_text: str) -> None:
    data = findings()
    before = copy.deepcopy(data)
    assert page(data) == html_text
    assert data == before


def test_ids_are_unique_and_labels_refer_to_them(document: Document) -> None:
    ids = [value for _, name, value in document.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    pointed = {v for _, name, v in document.attributes if name in ("for", "aria-labelledby", "aria-describedby")}
    assert pointed <= set(ids)


def test_verdicts_of_the_comparison_come_first(document: Document) -> None:
    text, studies = document.text, findings()["studies"]
    first = text.index("Verdict")
    assert text.index(findings()["title"], len(findings()["title"])) < text.index("Claims") < min(300, first)
    for study in studies[:2]:
        for arm in study["comparison"]["arms"].values():
            verdict = " ".join(arm["verdict"].split())
            assert first <= text.index(verdict, first) < text.index(studies[0]["question"])
    assert "All 5 arms are better than none." in text
    assert "No comparison was made." in text and studies[2]["why_no_comparison"] in text


def test_a_headline_is_decided_suggestive_or_nothing_seen() -> None:
    data = findings(ARMS[:3])
    arms = data["studies"][0]["comparison"]["arms"]
    for arm in arms.values():
        arm |= {"kind": "undecided", "suggestive": False, "seeds_needed": 4}
    text = Document(page(data)).text
    assert "Nothing seen: no arm differs from none by more than chance with 3 seeds." in text
    arms["Rotary"]["suggestive"] = True
    text = Document(page(data)).text
    assert "Suggestive: Rotary differs from none with 3 seeds, but not significantly" in text
    assert "about 4 more seeds would probably decide" in text
    arms["Rotary"]["kind"] = "equivalent"
    assert "Rotary is equivalent to none; 1 other arm is undecided." in Document(page(data)).text


def test_order_of_sections(document: Document) -> None:
    names = ["Verdict", "Results per arm", "Results per seed", "Length extrapolation", "Training loss",
             "Attention maps", "Attention by distance", "Learned position parameters", "How to reproduce"]  # fmt: skip
    at = [document.text.index(name) for name in names]
    assert at == sorted(at)


def test_every_arm_is_in_every_study_with_one_style(html_text: str) -> None:
    for section in html_text.split('<section class="study"')[1:]:
        for name in ARMS:
            assert section.count(name) >= 4
    for place in range(len(ARMS)):
        styles = set(re.findall(rf'<g class="(arm [^"]+)" data-arm="{place}">', html_text))
        assert len(styles) == 1
    assert len(set(re.findall(r'<g class="(arm [^"]+)"', html_text))) == len(ARMS)


def test_table_numbers_are_those_of_the_comparison(document: Document) -> None:
    study = findings()["studies"][0]
    arm = study["comparison"]["arms"]["Alibi"]
    mean, difference = f"{arm['summary']['mean']:.2f}", f"+{arm['difference']:.2f}"
    low, high = arm["corrected_interval"]["low"], arm["corrected_interval"]["high"]
    assert f"Alibi {mean} " in document.text and f" {difference} {low:.2f} to {high:.2f} " in document.text
    assert "seed 1 diverged at step 340" in document.text and "with uncommitted changes" in document.text


def test_comparison_of_fractions_is_shown_in_percent() -> None:
    data = findings()
    study = data["studies"][0]
    comparison = study["comparison"]
    expected = f"+{comparison['arms']['Alibi']['difference']:.2f}"
    for side in [comparison["baseline_summary"], *(arm["summary"] for arm in comparison["arms"].values())]:
        side["mean"], side["deviation"] = side["mean"] / 100, side["deviation"] / 100
    for arm in comparison["arms"].values():
        arm["difference"] /= 100
    assert expected in Document(page(data)).text


def test_all_text_is_escaped() -> None:
    bad = "<script>alert('x')</script>&\"</style>"
    data = findings(("none", bad, "b"))
    for key in ("title", "command", "when"):
        data[key] = bad
    data["environment"]["commit"] = bad
    for study in data["studies"]:
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
    text = page(data)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert text.count("<script") == text.count("</script>") == 3  # the maps of two studies, and the one program
    Document(text)


def test_nan_is_never_shown() -> None:
    data = findings()
    nan = float("nan")
    arm = data["studies"][2]["arms"][-1]
    arm["values"] = {split: {"0": nan, "1": None} for split in arm["values"]}
    arm["curves"]["0"]["losses"][3]["loss"] = float("inf")
    arm["curves"]["0"]["evaluations"][3]["splits"]["test"] = nan
    data["studies"][0]["observations"]["Alibi"]["mass"]["by_layer"][0][2] = nan
    text = Document(page(data)).text
    assert not re.search(r"\b(nan|inf|infinity|none,none)\b", text.replace("uncommitted", ""), re.IGNORECASE)
    assert "diverged" in text


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_have_dashes_instead_of_intervals(seeds: int) -> None:
    text = Document(page(findings(seeds=seeds))).text
    assert (text.count("No comparison was made.") > 1) == (seeds == 1)  # one study has none in any case


def test_one_arm_and_no_maps() -> None:
    data = findings(("none",), maps=False)
    text = Document(page(data)).text
    assert "the study has one arm" in text and "No attention maps were recorded." in text
    accuracy, perplexity = (study["arms"][0]["summary"] for study in data["studies"][:2])
    assert f"none: {100 * accuracy['mean']:.2f} % accuracy on test." in text
    assert f"none: perplexity {perplexity['mean']:.1f} on test." in text
    low, high = (f"{perplexity['interval'][end]:.1f}" for end in ("low", "high"))
    assert f"Mean of 6 seeds; 95 % interval {low} to {high}. No comparison" in text
    assert "Mean of 1 seed. No comparison" in Document(page(findings(("none",), 1, maps=False))).text


def test_best_arm_is_first_in_both_directions() -> None:
    for study in findings()["studies"][:2]:
        means = {arm["name"]: arm["summary"]["mean"] for arm in study["arms"]}
        order = sorted(means, key=lambda name: means[name], reverse=study["higher_is_better"])
        table = page({**findings(), "studies": [study]}).split('<table class="results">')[1].split("</table>")[0]
        assert sorted(means, key=lambda name: table.index(f">{name}</span>")) == order


def test_each_environment_is_listed_once() -> None:
    data = findings()
    first, second, third = data["studies"]
    elsewhere = {**first["ran"][0]["environment"], "machine": {"processor": "Other 1", "cores": 16}, "commit": "c" * 40}
    second["ran"] = [*second["ran"], {"environment": elsewhere, "runs": 7, "started": "2026-11-13T00:00:00Z"}]
    third["ran"] = [{"environment": elsewhere, "runs": 2, "started": "2026-11-12T00:00:00Z"}]
    text = Document(page(data)).text.split("How to reproduce")[1]
    assert (
        f"{data['command']} runs 18 of Copying; 36 of Speeches first started 2026-11-14T06:00:00Z commit 0123" in text
    )
    assert "runs 7 of Speeches; 2 of Sorting first started 2026-11-12T00:00:00Z commit cccc" in text
    assert text.count("Synthetic 9000") == text.count("Other 1, 16 cores") == 1
    # the environment that wrote the page is not one that ran a study
    assert f"written from the records on {data['when']}, at commit fedc" in text


def test_a_source_hash_that_is_not_the_commits_is_a_warning() -> None:
    data = findings()
    for matches, words in ((True, "matches the commit"), (False, "differs from the commit"), (None, "")):
        data["studies"][0]["ran"][0]["provenance"] = {"source_matches_commit": matches}
        text = Document(page(data)).text.split("source hash", 1)[1].split("versions")[0]
        assert words in text and ("differs from" in text) == (matches is False)
    sources = {"commit": "a" * 40, "files": {"src/b.py": "c" * 40}}
    data["studies"][0]["ran"][0]["provenance"] = {"source_matches_commit": False, "sources": sources}
    assert "the sources are those of aaaaaaaaaaaa with src/b.py of cccccccccccc" in Document(page(data)).text


def test_the_interval_of_a_percentage_and_a_table_of_texts() -> None:
    data = findings()
    study = data["studies"][0]
    for summary in (
        study["comparison"]["baseline_summary"],
        *(a["summary"] for a in study["comparison"]["arms"].values()),
    ):
        summary["interval"] |= {"low": -587.0, "high": 687.0}
    rows = [["source", "Ann left."], [ARMS[0], "Ann."], ["source", "Bo left."]]
    study["panels"] = [{"kind": "table", "title": "Summaries", "head": ["", "text"], "rows": rows, "note": "First pairs.", "text": True, "group": "source"}]  # fmt: skip
    html_text = page(data)
    assert "587" not in Document(html_text).text and re.search(r">0(\.0+)? to 100(\.0+)?<", html_text)
    assert html_text.count("<tr class=first><th") >= 2 and "<td class=text>Bo left.</td>" in html_text


def test_layers_and_heads_are_counted_from_one() -> None:
    html_text = page(findings())
    for choice in ("layer", "head"):
        options = re.search(rf'data-choice="{choice}">(.*?)</select>', html_text)
        assert options and re.findall(r">(\d+)</option>", options[1]) == ["1", "2"]
    assert "layer 1: share of attention" in html_text and "layer 0" not in html_text


def test_padding_reaches_the_maps() -> None:
    data = re.search(r'id="maps-0">(.*?)</script>', page(findings()))
    assert data
    first, second = json.loads(data[1])["arms"][0]["examples"]
    assert first["padding"] is None
    assert second["padding"] == [token == "<pad>" for token in second["tokens"]] and any(second["padding"])


def test_learned_parameters_are_listed_by_layer() -> None:
    data = findings()
    name = "body.layers.{}.attention.position"
    arm = data["studies"][0]["arms"][-1]
    arm["numbers"] = {
        "before": {"body.at_input.0": "width=8", name.format(0): "", name.format(1): "beta=1"},
        "after": {"body.at_input.0": "width=8", name.format(0): "", name.format(1): "beta=2"},
    }
    text = Document(page(data)).text
    assert "input width=8 width=8 layer 2 beta=1 beta=2" in text  # layer 1 has no numbers


def test_table_of_splits_with_one_length_is_expanded() -> None:
    data = findings()
    data["studies"][0]["lengths"] = dict.fromkeys(("test", "2x", "4x", "8x"), 17)
    html_text = page(data)
    assert html_text.count("<details open><summary>All values by split") == 1
    assert html_text.count("<details><summary>All values by length") == 2


def test_twenty_one_arms_with_long_names_have_distinct_styles() -> None:
    names = ("none", *(f"arm {k} {'with a very long name ' * 6}" for k in range(20)))
    text = page(findings(names, maps=False))
    Document(text)
    assert len(set(re.findall(r'<g class="(arm [^"]+)"', text))) == 21


def test_an_arm_that_diverged_with_all_seeds() -> None:
    data = findings()
    arm = data["studies"][2]["arms"][-1]
    arm |= {"values": {}, "curves": {}, "diverged": [{"seed": s, "step": 9, "reason": ""} for s in range(3)]}
    text = Document(page(data)).text
    assert "seed 0 diverged at step 9; seed 1 diverged at step 9; seed 2 diverged at step 9" in text


def test_examples_that_do_not_fit_are_omitted_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.report.comparison import attention_maps

    data, whole = findings(), len(page(findings()))
    monkeypatch.setattr(attention_maps, "MAX_CHARS", 30_000)
    some = page(data)
    assert len(some) < whole and "1 of 2 examples were omitted" in some
    monkeypatch.setattr(attention_maps, "MAX_CHARS", 10)
    assert "too large for this page" in page(data)


def test_invalid_findings_raise() -> None:
    empty: dict[str, Any] = {**findings(), "studies": []}
    with pytest.raises(WhenceError, match=r"page\(findings\) got no studies.*run a study"):
        page(empty)
    wrong = findings()
    wrong["studies"][0]["observations"]["none"]["examples"][0]["tokens"].append("more")
    with pytest.raises(WhenceError, match=r"a map of 576 bytes for 'none', layer 0, head 0.*625.*uint8"):
        page(wrong)


def test_floor_and_ceiling_are_lines_in_every_figure() -> None:
    study = findings()["studies"][0]
    text = page({**findings(), "studies": [study]})
    figures = re.findall(r"<figure.*?</figure>", text, flags=re.S)
    charts = [figure for figure in figures if "<svg" in figure and "distance between query and key" not in figure]
    assert len(charts) == 5  # differences, seeds, lengths, losses, evaluations
    for chart in charts:
        assert re.search(r'class="reference"[^>]*></(line|path)><text class="tick"[^>]*>chance</text>', chart), chart[
            :200
        ]
    without = page({**findings(), "studies": [study | {"baselines": []}]})
    assert ">chance</text>" not in without


def test_a_loss_line_is_the_logarithm_of_the_perplexity() -> None:
    study = findings()["studies"][0]
    assert baseline_losses(study) == {"chance": pytest.approx(math.log(60))}
    study["baselines"].append(
        {"name": "bigram", "kind": "constant", "about": "", "splits": {"test": {"perplexity": 9.0}}}
    )
    assert baseline_losses(study) == {"bigram": pytest.approx(math.log(9))}
    study["baselines"] = [{"name": "rule", "kind": "rule", "about": "", "splits": {"test": {"accuracy": 0.4}}}]
    assert baseline_losses(study) == {}


def test_every_two_arms_are_in_a_table() -> None:
    data = findings(ARMS[:3])
    study = data["studies"][0]
    assert "row minus column" not in page({**data, "studies": [study]})
    study["comparison"] = compare_rows(ARMS[:3], study["arms"], "accuracy", 3, family="pairs")
    text = Document(page({**data, "studies": [study]})).text
    other = study["comparison"]["others"][0]
    assert {other["first"], other["second"]} == set(ARMS[1:3])
    assert "1 of the 1 pairs without none" in text or "0 of the 1 pairs without none" in text
    difference = f"{abs(other['estimate']):.2f}"
    assert f"+{difference} " in text and f"\u2212{difference} " in text
    other["verdict"] = "better"
    for one in study["comparison"]["arms"].values():
        one |= {"verdict": "undecided", "kind": "undecided", "suggestive": False}
    decided = "No arm differs from none by more than chance with 3 seeds. Pairs without none: 1 of 1 is decided."
    assert headline(study).endswith(decided)
    other["verdict"] = "undecided"
    assert headline(study).endswith("No pair of arms is decided with 3 seeds.")


def test_no_dotted_line_crosses_the_label_of_a_tick_or_of_another_line():
    study = findings()["studies"][0]
    split, mean = study["split"], study["comparison"]["baseline_summary"]["mean"]
    factor = choose_units(study).comparison_factor / choose_units(study).value_factor
    study["baselines"] = [
        {"name": name, "kind": kind, "splits": {split: {"accuracy": mean * factor + shift}}}
        for name, kind, shift in (
            ("chance", "constant", 0.0),
            ("bag of words", "rule", 0.002),
            ("ceiling", "ceiling", 0.3),
        )
    ]
    chart = forest_plot(study, choose_units(study), assign_styles([study]), set())
    lines = [
        tuple(map(float, found))
        for found in re.findall(r'"reference" x1="([\d.]+)" x2="[\d.]+" y1="([\d.]+)" y2="([\d.]+)"', chart)
    ]
    texts = re.findall(r'<text class="tick" x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]+)<', chart)
    assert {"chance", "bag of words", "ceiling", "0"} <= {text for *_, text in texts} and len(lines) >= 3
    for x, y, anchor, text in texts:
        width = 6.0 * len(text)
        left = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
        for at, top, bottom in lines:
            assert not (left < at < left + width and top < float(y) - 2 and bottom > float(y) - 8), text


def test_an_axis_holds_the_intervals_unless_one_is_far_wider_than_the_others():
    study = findings()["studies"][0]
    arms = study["comparison"]["arms"]
    for arm in arms.values():
        arm |= {"difference": -1.5, "corrected_interval": {"low": -8.7, "high": 4.6, "level": 0.95}}
    units, styles = choose_units(study), assign_styles([study])
    study["comparison"]["margin"] = None
    chart = forest_plot(study, units, styles, set())
    assert 'class="end"' not in chart and 'class="margin"' not in chart
    arms["Alibi"]["corrected_interval"] |= {"low": -900.0}
    assert forest_plot(study, units, styles, set()).count('class="end"') == 1  # one arrow
    study["comparison"]["margin"] = 3.0
    chart = forest_plot(study, units, styles, set())
    assert chart.count('class="margin"') == 2
    assert "Dashed: the margin of 3." in page({**findings(), "studies": [study]})


def test_the_kicker_counts_the_seeds_that_were_trained() -> None:
    data = findings(ARMS[:3])
    study = data["studies"][0]
    study["spec"]["seeds"] = list(range(12))  # planned looks up to 12 seeds
    assert "3 arms, 3 seeds each" in Document(page({**data, "studies": [study]})).text
    for seed in ("3", "4"):
        study["arms"][1]["curves"][seed] = study["arms"][1]["curves"]["0"]
    assert "3 arms, 3 to 5 seeds each" in Document(page({**data, "studies": [study]})).text


@pytest.mark.parametrize("end", [1000.0, 330.0])
def test_many_names_beside_lines_are_placed_at_once(monkeypatch: pytest.MonkeyPatch, end: float) -> None:
    lines = {f"baseline {number}": 100.0 + 20 * number for number in range(9)}
    built = []

    def build(*given: Any) -> NameBesideLine:
        built.append(given)
        assert len(built) < 1000  # all orders and sides would be 9! * 2**9 * 9 labels
        return NameBesideLine(*given)

    monkeypatch.setattr(baseline_lines, "NameBesideLine", build)
    placed = place_names(lines, end)
    assert {label.name: label.at for label in placed} == lines
    for index, label in enumerate(placed):
        assert not any(label.covers(later.at) for later in placed[index + 1 :])
        assert not label.is_right or label.at + label.width <= end

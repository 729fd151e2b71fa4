"""Claims and undecided comparisons in sentences, on a terminal and first on the page."""

import re

import pytest
from comparison_findings import findings

from whence.report.comparison import page
from whence.report.comparison.sentences import claim_sentences, describe_place, summary_lines, undecided_sentences


@pytest.fixture
def studies():
    return findings(seeds=6, maps=False)["studies"]


def test_a_claim_names_arms_difference_task_means_and_p(studies):
    copying, speeches, _ = studies
    first = claim_sentences(copying)[0]
    arm = copying["comparison"]["arms"]["Epar + Rotary"]
    assert first.startswith(
        f"Epar + Rotary is better than none by {arm['difference']:.3g} points on Copying (accuracy "
    )
    assert re.search(r"accuracy [\d.]+\s% against [\d.]+\s%, p [<=] [\d.]+\)\.$", first)
    assert re.search(
        r"better than none by [\d.]+ on Speeches \(perplexity [\d.]+ against", claim_sentences(speeches)[0]
    )
    claimed = [arm for arm in copying["comparison"]["arms"].values() if arm["kind"] != "undecided"]
    undecided = undecided_sentences(copying)
    assert len(claim_sentences(copying)) == len(claimed) > 1
    assert len(undecided) == len(copying["comparison"]["arms"]) - len(claimed)
    assert claim_sentences(studies[2]) == undecided_sentences(studies[2]) == []  # there is no comparison


def test_equivalent_arms_share_a_sentence(studies):
    comparison = studies[0]["comparison"]
    comparison["margin"] = 5.0
    for name in ("Alibi", "Rotary"):
        comparison["arms"][name]["kind"] = "equivalent"
    last = claim_sentences(studies[0])[-1]
    assert last.endswith(" are equivalent to none within 5 points on Copying.") and "Alibi and Rotary" in last


def test_a_claim_names_the_look_that_made_it_and_the_seeds_left_out(studies):
    arms = studies[0]["comparison"]["arms"]
    looks = "claimed at the look after 3 seeds"
    arms["Epar + Rotary"] |= {"look": looks, "left_out": [1, 4]}
    assert claim_sentences(studies[0])[0].endswith(f", {looks}, without seeds 1 and 4).")
    arms["Alibi"] |= {"kind": "equivalent", "look": looks}
    arms["Rotary"] |= {"kind": "equivalent"}
    arms["Sinusoid"] |= {"kind": "equivalent", "left_out": [1]}
    first, second, third = sorted(sentence for sentence in claim_sentences(studies[0]) if "equivalent" in sentence)
    assert first.startswith("Alibi is ") and first.endswith(f" on Copying ({looks}).")
    assert second.startswith("Rotary is ") and second.endswith(" on Copying.")
    assert third.startswith("Sinusoid is ") and third.endswith(" on Copying (without seed 1).")


def test_the_length_is_named_if_it_exceeds_the_trained_one(studies):
    study = studies[0] | {"name": "recall", "lengths": {"test": 17, "8x": 136, "odd": 20}}
    assert describe_place(study) == "on recall"
    assert describe_place(study | {"split": "8x"}) == "on recall at 8 times the trained length"
    assert describe_place(study | {"split": "odd"}) == "on recall (odd)"


def test_the_terminal_lists_claims_then_undecided_then_the_rest(studies):
    studies[0]["comparison"]["arms"]["Rotary"] |= {"kind": "undecided", "verdict": "undecided: 3 more seeds"}
    lines = summary_lines(studies)
    assert lines[0].startswith("Claimed, with an error rate of 5 % over all ")
    assert lines[1].strip() == claim_sentences(studies[0])[0].replace("\u00a0", " ")
    undecided = lines.index("Undecided:")
    assert lines[undecided + 1] == "  Rotary on Copying: 3 more seeds."
    assert any(line.startswith("Sorting, ") for line in lines[undecided:])  # without a comparison: the means
    narrow = summary_lines(studies, width=60)
    assert max(map(len, narrow)) <= 60 and len(narrow) > len(lines)
    for study in studies[:2]:
        for arm in study["comparison"]["arms"].values():
            arm |= {"kind": "undecided", "verdict": "undecided"}
    assert summary_lines(studies)[0] == "No difference is claimed."


def test_no_arm_beats_a_constant_answer_comes_first(studies):
    studies[0]["constant"] = {"name": "chance", "value": 0.99, "beaten_by": [], "not_beaten_by": ["none"]}
    studies[0]["comparison"]["arms"]["Rotary"] |= {"kind": "undecided", "verdict": "undecided: 3 more seeds"}
    lines = summary_lines(studies)
    assert lines[0].startswith("Copying: No arm beats a constant answer (chance: 99")
    assert not any("3 more seeds" in line for line in lines)  # the arms have learned nothing
    studies[0]["constant"] |= {"beaten_by": ["Rotary"]}
    assert "  Rotary on Copying: 3 more seeds." in summary_lines(studies)


def test_claims_are_first_on_the_page():
    found = findings(seeds=6, maps=False)
    text = page(found)
    claims = [sentence for study in found["studies"] for sentence in claim_sentences(study)]
    assert claims[0].replace("<", "&lt;") in text
    assert text.index('<section class="claims"') < text.index('<section class="verdict"')
    single = findings(arms=("none",), maps=False)
    assert 'class="claims"' not in page(single)
    found["studies"][1]["constant"] = {"name": "chance", "value": 60.0, "beaten_by": [], "not_beaten_by": ["none"]}
    text = page(found)
    warning = text.index("Speeches: No arm beats a constant answer (chance: 60")
    assert warning < min(text.index(claim.replace("<", "&lt;")) for claim in claims)

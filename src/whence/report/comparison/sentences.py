"""What a comparison claims and what it leaves undecided, one sentence each, for the terminal and the top of the page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from whence.report.comparison.svg import shorten
from whence.report.comparison.units import (
    PERCENT_METRICS,
    choose_units,
    describe_failures,
    difference_unit,
    name_metric,
)
from whence.report.comparison.verdicts import MAX_NAME_CHARS, constant_headline, join_names, verdict_lines
from whence.report.formatting import format_number
from whence.statistics.number_texts import format_size
from whence.statistics.verdict_texts import describe_left_out, format_p


def claim_sentences(study: dict[str, Any]) -> list[str]:
    """The decided comparisons of a study, the largest difference first; arms equivalent to the baseline on the same data share a sentence."""
    comparison = study.get("comparison")
    if not comparison:
        return []
    place, baseline = describe_place(study), comparison["baseline"]
    unit = f" {difference_unit(study)}".rstrip()
    arms = sorted(comparison["arms"].items(), key=lambda item: -abs(item[1]["difference"]))
    sentences = [
        f"{_short(name)} is {arm['kind']} than {_short(baseline)} by {format_size(abs(arm['difference']))}{unit} {place} "
        f"({_join_facts(_describe_means(study, arm), format_p(arm['corrected_p']), *_describe_data_used(arm))})."
        for name, arm in arms
        if arm["kind"] in ("better", "worse")
    ]
    equivalent: dict[str, list[str]] = {}
    for name, arm in arms:
        if arm["kind"] == "equivalent":
            equivalent.setdefault(_join_facts(*_describe_data_used(arm)), []).append(name)
    for facts, names in equivalent.items():
        verb = "is" if len(names) == 1 else "are"
        margin = "" if comparison["margin"] is None else f" within {comparison['margin']:g}{unit}"
        inside = f" ({facts})" if facts else ""
        sentences.append(f"{join_names(names)} {verb} equivalent to {_short(baseline)}{margin} {place}{inside}.")
    for other in comparison["others"]:
        if other["verdict"] != "undecided":
            sentences.append(f"{_short(other['first'])} is {other['sentence']} {place}.")
    return sentences


def undecided_sentences(study: dict[str, Any]) -> list[str]:
    """The undecided comparisons of a study, with the number of seeds that would probably decide each.

    They stand below a heading, so they do not begin with "undecided" again.
    """
    comparison = study.get("comparison")
    if not comparison:
        return []
    place = describe_place(study)
    contrasts = [(name, arm["kind"], arm["verdict"]) for name, arm in comparison["arms"].items()]
    contrasts += [(other["first"], other["verdict"], other["sentence"]) for other in comparison["others"]]
    return [
        f"{_short(name)} {place}: {text.removeprefix('undecided: ')}."
        for name, kind, text in contrasts
        if kind == "undecided"
    ]


def failure_sentences(study: dict[str, Any]) -> list[str]:
    """The seeds that failed or diverged, by arm."""
    place = describe_place(study)
    return [f"{_short(arm['name'])} {place}: {text}." for arm in study["arms"] if (text := describe_failures(arm))]


def describe_place(study: dict[str, Any]) -> str:
    """The task and the split of a study's comparison, as in "on recall at 8 times the trained length"."""
    name, split = study["name"], study["split"]
    length, trained = study["lengths"].get(split), study["trained_length"]
    if length and trained and length > trained and length % trained == 0:
        return f"on {name} at {length // trained} times the trained length"
    return f"on {name}" if split == "test" else f"on {name} ({split})"


def summary_lines(studies: Sequence[dict[str, Any]], width: int | None = None) -> list[str]:
    """The end of a comparison on a terminal: the claims, what is undecided, and the means of studies without a comparison.

    What is undecided between arms that do not beat a constant answer is left to the page: more seeds of arms that learned nothing
    decide nothing. ``width`` is that of the terminal; None does not wrap.
    """
    claims = [sentence for study in studies for sentence in claim_sentences(study)]
    undecided = [
        sentence for study in studies if not constant_headline(study) for sentence in undecided_sentences(study)
    ]
    compared = [study for study in studies if study.get("comparison")]
    lines = constant_warnings(studies)
    if claims:
        level = compared[0]["comparison"]
        count = max(level["m"], len(claims))
        lines.append(
            f"Claimed, with an error rate of {100 * (1 - level['level']):g} % over all {count} comparisons:"
            if count > 1
            else f"Claimed, with an error rate of {100 * (1 - level['level']):g} %:"
        )
        lines += _list_items(claims, width)
    elif compared:
        lines.append("No difference is claimed.")
    if undecided:
        lines += ["Undecided:", *_list_items(undecided, width)]
    failures = [sentence for study in compared for sentence in failure_sentences(study)]
    if failures:
        lines += ["Left out of the comparisons:", *_list_items(failures, width)]
    changes = [f"{describe_place(study)}: {study['plan_change']}" for study in compared if study["plan_change"]]
    if changes:
        lines += ["Records from before the plan:", *_list_items(changes, width)]
    for study in studies:
        if study.get("remarks"):
            lines += [f"Beside the comparison {describe_place(study)}:", *_list_items(study["remarks"], width)]
    for study in studies:
        if not study.get("comparison"):
            lines += verdict_lines(study)
    return [part for line in lines for part in _wrap(line.replace("\u00a0", " "), width)]


def constant_warnings(studies: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each study with a comparison in which no arm is shown to beat a constant answer. It comes before all claims."""
    return [
        f"{study['name']}: {line}"
        for study in studies
        if study.get("comparison") and (line := constant_headline(study))
    ]


def _wrap(line: str, width: int | None) -> list[str]:
    """
    >>> _wrap("No arm beats a constant answer.", 20), _wrap("  short", 20)
    (['No arm beats a', '  constant answer.'], ['  short'])
    """
    if width is None or len(line) <= width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)


def _list_items(sentences: Sequence[str], width: int | None) -> list[str]:
    if width is None:
        return [f"  {sentence}" for sentence in sentences]
    wrap = textwrap.TextWrapper(width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    return [line for sentence in sentences for line in wrap.wrap(sentence)]


def _describe_means(study: dict[str, Any], arm: dict[str, Any]) -> str:
    """The means of an arm and the baseline over the compared seeds, as in "accuracy 99.9 % against 22.6 %"."""
    units = choose_units(study)
    percent = "\u00a0%" if study["metric"] in PERCENT_METRICS else ""
    first, second = (
        f"{format_number(mean * units.comparison_factor, min(units.decimals, 2))}{percent}" for mean in arm["means"]
    )
    return f"{name_metric(study['metric'])} {first} against {second}"


def _describe_data_used(arm: dict[str, Any]) -> tuple[str, str]:
    """The look that made the claim, if it was not the last, and the seeds that are left out."""
    return arm["look"], describe_left_out(arm["left_out"])


def _join_facts(*facts: str) -> str:
    return ", ".join(filter(None, facts))


def _short(name: str) -> str:
    return shorten(name, MAX_NAME_CHARS)

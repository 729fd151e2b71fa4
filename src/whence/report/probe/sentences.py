"""The answers of a probe's page as sentences. The decision rule is that of ``whence.probe.curves``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whence.probe.curves import FEW, leading_curve
from whence.report.formatting import format_number, format_p

MOST = 4  # slots that are named where a wrong answer came from
CEILING = 0.99
SHORT = {"likelihood": "choice", "probability": "probability", "generation": "generation"}
PHRASES = {"probability": "the probability of the answer"}  # where a name needs an article
SCORES = {
    "likelihood": "accuracy by choice",
    "generation": "accuracy by generation",
    "probability": "probability of the answer",
}


def section_answer(findings: dict[str, Any]) -> str:
    """Does the position of the answer matter? One sentence from the strongest test of all tasks and measures."""
    decision, tasks = findings["decision"], findings["tasks"]
    task = next(task for task in tasks if task["task"] == decision["lead"])
    if not decision["supported"]:
        none = (
            f"none of {decision['tests']} tests supports" if decision["tests"] > 1 else "the only test does not support"
        )
        return (
            f"Undecided: {none} an effect of position "
            f"(smallest {p_value(leading_curve(task)['corrected_p'])}, {task['name']})."
        )
    among = f" in {decision['supported']} of {len(tasks)} tasks, most clearly" if len(tasks) > 1 else ""
    return f"Yes,{among} in {task['name']}: {describe_effect(leading_curve(task))}."


def describe_decision_rule(decision: dict[str, Any]) -> str:
    """The decision rule and the measures."""
    return (
        f"How it is decided. The measures are: accuracy by choice (share of items whose answer is more likely than every rival), "
        "probability of the answer (among the answer and its rivals), and accuracy by generation (share of items whose "
        "answer occurs in the generated text). The gap is the best slot minus the worst. p: share of within-item permutations "
        f"of the slots with a gap at least as large, with Holm’s correction for {format_count(decision['tests'], 'test')} (every task by every measure "
        f"of the plan); an effect is supported at p < {decision['alpha']:g}. Among supported measures the smallest p leads, then the "
        "largest gap beyond chance. The interval of the gap covers all pairs of slots at once. Panels with fewer than "
        f"{decision['few']} items per slot are marked; with so few, a true effect is easily missed. Bars are 95% intervals. "
        "Dotted lines: chance, the question without any slot (closed book), and the gold alone (oracle). Slots count from 1."
    )


def headline(task: dict[str, Any]) -> str:
    """The answer for one task: its strongest supported measure with size, interval and p, or why there is none."""
    curve = leading_curve(task)
    if task["supported"]:
        sentence = describe_effect(curve)
        return f"{sentence[0].upper()}{sentence[1:]}."
    return f"Undecided: {explain_undecided(curve)}."


def describe_effect(curve: dict[str, Any]) -> str:
    """The gap of one curve as a clause, without its full stop."""
    return (
        f"{measure_phrase(curve['score'])} is {format_points(curve['gap'])} points higher with the gold in slot {curve['best'] + 1} than in "
        f"slot {curve['worst'] + 1} (95% interval {format_gap_interval(curve)}, {p_value(curve['corrected_p'])})"
    )


def explain_undecided(curve: dict[str, Any]) -> str:
    if curve["gap"] == 0:
        ends = {"easy": curve["average"] >= CEILING, "hard": curve["average"] <= 1 - CEILING}
        why = "".join(f", so the task is too {end} to show an effect" for end, reached in ends.items() if reached)
        return f"{measure_phrase(curve['score'])} is {format_percent(curve['average'])} in every slot{why}"
    return f"the strongest measure, {measure_phrase(curve['score'])}, has a gap of {format_points(curve['gap'])} points (95% interval {format_gap_interval(curve)}, {p_value(curve['corrected_p'])})"


def few_items_note(items: int, what: str = "items per slot") -> str:
    """The note on a panel with few items; empty if there are enough.

    >>> few_items_note(6), few_items_note(20)
    ('Few items: 6 items per slot, fewer than 20.', '')
    """
    return (
        ""
        if items >= FEW
        else f"Few items: {items} {what if items != 1 else what.replace('items', 'item', 1)}, fewer than {FEW}."
    )


def describe_numbers(task: dict[str, Any]) -> str:
    """The numbers behind the answer, all of the leading measure."""
    curve = leading_curve(task)
    text = (
        f"Mean over slots: {format_percent(curve['average'])} (95% interval {format_interval(curve['average_interval'])}); chance is "
        f"{format_percent(task['chance'])}. {format_count(curve['items'], 'item')} in each of {len(curve['points'])} slots."
    )
    if curve["gap"]:
        text += f" Chance alone makes a gap of {format_points(curve['gap_by_chance'])} points."
    text += describe_wrong_choices(task["wrong_choices"])
    lines = [f"{name} {format_percent(point['mean'])}" for name, point in curve["baselines"].items()]
    return text + (f" Baselines: {', '.join(lines)}." if lines else "")


def describe_wrong_choices(counts: dict[str, int]) -> str:
    """The slots whose answers were chosen wrongly, most frequent first.

    >>> describe_wrong_choices({"0": 3, "4": 1})
    ' Wrong choices were the answers of slot 1 (3 times), slot 5 (1 time).'
    """
    ordered = sorted(((count, slot) for slot, count in counts.items() if slot != "none"), reverse=True)
    if not ordered:
        return ""
    slots = ", ".join(f"slot {int(slot) + 1} ({format_count(count, 'time')})" for count, slot in ordered[:MOST])
    return f" Wrong choices were the answers of {slots}{' and others' if len(ordered) > MOST else ''}."


def describe_emphasis(short: dict[str, float]) -> str:
    """How answers and recorded attention changed when slots were emphasized.

    >>> describe_emphasis({"gained": 1.0})
    'The answer of the emphasized slot became more likely in 100% of the cases.'
    """
    share = {name: f"{100 * value:.3g}%" for name, value in short.items()}
    text = f"The answer of the emphasized slot became more likely in {share['gained']} of the cases."
    if "attention_rose" in short:
        text += (
            " Multiplying a negative score lowers attention; mean attention to the slot rose in "
            f"{share['attention_rose']} of the cases. Answer and attention changed in the same direction in "
            f"{share['same_direction']}."
        )
    return text


def p_value(p: float) -> str:
    """
    >>> p_value(0.0123), p_value(0.00001)
    ('p = 0.012', 'p < 0.0001')
    """
    text = format_p(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def measure_phrase(score: str) -> str:
    """The name of a measure within a sentence."""
    return PHRASES.get(score, SCORES[score])


def format_points(gap: float, places: int | None = None) -> str:
    """A difference of shares in percentage points: two digits, or ``places`` decimals.

    >>> format_points(0.384), format_points(0.0421), format_points(0.000214), format_points(0), format_points(0.0421, 0)
    ('38', '4.2', '0.02', '0', '4')
    """
    return format_number(100 * gap, decimals(gap) if places is None else places)


def decimals(gap: float) -> int:
    size = abs(100 * gap)
    return 0 if size >= 10 or size < 0.00005 else 1 if size >= 1 else 2 if size >= 0.01 else 4


def format_gap_interval(curve: dict[str, Any]) -> str:
    ends = curve["gap_interval"]
    places = decimals(curve["gap"])  # as many as for the gap
    return (
        NO_INTERVAL
        if ends is None
        else f"{format_points(ends['low'], places)} to {format_points(ends['high'], places)}"
    )


NO_INTERVAL = "n/a (no variance)"


def format_percent(share: float) -> str:
    return f"{format_number(100 * share, 0)}%"


def format_interval(ends: dict[str, float] | None) -> str:
    """Both ends of an interval of shares, or the reason why there is none."""
    return NO_INTERVAL if ends is None else f"{format_percent(ends['low'])} to {format_percent(ends['high'])}"


def format_count(count: int, thing: str) -> str:
    """
    >>> format_count(1, "item"), format_count(2, "item")
    ('1 item', '2 items')
    """
    return f"{count} {thing}{'' if count == 1 else 's'}"


def format_verdict(value: bool | None) -> str:
    """The answer to a hypothesis in words.

    >>> format_verdict(True), format_verdict(False), format_verdict(None)
    ('supported', 'not supported', 'undecided')
    """
    if value is None:
        return "undecided"
    return "supported" if value else "not supported"


# --- attention and hidden states: descriptive answers, without a test -----------------------------------------------------
def attention_answer(name: str, attention: dict[str, Any]) -> str:
    """The attention of the answering token, in the first task with recorded attention."""
    sink = _mean([value for layer in attention["regions"]["sink"] for value in layer])
    gold, others = mean_over_heads(attention["gold"]), _mean(mean_over_heads(attention["profile"]))
    most, least = (attention["gold_slots"][gold.index(end(gold))] + 1 for end in (max, min))
    ratio = f"{format_number(_mean(gold) / others, 1)} times as much as" if others > 0 else "all of the attention, not"
    return (
        f"In {name}, the first token receives {format_percent(sink)} of the attention; a token of the gold receives {ratio} a token "
        f"of another slot, most in slot {most} and least in slot {least}."
    )


def geometry_answer(geometry: dict[str, Any]) -> str:
    """How much of the hidden states is position."""
    shares = [layer["beyond_chance"] for layer in geometry["layers"]]
    peak = max(range(len(shares)), key=shares.__getitem__)
    return (
        f"Position explains {_share(shares[peak])} of the variance of the hidden states in layer {peak}, where it is largest, "
        f"and {_share(shares[-1])} in the last layer."
    )


def growth_answer(part: dict[str, Any]) -> str:
    """How the share of position in the monotone channels and their number change over layers."""
    arm = part["arms"]["own positions"]
    layers, last = arm["layers"], len(arm["layers"]) - 1
    curves = [half["share"] for half in arm["selected"] if half["share"]]
    counts = (
        f"{layers[1]['monotone']} channels are monotone in layer 1 ({layers[1]['by_chance']} in shuffled order) and "
        f"{layers[-1]['monotone']} in layer {last} ({layers[-1]['by_chance']})."
        if last
        else ""
    )
    if not curves or not last:
        return f"No channel is monotone in many layers. {counts}".strip()
    shares = [_mean(values) for values in zip(*curves, strict=True)]
    peak = max(range(len(shares)), key=shares.__getitem__)
    return (
        f"In the monotone channels position explains {_share(shares[1])} of the variance in layer 1, {_share(shares[peak])} in layer {peak}, "
        f"where it is largest, and {_share(shares[-1])} in layer {last}. {counts}"
    )


def causes_answer(result: dict[str, Any]) -> str:
    """Mask or encoding: the share of position that each leaves on its own."""
    mask, encoding, neither = (_share(result["arms"][name]["position_share"]) for name in ARMS)
    return (
        f"Undecided, because no test is recorded: position explains {mask} of the variance of the hidden states with the mask alone, "
        f"{encoding} with the encoding alone and {neither} with neither (layer {result['layer']})."
    )


ARMS = ("mask alone", "encoding alone", "neither")


def ablation_answer(result: dict[str, Any]) -> str:
    """Whether the curve depends on positional vectors: its gap with and without them, and in the shuffled control."""
    gaps = {name: max(arm["probability"]) - min(arm["probability"]) for name, arm in result["arms"].items()}
    text = (
        f"The probability of the answer has a gap of {format_points(gaps['untouched'])} points between its best and worst slot"
        if "untouched" in gaps
        else ""
    )
    if "no moving" in gaps and "shuffled" in gaps:
        text += (
            f", {format_points(gaps['no moving'])} without the part of the positional vectors that depends on position, and "
            f"{format_points(gaps['shuffled'])} in the shuffled control"
        )
    return f"{text}." if text else ""


def _share(value: float) -> str:
    return f"{format_number(100 * value, 1)}%"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def mean_over_heads(values: list[list[list[float]]]) -> list[float]:
    """The mean over layers and heads: ``[layers, heads, n]`` to ``[n]``."""
    rows = [row for layer in values for row in layer]
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]

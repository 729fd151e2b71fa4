"""The sentence that answers each section about attention and hidden states. All are descriptive, without a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whence.report.formatting import format_number
from whence.report.probe.explanation_charts import over_heads
from whence.report.probe.sentences import format_percent, format_points


def attention_answer(name: str, attention: dict[str, Any]) -> str:
    """The attention of the answering token, in the first task with recorded attention."""
    sink = _mean([value for layer in attention["regions"]["sink"] for value in layer])
    gold, others = over_heads(attention["gold"]), _mean(over_heads(attention["profile"]))
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

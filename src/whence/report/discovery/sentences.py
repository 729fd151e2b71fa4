"""What a discovery says, in sentences."""

from __future__ import annotations

from typing import Any

from whence.report.comparison.units import PERCENT_METRICS, name_metric
from whence.report.formatting import format_number


def answer(record: dict[str, Any]) -> list[str]:
    """One sentence for each kind of head.

    >>> kind = {"label": "heads 0, 1", "name": "linear", "formula": "bias = -0.1 * d", "heads": [0, 1], "strongest": 1}
    >>> answer({"hooks": {"bias": {"kinds": [kind]}}, "heads": 2, "layers": 1})
    ['Heads 0, 1: linear, bias = -0.1 * d in head 1.']
    """
    lines = []
    for hook, curves in record["hooks"].items():
        for kind in curves["kinds"]:
            label = kind["label"].capitalize()
            if kind["name"] == "no effect":
                lines.append(f"{label}: no effect of the {hook}.")
            else:
                head = label_head(kind["strongest"], record["heads"] if record["layers"] > 1 else None)
                where = f" in {head}" if len(kind["heads"]) > 1 else ""  # amplitudes are those of each head
                lines.append(f"{label}: {kind['name']}, {kind['formula']}{where}.")
    return lines


def label_head(head: int, heads: int | None) -> str:
    """A head in words. ``heads`` is the number in a layer, if they are numbered through several layers."""
    return f"head {head}" if heads is None else f"layer {head // heads}, head {head % heads}"


def warn_unlearned(record: dict[str, Any]) -> str:
    """The warning for tables of models that are not shown to be better than a constant answer or a simple rule; empty otherwise.

    >>> found = {"metric": "accuracy", "split": "test", "mean": 0.14, "better": False, "baseline": "chance", "value": 0.125}
    >>> warn_unlearned({"learning": found}).partition(":")[0]
    'The task was not learned'
    >>> warn_unlearned({"learning": found | {"better": True}}), warn_unlearned({})
    ('', '')
    """
    found = record.get("learning")
    if not found or found["better"]:
        return ""
    percent = found["metric"] in PERCENT_METRICS
    own, other = (format_number(found[key] * (100 if percent else 1), 3) for key in ("mean", "value"))
    unit = " %" if percent else ""
    return (
        f"The task was not learned: the models with free tables have the {name_metric(found['metric'])} {own}{unit} on {found['split']} data and are not "
        f"shown to be better than {found['baseline']}, with {other}{unit}. Their curves are those of the start of the training and of noise, so do not "
        "believe the formulas below. Train longer (--steps) or without --quick."
    )


def describe_smoothness(record: dict[str, Any]) -> str:
    """How the smoothness of the tables was chosen."""
    chosen = record["smoothness"]
    if not chosen.get("tries"):
        return f"The smoothness of the tables was set to {chosen['chosen']:g}."
    tried = ", ".join(
        f"{one['smoothness']:g}: {format_number(one['mean'], 3) if one['mean'] is not None else 'failed'}"
        for one in chosen["tries"]
    )
    return f"The smoothness {chosen['chosen']:g} of the tables was chosen by {chosen['metric']} on {chosen['split']} data ({tried})."


def describe_challenger(kind: dict[str, Any]) -> str:
    """The best expression of gplearn beside the named formula; empty without one.

    >>> expression, named = {"text": "log(x)", "bits": 9.0, "held_out": 3.0}, {"bits": 5.0, "held_out": 2.0}
    >>> describe_challenger({"challenger": {"expression": expression, "named": named}}).split(". ")[-1]
    'It wins in neither.'
    """
    one = kind.get("challenger")
    if one is None:
        return ""
    own, named = one["expression"], one["named"]
    wins = sum(own[score] < named[score] for score in ("bits", "held_out"))
    verdict = ("It wins in neither", "It wins in one of the two", "It wins in both")[wins]
    return (
        f"Challenger gplearn, x = 1 + d: {own['text']}. {format_number(own['bits'], 1)} bits and held-out error "
        f"{format_number(own['held_out'], 2)}, against {format_number(named['bits'], 1)} bits and "
        f"{format_number(named['held_out'], 2)} of the formula on the same head. {verdict}."
    )

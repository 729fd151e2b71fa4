"""Experiment 2: the position of maximum benefit, how well the source's prediction meets it, and what that is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from whence.lab.experiment import Results, Tell
from whence_papers.epar import theory
from whence_papers.epar.experiments.heads import attention_of
from whence_papers.epar.experiments.scoring import MEASURES, judge
from whence_papers.epar.experiments.setup import FORMS, WEIGHTS, Setup, rounded, sequences, wanted


@dataclass(frozen=True)
class OptimalPosition(Setup):
    pass


def compute(setup: OptimalPosition, given: Mapping[str, Results], tell: Tell) -> Results:
    """``results["values"][weights][form][pattern][measure]`` is a list of runs for each head."""
    heads = given["0_trained_heads"]["heads"]
    values: Results = {}
    for weights in WEIGHTS:
        values[weights] = {form: {name: {} for name in theory.PATTERNS} for form in FORMS}
        for form in FORMS:
            for place, name in enumerate(theory.PATTERNS):
                cell = values[weights][form][name]
                for number in range(len(setup.seeds)):
                    importance, x = sequences(name, setup, number)
                    a = attention_of(x, weights, form, number, heads, setup)
                    for measure, numbers in judge(a, importance, setup, 10 * number + place).items():
                        cell.setdefault(measure, []).append(rounded(numbers))
        tell(f"optimal position: {weights} weights")
    return {
        "measures": MEASURES,
        "values": values,
        "prediction": prediction(setup, heads),
        "examples": {name: example(name, setup, heads) for name in theory.PATTERNS},
    }


def prediction(setup: OptimalPosition, heads: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Whether the source's predicted position ever depends on the attention: tried on all sequences of all heads."""
    found = []
    for weights in WEIGHTS:
        for form in FORMS:
            maps, importances = [], []
            for number in range(len(setup.seeds)):
                for name in theory.PATTERNS:
                    importance, x = sequences(name, setup, number)
                    maps.append(attention_of(x, weights, form, number, heads, setup))
                    importances.append(importance)
            tried = theory.prediction_reads_no_attention(torch.cat(maps), torch.cat(importances))
            found.append({"weights": weights, "form": form} | tried.record())
    return found


def example(name: str, setup: OptimalPosition, heads: Mapping[str, Any]) -> Results:
    """Importance and position values over one sequence, with each one's best position."""
    importance, x = (part[:1] for part in sequences(name, setup, 0))
    curves = {"wanted": theory.position_value(wanted(importance, setup), importance)[0]}
    for weights in ("random", "trained"):
        for form in ("basic", "enhanced"):
            a = attention_of(x, weights, form, 0, heads, setup)
            curves[f"{weights}, {form}"] = theory.position_value(a, importance)[0]
    return {
        "importance": rounded(importance[0]),
        "values": {curve: rounded(v) for curve, v in curves.items()},
        "best": {curve: list(theory.maximum_benefit(v).positions) for curve, v in curves.items()},
    }

"""Experiment 2: the position of maximum benefit, the consistency of the source's prediction with it, and the chance level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.lab.experiment import ProgressCallback, Results
from whence_papers.epar import theory
from whence_papers.epar.experiments.setup import FORMS, WEIGHTS, Setup, make_sequences, round_values, target_attention
from whence_papers.epar.experiments.trained_heads import compute_attention

#: measure of a sequence -> definition
MEASURES = {
    "value_part": "1 - |V(p*) - V(p)| / V(p*), p* = argmax V, p the position that the source predicts (argmax I)",
    "position_part": "1 - |p* - p| / L, the plain distance form",
    "guess": "two-part consistency of a random position instead of p",
    "ranking": "Spearman's correlation of V and I",
    "true_position": "1 - |p* - p'| / L, p' = argmax V under the target attention",
    "true_ranking": "Spearman's correlation of V and the V of the target attention",
    "spread": "(max V - min V) / max V",
}


def score_positions(a: Tensor, importance: Tensor, setup: Setup, seed: int) -> dict[str, list[float]]:
    """All MEASURES of attention ``[B, L, L]`` for importances ``[B, L]``, one number per sequence; ``seed`` draws the guesses."""
    value = theory.position_value(a, importance)
    right = theory.position_value(target_attention(importance, setup), importance)
    predicted = theory.source_prediction(a, importance)
    guesses = torch.randint(0, setup.length, (len(a),), generator=torch.Generator().manual_seed(seed))
    scores: dict[str, list[float]] = {name: [] for name in MEASURES}
    for v, truth, position, guess in zip(value, right, predicted.tolist(), guesses.tolist(), strict=True):
        agreement = theory.consistency(v, position)
        scores["value_part"].append(agreement.value_part)
        scores["position_part"].append(agreement.position_part)
        scores["guess"].append(theory.consistency(v, guess).both)
        scores["true_position"].append(theory.distance_consistency(truth, theory.maximum_benefit(v).positions[0]))
    scores["ranking"] = theory.spearman(value, importance).tolist()
    scores["true_ranking"] = theory.spearman(value, right).tolist()
    scores["spread"] = (1 - value.amin(-1) / value.amax(-1)).tolist()
    return scores


@dataclass(frozen=True)
class OptimalPositionSpec(Setup):
    pass


def compute(setup: OptimalPositionSpec, inputs: Mapping[str, Results], progress: ProgressCallback) -> Results:
    """``results["values"][weights][form][pattern][measure]`` is a list of runs for each head."""
    heads = inputs["trained_heads"]["heads"]
    values: Results = {}
    for weights in WEIGHTS:
        values[weights] = {form: {name: {} for name in theory.PATTERNS} for form in FORMS}
        for form in FORMS:
            for place, name in enumerate(theory.PATTERNS):
                cell = values[weights][form][name]
                for number in range(len(setup.seeds)):
                    importance, x = make_sequences(name, setup, number)
                    a = compute_attention(x, weights, form, number, heads, setup)
                    for measure, numbers in score_positions(a, importance, setup, 10 * number + place).items():
                        cell.setdefault(measure, []).append(round_values(numbers))
        progress(f"optimal position: {weights} weights")
    return {
        "measures": MEASURES,
        "values": values,
        "prediction": prediction(setup, heads),
        "examples": {name: example(name, setup, heads) for name in theory.PATTERNS},
    }


def prediction(setup: OptimalPositionSpec, heads: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Whether the source's predicted position ever depends on the attention, checked on all sequences of all heads."""
    rows = []
    for weights in WEIGHTS:
        for form in FORMS:
            maps, importances = [], []
            for number in range(len(setup.seeds)):
                for name in theory.PATTERNS:
                    importance, x = make_sequences(name, setup, number)
                    maps.append(compute_attention(x, weights, form, number, heads, setup))
                    importances.append(importance)
            evidence = theory.prediction_ignores_attention(torch.cat(maps), torch.cat(importances))
            rows.append({"weights": weights, "form": form} | evidence.record())
    return rows


def example(name: str, setup: OptimalPositionSpec, heads: Mapping[str, Any]) -> Results:
    """Importance and position values of one sequence, with the best position of each curve."""
    importance, x = (part[:1] for part in make_sequences(name, setup, 0))
    curves = {"wanted": theory.position_value(target_attention(importance, setup), importance)[0]}
    for weights in ("random", "trained"):
        for form in ("basic", "enhanced"):
            a = compute_attention(x, weights, form, 0, heads, setup)
            curves[f"{weights}, {form}"] = theory.position_value(a, importance)[0]
    return {
        "importance": round_values(importance[0]),
        "values": {curve: round_values(v) for curve, v in curves.items()},
        "best": {curve: list(theory.maximum_benefit(v).positions) for curve, v in curves.items()},
    }

"""How position values are judged: against importance, as the source does, and against the answer of the task."""

from __future__ import annotations

import torch
from torch import Tensor

from whence_papers.epar import theory
from whence_papers.epar.experiments.setup import Setup, wanted

#: what is measured of a sequence, and what it means
MEASURES = {
    "value_part": "1 - |V(p*) - V(p)| / V(p*), p* = argmax V, p the position that the source predicts (argmax I)",
    "place_part": "1 - |p* - p| / L, the plain distance form",
    "guess": "two-part consistency of a position that is drawn at random, in the place of p",
    "ranking": "Spearman's correlation of V and I",
    "true_place": "1 - |p* - p'| / L, p' the position that gathers most under the attention the task wants",
    "true_ranking": "Spearman's correlation of V and the V of the attention that the task wants",
    "spread": "(max V - min V) / max V",
}


def judge(a: Tensor, importance: Tensor, setup: Setup, seed: int) -> dict[str, list[float]]:
    """All MEASURES of attention ``[B, L, L]`` over importances ``[B, L]``, a number a sequence; the seed is the guesses'."""
    value = theory.position_value(a, importance)
    right = theory.position_value(wanted(importance, setup), importance)
    predicted = theory.predicted_by_source(a, importance)
    guesses = torch.randint(0, setup.length, (len(a),), generator=torch.Generator().manual_seed(seed))
    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    for v, truth, place, guess in zip(value, right, predicted.tolist(), guesses.tolist(), strict=True):
        agreement = theory.consistency(v, place)
        found["value_part"].append(agreement.value_part)
        found["place_part"].append(agreement.place_part)
        found["guess"].append(theory.consistency(v, guess).both)
        found["true_place"].append(theory.distance_consistency(truth, theory.maximum_benefit(v).positions[0]))
    found["ranking"] = theory.spearman(value, importance).tolist()
    found["true_ranking"] = theory.spearman(value, right).tolist()
    found["spread"] = (1 - value.amin(-1) / value.amax(-1)).tolist()
    return found

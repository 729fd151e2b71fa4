"""Whether positional channels appear in the first layer and grow with depth, as a survey says of a figure of Yu et al. 2024."""

from __future__ import annotations

from typing import Any

import torch

from whence.probe.ablation import rank_correlation
from whence.probe.analyses import measure_layer_growth
from whence.probe.probed_model import ProbedModel, tiny_random_model
from whence_papers.survey.record import mean

FIRST_LAYER = 1  # the states after one layer; number 0 is the embedding


def channel_growth(lm: ProbedModel, texts: int, tokens: int, seed: int) -> dict[str, Any]:
    """Figures about the growth of positional channels, with the measurements behind them: of the model, of the model with one
    position for all tokens, and of a tiny random model."""
    models = {lm.name: lm, "tiny random model": tiny_random_model()}
    measured = {name: measure_layer_growth(one, texts, tokens, seed) for name, one in models.items()}
    arms = {
        f"{name}{', no encoding' if arm != 'own positions' else ''}": result
        for name, part in measured.items()
        for arm, result in part["arms"].items()
    }
    return {
        **describe_growth(arms[lm.name]),
        "measured": measured,
        "words": " ".join(_describe_arm(name, arm) for name, arm in arms.items()),
    }


def describe_growth(arm: dict[str, Any]) -> dict[str, Any]:
    """The figures of the claims. ``*_low`` and ``*_high`` are those of the two halves of the texts.

    ``late_minus_early``: the share of position in the selected channels in the last third of the layers minus that in the
    first third, without the embedding. ``layer_correlation``: the rank correlation of that share with the layer.
    ``first_layer_times_shuffled`` and ``first_layer_correlation``: of the channels that are monotone in the first layer.
    """
    first = arm["layers"][FIRST_LAYER]
    figures: dict[str, Any] = {
        "first_layer_times_shuffled": first["monotone"] / max(1, first["by_chance"]),
        "first_layer_correlation": first["held_out"] if first["held_out"] is not None else 0.0,
    }
    curves = [half["share"][FIRST_LAYER:] or [0.0] * 3 for half in arm["selected"]]
    third = max(1, len(curves[0]) // 3)
    by_half = {
        "late_minus_early": [mean(curve[-third:]) - mean(curve[:third]) for curve in curves],
        "layer_correlation": [rank_correlation(torch.tensor(curve)) if any(curve) else 0.0 for curve in curves],
    }
    for name, values in by_half.items():
        figures |= {f"{name}_low": min(values), f"{name}_high": max(values)}
    return figures


def _describe_arm(name: str, arm: dict[str, Any]) -> str:
    """The course over layers in one sentence."""
    shares = [sum(values) / len(values) for values in zip(*(half["share"] for half in arm["selected"]), strict=False)]
    layers = arm["layers"]
    first, last = layers[FIRST_LAYER], layers[-1]
    text = (
        f"{name}: {first['monotone']} of {arm['hidden_size']} channels are monotone in layer {FIRST_LAYER} ({first['by_chance']} in "
        f"shuffled order), {last['monotone']} in layer {len(layers) - 1} ({last['by_chance']})"
    )
    if not shares:
        return f"{text}; no channel is monotone in many layers."
    peak = max(range(len(shares)), key=shares.__getitem__)
    percent = [f"{100 * shares[layer]:.1f} %" for layer in (FIRST_LAYER, peak, -1)]
    return (
        f"{text}; position explains {percent[0]} of the selected channels in layer {FIRST_LAYER}, {percent[1]} in layer {peak}, the "
        f"most, and {percent[2]} in layer {len(layers) - 1}."
    )

"""Experiment 1: the position effect, its mathematical properties, and its effect on attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.lab.experiment import ProgressCallback, Results
from whence_papers.epar import theory
from whence_papers.epar.experiments.published import RETENTION
from whence_papers.epar.experiments.setup import (
    FORMS,
    Setup,
    average_blocks,
    correlate_rows,
    entropy,
    make_sequences,
    mean_by_distance,
    round_values,
    target_attention,
)
from whence_papers.epar.experiments.trained_heads import compute_attention

WEIGHTS = ("random", "trained")


@dataclass(frozen=True)
class PositionEffectSpec(Setup):
    blocks: int = 32  # rows and columns of a map in the record, each a block of tokens
    example_pattern: str = "clustered"  # pattern of the sequence whose attention is drawn
    plain: str = "random"  # pattern in which no position is special
    levels: tuple[float, ...] = (-4.0, -2.0, 0.0, 2.0, 4.0)  # scores that all keys share
    quantiles: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)
    bins: int = 20


def compute(setup: PositionEffectSpec, inputs: Mapping[str, Results], progress: ProgressCallback) -> Results:
    heads = inputs["trained_heads"]["heads"]
    progress("position effect: the factor and its properties")
    results = {"factor": factors(setup), "evidence": evidence(setup), "retention": retention(setup)}
    results |= {"region": regions(setup), "equal_scores": equal_scores(setup), "patterns": patterns(setup)}
    progress("position effect: attention of heads")
    return results | attention(setup, heads)


def factors(setup: PositionEffectSpec) -> Results:
    """The factor at distances up to 2 L, with the parameters of the source's text and of its code."""
    distance = torch.arange(2 * setup.length + 1, dtype=torch.float64)
    text, code = theory.Setting(setup.alpha, setup.beta, setup.gamma), theory.CODE_DEFAULTS
    named = {"basic": text.basic(), "enhanced": text, "enhanced, code's numbers": code}
    return {
        name: {
            "setting": ", ".join(
                f"{n} = {x:g}" for n, x in zip(theory.PARAMETERS[setting.form], setting.to_tensor(), strict=True)
            ),
            "floor": setting.floor,
            "factor": round_values(theory.score_scale(distance, setup.length, setting)),
            "slope_right_of_0": round_values(-setting.steepness / setup.length),
        }
        for name, setting in named.items()
    }


def evidence(setup: PositionEffectSpec) -> list[dict[str, Any]]:
    """The statements of the source's Theorem 1 and its bound, checked for both forms."""
    checked = []
    for form in ("basic", "enhanced"):
        setting = setup.setting(form)
        assert setting is not None
        for statement in (
            theory.continuity, theory.differentiability, theory.factor_monotonicity, theory.bound,
            theory.attention_bound,
        ):  # fmt: skip
            checked.append({"form": form} | statement(setting, setup.length).record())
        both = theory.attention_monotonicity(setting, length=setup.length)
        checked.append({"form": form} | both.record())
    return checked


def retention(setup: PositionEffectSpec) -> Results:
    """The retention of both forms over distance, and whether the source's figures can come from one setting."""
    share = torch.linspace(0, 1, 65, dtype=torch.float64)
    retained = theory.compare_retention(share, theory.Setting(setup.alpha, setup.beta, setup.gamma))
    agree = theory.retention_figures_agree(RETENTION["basic_far"], RETENTION["gain_far"], RETENTION["gain_medium"])
    beta = theory.beta_for_retention(RETENTION["basic_far"])
    there = theory.compare_retention(torch.tensor([0.5, 1.0]), theory.Setting(setup.alpha, beta, setup.gamma))
    return {
        "share": round_values(share), "basic": round_values(retained.basic), "enhanced": round_values(retained.enhanced),
        "gain": round_values(retained.gain), "source": dict(RETENTION), "figures_agree": agree.record(),
        "beta_of_the_source's_basic_figure": round_values(beta),
        "enhanced_at_that_beta": round_values(there.enhanced), "gain_at_that_beta": round_values(there.gain),
    }  # fmt: skip


def regions(setup: PositionEffectSpec) -> Results:
    """For the nearest and the farthest key: the scores at which the far key gets more weight although the factor decreases."""
    scores = torch.linspace(-4, 4, 41, dtype=torch.float64)
    boundaries = {}
    for form in ("basic", "enhanced"):
        setting = setup.setting(form)
        assert setting is not None
        region = theory.reversal_region(setting, 0, setup.length - 1, scores, length=setup.length)
        boundaries[form] = {
            "boundary": round_values(region.boundary),
            "pairs_against_the_line": region.disagreements,
        }
    return boundaries


def equal_scores(setup: PositionEffectSpec) -> Results:
    """The weight at each distance times the number of keys, if all keys have the same score."""
    scores = torch.tensor(setup.levels)[:, None].expand(-1, setup.length)
    weights = {}
    for form in ("basic", "enhanced"):
        setting = setup.setting(form)
        assert setting is not None
        weights[form] = round_values(setup.length * theory.weights_by_distance(scores, setting, length=setup.length))
    return weights


def patterns(setup: PositionEffectSpec) -> Results:
    """An example of each pattern and the distribution of its importances over 0 to 1."""
    results = {}
    for name in theory.PATTERNS:
        all_of_it = torch.cat([make_sequences(name, setup, head)[0] for head in range(len(setup.seeds))])
        counts = torch.histc(all_of_it, setup.bins, 0.0, 1.0)
        quantiles = all_of_it.quantile(torch.tensor(setup.quantiles, dtype=torch.float64))
        results[name] = {
            "example": round_values(all_of_it[0]), "share_by_bin": round_values(counts / counts.sum()),
            "quantiles": round_values(quantiles),
        }  # fmt: skip
    return results


def attention(setup: PositionEffectSpec, heads: Mapping[str, Any]) -> Results:
    """All quantities of the attention itself, for each kind of weights, form and head."""
    example, x_example = (part[:1] for part in make_sequences(setup.example_pattern, setup, 0))
    results: Results = {
        "maps": {
            "importance": round_values(example[0]),
            "wanted": round_values(average_blocks(target_attention(example, setup)[0], setup.blocks, "sum"), 4),
        }
    }
    right = [target_attention(make_sequences(setup.plain, setup, n)[0], setup) for n in range(len(setup.seeds))]
    results["by_distance"] = {"wanted": [round_values(setup.length * mean_by_distance(a)) for a in right]}
    for weights in WEIGHTS:
        for form in FORMS:
            attend_head = HeadAttention(setup, heads, weights, form)
            plain = [attend_head(make_sequences(setup.plain, setup, n)[1], n) for n in range(len(setup.seeds))]
            correlation = correlate_rows(torch.cat(plain)).mean(0)
            for kind, numbers in {
                "maps": round_values(average_blocks(attend_head(x_example, 0)[0], setup.blocks, "sum"), 4),
                "correlation": round_values(average_blocks(correlation, setup.blocks, "mean"), 4),
                "received": [round_values(setup.length * a.mean((0, 1))) for a in plain],
                "by_distance": [round_values(setup.length * mean_by_distance(a)) for a in plain],
                "statistics": statistics(setup, attend_head),
                "position_value": value_quantiles(setup, attend_head),
            }.items():
                results.setdefault(kind, {}).setdefault(weights, {})[form] = numbers
    return results


@dataclass(frozen=True)
class HeadAttention:
    """Computes the attention of heads with one kind of weights and one form."""

    setup: Setup
    heads: Mapping[str, Any]
    weights: str
    form: str

    def __call__(self, x: Tensor, number: int) -> Tensor:
        return compute_attention(x, self.weights, self.form, number, self.heads, self.setup)


def statistics(setup: PositionEffectSpec, attend_head: HeadAttention) -> dict[str, list[list[float]]]:
    """``[statistic][head]``: one number per sequence of all patterns."""
    by_statistic: dict[str, list[list[float]]] = {}
    for number in range(len(setup.seeds)):
        a = torch.cat([attend_head(make_sequences(name, setup, number)[1], number) for name in theory.PATTERNS])
        for what, numbers in describe(a).items():
            by_statistic.setdefault(what, []).append(round_values(numbers))
    return by_statistic


def value_quantiles(setup: PositionEffectSpec, attend_head: HeadAttention) -> dict[str, list[float]]:
    """Quantiles of V over all positions, sequences and heads of each pattern."""
    quantiles = {}
    for name in theory.PATTERNS:
        values = []
        for number in range(len(setup.seeds)):
            importance, x = make_sequences(name, setup, number)
            values.append(theory.position_value(attend_head(x, number), importance))
        quantiles[name] = round_values(torch.cat(values).quantile(torch.tensor(setup.quantiles, dtype=torch.float64)))
    return quantiles


def describe(a: Tensor) -> dict[str, Tensor]:
    """Means over the rows of each sequence's attention ``[B, L, L]``: entropy, largest weight, distance, near share."""
    places = torch.arange(a.shape[-1], dtype=torch.float64)
    distance = (places[:, None] - places).abs()
    return {
        "entropy": entropy(a).mean(-1),
        "largest weight": a.amax(-1).mean(-1),
        "mean distance": (a * distance).sum(-1).mean(-1),
        "near share": (a * (distance <= a.shape[-1] // 8)).sum(-1).mean(-1),
    }

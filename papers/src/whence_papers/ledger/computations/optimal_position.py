"""The position of maximum benefit on the source's patterns: consistency, ranking, and what its prediction reads.

One untrained head, as the source's program has it: vectors whose norms are the importances, a random vector for each
place added, random projections, attention that looks both ways. An experiment is a number of runs, each with its own
weights and vectors; its mean is what the source prints, so several experiments of ours are held against it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.statistics import paired_t
from whence_papers.epar import theory
from whence_papers.ledger.computations.epar_factor import from_evidence


def drawn(pattern: str, length: int, embed_dim: int, runs: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Importance ``[runs, L]``, queries and keys ``[runs, L, width]`` of one experiment."""
    importance = theory.make_pattern(pattern, length, seed, rows=runs)
    x = theory.make_vectors(importance, embed_dim, seed)
    heads = [
        theory.project_untrained(
            (x[run] + theory.random_position_vectors(length, embed_dim, 1000 * seed + run))[None], 1000 * seed + run
        )
        for run in range(runs)
    ]
    q, k = (torch.cat([head[side] for head in heads]) for side in (0, 1))
    return importance, q, k


def _values(importance: Tensor, q: Tensor, k: Tensor, setting: theory.Setting) -> Tensor:
    weights = theory.attention_weights(q, k, setting.position(q.shape[1]))[:, 0]
    return theory.position_value(weights, importance)


def optimal_position(
    pattern: str, beta: float, gamma: float, length: int, embed_dim: int, runs: int, experiments: int
) -> dict[str, Any]:
    """Mean consistency and ranking of each experiment, with the basic and the enhanced form on the same draws."""
    setting = theory.Setting(beta=beta, gamma=gamma)
    found: dict[str, Any] = {}
    each: dict[str, list[float]] = {}
    for seed in range(experiments):
        importance, q, k = drawn(pattern, length, embed_dim, runs, seed)
        for form, chosen in (("basic", setting.basic()), ("enhanced", setting)):
            value = _values(importance, q, k, chosen)
            agreed = [theory.consistency(v, int(i.argmax())).both for v, i in zip(value, importance, strict=True)]
            ranked = theory.spearman(value, importance).tolist()
            for name, rows in ((f"consistency_{form}", agreed), (f"ranking_{form}", ranked)):
                found.setdefault(name, []).append(sum(rows) / runs)
                each.setdefault(name, []).extend(rows)
    for name in ("consistency", "ranking"):
        test = paired_t(each[f"{name}_enhanced"], each[f"{name}_basic"])
        found[f"{name}_gain"] = test.difference
        found[f"{name}_gain_p"] = test.p
    found["chance"] = _by_chance(pattern, length, embed_dim, runs, setting)
    found["words"] = (
        f"A position drawn at random has a consistency of {found['chance']:.3f}; the enhanced form changes ours by "
        f"{found['consistency_gain']:+.4f} (paired over {runs * experiments} runs, p = {found['consistency_gain_p']:.2g})."
    )
    return found


def _by_chance(pattern: str, length: int, embed_dim: int, runs: int, setting: theory.Setting) -> float:
    importance, q, k = drawn(pattern, length, embed_dim, min(runs, 3), 0)
    value = _values(importance, q, k, setting)
    return sum(theory.chance_consistency(v).both for v in value) / len(value)


def proposition(beta: float, gamma: float, length: int, embed_dim: int, runs: int) -> dict[str, Any]:
    """Whether V(i) lies between the least and the largest importance in every row, on the random pattern."""
    importance, q, k = drawn("random", length, embed_dim, runs, 0)
    weights = theory.attention_weights(q, k, theory.Setting(beta=beta, gamma=gamma).position(length))[:, 0]
    return from_evidence(theory.value_is_convex_combination(weights, importance))


def prediction(beta: float, gamma: float, length: int, embed_dim: int, runs: int) -> dict[str, Any]:
    """In how many runs the predicted position differs from that of the largest importance."""
    importance, q, k = drawn("random", length, embed_dim, runs, 0)
    weights = theory.attention_weights(q, k, theory.Setting(beta=beta, gamma=gamma).position(length))[:, 0]
    differ = theory.source_prediction(weights, importance) != importance.argmax(-1)
    found = from_evidence(theory.prediction_ignores_attention(weights, importance))
    return found | {"runs_that_differ": int(differ.sum())}


COMPUTATIONS = (optimal_position, proposition, prediction)

"""EPAR through ``whence_papers.epar.theory``: its factor, its effect on attention, and the position of maximum benefit.

The position of maximum benefit uses one untrained head, as the source's program does: vectors whose norms are the
importances, a random vector added for each position, random projections, bidirectional attention. An experiment is a
number of runs, each with its own weights and vectors. The source prints the mean of one experiment, so several of our
experiments are compared with it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.position import Epar
from whence.statistics import paired_t
from whence.statistics.verdict_texts import format_p
from whence_papers.epar import theory
from whence_papers.ledger.computations.arithmetic import disagreement

STATEMENTS: dict[str, Callable[..., theory.StatementCheck]] = {
    "continuity": theory.continuity,
    "differentiability": theory.differentiability,
    "factor_monotonicity": theory.factor_monotonicity,
    "bound": theory.bound,
    "bound_of_the_attention": theory.attention_bound,
    "attention_monotonicity": theory.attention_monotonicity,
}


def epar_statement(statement: str, beta: float, gamma: float) -> dict[str, Any]:
    """Test a statement of the theory: the largest violation, the rounding tolerance, and further numbers."""
    return summarize_check(STATEMENTS[statement](theory.Setting(beta=beta, gamma=gamma)))


def summarize_check(check: theory.StatementCheck) -> dict[str, Any]:
    """The theory's evidence as a record, with underscores in names."""
    named = {_name(key): value for key, value in check.numbers.items() if math.isfinite(value)}
    words = ""
    if check.counter_example is not None:
        example = ", ".join(f"{key} {value:.4g}" for key, value in check.counter_example.items())
        words = f"Against '{check.statement}': {example}."
    beyond = 0.0 if check.holds else check.violation
    return {"misses_by": beyond, "rounding": check.allowed, "checked": check.checked, **named, "words": words}


def _name(text: str) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in text).split())


def retention(beta: float, gamma: float, share: float) -> dict[str, Any]:
    """Retention of both forms at a share of the length, and their ratio."""
    both = theory.compare_retention(torch.tensor([share], dtype=torch.float64), theory.Setting(beta=beta, gamma=gamma))
    return {
        "basic_percent": 100 * float(both.basic),
        "enhanced_percent": 100 * float(both.enhanced),
        "times_as_much": float(both.gain),
    }


def retention_reading(
    basic_percent: float, enhanced_percent: float, ratio: float, medium_ratio: float, gamma: float
) -> dict[str, Any]:
    """Whether one beta and one gamma give all printed figures, and the values that each figure needs."""
    beta = theory.beta_for_retention(basic_percent / 100)
    at_that = retention(beta, gamma, 1.0)
    own_gamma = theory.gamma_for_retention(enhanced_percent / 100, basic_percent / 100)
    together = theory.retention_figures_agree(basic_percent / 100, ratio, medium_ratio)
    return {
        "beta_for_basic": beta,
        "enhanced_percent_with_that_beta": at_that["enhanced_percent"],
        "times_as_much_with_that_beta": at_that["times_as_much"],
        "gamma_for_both_percentages": own_gamma,
        "medium_times_as_much_for_both": retention(beta, own_gamma, 0.5)["times_as_much"],
        "medium_off_by": together.violation,
        "words": (
            f"The percentage of the basic form needs beta {beta:.2f}, where the enhanced one keeps "
            f"{at_that['enhanced_percent']:.1f} %, {at_that['times_as_much']:.0f} times as much; both percentages together "
            f"need gamma {own_gamma:.2f}."
        ),
    }


def basic_at_the_end(beta: float, length: int) -> dict[str, Any]:
    """The smallest factor of the basic form within a sequence."""
    setting = theory.Setting(beta=beta).basic()
    return {"smallest_factor": float(theory.score_scale(torch.arange(length), length, setting).min())}


def strength(alphas: list[float], beta: float, gamma: float) -> dict[str, Any]:
    """Whether alpha changes the ratio of a near and a far factor, or only the scale."""
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    factors = [theory.score_scale(ends, 1, theory.Setting(alpha=alpha, beta=beta, gamma=gamma)) for alpha in alphas]
    ratios = [float(near / far) for near, far in factors]
    without_decay = theory.score_scale(ends, 1, theory.Setting(alpha=max(alphas), beta=0.0, gamma=gamma))
    return {
        "change_of_near_over_far": max(ratios) - min(ratios),
        "factor_without_decay": float(without_decay[0]),  # with beta = 0 there is no position, and alpha still acts
        "words": "Alpha multiplies every score alike: it is an inverse temperature, not a strength of position.",
    }


def growing_length(beta: float, gamma: float, length: int) -> dict[str, Any]:
    """Change of the factors of existing pairs when L grows by one token."""
    distance, setting = torch.arange(length), theory.Setting(beta=beta, gamma=gamma)
    change = theory.score_scale(distance, length + 1, setting) - theory.score_scale(distance, length, setting)
    return {
        "largest_change": float(change.abs().max()),
        "changed_distances": int((change.abs() > 1e-12).sum()),
        "words": "With a fixed L nothing changes: whence.Epar has length='context' and 'query', and refuses this L with a cache.",
    }


def defaults(stated: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Differences between the stated defaults, and which of them ``whence.Epar`` uses."""
    own = {
        name: parameter.default
        for name, parameter in inspect.signature(Epar).parameters.items()
        if name in ("alpha", "beta", "gamma")
    }
    followed = [place for place, numbers in stated.items() if numbers == own]
    code = [place for place, numbers in stated.items() if numbers == Epar.CODE_DEFAULTS]
    figures = disagreement(stated)
    words = (
        f"{figures['words']} whence.Epar follows {' and '.join(followed)}; Epar.CODE_DEFAULTS is {' and '.join(code)}."
    )
    return figures | {"words": words}


def gamma_as_wired(passed: list[str], gammas: list[float], length: int) -> dict[str, Any]:
    """Change of the factors with the configured gamma, if a program passes only some of the parameters.

    Parameters that are not passed keep the default of the source's class signature. The same with all parameters passed
    shows the difference.
    """
    signature = dict(Epar.CODE_DEFAULTS)
    distance = torch.arange(length)

    def factors(names: list[str]) -> torch.Tensor:
        configured = [signature | {"gamma": gamma} for gamma in gammas]
        built = [signature | {name: numbers[name] for name in names} for numbers in configured]
        settings = [theory.Setting(n["alpha"], n["beta"], n["gamma"]) for n in built]
        return torch.stack([theory.score_scale(distance, length, setting) for setting in settings])

    as_wired, as_meant = (factors(names) for names in (passed, list(signature)))
    return {
        "largest_change_with_gamma": float((as_wired - as_wired[0]).abs().max()),
        "largest_change_if_passed_on": float((as_meant - as_meant[0]).abs().max()),
        "gamma_in_effect": signature["gamma"],
        "gammas_configured": len(gammas),
        "words": (
            f"The program hands on {' and '.join(passed)}; gamma stays at the signature's {signature['gamma']:g}, "
            "whatever is configured."
        ),
    }


def scale_of_code(embed_dim: int, heads: int) -> dict[str, Any]:
    """The square root of head_dim, in the formula, and of embed_dim, in the code."""
    formula, code = math.sqrt(embed_dim / heads), math.sqrt(embed_dim)
    return {"formula": formula, "code": code, "difference": code - formula, "ratio": code / formula}


def matrix_memory(parameters: float, lengths: list[int]) -> dict[str, Any]:
    """Memory of a cached L x L matrix and of a table of L values, relative to weights, gradients and Adam's two moments.

    Four bytes per value. Activations are not counted, because they depend on the batch.
    """
    figures: dict[str, Any] = {}
    for length in lengths:
        figures[f"matrix_percent_{length}"] = 100 * length**2 / (4 * parameters)
        figures[f"table_percent_{length}"] = 100 * length / (4 * parameters)
    longest = math.floor(math.sqrt(0.001 * 4 * parameters))
    figures["words"] = (
        f"Beside the training state a matrix stays under 0.1 % up to {longest} tokens; a table of L numbers, as used here, "
        "at any length in use."
    )
    return figures


def doubled_vectors(beta: float, gamma: float, length: int, embed_dim: int, seed: int) -> dict[str, Any]:
    """Causal EPAR compared with attention without position over doubled queries and keys, in float64."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, length, embed_dim, dtype=torch.float64, generator=generator) for _ in range(3))
    evidence = theory.doubling_identity(q, k, v, theory.Setting(beta=beta, gamma=gamma), length)
    return summarize_check(evidence) | {"largest_difference": evidence.violation}


def factor_rank(beta: float, gamma: float, length: int) -> dict[str, Any]:
    """Rank of the matrix of factors without a mask, and of the matrix of rank 2 that equals it on the causal half."""
    return summarize_check(theory.factor_ranks(theory.Setting(beta=beta, gamma=gamma), length))


def row_weights(length: int, rows: int, seed: int) -> dict[str, Any]:
    """Weights on whole rows of scores: whether the order of keys changes, compared with weights on keys and a temperature.

    A row weight w gives softmax(w * scores), which is the softmax at temperature 1 / w.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, length, dtype=torch.float64, generator=generator)
    weight = 0.1 + torch.rand(rows, 1, dtype=torch.float64, generator=generator)
    of_keys = 0.1 + torch.rand(1, length, dtype=torch.float64, generator=generator)
    by_row, by_key = torch.softmax(weight * scores, -1), torch.softmax(of_keys * scores, -1)
    order = scores.argsort(-1)
    return {
        "rows_reordered": int((by_row.argsort(-1) != order).any(-1).sum()),
        "rows_reordered_by_key_weights": int((by_key.argsort(-1) != order).any(-1).sum()),
        "difference_from_temperature": float((by_row - torch.softmax(scores / (1 / weight), -1)).abs().max()),
    }


def added_positions(length: int, embed_dim: int, shift: int, seed: int) -> dict[str, Any]:
    """Change of a score when query and key shift together: vectors added to queries, and Shaw's added to keys."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(embed_dim, dtype=torch.float64, generator=generator) for _ in range(2))
    by_place = torch.randn(length, embed_dim, dtype=torch.float64, generator=generator)
    by_distance = torch.randn(length, embed_dim, dtype=torch.float64, generator=generator)
    printed = [float((q + by_place[i]) @ k) for i in (3, shift + 3)]
    shaw = [float(q @ (k + by_distance[i - j])) for i, j in ((3, 0), (shift + 3, shift))]
    return {"change_as_printed": abs(printed[1] - printed[0]), "change_of_shaw": abs(shaw[1] - shaw[0])}


#: random parts of an experiment; each has a seed of its own
PARTS = ("importance", "vectors", "positions", "projections")


def part_seed(part: str, *numbers: int) -> int:
    """A seed for one random part of an experiment, independent of the seeds of the other parts.

    >>> len({part_seed(part, 0) for part in PARTS} | {part_seed("vectors", 0, 0), part_seed("vectors", 1)})
    6
    """
    # the count makes (0,) and (0, 0) different: a SeedSequence ignores trailing zeros
    return int(np.random.SeedSequence([PARTS.index(part), len(numbers), *numbers]).generate_state(1)[0])


def draw_inputs(
    pattern: str, length: int, embed_dim: int, runs: int, seed: int, redraw: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Importance ``[runs, L]``, queries and keys ``[runs, L, embed_dim]`` of one experiment.

    The head, that is position vectors and projections, is the same in all runs, as in the source's program.

    Args:
        redraw: draw another head for every run.
    """
    importance = theory.make_pattern(pattern, length, part_seed("importance", seed), rows=runs)
    x = theory.make_vectors(importance, embed_dim, part_seed("vectors", seed))
    if not redraw:
        positions = theory.random_position_vectors(length, embed_dim, part_seed("positions", seed))
        q, k = theory.project_untrained(x + positions, part_seed("projections", seed))
        return importance, q, k
    heads = [
        theory.project_untrained(
            (x[run] + theory.random_position_vectors(length, embed_dim, part_seed("positions", seed, run)))[None],
            part_seed("projections", seed, run),
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
    """Mean consistency and ranking of each experiment, with the basic and the enhanced form on the same samples.

    An experiment has one head. ``*_redrawn`` are the same figures with another head in every run. A gain is the mean over
    experiments of enhanced minus basic; its p is that of a paired t test over experiments. ``chance_*`` is the expected
    consistency of a position drawn at random, over the same runs.
    """
    setting = theory.Setting(beta=beta, gamma=gamma)
    figures: dict[str, Any] = {}
    for seed in range(experiments):
        for redraw in (False, True):
            importance, q, k = draw_inputs(pattern, length, embed_dim, runs, seed, redraw)
            for form, form_setting in (("basic", setting.basic()), ("enhanced", setting)):
                value = _values(importance, q, k, form_setting)
                agreed = [theory.consistency(v, int(i.argmax())).both for v, i in zip(value, importance, strict=True)]
                ranked = theory.spearman(value, importance).tolist()
                if not redraw:
                    by_chance = [theory.chance_consistency(one).both for one in value]
                    figures.setdefault(f"chance_{form}", []).append(sum(by_chance) / runs)
                for name, rows in (("consistency", agreed), ("ranking", ranked)):
                    key = f"{name}_{form}{'_redrawn' if redraw else ''}"
                    figures.setdefault(key, []).append(sum(rows) / runs)
    for name in ("consistency", "ranking"):
        for suffix in ("", "_redrawn"):
            test = paired_t(figures[f"{name}_enhanced{suffix}"], figures[f"{name}_basic{suffix}"])
            figures[f"{name}_gain{suffix}"], figures[f"{name}_gain_p{suffix}"] = test.difference, test.p
    redrawn = [sum(figures[f"{name}_redrawn"]) / experiments for name in ("consistency_enhanced", "ranking_enhanced")]
    figures["words"] = (
        f"{experiments} experiments of {runs} runs, each with one untrained head, as in the source's program. With another head in "
        f"every run the enhanced form has a consistency of {redrawn[0]:.3f} and a ranking of {redrawn[1]:.3f}. A position drawn at "
        f"random has a consistency of {sum(figures['chance_enhanced']) / experiments:.3f}. The enhanced form changes our consistency by "
        f"{figures['consistency_gain']:+.4f} (paired over experiments, {format_p(figures['consistency_gain_p'])})."
    )
    return figures


def proposition(beta: float, gamma: float, length: int, embed_dim: int, runs: int) -> dict[str, Any]:
    """Whether V(i) lies between the smallest and the largest importance in every row, on the random pattern."""
    importance, q, k = draw_inputs("random", length, embed_dim, runs, 0)
    weights = theory.attention_weights(q, k, theory.Setting(beta=beta, gamma=gamma).position(length))[:, 0]
    return summarize_check(theory.value_is_convex_combination(weights, importance))


def prediction(beta: float, gamma: float, length: int, embed_dim: int, runs: int) -> dict[str, Any]:
    """Number of runs in which the predicted position differs from that of the largest importance."""
    importance, q, k = draw_inputs("random", length, embed_dim, runs, 0)
    weights = theory.attention_weights(q, k, theory.Setting(beta=beta, gamma=gamma).position(length))[:, 0]
    differ = theory.source_prediction(weights, importance) != importance.argmax(-1)
    figures = summarize_check(theory.prediction_ignores_attention(weights, importance))
    return figures | {"runs_that_differ": int(differ.sum())}


COMPUTATIONS = (
    epar_statement, retention, retention_reading, basic_at_the_end, strength, growing_length, defaults, gamma_as_wired,
    scale_of_code, matrix_memory, doubled_vectors, factor_rank, row_weights, added_positions, optimal_position, proposition, prediction,
)  # fmt: skip

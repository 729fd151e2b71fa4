"""EPAR's mathematics: every statement is a function that returns evidence.

All of it computes in double precision and answers in it, whatever precision it is given.
"""

from whence_papers.epar.theory.agreement import (
    Consistency,
    consistency,
    consistency_by_chance,
    distance_consistency,
    ranks,
    spearman,
)
from whence_papers.epar.theory.benefit import (
    Benefit,
    importance,
    maximum_benefit,
    position_value,
    predicted_by_source,
    prediction_reads_no_attention,
    value_is_a_mean,
)
from whence_papers.epar.theory.bounds import optimum_is_inside
from whence_papers.epar.theory.doubling import doubled, doubling_identity, factor_ranks
from whence_papers.epar.theory.effect import CODE_DEFAULTS, NUMBERS, Setting, epar, factor
from whence_papers.epar.theory.evidence import Evidence
from whence_papers.epar.theory.measures import (
    Measure,
    entropy,
    factor_at,
    gold_surprise,
    position_values,
    profile_error,
)
from whence_papers.epar.theory.monotonicity import (
    Region,
    attention_monotonicity,
    failing_region,
    monotonicity_of_random_content,
    weights_by_distance,
)
from whence_papers.epar.theory.patterns import (
    PATTERNS,
    attention_weights,
    pattern,
    random_places,
    untrained_head,
    vectors,
)
from whence_papers.epar.theory.planted import Planted, planted
from whence_papers.epar.theory.properties import (
    bound,
    bound_of_the_attention,
    continuity,
    differentiability,
    factor_monotonicity,
    slope,
)
from whence_papers.epar.theory.retained import (
    Retained,
    beta_that_keeps,
    compare_retention,
    enhanced_keeps_more,
    gamma_that_keeps,
    retention,
    retention_figures_agree,
)
from whence_papers.epar.theory.slopes import Sensitivity, agrees_with_differences, sensitivity
from whence_papers.epar.theory.tuning import BOUNDS, Best, best_by_gradient, best_by_grid, two_ways_agree

__all__ = [
    "BOUNDS", "Benefit", "Best", "CODE_DEFAULTS", "Consistency", "Evidence", "Measure", "NUMBERS", "PATTERNS", "Planted",
    "Region", "Retained", "Sensitivity", "Setting", "agrees_with_differences", "attention_monotonicity", "attention_weights",
    "best_by_gradient", "best_by_grid", "beta_that_keeps", "bound", "bound_of_the_attention", "compare_retention",
    "consistency", "consistency_by_chance", "continuity", "differentiability", "distance_consistency", "doubled",
    "doubling_identity", "enhanced_keeps_more", "entropy", "epar", "factor", "factor_at", "factor_monotonicity",
    "factor_ranks", "failing_region", "gamma_that_keeps", "gold_surprise", "importance", "maximum_benefit",
    "monotonicity_of_random_content", "optimum_is_inside", "pattern", "planted", "position_value", "position_values", "predicted_by_source",
    "prediction_reads_no_attention", "profile_error", "random_places", "ranks", "retention", "retention_figures_agree",
    "sensitivity", "slope", "spearman", "two_ways_agree", "untrained_head", "value_is_a_mean", "vectors",
    "weights_by_distance",
]  # fmt: skip

"""EPAR's mathematics: each statement of the source is a function that returns ``StatementCheck``.

All functions compute and return double precision, whatever precision their inputs have.
"""

from whence_papers.epar.theory.benefit import (
    Benefit,
    Consistency,
    chance_consistency,
    consistency,
    distance_consistency,
    importance,
    maximum_benefit,
    position_value,
    prediction_ignores_attention,
    ranks,
    source_prediction,
    spearman,
    value_is_convex_combination,
)
from whence_papers.epar.theory.doubling import double_head_dim, doubling_identity, factor_ranks
from whence_papers.epar.theory.inputs import (
    PATTERNS,
    RetrievalProblem,
    attention_weights,
    make_pattern,
    make_retrieval_problem,
    make_vectors,
    project_untrained,
    random_position_vectors,
)
from whence_papers.epar.theory.parameters import (
    BOUNDS,
    Measure,
    Optimum,
    Sensitivity,
    entropy,
    factor_at,
    gold_nll,
    gradients_match_differences,
    grid_and_gradient_agree,
    minimize_by_gradient,
    minimize_by_grid,
    optimum_is_inside,
    position_values,
    profile_error,
    sensitivity,
)
from whence_papers.epar.theory.position_effect import (
    CODE_DEFAULTS,
    PARAMETERS,
    RetentionComparison,
    Setting,
    StatementCheck,
    beta_for_retention,
    build_epar,
    compare_retention,
    enhanced_retains_more,
    gamma_for_retention,
    retention,
    retention_figures_agree,
    score_scale,
)
from whence_papers.epar.theory.properties import (
    ReversalRegion,
    attention_bound,
    attention_monotonicity,
    bound,
    continuity,
    differentiability,
    factor_monotonicity,
    monotonicity_of_random_content,
    reversal_region,
    slope,
    weights_by_distance,
)

__all__ = [
    "BOUNDS", "CODE_DEFAULTS", "PARAMETERS", "PATTERNS", "Benefit", "Consistency", "StatementCheck", "Measure", "Optimum",
    "RetentionComparison", "RetrievalProblem", "ReversalRegion", "Sensitivity", "Setting", "attention_bound",
    "attention_monotonicity", "attention_weights", "beta_for_retention", "bound", "build_epar",
    "chance_consistency", "compare_retention", "consistency", "continuity", "differentiability",
    "distance_consistency", "double_head_dim", "doubling_identity", "enhanced_retains_more", "entropy",
    "factor_at", "factor_monotonicity", "factor_ranks", "gamma_for_retention", "gold_nll",
    "gradients_match_differences", "grid_and_gradient_agree", "importance", "make_pattern",
    "make_retrieval_problem", "make_vectors", "maximum_benefit", "minimize_by_gradient", "minimize_by_grid",
    "monotonicity_of_random_content", "optimum_is_inside", "position_value", "position_values",
    "prediction_ignores_attention", "profile_error", "project_untrained", "random_position_vectors", "ranks",
    "retention", "retention_figures_agree", "reversal_region", "score_scale", "sensitivity", "slope", "source_prediction",
    "spearman", "value_is_convex_combination", "weights_by_distance",
]  # fmt: skip

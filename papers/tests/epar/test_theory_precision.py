"""Every function of ``whence_papers.epar.theory`` computes and returns double precision, whatever precision its inputs have."""

import dataclasses
import inspect

import pytest
import torch
from torch import Tensor

from whence_papers.epar import theory
from whence_papers.epar.theory import Setting

SETTING = Setting(0.75, 2.0, 1.5)  # single precision holds these exactly
NUMBERS = SETTING.to_tensor()[None]
LENGTH, WIDTH = 12, 8


def drawn(*shape, seed=0):
    """Numbers that single precision holds exactly, so that both precisions are given the same."""
    single = torch.rand(*shape, generator=torch.Generator().manual_seed(seed))
    return single.double()


WEIGHTS = drawn(2, LENGTH, LENGTH)
IMPORTANCE = drawn(2, LENGTH, seed=1)
Q, K = drawn(2, 2, LENGTH, WIDTH, seed=2)
GOLD = torch.arange(LENGTH).repeat(2, 1) // 2

#: each function that takes a tensor, called with tensors x of one precision
CALLS = {
    "attention_monotonicity": (
        lambda x: theory.attention_monotonicity(SETTING, scores=x, length=8),
        IMPORTANCE[0] - 0.5,
    ),
    "attention_weights": (lambda q, k: theory.attention_weights(q, k, SETTING.position(LENGTH)), Q, K),
    "compare_retention": (lambda x: theory.compare_retention(x, SETTING), IMPORTANCE[0]),
    "consistency": (lambda x: theory.consistency(x, 3), IMPORTANCE[0]),
    "chance_consistency": (theory.chance_consistency, IMPORTANCE[0]),
    "distance_consistency": (lambda x: theory.distance_consistency(x, 3), IMPORTANCE[0]),
    "double_head_dim": (lambda q, k: theory.double_head_dim(q, k, SETTING, LENGTH), Q, K),
    "doubling_identity": (lambda q, k: theory.doubling_identity(q[None], k[None], k[None], SETTING, LENGTH), Q, K),
    "entropy": (lambda q, k, n: theory.entropy(q, k)(n), Q, K, NUMBERS),
    "build_epar": (lambda n: theory.build_epar(n, LENGTH).score_scale(torch.arange(4.0).double(), LENGTH), NUMBERS),
    "score_scale": (lambda x: theory.score_scale(x, LENGTH, SETTING), IMPORTANCE),
    "factor_at": (lambda x, n: theory.factor_at(x, LENGTH)(n), IMPORTANCE[0], NUMBERS),
    "reversal_region": (lambda x: theory.reversal_region(SETTING, 1, 5, x), IMPORTANCE[0]),
    "gold_nll": (lambda q, k, n: theory.gold_nll(q, k, GOLD)(n), Q, K, NUMBERS),
    "importance": (theory.importance, Q),
    "maximum_benefit": (theory.maximum_benefit, IMPORTANCE[0]),
    "position_value": (theory.position_value, WEIGHTS, IMPORTANCE),
    "position_values": (lambda q, k, i, n: theory.position_values(q, k, i)(n), Q, K, IMPORTANCE, NUMBERS),
    "source_prediction": (theory.source_prediction, WEIGHTS, IMPORTANCE),
    "prediction_ignores_attention": (theory.prediction_ignores_attention, WEIGHTS, IMPORTANCE),
    "profile_error": (lambda x, y, n: theory.profile_error(x, y, LENGTH)(n), *IMPORTANCE, NUMBERS),
    "ranks": (theory.ranks, IMPORTANCE),
    "retention": (lambda x: theory.retention(x, SETTING), IMPORTANCE),
    "slope": (lambda x: theory.slope(x, LENGTH, SETTING), IMPORTANCE),
    "spearman": (theory.spearman, WEIGHTS[0], WEIGHTS[1]),
    "project_untrained": (lambda x: theory.project_untrained(x, seed=3), Q),
    "value_is_convex_combination": (theory.value_is_convex_combination, WEIGHTS, IMPORTANCE),
    "make_vectors": (lambda x: theory.make_vectors(x, WIDTH, seed=3), IMPORTANCE),
    "weights_by_distance": (lambda x: theory.weights_by_distance(x, SETTING), IMPORTANCE),
}
ROUNDED_AS_GIVEN = {"allowed"}  # of StatementCheck: weights of single precision have rows that sum to 1 in that only


def parts(answer):
    """The tensors and numbers of an answer, in order."""
    if isinstance(answer, Tensor | float | int):
        return [answer]
    if isinstance(answer, tuple | list):
        return [part for one in answer for part in parts(one)]
    if isinstance(answer, dict):
        return parts(list(answer.values()))
    if dataclasses.is_dataclass(answer):
        names = [f.name for f in dataclasses.fields(answer) if f.name not in ROUNDED_AS_GIVEN]
        return parts([getattr(answer, name) for name in names])
    return []


@pytest.mark.parametrize("name", CALLS)
def test_single_precision_inputs_give_double_precision(name):
    call, *arguments = CALLS[name]
    result, want = parts(call(*(x.float() for x in arguments))), parts(call(*arguments))
    assert result and len(result) == len(want)
    for one, other in zip(result, want, strict=True):
        if isinstance(one, Tensor):
            assert not one.is_floating_point() or one.dtype == torch.float64
            assert torch.equal(one, other)  # not only widened at the end
        else:
            assert one == other


def test_every_function_that_takes_a_tensor_is_covered():
    functions = {name: one for name in theory.__all__ if inspect.isfunction(one := getattr(theory, name))}
    taken = {
        name: str([p.annotation for p in inspect.signature(f).parameters.values()]) for name, f in functions.items()
    }
    assert {name for name, kinds in taken.items() if "Tensor" in kinds} == set(CALLS)

"""Optimal parameters by grid and by gradient, and sensitivities, against known optima, closed forms and differences."""

import numpy as np
import pytest
import torch
from scipy import stats

from whence.errors import WhenceError
from whence_papers.epar.theory import (
    CODE_DEFAULTS,
    Setting,
    attention_weights,
    build_epar,
    entropy,
    factor_at,
    gold_nll,
    gradients_match_differences,
    grid_and_gradient_agree,
    make_retrieval_problem,
    minimize_by_gradient,
    minimize_by_grid,
    optimum_is_inside,
    position_values,
    profile_error,
    score_scale,
    sensitivity,
)

D = torch.arange(48.0)


def test_both_searches_recover_known_parameters():
    true = Setting(1.3, 2.5, 1.7)
    measure = profile_error(D, score_scale(D, 48, true), 48)
    grid, gradient = minimize_by_grid(measure), minimize_by_gradient(measure, starts=3)
    for check, digits in ((grid, 1e-3), (gradient, 1e-6)):
        assert check.setting.to_tensor().tolist() == pytest.approx(true.to_tensor().tolist(), rel=digits)
        assert not check.at_bounds and check.setting.form == "enhanced"
    check = grid_and_gradient_agree(grid, gradient)
    assert check.holds and check.numbers["largest difference of a number"] < 2e-3


def test_both_searches_agree_on_an_attention():
    """The nearest of several matching keys: a decay helps, and both searches find how much."""
    p = make_retrieval_problem(24, 24, 0)
    measure = gold_nll(p.q, p.k, p.gold, form="basic")
    grid, gradient = minimize_by_grid(measure, "basic"), minimize_by_gradient(measure, "basic", starts=2)
    check = grid_and_gradient_agree(grid, gradient)
    assert check.holds and check.numbers["largest difference of a number"] < 1e-2, str(check)
    flat = float(measure(Setting(alpha=grid.setting.alpha, beta=0.0, form="basic").to_tensor()[None])[0])
    assert grid.loss < flat - 0.1 and grid.setting.beta > 0.5


def test_disagreement_is_evidence_too():
    measure = profile_error(D, score_scale(D, 48, Setting(form="basic")), 48, "basic")
    coarse, fine = (
        minimize_by_grid(measure, "basic", points=3, rounds=1),
        minimize_by_gradient(measure, "basic", starts=1),
    )
    check = grid_and_gradient_agree(coarse, fine)
    assert not check.holds and check.counter_example["least by grid"] > check.counter_example["least by gradient"]


def test_an_optimum_beyond_the_bounds_is_named():
    measure = profile_error(D, score_scale(D, 48, Setting(beta=3.0, form="basic")), 48, "basic")
    bounds = {"alpha": (0.5, 2.0), "beta": (0.1, 1.0)}
    assert minimize_by_grid(measure, "basic", bounds=bounds).at_bounds == ("beta",)
    assert minimize_by_gradient(measure, "basic", bounds=bounds, starts=1).at_bounds == ("beta",)


def imitation(seed, target):
    """How far one head's attention is from the one that it has with given numbers."""
    p = make_retrieval_problem(4, 24, seed)
    want = attention_weights(p.q, p.k, target.position(24), causal=True)

    def measure(numbers):
        return (attention_weights(p.q, p.k, build_epar(numbers, 24), causal=True) - want).square().mean((0, 2, 3))

    return measure


@pytest.mark.parametrize("seed, target", ((0, CODE_DEFAULTS), (1, Setting(0.8, 4.0, 3.0)), (2, Setting(2.0, 3.0, 0.9))))
def test_both_searches_agree_on_several_heads_with_an_inner_optimum(seed, target):
    measure = imitation(seed, target)
    grid = minimize_by_grid(measure, points=5, rounds=30, shrink=0.6)  # fast enough to be left beside the narrow valley
    gradient = minimize_by_gradient(measure, starts=2)
    agree = grid_and_gradient_agree(grid, gradient)
    assert agree.holds and agree.numbers["largest difference of a number"] < 0.05, str(agree)
    assert gradient.setting.to_tensor().tolist() == pytest.approx(target.to_tensor().tolist(), rel=1e-3)
    for way in (grid, gradient):
        inside = optimum_is_inside(measure, way)
        assert inside.holds and inside.violation == 0 and not way.at_bounds
        assert min(x for name, x in inside.numbers.items() if name.startswith("room")) > 0.05


def test_an_optimum_on_a_bound_estimates_the_decrease_beyond():
    """The nearest of several keys wants all decay there is: gamma goes to its bound, where the form becomes the basic one."""
    p = make_retrieval_problem(24, 24, 1)
    measure = gold_nll(p.q, p.k, p.gold)
    best = minimize_by_gradient(measure, starts=2, steps=60)
    check = optimum_is_inside(measure, best)
    assert not check.holds and check.violation > 1e-5 and set(best.at_bounds) == {"gamma"}
    assert check.counter_example["gamma"] == pytest.approx(8.0, abs=0.01) and check.numbers["room of gamma"] < 1e-3
    assert check.numbers["slope of gamma toward its bound"] < 0 < check.numbers["room of beta"]
    wider = {"alpha": (0.1, 4.0), "beta": (0.01, 8.0), "gamma": (0.01, 80.0)}
    assert minimize_by_gradient(measure, bounds=wider, starts=2, steps=60).loss < best.loss  # and it does lie there
    level = profile_error(
        D, score_scale(D, 48, Setting(gamma=8.0)), 48
    )  # the optimum is on the bound, and nothing beyond is better
    met = minimize_by_gradient(level, starts=4)
    assert optimum_is_inside(level, met).holds and met.setting.gamma == pytest.approx(8.0, abs=0.05)


def test_the_retrieval_problem():
    p = make_retrieval_problem(200, 40, 3, reach=0.25, decoys=3)
    scores = (p.q[:, -1:] @ p.k.mT)[:, 0] * 16**-0.5
    gold = p.gold[:, -1]
    assert (p.gold[:, :-1] == -1).all() and int(gold.min()) == 29 and int(gold.max()) == 38
    # the four that match stand out by 3 on average, and the gold no more than its decoys
    assert float(scores.gather(1, gold[:, None]).mean()) == pytest.approx(3.0, abs=0.3)
    raised = (
        scores
        - make_retrieval_problem(200, 40, 3, reach=0.25, decoys=3, match=0.0).k.mul(p.q[:, -1:]).sum(-1) * 16**-0.5
    )
    lifted = raised > 1
    assert (lifted.sum(-1) == 4).all() and (lifted.float().argmax(-1) < gold).all() and not lifted[:, -1].any()
    assert torch.equal(39 - lifted.flip(-1).float().argmax(-1), gold)  # the nearest of them is the gold


def test_gold_nll_by_hand():
    p = make_retrieval_problem(5, 20, 1)
    setting = Setting(1.2, 2.0, 0.7)
    got = float(gold_nll(p.q, p.k, p.gold, temperature=0.8)(setting.to_tensor()[None])[0])
    total = 0.0
    for b in range(5):
        logits = (p.k[b] @ p.q[b, -1]).numpy() / 4 * score_scale(19 - torch.arange(20.0), 20, setting).numpy() / 0.8
        total -= logits[int(p.gold[b, -1])] - np.log(np.exp(logits).sum())
    assert got == pytest.approx(total / 5, rel=1e-12)


@pytest.mark.parametrize("setting", (Setting(), Setting(0.7, 3.0, 2.0), Setting(1.4, 0.5, form="basic")))
def test_sensitivities_are_right(setting):
    p = make_retrieval_problem(3, 16, 2)
    form, info = setting.form, torch.rand(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    measures = {
        "factor": factor_at(D, 48, form),
        "value": position_values(p.q, p.k, info, form=form),
        "entropy": entropy(p.q, p.k, form=form, causal=True),
        "gold": gold_nll(p.q, p.k, p.gold, form=form),
    }
    for name, measure in measures.items():
        check = gradients_match_differences(measure, setting)
        assert check.holds, (name, str(check))
    slopes = sensitivity(measures["factor"], setting).slopes
    epar = build_epar(setting.to_tensor().requires_grad_(), 48, form)
    gradients = epar.parameter_gradients(D.double(), 48)  # the closed form that the mechanism supplies to fast kernels
    tables = {name: gradient.derivative for name, gradient in zip(slopes, gradients.gradients, strict=True)}
    tables["alpha"] = gradients.score_scale / setting.alpha
    for name, slope in slopes.items():
        torch.testing.assert_close(slope, tables[name].detach(), rtol=1e-13, atol=1e-16)
    alpha = sensitivity(measures["factor"], setting).elasticities["alpha"]
    torch.testing.assert_close(alpha, torch.ones_like(alpha))  # the factor is proportional to alpha
    assert sensitivity(measures["value"], setting).value.shape == (3, 16)


def test_a_wrong_slope_is_seen():
    def halved(numbers):  # autograd sees half of what the measure does
        return (numbers.detach() + numbers).square().sum(-1) / 4

    check = gradients_match_differences(halved, Setting())
    assert not check.holds and check.counter_example


def test_entropy_is_scipys():
    p = make_retrieval_problem(2, 12, 5)
    got = entropy(p.q, p.k)(Setting().to_tensor()[None])
    d = torch.arange(12.0)[:, None] - torch.arange(12.0)
    weights = ((p.q @ p.k.mT) / 4 * score_scale(d, 12, Setting())).softmax(-1)
    assert float(got[0]) == pytest.approx(stats.entropy(weights.numpy(), axis=-1).mean(), rel=1e-12)


@pytest.mark.parametrize(
    "call, text",
    (
        (lambda: minimize_by_grid(lambda n: n.sum(-1), points=2), r"points=2, rounds=24, shrink=0.7.*points"),
        (lambda: minimize_by_gradient(lambda n: n.sum(-1), "odd"), r"form.*'odd'.*basic.*enhanced"),
        (lambda: minimize_by_grid(lambda n: n, bounds={"alpha": (2.0, 1.0)}), r"bounds.*2\.0, 1\.0.*low < high"),
        (lambda: make_retrieval_problem(2, 4, 0, reach=0.75), r"length=4, reach=0\.75, decoys=2.*fewer decoys"),
        (
            lambda: gold_nll(torch.ones(1, 3, 2), torch.ones(1, 3, 2), torch.tensor([[1, -1, -1]])),
            r"gold.*\(1, 3\).*\(1, 3, 2\).*-1",
        ),
    ),
)
def test_usage_errors(call, text):
    with pytest.raises(WhenceError, match=text):
        call()

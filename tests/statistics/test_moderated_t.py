"""Moderated paired statistics against loops, scipy's distributions and least squares; the reference distribution."""

import numpy as np
import pytest
from scipy import special, stats

from whence.statistics import moderated_t
from whence.statistics.moderated_t import (
    PRIOR_RANGE,
    TOLERANCE,
    Layout,
    Reference,
    Scenario,
    from_normal,
    reference_scenarios,
    simulate,
    to_normal,
)

PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def failed_runs():
    mask = np.ones((6, 4), bool)
    mask[0, 1] = mask[4, 1] = mask[2, 3] = False
    return mask


def test_the_pooled_variance_is_the_residual_of_the_additive_model():
    mask, values = failed_runs(), np.random.default_rng(0).normal(70, 2, (6, 4))
    layout = Layout(mask, PAIRS)
    seeds, arms = np.nonzero(mask)
    design = np.hstack([np.eye(6)[seeds], np.eye(4)[arms]])
    errors = values[mask] - design @ np.linalg.lstsq(design, values[mask], rcond=None)[0]
    assert layout.freedom == mask.sum() - 9
    residuals = layout.residuals(layout.center(values[None])[1])
    assert residuals[0] == pytest.approx(errors)
    assert layout.pooled_variance(residuals)[0] == pytest.approx((errors**2).sum() / layout.freedom)
    complete = Layout(np.ones((6, 4), bool), PAIRS)
    assert complete.freedom == 15 and complete.arm_freedom == pytest.approx([5] * 4)


def test_a_reference_of_many_seeds_is_simulated_with_some_of_them(monkeypatch):
    mask = np.ones((40, 4), bool)
    mask[20:, 2] = False
    pairs = [(arm, 0) for arm in (1, 2, 3)]
    whole = Reference(Layout(mask, pairs), reference_scenarios("baseline"), draws=4000)
    monkeypatch.setattr(moderated_t, "MOST_SIMULATED", 20)
    thinned = Layout(mask, pairs).thin(20)
    assert thinned.mask.shape == (20, 4) and thinned.mask[:, 2].sum() == 10
    fewer = Reference(Layout(mask, pairs), reference_scenarios("baseline"), draws=4000)
    assert fewer.critical_z(0.05) == pytest.approx(whole.critical_z(0.05), abs=0.1)
    mask[1:, 1] = mask[1:, 3] = False
    mask[1, 1] = True  # every second seed would leave arm 1 with one
    layout = Layout(mask, pairs)
    assert layout.thin(20) is layout


def test_estimates_and_errors_against_loops():
    mask, values = failed_runs(), np.random.default_rng(1).normal(70, 2, (6, 4)) * [1, 1, 3, 1]
    layout = Layout(mask, PAIRS)
    estimates, errors, freedom = (part[0] for part in layout.statistics(values[None]))
    residuals = layout.residuals(layout.center(values[None])[1])
    pooled, prior = layout.pooled_variance(residuals)[0], layout.prior_freedom(residuals)[0]
    for place, (a, b) in enumerate(PAIRS):
        common = mask[:, a] & mask[:, b]
        differences = values[common, a] - values[common, b]
        n = len(differences)
        variance = (prior * 2 * pooled + (n - 1) * differences.var(ddof=1)) / (prior + n - 1)
        assert estimates[place] == pytest.approx(differences.mean())
        assert errors[place] == pytest.approx((variance / n) ** 0.5)
        assert freedom[place] == pytest.approx(prior + n - 1)


def test_values_of_failed_runs_are_ignored():
    mask, values = failed_runs(), np.random.default_rng(2).normal(size=(1, 6, 4))
    layout = Layout(mask, PAIRS)
    before = layout.statistics(values)
    values[0][~mask] = 1e6
    for own, other in zip(before, layout.statistics(values), strict=True):
        assert own == pytest.approx(other)


def test_contrasts_with_one_common_seed_are_not_testable():
    mask = np.ones((3, 4), bool)
    mask[1:, 0] = False
    layout = Layout(mask, PAIRS)
    assert layout.testable.tolist() == [False] * 3 + [True] * 3
    assert layout.statistics(np.random.default_rng(0).normal(size=(2, 3, 4)))[0].shape == (2, 3)


def test_the_prior_is_half_of_smyths_estimate_within_its_range():
    layout = Layout(np.ones((5, 8), bool), [(arm, 0) for arm in range(1, 8)])
    scale = np.array([1, 1, 1, 1, 2, 2, 3, 3.0])
    values = np.random.default_rng(3).normal(size=(200, 5, 8)) * scale
    residuals = layout.residuals(layout.center(values)[1])
    prior = layout.prior_freedom(residuals)
    logs = np.log((residuals**2).reshape(200, 5, 8).sum(axis=1))
    excess = logs.var(axis=1, ddof=1) - special.polygamma(1, 2)
    inside = (prior > PRIOR_RANGE[0]) & (prior < PRIOR_RANGE[1])
    assert inside.sum() > 50 and (prior[excess <= 0] == PRIOR_RANGE[1]).all()
    assert special.polygamma(1, prior[inside]) == pytest.approx(excess[inside], rel=0.07)


def test_spreads_that_differ_more_give_a_smaller_prior():
    layout = Layout(np.ones((8, 8), bool), [(arm, 0) for arm in range(1, 8)])
    own = np.random.default_rng(4).normal(size=(500, 8, 8))
    means = [
        layout.prior_freedom(layout.residuals(layout.center(own * np.linspace(1, widest, 8))[1])).mean()
        for widest in (1, 2, 4, 8)
    ]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("freedom", [4, 8, 30, 300])
def test_the_normal_scale(freedom):
    t = np.array([0.0, 0.5, 2.0, 5.0, 12.0])
    z = to_normal(t, freedom, np)
    assert z == pytest.approx(stats.norm.isf(stats.t.sf(t, freedom)), rel=0.02, abs=1e-9)
    assert [from_normal(value, freedom) for value in z] == pytest.approx(t, abs=1e-9)


def test_an_infinite_prior_gives_tukeys_and_dunnetts_critical_values(monkeypatch):
    monkeypatch.setattr(moderated_t, "PRIOR_RANGE", (1e7, 1e7))
    arms, seeds = 5, 4
    freedom = (arms - 1) * (seeds - 1)
    everything = Layout(np.ones((seeds, arms), bool), [(a, b) for a in range(arms) for b in range(a)])
    tukey = stats.studentized_range.ppf(0.95, arms, freedom) / 2**0.5
    assert Reference(everything, [Scenario()], draws=20_000).critical_z(0.05) == pytest.approx(tukey, rel=0.02)
    against = Layout(np.ones((seeds, arms), bool), [(arm, 0) for arm in range(1, arms)])
    found = Reference(against, [Scenario()], draws=20_000).critical_z(0.05)
    dunnett = stats.multivariate_t(shape=(np.eye(4) + 1) / 2, df=freedom, seed=0)
    assert dunnett.cdf(np.full(4, found), lower_limit=np.full(4, -found)) == pytest.approx(0.95, abs=0.005)


def test_p_and_critical_values_agree():
    layout = Layout(failed_runs(), PAIRS)
    reference = Reference(layout, reference_scenarios("pairs"), draws=500)
    for alpha in (0.01, 0.05, 0.2):
        t = reference.critical_t(alpha, 7.0)
        assert reference.p(t * 0.9999, 7.0) > alpha >= reference.p(t * 1.0001, 7.0)
    assert reference.p(0.0, 7.0) == 1 and reference.p(1e9, 7.0) == pytest.approx(1 / 501)
    assert reference.p(-3.0, 7.0) == reference.p(3.0, 7.0)


def test_the_worst_scenario_decides():
    layout = Layout(np.ones((3, 6), bool), [(arm, 0) for arm in range(1, 6)])
    scenarios = reference_scenarios("baseline")
    whole = Reference(layout, scenarios, draws=500)
    # scenarios have their own random numbers by place, so the first alone is the same as the first of all
    assert Reference(layout, scenarios[:1], draws=500).critical_z(0.05) < whole.critical_z(0.05)
    assert [scenario.tolerance for scenario in scenarios] == [1.0] + [TOLERANCE] * 6
    assert len(reference_scenarios("pairs")) == 5
    assert 0.05 * TOLERANCE <= 0.075  # the limit for unequal spreads
    # a scenario with a tolerance decides as its quantile at the level times the tolerance
    alone = Reference(layout, scenarios[1:2], draws=500)
    plain = np.quantile(alone.largest[0], 1 - 0.05 * TOLERANCE, method="inverted_cdf")
    assert alone.critical_z(0.05) == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("scenario", reference_scenarios("baseline"))
def test_simulated_spreads(scenario):
    layout = Layout(np.ones((2, 4), bool), PAIRS)
    values = simulate(layout, scenario, 20_000, np.random.default_rng(0))
    ratio = values.std(axis=(0, 1)) / values[:, :, 3].std()
    if scenario.wide == "baseline":
        assert ratio == pytest.approx([4, 1, 1, 1], rel=0.05)
    else:
        assert ratio == pytest.approx([1] * 4, rel=0.05)  # wide arms change from data set to data set
    shares = {"none": 1, "one": (16 + 3) / 4, "half": (32 + 2) / 4, "baseline": (16 + 3) / 4}
    assert values.var() == pytest.approx(shares[scenario.wide], rel=0.05)
    correlation = np.corrcoef(values[:, 0, 1], values[:, 0, 2])[0, 1]
    assert (correlation > 0.4) == scenario.proportional


def test_error_rate_with_unequal_spreads():
    """Half of the arms vary four times as much: pooling alone would claim a difference in a fifth of the studies."""
    layout = Layout(np.ones((5, 8), bool), [(a, b) for a in range(8) for b in range(a)])
    values = np.random.default_rng(5).normal(size=(2000, 5, 8)) * [1, 1, 1, 1, 4, 4, 4, 4]
    estimates, errors, freedom = layout.statistics(values)
    reference = Reference(layout, reference_scenarios("pairs"), draws=2000)
    claims = to_normal(estimates / errors, freedom, np) > reference.critical_z(0.05)
    assert claims.any(axis=1).mean() < 0.09

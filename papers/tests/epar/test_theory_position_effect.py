"""The factor: its formula, properties, floor and retention, with the source's figures."""

import json
import math
from dataclasses import replace

import pytest
import torch

from whence.errors import WhenceError
from whence.position import Epar
from whence_papers.epar.theory import (
    CODE_DEFAULTS,
    Setting,
    StatementCheck,
    attention_bound,
    beta_for_retention,
    bound,
    build_epar,
    compare_retention,
    continuity,
    differentiability,
    enhanced_retains_more,
    factor_monotonicity,
    gamma_for_retention,
    retention,
    retention_figures_agree,
    score_scale,
    slope,
)

SETTINGS = (Setting(), Setting().basic(), CODE_DEFAULTS, Setting(0.3, 5.5, 4.1), Setting(2.7, 0.2, 0.1, "basic"))


def by_hand(setting, d, length):
    decay = math.exp(-setting.beta * abs(d) / length)
    if setting.form == "basic":
        return setting.alpha * decay
    return setting.alpha * (1 + setting.gamma * decay) / (1 + setting.gamma)


@pytest.mark.parametrize("setting", SETTINGS)
def test_factor_has_all_digits(setting):
    d = torch.tensor([[-70.0, 0.0], [1.0, 64.0]], dtype=torch.float64)
    want = torch.tensor([[by_hand(setting, x, 64) for x in row] for row in d.tolist()], dtype=torch.float64)
    torch.testing.assert_close(score_scale(d, 64, setting), want, rtol=1e-15, atol=0)


def test_a_grid_of_settings_is_heads():
    numbers = torch.stack([s.to_tensor() for s in (Setting(), CODE_DEFAULTS, Setting(0.3, 5.5, 4.1))]).requires_grad_()
    epar = build_epar(numbers, 64)
    assert isinstance(epar, Epar) and epar.heads == 3
    out = epar.score_scale(torch.tensor([9.0, 40.0], dtype=torch.float64), 64)
    assert out.shape == (3, 2) and float(out[1, 1].detach()) == pytest.approx(by_hand(CODE_DEFAULTS, 40, 64), rel=1e-14)
    out[1].sum().backward()
    assert (numbers.grad[1] != 0).all() and not numbers.grad[[0, 2]].any()


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_factor_is_continuous_falls_and_keeps_its_floor(setting):
    for statement in (continuity, factor_monotonicity, bound):
        check = statement(setting)
        assert check.holds and check.counter_example is None and check.checked > 1000, str(check)
    assert bound(setting).numbers["least anywhere"] == pytest.approx(setting.floor, abs=1e-12)
    assert bound(setting).numbers["least up to L"] > setting.floor


def test_the_floor():
    assert Setting(alpha=0.9, gamma=0.8).floor == 0.9 / 1.8
    assert Setting().basic().floor == 0 and Setting(alpha=0.9, beta=0.0, form="basic").floor == 0.9


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("length", (1, 128))
def test_the_kink_at_zero_and_none_elsewhere(setting, length):
    check = differentiability(setting, length)
    jump = 2 * setting.steepness / length
    assert not check.holds and check.counter_example["distance"] == 0
    assert check.violation == pytest.approx(jump, rel=1e-3) and check.numbers["jump by the formula"] == jump
    assert check.numbers["slope left of 0"] == pytest.approx(-check.numbers["slope right of 0"])
    assert check.numbers["slope left of 0"] > 0
    assert check.numbers["largest jump away from 0"] <= check.allowed
    assert check.numbers["autograd against differences away from 0"] < 1e-7 * jump
    flat = differentiability(replace(setting, beta=0.0), length)
    assert flat.holds and flat.counter_example is None
    d = torch.tensor([-3.0, 5.0], dtype=torch.float64)
    share = 1 if setting.form == "basic" else setting.gamma / (1 + setting.gamma)
    want = [-math.copysign(1, x) * setting.alpha * setting.beta * share / length for x in d.tolist()]
    want = [w * math.exp(-setting.beta * abs(x) / length) for w, x in zip(want, d.tolist(), strict=True)]
    torch.testing.assert_close(slope(d, length, setting).tolist(), want, rtol=1e-13, atol=0)


def test_statements_can_fail(monkeypatch):
    """A factor that rises, jumps and falls under its floor is caught, with the place."""

    def broken(self, distance, length):
        return torch.where(distance.abs() > length, 2.0, 0.5) + 0 * distance

    monkeypatch.setattr(Epar, "score_scale", broken)
    for statement in (continuity, factor_monotonicity):
        check = statement(Setting())
        assert not check.holds and abs(check.counter_example["distance"]) == pytest.approx(128, abs=1.1)
    assert bound(Setting()).violation == pytest.approx(2 / 3 - 0.5)
    assert not enhanced_retains_more(Setting()).counter_example  # both forms are broken alike


def test_the_floor_of_the_factor_is_none_of_the_attention():
    check = attention_bound(Setting(), 128)
    assert not check.holds and check.numbers["keys under the floor"] == 128
    assert check.counter_example["weight"] < 1 / 128 and check.counter_example["distance"] == 127
    assert attention_bound(Setting(), 1).holds


def test_retention_as_the_source_defines_it():
    both = compare_retention(torch.tensor([0.0, 0.5, 1.0]), Setting())
    assert both.basic.tolist() == pytest.approx([1, math.exp(-0.5), math.exp(-1)])
    assert both.enhanced.tolist() == pytest.approx(
        [1, (1 + 0.5 * math.exp(-0.5)) / 1.5, (1 + 0.5 * math.exp(-1)) / 1.5]
    )
    assert both.gain.tolist() == pytest.approx([1, 1.4325, 2.1455], abs=1e-4)
    assert float(retention(torch.tensor(1.0), Setting(alpha=0.2))) == pytest.approx(0.7893, abs=1e-4)  # alpha cancels


def test_the_sources_figures_do_not_fit_together():
    """2.8 % kept needs beta = 3.58, where the text's gamma keeps 67.6 %: 24 times as much, not 28.3."""
    beta = beta_for_retention(0.028)
    assert beta == pytest.approx(3.5756, abs=1e-4)
    there = compare_retention(torch.tensor(1.0), Setting(beta=beta))
    assert float(there.enhanced) == pytest.approx(0.676, abs=5e-4) and float(there.gain) == pytest.approx(
        24.1, abs=0.05
    )
    check = retention_figures_agree(0.028, 28.3, 4.2)
    assert not check.holds and check.counter_example["gain at L/2"] == pytest.approx(4.913, abs=1e-3)
    assert retention_figures_agree(0.028, 28.3, 4.9133).holds


def test_inverses():
    share = torch.tensor(0.7)
    for target in (0.9, 0.31):
        beta = beta_for_retention(target, 0.7)
        assert float(retention(share, Setting(beta=beta, form="basic"))) == pytest.approx(target, rel=1e-7)
        gamma = gamma_for_retention(0.95, target)
        assert float(retention(share, Setting(beta=beta, gamma=gamma))) == pytest.approx(0.95, rel=1e-7)


@pytest.mark.parametrize("setting", (Setting(), CODE_DEFAULTS, Setting(gamma=0.0), Setting(beta=0.0)))
def test_the_enhanced_form_keeps_more(setting):
    assert enhanced_retains_more(setting, reach=3.0).holds


def test_evidence_goes_into_records():
    record = differentiability(Setting()).record()
    assert json.loads(json.dumps(record, allow_nan=False)) == record and record["holds"] is False
    odd = StatementCheck("x", "nowhere", 1, math.nan, 1.0, None, {"a": math.inf})
    assert not odd.holds and odd.record()["violation"] is None and odd.record()["numbers"] == {"a": None}
    assert not StatementCheck("x", "nowhere", 0, 0.0).holds  # nothing checked, nothing shown


@pytest.mark.parametrize(
    "call, text",
    (
        (lambda: Setting(alpha=0.0), r"alpha.*0\.0"),
        (lambda: Setting(form="odd"), r"form.*'odd'"),
        (lambda: build_epar(torch.ones(3), 8, "basic"), r"parameters.*\(3,\).*'basic'"),
        (lambda: beta_for_retention(0.0), r"retained.*0\.0 at 1\.0"),
        (lambda: gamma_for_retention(0.2, 0.3), r"retained.*0\.2 with 0\.3.*decay < retained"),
    ),
)
def test_usage_errors(call, text):
    with pytest.raises(WhenceError, match=text):
        call()

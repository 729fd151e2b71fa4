"""EPAR's position effect as a function of its parameters, how much score it retains at a distance, and ``StatementCheck``.

The formula itself is in ``whence.position.epar``. ``Setting`` holds one choice of alpha, beta and gamma. ``build_epar`` takes
them as a tensor, so that autograd reaches them and a grid of settings is one attention with as many heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.position.epar import Epar


@dataclass(frozen=True)
class StatementCheck:
    """The outcome of a numerical check of a statement. It covers only the cases that were checked.

    ``violation`` is the largest amount by which a case violates the statement, 0 if none does. ``allowed`` is the violation
    that rounding alone can cause. ``counter_example`` is the worst case if its violation exceeds ``allowed``.

    >>> found = StatementCheck("x is below 2", "x = 1, 2, 3", 3, violation=1.0, counter_example={"x": 3.0})
    >>> found.holds, print(found)
    x is below 2: FAILS by 1 (allowed 0; 3 checks: x = 1, 2, 3); for example x = 3
    (False, None)
    """

    statement: str
    where: str
    checked: int
    violation: float
    allowed: float = 0.0
    counter_example: Mapping[str, float] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the worst violation is within rounding error. NaN counts as a violation."""
        return self.checked > 0 and self.violation <= self.allowed

    def record(self) -> dict[str, Any]:
        """All fields as JSON values; numbers that are not finite become None."""
        return {
            "statement": self.statement,
            "where": self.where,
            "checked": self.checked,
            "violation": _plain(self.violation),
            "allowed": self.allowed,
            "holds": self.holds,
            "counter_example": None if self.counter_example is None else _all_plain(self.counter_example),
            "numbers": _all_plain(self.numbers),
        }

    def __str__(self) -> str:
        outcome = "holds" if self.holds else f"FAILS by {self.violation:.6g}"
        text = f"{self.statement}: {outcome} (allowed {self.allowed:.3g}; {self.checked} checks: {self.where})"
        if self.counter_example is None:
            return text
        return f"{text}; for example " + ", ".join(f"{name} = {x:.6g}" for name, x in self.counter_example.items())


def _plain(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def _all_plain(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _plain(x) for name, x in numbers.items()}


#: the parameters of each form, in the order of a tensor's last axis
PARAMETERS = {"basic": ("alpha", "beta"), "enhanced": ("alpha", "beta", "gamma")}


@dataclass(frozen=True)
class Setting:
    """One choice of EPAR's parameters. The basic form has no gamma and ignores it.

    >>> Setting().to_tensor(), Setting().basic().to_tensor()
    (tensor([1.0000, 1.0000, 0.5000], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 0.5
    form: str = "enhanced"

    def __post_init__(self) -> None:
        Epar(**asdict(self))  # validates the values

    def to_tensor(self) -> Tensor:
        return torch.tensor([getattr(self, name) for name in PARAMETERS[self.form]], dtype=torch.float64)

    def basic(self) -> Setting:
        return replace(self, form="basic")

    def enhanced(self) -> Setting:
        return replace(self, form="enhanced")

    def position(self, length: int) -> Epar:
        """The mechanism with these parameters, in double precision, with L = ``length``."""
        return build_epar(self.to_tensor(), length, self.form)

    @property
    def floor(self) -> float:
        """The limit of the factor as the distance grows."""
        if self.beta == 0:
            return self.alpha
        return 0.0 if self.form == "basic" else self.alpha / (1 + self.gamma)

    @property
    def steepness(self) -> float:
        """The absolute slope of the factor at distance 0, in units of 1 / L. It is the largest anywhere."""
        share = 1.0 if self.form == "basic" else self.gamma / (1 + self.gamma)
        return self.alpha * self.beta * share


#: the defaults of the source's class signature; its text and its protocol file use those of ``Setting()``
_code = Epar.CODE_DEFAULTS
CODE_DEFAULTS = Setting(alpha=_code["alpha"], beta=_code["beta"], gamma=_code["gamma"])


def build_epar(parameters: Tensor, length: int, form: str = "enhanced") -> Epar:
    """The mechanism with parameters ``[2 or 3]``, or ``[n, 2 or 3]`` for n heads. Gradients flow to the tensor.

    >>> build_epar(torch.tensor([1.0, 1.0, 0.5]), 100).score_scale(torch.tensor([100.0]).double(), 100)
    tensor([0.7893], dtype=torch.float64)
    """
    names = PARAMETERS.get(form, ())
    if parameters.ndim not in (1, 2) or parameters.shape[-1] != len(names):
        raise usage_error(
            "build_epar(parameters, form)",
            f"shape {tuple(parameters.shape)} for form {form!r}",
            "the last axis holds (alpha, beta) for 'basic' and (alpha, beta, gamma) for 'enhanced'",
            "pass [2 or 3], or [heads, 2 or 3]",
        )
    parameters = parameters.to(torch.float64)
    heads = None if parameters.ndim == 1 else parameters.shape[0]
    position = Epar(heads, form=form, context=length).to(parameters.device)
    for column, name in enumerate(names):
        # a BoundedParameter stores single precision; replace its value by the double-precision tensor
        getattr(position, name).fixed = parameters[..., column] if heads is None else parameters[:, column, None]
    return position


def score_scale(distance: Tensor, length: int, setting: Setting) -> Tensor:
    """The position effect at distances of any shape, in double precision."""
    flat = distance.to(torch.float64).reshape(-1)
    return setting.position(length).score_scale(flat, length).reshape(distance.shape)


def retention(share: Tensor, setting: Setting) -> Tensor:
    """The factor at a distance divided by the factor at 0. ``share`` is |i - j| / L, of any shape.

    >>> retention(torch.tensor([0.5, 1.0]), Setting()), retention(torch.tensor([1.0]), Setting().basic())
    (tensor([0.8688, 0.7893], dtype=torch.float64), tensor([0.3679], dtype=torch.float64))
    """
    return score_scale(share, 1, setting) / setting.alpha


@dataclass(frozen=True)
class RetentionComparison:
    """The retention of both forms with the same parameters at each distance (as a share of L)."""

    share: Tensor
    basic: Tensor
    enhanced: Tensor

    @property
    def gain(self) -> Tensor:
        """The ratio of the retention of the enhanced form to that of the basic form."""
        return self.enhanced / self.basic


def compare_retention(share: Tensor, setting: Setting) -> RetentionComparison:
    """The retention of the basic and the enhanced form at any distances."""
    share = share.to(torch.float64)
    return RetentionComparison(share, retention(share, setting.basic()), retention(share, setting.enhanced()))


def beta_for_retention(retained: float, share: float = 1.0) -> float:
    """The beta at which the basic form retains a given share of the score at a distance.

    >>> round(beta_for_retention(0.028), 2)
    3.58
    """
    if not 0 < retained <= 1 or not share > 0:
        raise usage_error(
            "beta_for_retention(retained, share)",
            f"{retained} at {share}",
            "the basic form retains more than 0 and at most 1, at a distance above 0",
            "choose 0 < retained <= 1 and share > 0",
        )
    return -math.log(retained) / share


def gamma_for_retention(retained: float, decay: float) -> float:
    """The gamma at which the enhanced form retains a given share of the score where the basic form retains ``decay``.

    >>> round(gamma_for_retention(0.78, 0.028), 4)
    0.2926
    """
    if not 0 <= decay < retained <= 1:
        raise usage_error(
            "gamma_for_retention(retained, decay)",
            f"{retained} with {decay}",
            "the enhanced form retains more than the basic form and at most 1",
            "choose 0 <= decay < retained <= 1",
        )
    return (1 - retained) / (retained - decay)


def retention_figures_agree(
    basic_far: float, gain_far: float, gain_medium: float, allowed: float = 0.05
) -> StatementCheck:
    """Whether three published figures can come from one beta and one gamma.

    The retention of the basic form at the greatest distance determines beta, and the gain there determines gamma. Together
    they determine the gain at half the distance, which is compared with the published one. ``allowed`` covers the rounding
    of the figures.
    """
    beta = beta_for_retention(basic_far)
    gamma = gamma_for_retention(basic_far * gain_far, basic_far)
    medium = float(compare_retention(torch.tensor(0.5), Setting(beta=beta, gamma=gamma)).gain)
    off = abs(medium - gain_medium)
    example = {"beta": beta, "gamma": gamma, "gain at L/2": medium, "claimed gain at L/2": gain_medium}
    return StatementCheck(
        "one beta and one gamma give all three retention figures",
        f"basic keeps {basic_far:g} at L, gain {gain_far:g} at L and {gain_medium:g} at L/2",
        1,
        off,
        allowed,
        example if off > allowed else None,
        example,
    )


def enhanced_retains_more(setting: Setting, reach: float = 1.0, points: int = 1001) -> StatementCheck:
    """The enhanced form retains at least as much as the basic form with the same beta, at every distance up to reach * L."""
    share = torch.linspace(0, reach, points, dtype=torch.float64)
    both = compare_retention(share, setting)
    short = (both.basic - both.enhanced).clamp(min=0)
    worst = int(short.argmax())
    shortfall, allowed = float(short.max()), 4 * torch.finfo(torch.float64).eps
    return StatementCheck(
        "the enhanced form keeps at least as much as the basic form",
        f"|i - j| / L from 0 to {reach:g} in {points} points; {setting}",
        points,
        shortfall,
        allowed,
        None if shortfall <= allowed else {"share": float(share[worst]), "short by": shortfall},
        {
            "gain at L/2": float(compare_retention(torch.tensor(0.5), setting).gain),
            "gain at L": float(compare_retention(torch.tensor(1.0), setting).gain),
            "basic at L": float(compare_retention(torch.tensor(1.0), setting).basic),
            "enhanced at L": float(compare_retention(torch.tensor(1.0), setting).enhanced),
        },
    )

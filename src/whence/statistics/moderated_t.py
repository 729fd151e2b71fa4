"""Moderated paired t statistics of many contrasts, and the distribution of their maximum.

Arms share seeds, so each contrast is a mean of paired differences, and what the arms of a seed share cancels. With few
seeds the variance of one contrast is poorly known, and the variance pooled over all arms is wrong where arms differ in
spread. The moderated variance is a weighted mean of both (Smyth 2004, Statistical Applications in Genetics and Molecular
Biology 3): the less alike the arms' spreads look, the less the pooled variance counts.

The maximum of the statistics over a family is compared with simulated data of the same layout: the same arms, seeds and
failed runs, for spreads that are alike and for spreads that differ by a factor of 4. A claim must hold up in all of them.
``benchmarks/paired_comparison.py`` measures the error rate and the power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from whence.errors import require_package
from whence.statistics.samples import load_distributions

FEATURE = "whence.statistics.compare_paired"
DRAWS = 10_000
CELLS = 400_000  # numbers of one block of simulated data sets, which limits memory
MOST_SIMULATED = 64  # seeds of a simulated data set
SPREAD_RATIO = 4.0  # between the widest and the narrowest arm of the unequal references
TOLERANCE = 1.3  # the error rate with unequal spreads may be this multiple of alpha: 0.065 at 0.05
SHARED = 0.9  # share of the variance that arms of a seed have in common where spreads are proportional
PRIOR_RANGE = (2.0, 12.0)  # degrees of freedom that the pooled variance may have in a moderated one


@dataclass(frozen=True)
class Scenario:
    """How the spreads of the arms differ in a reference: which arms are wide, and whether the shared part is too."""

    wide: str = "none"  # none, one, half or baseline
    proportional: bool = False  # False: the wide arms vary more by themselves; True: all that varies is larger there

    @property
    def tolerance(self) -> float:
        return 1.0 if self.wide == "none" else TOLERANCE


def reference_scenarios(family: str) -> list[Scenario]:
    """Alike spreads, and the least favorable of those that differ by a factor of 4."""
    wide = ("one", "half", "baseline") if family == "baseline" else ("one", "half")
    return [Scenario()] + [Scenario(name, proportional) for name in wide for proportional in (False, True)]


class Layout:
    """The runs that have a value, and the contrasts that they allow.

    Args:
        mask: for each seed and arm, whether there is a value; a boolean array of seeds by arms.
        pairs: the contrasts of the family, each as the numbers of two arms; the estimate is the first minus the second.

    A seed counts for a contrast if both arms have a value. Contrasts with fewer than two such seeds are not ``testable``.
    """

    def __init__(self, mask: Any, pairs: list[tuple[int, int]]) -> None:
        numpy = require_package("numpy", FEATURE, "lab")
        self.numpy, self.mask = numpy, mask
        self.first, self.second = (numpy.array([pair[side] for pair in pairs]) for side in (0, 1))
        self.common = mask[:, self.first] & mask[:, self.second]
        self.counts = self.common.sum(axis=0)
        self.testable = self.counts >= 2
        self.cells = numpy.nonzero(mask.ravel())[0]
        self._center_indicators()
        arms = mask.shape[1]
        owners = self.cells % arms
        traces, squares = self._projection_blocks(owners, arms)
        self.freedom = round(float(traces.sum()))
        varied = traces > 1e-9
        self.owners = numpy.array([(owners == arm) / traces[arm] for arm in range(arms) if varied[arm]]).T
        self.arm_freedom = traces[varied] ** 2 / squares[varied]
        digamma, polygamma = (getattr(load_distributions(FEATURE), name) for name in ("digamma", "polygamma"))
        half = self.arm_freedom / 2
        self.log_bias = digamma(half) - numpy.log(half)
        self.log_variance = float(polygamma(1, half).mean()) if len(half) else 0.0

    def _center_indicators(self) -> None:
        """The indicators of the arms in the observed cells, centered within seeds, and the inverse of their products.

        The residuals from the sum of an arm and a seed effect are values centered within seeds minus their projection on
        these columns (Frisch and Waugh 1933, Econometrica 1). The cost grows with the cells and not with their square.
        """
        numpy = self.numpy
        seeds, arms = self.mask.shape
        present = self.mask.astype(float)
        self.kept = 1 - 1 / numpy.maximum(present.sum(axis=1), 1)  # what centering leaves of a cell, for each seed
        centered = numpy.eye(arms)[None] - (1 - self.kept)[:, None, None] * present[:, None, :]
        self.indicators = centered.reshape(seeds * arms, arms)[self.cells]
        self.inverse = numpy.linalg.pinv(self.indicators.T @ self.indicators)

    def _projection_blocks(self, owners: Any, arms: int) -> tuple[Any, Any]:
        """For each arm, the trace and the sum of squares of its block of the matrix that maps values to residuals."""
        numpy = self.numpy
        diagonal = self.kept[self.cells // arms]
        explained = ((self.indicators @ self.inverse) * self.indicators).sum(axis=1)
        traces, squares = [], []
        for arm in range(arms):
            own = owners == arm
            products = self.inverse @ (self.indicators[own].T @ self.indicators[own])
            traces.append((diagonal[own] - explained[own]).sum())
            squares.append((diagonal[own] * (diagonal[own] - 2 * explained[own])).sum() + (products * products.T).sum())
        return numpy.array(traces), numpy.array(squares)

    def thin(self, most: int) -> Layout:
        """The layout with at most so many of its seeds, spread evenly, unless a contrast would lose its test."""
        seeds = len(self.mask)
        chosen = self.numpy.arange(most) * seeds // most if seeds > most else self.numpy.arange(seeds)
        thinned = Layout(self.mask[chosen], list(zip(self.first, self.second, strict=True)))
        return thinned if seeds > most and (thinned.testable == self.testable).all() else self

    def center(self, values: Any) -> tuple[Any, Any]:
        """The means of the arms, and the deviations from them without the mean deviation of each seed.

        What all arms of a seed share cancels here; large parts would cost digits later.
        """
        numpy, present = self.numpy, self.mask.astype(float)
        centers = (values * present).sum(axis=1) / numpy.maximum(present.sum(axis=0), 1)
        deviations = (values - centers[:, None]) * present
        shared = deviations.sum(axis=2, keepdims=True) / numpy.maximum(present.sum(axis=1), 1)[:, None]
        return centers, (deviations - shared) * present

    def residuals(self, deviations: Any) -> Any:
        """Residuals of the observed values from the sum of an arm and a seed effect: data sets by cells.

        ``deviations`` are those of ``center``, without the mean of each seed.
        """
        values = deviations.reshape(len(deviations), -1)[:, self.cells]
        return values - (values @ self.indicators @ self.inverse) @ self.indicators.T

    def pooled_variance(self, residuals: Any) -> Any:
        return (residuals**2).sum(axis=1) / max(self.freedom, 1)

    def prior_freedom(self, residuals: Any) -> Any:
        """The degrees of freedom of the pooled variance: many if the arms' spreads look alike, few if they do not.

        Half of Smyth's estimate from the variance of the arms' log variances, within ``PRIOR_RANGE``. In simulation the
        whole estimate lost more power to unequal spreads than it gained. Two arms have one contrast and nothing to pool.
        """
        numpy = self.numpy
        if len(self.arm_freedom) < 3:
            return numpy.zeros(len(residuals))
        logs = numpy.log(numpy.maximum(residuals**2 @ self.owners, 1e-300)) - self.log_bias
        excess = numpy.maximum(logs.var(axis=1, ddof=1) - self.log_variance, 1e-3)
        # half of the estimate x solves trigamma(x) = excess, here with trigamma(x) = 1 / x + 1 / (2 x^2)
        return numpy.clip((1 + numpy.sqrt(1 + 2 * excess)) / (2 * excess), *PRIOR_RANGE)

    def statistics(self, values: Any) -> tuple[Any, Any, Any]:
        """Estimate, standard error and degrees of freedom of the testable contrasts, for data sets of this layout.

        ``values`` has the axes data set, seed, arm; entries without a value must be finite and are ignored.
        """
        numpy = self.numpy
        first, second = self.first[self.testable], self.second[self.testable]
        counts = self.counts[self.testable]
        present = self.mask.astype(float)
        many, seeds, arms = values.shape
        centers, deviations = self.center(values)
        by_arm = numpy.ascontiguousarray(deviations.transpose(0, 2, 1))
        # entry arms * a + b is a sum over the seeds that arms a and b have in common
        sums, squares = ((part.reshape(-1, seeds) @ present).reshape(many, -1) for part in (by_arm, by_arm**2))
        products = (by_arm @ deviations).reshape(many, -1)
        forward, backward = arms * first + second, arms * second + first
        shift = (sums[:, forward] - sums[:, backward]) / counts
        estimates = shift + centers[:, first] - centers[:, second]
        own = squares[:, forward] + squares[:, backward] - 2 * products[:, forward] - counts * shift**2
        residuals = self.residuals(deviations)
        prior = self.prior_freedom(residuals)[:, None]
        freedom = prior + counts - 1
        variances = (prior * 2 * self.pooled_variance(residuals)[:, None] + numpy.maximum(own, 0.0)) / freedom
        return estimates, numpy.sqrt(variances / counts), freedom


def to_normal(t: Any, freedom: Any, numpy: Any) -> Any:
    """Wallace's transformation of |t| to a nearly standard normal deviate (1959, Annals of Mathematical Statistics 30).

    It puts statistics of different degrees of freedom on one scale; the simulated reference removes what error is left.
    """
    with numpy.errstate(over="ignore"):
        return (8 * freedom + 1) / (8 * freedom + 3) * numpy.sqrt(freedom * numpy.log1p(t**2 / freedom))


def from_normal(z: float, freedom: float) -> float:
    """The t with this transform."""
    exponent = (z * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom
    return math.sqrt(freedom * math.expm1(exponent)) if exponent < 700 else math.inf


def simulate(layout: Layout, scenario: Scenario, draws: int, generator: Any) -> Any:
    """Data without any difference between arms: data sets by seeds by arms. Arm 0 is the baseline."""
    numpy = layout.numpy
    seeds, arms = layout.mask.shape
    own = generator.standard_normal((draws, seeds, arms))
    spread = numpy.ones((draws, 1, arms))
    if scenario.wide == "baseline":
        spread[:, :, 0] = SPREAD_RATIO
    elif scenario.wide != "none":  # the wide arms are drawn anew for each data set
        wide = 1 if scenario.wide == "one" else arms // 2
        order = generator.random((draws, 1, arms)).argsort(axis=2)
        spread[order < wide] = SPREAD_RATIO
    if scenario.proportional:
        shared = generator.standard_normal((draws, seeds, 1))
        own = SHARED**0.5 * shared + (1 - SHARED) ** 0.5 * own
    return spread * own


class Reference:
    """The distribution of the largest statistic of a layout where no arm differs, for every scenario.

    Two arms need no simulation: their statistic is Student's t. A layout of many seeds is simulated with ``MOST_SIMULATED``
    of them, spread evenly: beyond that the distribution hardly changes, and fewer seeds have the heavier tails. With 100 and
    200 seeds the simulated error stays at the level (rows of kind ``many seeds`` in ``benchmarks/records/statistics.json``).
    """

    def __init__(self, layout: Layout, scenarios: list[Scenario], *, draws: int = DRAWS, seed: int = 0) -> None:
        self.numpy = layout.numpy
        self.exact = len(layout.arm_freedom) < 3
        self.scenarios, self.draws, self.largest = scenarios, draws, []
        if self.exact or not layout.testable.any():
            return
        layout = layout.thin(MOST_SIMULATED)
        block = max(1, CELLS // (layout.mask.size + layout.mask.shape[1] ** 2))
        for number, scenario in enumerate(scenarios):
            generator = self.numpy.random.default_rng([seed, number])
            parts = []
            for start in range(0, draws, block):
                values = simulate(layout, scenario, min(block, draws - start), generator)
                estimates, errors, freedom = layout.statistics(values)
                parts.append(to_normal(estimates / errors, freedom, self.numpy).max(axis=1))
            self.largest.append(self.numpy.sort(self.numpy.concatenate(parts)))

    def p(self, t: float, freedom: float) -> float:
        """Corrected p of a statistic: the largest over the scenarios, each divided by its tolerance."""
        if self.exact:
            return 2 * float(load_distributions(FEATURE).stdtr(freedom, -abs(t)))
        z = float(to_normal(self.numpy.float64(t), freedom, self.numpy))
        shares = [
            (1 + self.draws - int(self.numpy.searchsorted(largest, z))) / (1 + self.draws) / scenario.tolerance
            for scenario, largest in zip(self.scenarios, self.largest, strict=True)
        ]
        return min(1.0, max(shares))

    def critical_z(self, alpha: float) -> float:
        """The largest z whose p is above alpha."""
        if self.exact:
            raise AssertionError("unreachable: two arms have exact quantiles")
        bounds = []
        for scenario, largest in zip(self.scenarios, self.largest, strict=True):
            allowed = math.floor(alpha * scenario.tolerance * (1 + self.draws) * (1 + 1e-12)) - 1
            bounds.append(math.inf if allowed < 0 else float(largest[self.draws - 1 - allowed]))
        return max(bounds)

    def critical_t(self, alpha: float, freedom: float) -> float:
        """The half width of a simultaneous interval in standard errors."""
        if self.exact:
            return float(load_distributions(FEATURE).stdtrit(freedom, 1 - alpha / 2))
        return from_normal(self.critical_z(alpha), freedom)

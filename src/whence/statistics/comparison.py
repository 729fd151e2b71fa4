"""Compare several arms with one baseline, with a correction for multiple comparisons and a verdict for each arm.

Each arm gets two tests. The t-test decides (Welch's, or the paired one if seeds are paired), after Bonferroni's
correction. The permutation test, which assumes no distribution, has a veto: where it could not reach the corrected level
with so few seeds, nothing is claimed, because a smaller p of the t-test would rest on the assumed normal tails alone.
Where the t-test is not defined, because there is one seed or no variance, the permutation test decides, and the verdict
says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from numbers import Real

from whence.errors import usage_error
from whence.statistics.permutation import (
    PermutationResult,
    permutation_test,
    sign_flip_test,
    smallest_p,
    smallest_paired_p,
)
from whence.statistics.samples import Interval, PlainData, Summary, check_level, check_values, summary
from whence.statistics.two_samples import Difference, EffectSize, cohen_d, paired_t, welch


@dataclass(frozen=True)
class ArmComparison(PlainData):
    """One arm compared with the baseline. Differences are arm minus baseline, whichever direction is better."""

    summary: Summary
    difference: float
    test: Difference | None  # None with one seed, which has no variance
    corrected_interval: Interval | None  # at level 1 - alpha / m: without zero exactly when corrected_p <= alpha
    corrected_p: float | None  # of the t-test
    permutation: PermutationResult
    corrected_permutation_p: float
    smallest_p: float  # lower bound of the permutation test, before correction
    effect: EffectSize | None
    verdict: str


@dataclass(frozen=True)
class Comparison(PlainData):
    """Every arm compared with the baseline, and the terms of the comparison."""

    baseline: str
    baseline_summary: Summary
    arms: dict[str, ArmComparison]
    m: int
    level: float
    higher_is_better: bool
    paired: bool
    decides: str

    def text(self) -> str:
        """One line per arm: the verdict, the p of the permutation test and its lower bound."""
        return "\n".join(
            f"{name}: {arm.verdict} [uncorrected permutation p = {arm.permutation.p:.2g}; "
            f"these seeds cannot give less than {arm.smallest_p:.2g}]"
            for name, arm in self.arms.items()
        )


@dataclass(frozen=True)
class _Terms:
    baseline: str
    m: int
    alpha: float
    higher_is_better: bool
    paired: bool
    unit: str


def compare(
    arms: Mapping[str, Sequence[float]],
    baseline: str,
    m: int,
    higher_is_better: bool,
    level: float = 0.95,
    paired: bool = False,
    *,
    unit: str = "",
    seed: int = 0,
) -> Comparison:
    """Compare every arm with the baseline.

    Args:
        arms: the results by name, one number for each seed.
        baseline: the arm that the others are compared with.
        m: number of comparisons of the whole study, for the correction; those made elsewhere count too.
        higher_is_better: whether a larger number is better.
        level: level of the intervals; a claim needs a corrected p of at most 1 - level.
        paired: whether the same index means the same seed in all arms.
        unit: unit of a difference in the verdicts, such as "points".
        seed: seed of the permutation test, used only if there are too many splits for an exact test.

    >>> comparison = compare({"none": [70.1, 70.4, 69.8, 70.0, 70.2], "rotary": [72.0, 72.5, 72.2, 72.4, 71.9]}, "none", 5, True)
    >>> comparison.arms["rotary"].verdict
    'better than none by 2.1 (p < 0.0001 after correction for 5 comparisons)'
    """
    check_level("compare(level=...)", level)
    values = _check_arms(arms, baseline, m, paired)
    alpha = round(1 - level, 15)  # 1 - 0.95 is a little more than 0.05
    terms = _Terms(baseline, m, alpha, higher_is_better, paired, unit)
    others = {
        name: _compare_arm(own, values[baseline], level, seed, terms)
        for name, own in values.items()
        if name != baseline
    }
    decides = (
        f"the {'paired t' if paired else 'Welch'} test after Bonferroni's correction for m = {m}; "
        f"nothing is claimed where the permutation test cannot reach {alpha:g} / {m}"
    )
    return Comparison(baseline, summary(values[baseline], level), others, m, level, higher_is_better, paired, decides)


def _check_arms(arms: Mapping[str, Sequence[float]], baseline: str, m: int, paired: bool) -> dict[str, list[float]]:
    if not isinstance(arms, Mapping) or not arms:
        got = f"{len(arms)} arms" if isinstance(arms, Mapping) else f"a {type(arms).__name__}"
        raise usage_error("compare(arms)", got, "arms maps names to results", "pass a dict with a list for each arm")
    if baseline not in arms:
        raise usage_error(
            "compare(baseline=...)", repr(baseline), f"the arms are {', '.join(arms)}", "name one of them"
        )
    values = {name: check_values(f"compare(arms[{name!r}])", own) for name, own in arms.items()}
    comparisons = len(arms) - 1
    if comparisons == 0:
        raise usage_error(
            "compare(arms)", f"{baseline!r} alone", "a baseline is compared to something", "add another arm"
        )
    if not isinstance(m, int) or m < comparisons:
        raise usage_error(
            "compare(m=...)",
            repr(m),
            f"m counts all comparisons of the study, and {comparisons} {'is' if comparisons == 1 else 'are'} made here",
            f"pass m={comparisons} or the larger number of the study",
        )
    for name, own in values.items():
        if paired and len(own) != len(values[baseline]):
            raise usage_error(
                f"compare(arms[{name!r}], paired=True)",
                f"{len(own)} values against {len(values[baseline])} of {baseline!r}",
                "a pair is two results of one seed",
                "keep the seeds both arms have, in one order, or pass paired=False",
            )
    return values


def _compare_arm(own: list[float], base: list[float], level: float, seed: int, terms: _Terms) -> ArmComparison:
    permuted = (sign_flip_test if terms.paired else permutation_test)(own, base, seed=seed)
    floor = smallest_paired_p(len(own)) if terms.paired else smallest_p(len(own), len(base))
    test = corrected_test = effect = None
    if min(len(own), len(base)) > 1:
        t_test = paired_t if terms.paired else welch
        test = t_test(own, base, level)
        corrected_test = t_test(own, base, 1 - terms.alpha / terms.m)
        effect = cohen_d(own, base, level)
        if terms.paired:
            effect = replace(effect, interval=None, note=effect.note or "its interval is not known for paired seeds")
    difference = permuted.difference if test is None else test.difference
    p = None if test is None or test.p is None else bonferroni(test.p, terms.m)
    permutation_p = bonferroni(permuted.p, terms.m)
    return ArmComparison(
        summary=summary(own, level),
        difference=difference,
        test=test,
        corrected_interval=None if corrected_test is None else corrected_test.interval,
        corrected_p=p,
        permutation=permuted,
        corrected_permutation_p=permutation_p,
        smallest_p=floor,
        effect=effect,
        verdict=_verdict(difference, p, permutation_p, floor, own, base, terms),
    )


def _verdict(
    difference: float,
    p: float | None,
    permutation_p: float,
    floor: float,
    values: list[float],
    baseline_values: list[float],
    terms: _Terms,
) -> str:
    own, base = len(values), len(baseline_values)
    direction = "better" if (difference > 0) == terms.higher_is_better else "worse"
    size = f"{float(f'{abs(difference):.3g}'):g}{' ' if terms.unit else ''}{terms.unit}"
    seeds = f"{own} paired seeds" if terms.paired else f"{own} and {base} seeds"
    if floor * terms.m > terms.alpha:
        return (
            f"with {seeds} the permutation test cannot reach {terms.alpha:g} / {terms.m}; more seeds are needed "
            f"(at least {_seeds_needed(terms)})" + _describe_trend(p, direction, size, values, baseline_values, terms)
        )
    decisive, how = (permutation_p, "permutation p") if p is None else (p, "p")
    many = "1 comparison" if terms.m == 1 else f"{terms.m} comparisons"
    because = f"{how} {_format_p(decisive, terms.alpha)} after correction for {many}"
    if p is None:
        why = "one seed has no variance" if min(own, base) == 1 else "all seeds give the same value"
        because = f"{why}, so the t-test is not defined; {because}"
    if decisive > terms.alpha:
        with_seeds = f"{own} seeds" if own == base and not terms.paired else seeds
        return f"no significant difference from {terms.baseline} with {with_seeds} ({because})"
    return f"{direction} than {terms.baseline} by {size} ({because})"


def _describe_trend(
    p: float | None, direction: str, size: str, own: list[float], base: list[float], terms: _Terms
) -> str:
    """The trend without a claim: whether all seeds agree, and the p of the t-test alone."""
    if p is None or len(own) < 2:
        return ""
    if terms.paired:
        signs = {a > b for a, b in zip(own, base, strict=True)} | {a >= b for a, b in zip(own, base, strict=True)}
        separated = len(signs) == 1
    else:
        separated = min(own) > max(base) or max(own) < min(base)
    if not separated:
        return ""
    p_words = _format_p(p, terms.alpha)
    return f"; so far every seed is {direction}, by {size} on average (t-test alone: p {p_words} after correction)"


def _seeds_needed(terms: _Terms) -> str:
    """The smallest number of seeds with which the permutation test can reach the corrected level."""
    for n in count(2):
        if (smallest_paired_p(n) if terms.paired else smallest_p(n, n)) * terms.m <= terms.alpha:
            return f"{n} paired seeds" if terms.paired else f"{n} per arm"
    raise AssertionError("unreachable: the smallest p goes to zero")


def _format_p(p: float, alpha: float) -> str:
    """p with two digits, or with as many as show on which side of alpha it lies."""
    if p < 0.0001:
        return "< 0.0001"
    for digits in (2, 3, 4, 6, 9):
        text = f"{p:.{digits}g}"
        if (float(text) <= alpha) == (p <= alpha):
            break
    return f"= {text}"


def bonferroni(p: float, m: int) -> float:
    """p times the number m of comparisons of the whole study, at most 1.

    >>> bonferroni(0.01, 5), bonferroni(0.4, 5)
    (0.05, 1.0)
    """
    _check_p("bonferroni(p)", p)
    if not isinstance(m, int) or m < 1:
        raise usage_error("bonferroni(m)", repr(m), "m is a whole number of at least 1", "count the comparisons")
    return float(min(1.0, p * m))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction of all p-values of a family, in their order: never larger than Bonferroni's.

    The smallest is multiplied by the number of tests, the next by one less and so on, and none may fall below the one
    before it. The family must be complete. (Holm 1979, Scandinavian Journal of Statistics 6.)

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    for place, p in enumerate(ps):
        _check_p(f"holm(ps[{place}])", p)
    corrected, least = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        least = max(least, min(1.0, float(ps[place]) * (len(ps) - rank)))
        corrected[place] = least
    return corrected


def _check_p(subject: str, p: float) -> None:
    if not isinstance(p, Real) or not 0 <= p <= 1:
        raise usage_error(subject, repr(p), "a p-value lies between 0 and 1", "pass the p of a test")

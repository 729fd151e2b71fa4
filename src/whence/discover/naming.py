"""Name the formula of curves: rank formulas by description length among those that predict held-out data.

The description length of a formula is a two-part code in bits. The first part is the data given the formula: half the
sum of squared whitened residuals over ln 2 while they are within the noise over seeds; beyond it, the cost of a Gaussian
code whose spread is estimated. ``no effect`` has no such choice: it claims that all is noise. With several heads each is coded with a spread of its own, so a
head that the formula does not explain is not hidden by the others. The second part is the formula: log2 n bits for each of its numbers, n being the number of
values that the number explains, which are all for a parameter of a shape and those of one head for its amplitude. This is twice the price of BIC,
because variances from few seeds make residuals larger than Gaussian ones. To it come the bits that say which formula it is: one of those with as many shapes, one bit more for each shape, and ``EVIDENCE``
bits for anything but ``no effect``.

Held-out error: formulas are fitted to half the knots of all seeds but one, and predict the other knots of the seed
that was left out. The halves follow no period (Thue-Morse sequence), because every other knot would show an oscillation of two tokens as a
constant. A seed's deviations are smooth in distance, so held-out distances of the same seed would reward a
formula that follows them. With one seed only distances are held out.

The name is the formula with the shortest description among those whose held-out error is not distinguishably above the
best one: the t interval over seeds for the difference contains 0, at the level 5 % for all comparisons together.

An effect is named only if it is established, and is ``no effect`` otherwise:

- It is large enough to matter: the fitted curve of some head varies by ``LEAST_EFFECT`` over the distances. A bias of 0.01 changes
  the ratio of two weights by 1 %. The noise of long training is smaller than that, so any offset would be significant.
- Seeds agree on it: the slope of a seed's curve on the fitted one, which is 1 on average, has a t interval over seeds that does not
  contain 0. The description length takes its noise knot by knot. It underestimates what varies between seeds as a whole, such
  as a local optimum that some of them reach: their mean has that very curve.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t

from whence.discover.curves import Curves
from whence.discover.fitting import Candidate, Fit, Problem, list_candidates
from whence.discover.shapes import Array
from whence.errors import usage_error

SHORTLIST = 6  # formulas that predict held-out data
REFINED_PAIRS = 12  # pairs of shapes that are refined before the shortlist is made
FOLDS = 2
ALPHA = 0.05  # error rate of all comparisons of held-out errors with the best together
LARGEST_ERROR = 1e6  # a fit to half the knots may explode at the others
EVIDENCE = 10.0  # bits that any effect must save over no effect
MOST_SEEDS = 5  # left out one after the other
LEAST_EFFECT = 0.01  # range over distance of a bias in logits, or of a factor whose mean is 1


@dataclass(frozen=True)
class Ranked:
    """A fitted formula with its description length in bits and its held-out error in variances of a seed."""

    fit: Fit
    bits: float
    held_out: float
    excess: float  # of the held-out error over the best formula's
    margin: float  # excess that chance explains
    established: bool = True  # an effect that is large enough to matter and that seeds agree on; or no effect

    @property
    def predicts(self) -> bool:
        """Whether the held-out error is not distinguishably above the best."""
        return self.excess <= self.margin + 1e-9


@dataclass(frozen=True)
class Naming:
    """The formulas of some heads, the named one first."""

    heads: tuple[int, ...]
    ranking: tuple[Ranked, ...]

    @property
    def fit(self) -> Fit:
        return self.ranking[0].fit

    @property
    def name(self) -> str:
        return self.fit.name


def name_formula(curves: Curves, heads: Sequence[int] | None = None, *, pairs: bool = True) -> Naming:
    """Name the formula that some heads share, up to offset and amplitudes.

    Args:
        curves: learned values over distance.
        heads: which heads; all by default.
        pairs: also try sums and products of two shapes.

    >>> d = np.arange(12.0)
    >>> noise = 0.05 * np.random.default_rng(0).normal(size=(4, 12))
    >>> name_formula(Curves(d, -0.5 * d + noise), pairs=False).name
    'linear'
    """
    chosen = tuple(range(curves.heads)) if heads is None else tuple(heads)
    if not chosen or min(chosen) < 0 or max(chosen) >= curves.heads:
        raise usage_error(
            "name_formula(heads=...)", repr(heads), f"heads are numbers below {curves.heads}", "pass at least one"
        )
    problem = Problem(curves, chosen)
    candidates = [c for c in list_candidates(curves.hook) if pairs or len(c.shapes) < 2]
    counts = count_formulas(candidates)
    fits = _shortlist(problem, candidates, counts)
    errors = np.stack([_held_out_errors(curves, chosen, fit) for fit in fits])  # [formulas, blocks]
    best = int(errors.mean(1).argmin())
    critical = float(t.ppf(1 - ALPHA / (2 * len(candidates)), errors.shape[1] - 1))  # any of them could be the best
    ranked = []
    for fit, own in zip(fits, errors, strict=True):
        excess = own - errors[best]
        spread = float(excess.std(ddof=1)) / math.sqrt(len(excess)) * critical
        bits = _fit_bits(problem, fit, counts)
        established = not fit.candidate.shapes or _is_established(curves, problem, fit)
        ranked.append(Ranked(fit, bits, float(own.mean()), float(excess.mean()), spread, established))
    return Naming(chosen, tuple(sorted(ranked, key=lambda one: (not one.established, not one.predicts, one.bits))))


def _is_established(curves: Curves, problem: Problem, fit: Fit) -> bool:
    """Whether an effect is large enough to matter, and seeds agree on it."""
    curve = fit.evaluate(problem.distances)
    if np.ptp(curve, axis=1).max() < LEAST_EFFECT:
        return False
    if curves.seeds == 1:
        return True
    slopes = problem.slopes(curve, curves.values[:, list(problem.heads)])
    error = float(slopes.std(ddof=1)) / math.sqrt(len(slopes))
    return float(slopes.mean()) > error * float(t.ppf(1 - ALPHA / 2, len(slopes) - 1))


def _shortlist(problem: Problem, candidates: Sequence[Candidate], counts: Counter[int]) -> list[Fit]:
    """The refined fits of the formulas with the shortest descriptions, and of ``no effect``.

    Every formula of one shape is refined first. Accurate curves see the gaps of its grid, and a sum with a further term would fill
    them: by grid points alone a sum could displace the shape that it contains. Of the pairs, those with the best grid points are
    refined.
    """
    alone = [problem.fit(candidate) for candidate in candidates if len(candidate.shapes) < 2]
    pairs: list[tuple[float, int, Candidate, Array]] = []
    for candidate in candidates:
        if len(candidate.shapes) == 2:
            starts, chi = problem.search(candidate)
            bits = _bits(problem, candidate, chi[chi.sum(-1).argmin()], counts)
            pairs.append((bits, len(pairs), candidate, starts))
    fits = alone + [
        min((problem.refine(candidate, start) for start in starts), key=lambda fit: fit.chi_square)
        for _, _, candidate, starts in sorted(pairs)[:REFINED_PAIRS]
    ]
    fits.sort(key=lambda fit: _fit_bits(problem, fit, counts))
    return fits[:SHORTLIST] + [fit for fit in fits[SHORTLIST:] if not fit.candidate.shapes]


def _fit_bits(problem: Problem, fit: Fit, counts: Counter[int]) -> float:
    return _bits(problem, fit.candidate, problem.residual_sums(fit.candidate, fit.parameters), counts)


def _bits(problem: Problem, candidate: Candidate, chi: Array, counts: Counter[int]) -> float:
    """The description length of a formula with residual sums of squares ``[heads]``."""
    n = problem.target.size
    return float(head_bits(problem, candidate, chi).sum()) + shared_bits(candidate, n, counts)


def head_bits(problem: Problem, candidate: Candidate, chi: Array) -> Array:
    """The bits of each head for residual sums of squares ``[heads]``: its residuals and its amplitudes."""
    n = problem.target.shape[1]
    relative = np.maximum(chi / n, 1e-12)
    if problem.seeds == 1:
        data = 0.5 * n * np.log2(relative)
    elif candidate.shapes:
        data = 0.5 * n * np.where(relative > 1, np.log(np.maximum(relative, 1)) + 1, relative) / math.log(2)
    else:  # no effect claims that the noise explains everything, and pays for the rest
        data = 0.5 * chi / math.log(2)
    return data + (candidate.offset + candidate.terms - 1) * math.log2(n)


def shared_bits(candidate: Candidate, n: int, counts: Counter[int]) -> float:
    """The bits that heads of a formula share: which formula it is, and the parameters of its shapes, which ``n`` values determine."""
    which = EVIDENCE + math.log2(counts[len(candidate.shapes)]) + len(candidate.shapes) if candidate.shapes else 0.0
    return which + len(candidate.parameters) * math.log2(n)


def count_formulas(candidates: Sequence[Candidate]) -> Counter[int]:
    """How many formulas have no shape, one and two."""
    return Counter(len(candidate.shapes) for candidate in candidates)


def _held_out_errors(curves: Curves, heads: tuple[int, ...], fit: Fit) -> Array:
    """The mean squared error on held-out knots of a held-out seed, in variances of a seed: for each seed, or each fold of one seed."""
    knots = np.arange(len(curves.distances))
    folds = np.array([int(knot).bit_count() % FOLDS for knot in knots])
    errors = []
    for seed in range(min(curves.seeds, MOST_SEEDS)):
        others = [other for other in range(curves.seeds) if other != seed] or [0]
        mean = curves.values[others].mean(0)
        for fold in range(FOLDS):
            inside, outside = knots[folds != fold], knots[folds == fold]
            again = Problem(curves, heads, inside, mean).refine(fit.candidate, np.array(fit.parameters))
            seen = curves.values[seed][list(heads)][:, outside]
            predicted = again.evaluate(curves.distances[outside])
            if curves.hook == "bias":  # the levels of both are invisible
                predicted = predicted + (seen - predicted).mean(1, keepdims=True)
            squares = np.clip(seen - predicted, -1e100, 1e100) ** 2 / curves.variance[list(heads)][:, outside]
            errors.append(min(float(squares.mean()), LARGEST_ERROR))
    blocks = np.array(errors).reshape(-1, FOLDS)
    return blocks.mean(1) if len(blocks) > 1 else blocks[0]

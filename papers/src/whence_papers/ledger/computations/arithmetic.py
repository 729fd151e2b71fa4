"""Arithmetic on the figures that a source prints: columns, products, differences and shares."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from whence.statistics import bonferroni, proportion
from whence.statistics.samples import load_distributions


def improvement(baseline: float, basic: float, enhanced: float, lower_is_better: bool = False) -> dict[str, Any]:
    """Percent by which the last cell improves on the first, and other definitions of an improvement.

    >>> round(improvement(200.0, 190.0, 180.0, lower_is_better=True)["percent_of_baseline"], 6)
    10.0
    """
    sign = -1.0 if lower_is_better else 1.0
    gain = sign * (enhanced - baseline)
    return {
        "percent_of_baseline": 100 * gain / baseline,
        "percent_of_enhanced": 100 * gain / enhanced,
        "percent_over_basic": 100 * sign * (enhanced - basic) / basic,
        "difference": gain,
    }


def improvement_range(rows: list[list[float]]) -> dict[str, Any]:
    """The smallest and the largest improvement among rows of a baseline and a better figure, in per cent."""
    percents = [100 * (better - baseline) / baseline for baseline, better in rows]
    return {"smallest_percent": min(percents), "largest_percent": max(percents)}


def significance(rows: dict[str, list[float]], runs: int, comparisons: int) -> dict[str, Any]:
    """Welch's test from printed means and deviations: rows of baseline mean, its deviation, mean, deviation."""
    special, ps, effects = load_distributions("whence claims"), [], []
    for base, base_deviation, mean, deviation in rows.values():
        squares = base_deviation**2 / runs, deviation**2 / runs
        error = math.sqrt(sum(squares))
        freedom = sum(squares) ** 2 / sum(square**2 / (runs - 1) for square in squares)
        ps.append(2 * float(special.stdtr(freedom, -abs(mean - base) / error)))
        effects.append(abs(mean - base) / math.sqrt((base_deviation**2 + deviation**2) / 2))
    return {
        "largest_corrected_p": max(bonferroni(p, comparisons) for p in ps),
        "smallest_effect": min(effects),
        "words": "This takes the figures after ± for deviations of the runs.",
    }


def disagreement(stated: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Number of quantities with different stated values, and the largest difference.

    >>> disagreement({"here": {"x": 1.0, "y": 2.0}, "there": {"x": 1.0, "y": 3.0}})
    {'quantities_that_differ': 1, 'largest_difference': 1.0, 'words': 'y: 2 here, 3 there.'}
    """
    names = sorted({name for place in stated.values() for name in place})
    apart, sentences = [], []
    for name in names:
        values = {place: numbers[name] for place, numbers in stated.items() if name in numbers}
        apart.append(max(values.values()) - min(values.values()))
        if apart[-1] > 0:
            sentences.append(f"{name}: " + ", ".join(f"{value:g} {place}" for place, value in values.items()))
    return {
        "quantities_that_differ": sum(one > 0 for one in apart),
        "largest_difference": max(apart),
        "words": f"{'; '.join(sentences)}." if sentences else "",
    }


def quotient_range(above: float, above_digit: float, below: float, below_digit: float) -> dict[str, Any]:
    """The quotient of two rounded figures, with its range given their last digits."""
    return {
        "quotient": above / below,
        "least": (above - above_digit / 2) / (below + below_digit / 2),
        "most": (above + above_digit / 2) / (below - below_digit / 2),
    }


def product(factors: list[float], divisor: float = 1.0) -> dict[str, Any]:
    """A product and its quotient by a divisor."""
    return {"product": math.prod(factors), "quotient": math.prod(factors) / divisor}


def loss_gap(loss: float, reference: float) -> dict[str, Any]:
    """Difference of two language-model losses, in nats and as perplexity."""
    return {"difference": loss - reference, "more_perplexity_percent": 100 * math.expm1(loss - reference)}


def expected_loss(
    loss: float, parameters: float, tokens: float, steps: int, fits: dict[str, list[float]]
) -> dict[str, Any]:
    """A loss beside the fits E + A / parameters^a + B / tokens^b of published trainings.

    Args:
        fits: E, A, a, B and b by name. ``expected_loss`` is the largest of them, and ``excess`` what the loss has more.
            ``tokens_percent`` is the share of the tokens at which the fits reach the loss, at most.

    >>> round(expected_loss(3.5, 1.0, 4.0, 2, {"fit": [1.0, 1.0, 1.0, 2.0, 0.5]})["excess"], 6)
    0.5
    """
    expected = {name: e + a / parameters**i + b / tokens**j for name, (e, a, i, b, j) in fits.items()}
    enough = [(b / (loss - e - a / parameters**i)) ** (1 / j) for e, a, i, b, j in fits.values()]
    own = ", ".join(f"{value:.2f} ({name})" for name, value in expected.items())
    return {
        "expected_loss": max(expected.values()),
        "excess": loss - max(expected.values()),
        "tokens_percent": 100 * max(enough) / tokens,
        "words": f"Expected: {own}. The fits reach {loss:.2f} after at most {max(enough) / 1e6:.0f}M tokens, "
        f"{max(enough) * steps / tokens:.0f} of {steps} steps.",
    }


def overlap(first: list[float], second: list[float]) -> dict[str, Any]:
    """Length of the overlap of two ranges."""
    return {"shared_length": max(0.0, min(first[1], second[1]) - max(first[0], second[0]))}


def falls(series: dict[str, list[float]]) -> dict[str, Any]:
    """Number of falls and rises of each series from one entry to the next, and the index of its largest step."""
    figures: dict[str, Any] = {}
    for name, values in series.items():
        steps = [b - a for a, b in pairwise(values)]
        figures[f"{name}_falls"] = sum(step < 0 for step in steps)
        figures[f"{name}_rises"] = sum(step > 0 for step in steps)
        figures[f"{name}_largest_step"] = 1 + max(range(len(steps)), key=lambda place: abs(steps[place]))
    return figures


def gaps(pairs: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Gaps between pairs of series, upper minus lower: first and last gap, closing steps, negative gaps.

    >>> gaps({"x": [[5.0, 6.0], [4.0, 4.5]]})
    {'x_first': 1.0, 'x_last': 1.5, 'closing_steps': 0, 'gaps_that_close': 0, 'times_below_zero': 0, 'last_pair_minus_first': 0.0}
    """
    figures: dict[str, Any] = {}
    steps = closing = negative = 0
    last = []
    for name, (upper, lower) in pairs.items():
        gap = [a - b for a, b in zip(upper, lower, strict=True)]
        figures[f"{name}_first"], figures[f"{name}_last"] = gap[0], gap[-1]
        steps += sum(b < a for a, b in pairwise(gap))
        closing += gap[-1] < gap[0]
        negative += sum(one < 0 for one in gap)
        last.append(gap[-1])
    counts = {"closing_steps": steps, "gaps_that_close": closing, "times_below_zero": negative}
    return figures | counts | {"last_pair_minus_first": last[-1] - last[0]}


def peak(places: list[int], values: list[float], named: float) -> dict[str, Any]:
    """Where a series is largest, and its value at the named place."""
    return {
        "place": places[max(range(len(values)), key=values.__getitem__)],
        "largest": max(values),
        "value_there": values[places.index(int(named))],
        "ends_below_it": int(values[-1] < max(values)),
    }


def possible_shares(percents: list[float], items: int, decimals: int = 2) -> dict[str, Any]:
    """Number of printed percentages that are not a whole number of ``items``.

    >>> possible_shares([33.33, 50.0], 3)
    {'impossible_percentages': 1, 'words': 'Of 2: 50.'}
    """
    wrong = [p for p in percents if round(100 * round(p * items / 100) / items, decimals) != round(p, decimals)]
    sentence = f"Of {len(percents)}: {', '.join(f'{p:g}' for p in wrong)}." if wrong else ""
    return {"impossible_percentages": len(wrong), "words": sentence}


def share_difference(first: float, second: float, items: int) -> dict[str, Any]:
    """Two accuracies in percent on the same number of items: their difference with its interval.

    The interval of the difference is Newcombe's, from two Wilson intervals. It assumes independent items. Here the items are
    the same, but single accuracies do not allow a paired test.
    """
    shares = [proportion(round(percent * items / 100), items) for percent in (first, second)]
    (a, b), (low_a, low_b) = (s.share for s in shares), (s.interval.low for s in shares)
    high_a, high_b = (s.interval.high for s in shares)
    low = (b - a) - math.hypot(b - low_b, high_a - a)
    high = (b - a) + math.hypot(high_b - b, a - low_a)
    return {
        "items_apart": shares[1].successes - shares[0].successes,
        "points_apart": 100 * (b - a),
        "half_interval_of_one": 50 * (shares[0].interval.high - shares[0].interval.low),
        "lowest_difference": 100 * low,
        "highest_difference": 100 * high,
        "smallest_p_of_one_run_each": 2 / math.comb(2, 1),  # of a permutation test, which has two splits
    }


def missing_words(sentence: list[str], named: list[str]) -> dict[str, Any]:
    """Number of the named words that are not in a sentence."""
    missing = [word for word in named if word.lower() not in {own.lower() for own in sentence}]
    return {"words_missing": len(missing), "words": f"Not in it: {', '.join(missing)}." if missing else ""}


def steps_of_epochs(items: int, batch_size: int, epochs: int) -> dict[str, Any]:
    """Number of steps of whole epochs."""
    return {"steps": math.ceil(items / batch_size) * epochs}


COMPUTATIONS = (
    improvement, improvement_range, significance, disagreement, quotient_range, product, loss_gap, expected_loss,
    overlap, falls, gaps, peak, possible_shares, share_difference, missing_words, steps_of_epochs,
)  # fmt: skip

"""Verdicts: compare the evidence of a claim with what the source says. Nothing is typed in; verdicts follow the evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from whence.errors import usage_error
from whence.statistics import summary
from whence_papers.ledger.claims import SIGNS, Claim, FigureCheck, LedgerFolders, Source
from whence_papers.ledger.comparisons import MARGINS
from whence_papers.ledger.evidence import Evidence, find_evidence

REPRODUCED, NOT_REPRODUCED, WRONG = "reproduced", "not reproduced", "arithmetic wrong"
UNDECIDED, EQUIVALENT = "undecided", "equivalent"
UNTESTABLE, OPEN = "not testable", "open"
#: the state of a check of a claim that is not testable
NOT_JUDGED = "not judged: the claim is not testable"
LEVEL = 0.95
MIN_SEEDS = 3  # fewer seeds leave a claim open

RULES = {
    "a number": "Our value agrees with a printed number if it rounds to that number, or if it is within the tolerance stated in the ledger.",
    "seeds": (
        "The source's figure of one run agrees if it lies in the 95 % prediction interval for one further run of ours "
        "(t distribution over our seeds; Bonferroni correction if a claim has "
        "several such figures). A bound is compared with the mean over our seeds, a bound on a ratio with the geometric mean; it is undecided if "
        "the interval of that mean includes the bound. A check that agrees is undecided if its interval includes what a random answer has. "
        f"Fewer than {MIN_SEEDS} finished seeds leave a claim open."
    ),
    "a difference": (
        "A difference between arms is claimed only by the paired comparison of whence.statistics (compare_paired): values of "
        "one seed are paired, and all contrasts of a study share the error rate that its spec states. Two studies "
        "with equal seeds and equal data are paired by seed too; others are compared with Welch's test. One run of each arm allows no test."
    ),
    "a simple rule": (
        "Differences between arms are not testable by a record in which no arm beats the best committed baseline of kind "
        "'rule' or 'constant' on the metric and split of the claim, by the mean over seeds."
    ),
    "an interval": (
        "A bound on an end of an interval fails only if the whole interval lies on the other side. If the interval includes the "
        "bound, the check is undecided."
    ),
    "equivalent": (
        f"Two arms are equivalent if the whole interval of their difference lies within {MARGINS['accuracy']:g} point of accuracy. "
        "The margin was set after the records were made. Other metrics have none."
    ),
    "verdicts": (
        "'Reproduced' requires that every check of a claim agrees. A failed check means 'arithmetic wrong' if the source's "
        "own figures or formula give another number, and 'not reproduced' otherwise. If no check fails, one undecided check makes "
        "the claim 'undecided', and one difference that is equivalent to none makes it 'equivalent'."
    ),
    "by definition": (
        "Claims that hold or fail by definition are marked and counted apart: no measurement could come out otherwise."
    ),
}


@dataclass(frozen=True)
class CheckResult:
    """One check and its result."""

    check: FigureCheck
    result: str
    agrees: bool
    state: str = ""  # UNDECIDED or EQUIVALENT if the statistics say so
    interval: tuple[float, float] | None = None  # of a figure with a value per seed

    @property
    def fails(self) -> bool:
        return not self.agrees and not self.state


@dataclass(frozen=True)
class Judgement:
    """A claim, its verdict and the reason."""

    claim: Claim
    verdict: str
    reason: str
    checked: tuple[CheckResult, ...]
    evidence: Evidence


def judge(claim: Claim, folders: LedgerFolders) -> Judgement:
    """Compute the verdict on a claim from the available evidence."""
    if claim.method == "untestable":
        return Judgement(claim, UNTESTABLE, claim.by, (), Evidence(None))
    if claim.method == "waits_for":
        return Judgement(claim, OPEN, f"waits for {claim.by}", (), Evidence(None, waits_for=claim.by))
    evidence = find_evidence(claim, folders)
    if evidence.figures is None:
        return Judgement(claim, OPEN, f"waits for {evidence.waits_for}", (), evidence)
    if "not_testable" in evidence.figures:
        return Judgement(claim, UNTESTABLE, evidence.figures["not_testable"], (), evidence)
    values = [_figure_values(claim, check, evidence.figures) for check in claim.checks]
    few = [check.figure for check, value in zip(claim.checks, values, strict=True) if _has_too_few_seeds(value)]
    if few:
        return Judgement(claim, OPEN, f"waits for more seeds of {few[0].replace('_', ' ')}", (), evidence)
    statistical = sum(isinstance(value, list) for value in values)
    level = 1 - (1 - LEVEL) / max(1, statistical)
    checked = tuple(
        add_state(evaluate_check(check, value, level), evidence.figures)
        for check, value in zip(claim.checks, values, strict=True)
    )
    words = str(evidence.figures.get("words", ""))
    wrong = [one for one in checked if one.fails]
    selection = wrong or [one for one in checked if one.state] or list(checked)
    sentences = list(dict.fromkeys(_describe_result(one) for one in selection))
    reason = "; ".join(sentences[:3]) + (f"; and {len(sentences) - 3} more" if len(sentences) > 3 else "")
    verdict = _combine(claim, checked)
    return Judgement(claim, verdict, f"{reason}. {words}" if words else reason, checked, evidence)


def _combine(claim: Claim, checked: tuple[CheckResult, ...]) -> str:
    if any(one.fails for one in checked):
        return WRONG if claim.arithmetic else NOT_REPRODUCED
    states = {one.state for one in checked}
    return UNDECIDED if UNDECIDED in states else EQUIVALENT if EQUIVALENT in states else REPRODUCED


def add_state(result: CheckResult, figures: dict[str, Any]) -> CheckResult:
    """Mark a check that the statistics leave undecided, or whose difference is equivalent to none.

    A figure ``NAME`` may have a ``NAME_verdict``, the verdict of its comparison. Of an interval ``NAME_low`` and
    ``NAME_high``, a bound that one end fails is undecided if the other end meets it. A check that agrees is undecided
    if the interval over seeds includes the figure of a random answer.
    """
    check = result.check
    if check.chance and result.interval and result.agrees and _includes_chance(result, figures):
        chance = math.fsum(figures[check.chance]) / len(figures[check.chance])
        text = f"{result.result}, but a random answer has {format_number(chance, check)}"
        return replace(result, state=UNDECIDED, result=text)
    verdict = figures.get(f"{check.figure}_verdict")
    if verdict == UNDECIDED or (verdict == EQUIVALENT and not result.agrees):
        return replace(result, state=verdict)
    for end, other, relations in (("_low", "_high", ("above", "at_least")), ("_high", "_low", ("below", "at_most"))):
        opposite = figures.get(f"{check.figure.removesuffix(end)}{other}")
        if result.agrees or not check.figure.endswith(end) or check.relation not in relations or opposite is None:
            continue
        if evaluate_check(check, float(opposite)).agrees:
            return replace(result, state=UNDECIDED)
    return result


def _includes_chance(result: CheckResult, figures: dict[str, Any]) -> bool:
    """Whether the interval of a check includes what a random answer has, which is a value per seed as the figure is.

    For a bound it is the interval of the mean of the differences between the two.
    """
    check, own, chance = result.check, figures[result.check.figure], figures.get(result.check.chance)
    if not isinstance(chance, list) or len(chance) != len(own):
        rule = "chance names a figure with as many values as the figure of the check"
        raise usage_error(f"the check of {check.figure}", f"chance = {check.chance!r}", rule, "correct the check")
    if check.relation != "equals":
        low, high = mean_interval([a - b for a, b in zip(own, chance, strict=True)])
        return low <= 0 <= high
    low, high = result.interval or (math.nan, math.nan)
    return low <= math.fsum(chance) / len(chance) <= high


def evaluate_check(check: FigureCheck, value: float | list[float], level: float = LEVEL) -> CheckResult:
    """Compare a figure with what the source says.

    >>> evaluate_check(FigureCheck("x", "equals", 4.7, "4.7", 0.05), 4.68).agrees, evaluate_check(FigureCheck("x", "below", 0.7, "0.7"), 0.7).agrees
    (True, False)
    """
    if isinstance(value, list):
        return _evaluate_on_seeds(check, value, level)
    agrees = {
        "equals": abs(value - check.number) <= check.within,
        "at_most": value <= check.number,
        "at_least": value >= check.number,
        "below": value < check.number,
        "above": value > check.number,
    }[check.relation]
    return CheckResult(check, format_number(value, check), agrees)


def mean_interval(values: list[float], level: float = LEVEL) -> tuple[float, float]:
    """The interval of the mean; the mean itself if the values do not vary."""
    sample = summary(values, level)
    return (sample.interval.low, sample.interval.high) if sample.interval else (sample.mean, sample.mean)


def prediction_interval(values: list[float], level: float = LEVEL) -> tuple[float, float]:
    """The interval in which one more value of the same kind lies with this probability.

    The interval of a mean of n values has half-width t * s / sqrt(n); that of one further value t * s * sqrt(1 + 1/n).

    >>> low, high = prediction_interval([70.0, 71.0, 72.0])
    >>> round(low, 3), round(high, 3)
    (66.032, 75.968)
    """
    low, high = mean_interval(values, level)
    middle, half = (low + high) / 2, (high - low) / 2 * math.sqrt(len(values) + 1)
    return middle - half, middle + half


def _evaluate_on_seeds(check: FigureCheck, values: list[float], level: float) -> CheckResult:
    """The source's figure of one run against a further run of ours, or a bound against the mean over all our runs."""
    if check.relation == "equals":
        mean, (low, high) = math.fsum(values) / len(values), prediction_interval(values, level)
        agrees, state = low - check.within <= check.number <= high + check.within, ""
        words = ("mean", "prediction interval")
    else:
        if check.ratio and min(values) <= 0:
            raise usage_error(
                f"the check of {check.figure}",
                f"{min(values):g}",
                "a ratio is above 0",
                "remove ratio = true from the check",
            )
        scaled = [math.log(value) for value in values] if check.ratio else values
        ends = (math.fsum(scaled) / len(scaled), *mean_interval(scaled, level))
        mean, low, high = (math.exp(one) if check.ratio else one for one in ends)
        agrees = evaluate_check(check, mean).agrees
        state = UNDECIDED if low < high and low <= check.number <= high else ""
        words = ("geometric mean" if check.ratio else "mean", "its interval")
    digits = _digits(check, high - low)
    result = (
        f"{mean:,.{digits}f} ({words[0]} of {len(values)} runs, {words[1]} {low:,.{digits}f} to {high:,.{digits}f})"
    )
    return CheckResult(check, result, agrees, state, (low, high))


def _digits(check: FigureCheck, width: float) -> int:
    """Decimals that show as many as the source prints, and two figures of the width of an interval.

    >>> _digits(FigureCheck("x", "above", 0.7, "0.7"), 0.03), _digits(FigureCheck("x", "equals", 84.93, "84.93"), 9.0)
    (3, 2)
    """
    needed = min(6, 1 - math.floor(math.log10(width))) if width > 0 else 1
    return max(1, len(check.text.partition(".")[2]), needed)


def _describe_result(one: CheckResult) -> str:
    """The result, and the source's number if the two disagree."""
    relation = f"{one.check.relation.replace('_', ' ')} " if one.check.relation != "equals" else ""
    says = f"{'our bound is' if one.check.our_bound else 'the source says'} {relation}{one.check.text}"
    source = "" if one.agrees else f", but {says}"
    if one.agrees and one.state and relation:  # the interval includes the bound
        source = f"; {says}"
    return f"{one.check.figure.replace('_', ' ')} {one.result}{source}" + (f" ({one.state})" if one.state else "")


def _figure_values(claim: Claim, check: FigureCheck, figures: dict[str, Any]) -> float | list[float]:
    value = figures.get(check.figure)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        raise usage_error(
            f"claims/{claim.source}.toml, {claim.id},",
            f"no number {check.figure!r} in the evidence, which has {', '.join(figures)}",
            "a check names a figure of the evidence",
            "correct the check, or run `whence claims --update`",
        )
    numbers = [float(v) for v in values if v is not None]
    return numbers if isinstance(value, list) else numbers[0]


def _has_too_few_seeds(value: float | list[float]) -> bool:
    return isinstance(value, list) and len(value) < MIN_SEEDS


def format_number(value: float, check: FigureCheck | None = None) -> str:
    """Format a number with one digit more than the source prints, or with four significant digits.

    >>> format_number(2.9787, FigureCheck("x", "equals", 4.7, "4.7")), format_number(394240.0), format_number(1.2e-16), format_number(0.36788)
    ('2.98', '394,240', '1.2e-16', '0.3679')
    """
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if (
        check is not None
        and check.relation == "equals"
        and abs(value) >= 10.0 ** -(len(check.text.partition(".")[2]) + 1)
    ):
        return f"{value:,.{len(check.text.partition('.')[2]) + 1}f}"
    if abs(value) < 1e-4 or abs(value) >= 1e7:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def judge_sources(sources: list[Source], folders: LedgerFolders) -> dict[str, Any]:
    """Every claim with its verdict, as plain JSON for the terminal or the page."""
    rows: list[dict[str, Any]] = [
        {
            "name": source.name, "number": source.number, "title": source.title, "kind": source.kind,
            "claims": [to_json(judge(claim, folders)) for claim in source.claims],
        }
        for source in sources
    ]  # fmt: skip
    return {"sources": rows, "counts": count_verdicts(rows), "identities": count_verdicts(rows, True), "rules": RULES}


def count_verdicts(sources: list[dict[str, Any]], by_definition: bool = False) -> dict[str, int]:
    """The number of claims with each verdict: those that an experiment decides, or those that hold or fail by definition."""
    claims = [one for source in sources for one in source["claims"] if one["by_definition"] == by_definition]
    return {verdict: sum(one["verdict"] == verdict for one in claims) for verdict in SIGNS}


def to_json(judgement: Judgement) -> dict[str, Any]:
    """One claim with its verdict, as plain JSON."""
    claim = judgement.claim
    unjudged = NOT_JUDGED if judgement.verdict == UNTESTABLE else ""  # an open claim has no result yet
    return {
        "id": claim.id, "source": claim.source, "claim": claim.statement, "quote": claim.quote, "where": claim.where, "how": claim.how,
        "implied": claim.implied, "by_definition": claim.by_definition, "repository": claim.repository,
        "method": claim.method, "by": claim.by, "arguments": dict(claim.arguments), "verdict": judgement.verdict,
        "reason": judgement.reason, "record": judgement.evidence.record,
        "checks": [
            {
                "statement": one.check.statement, "figure": one.check.figure, "printed": one.check.text, "result": one.result,
                "agrees": one.agrees, "state": one.state, "note": one.check.note,
            }
            for one in judgement.checked
        ] or [
            {"statement": check.statement, "figure": check.figure, "printed": check.text, "result": "", "agrees": None, "state": unjudged, "note": check.note}
            for check in claim.checks
        ],
        "figures": judgement.evidence.figures or {},
    }  # fmt: skip

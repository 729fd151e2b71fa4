"""Verdicts: compare the evidence of a claim with what the source says. Nothing is typed in; verdicts follow the evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from whence.errors import usage_error
from whence.statistics import summary
from whence_papers.ledger.claims import Claim, FigureCheck, LedgerFolders, Source
from whence_papers.ledger.evidence import Evidence, find_evidence

REPRODUCED, NOT_REPRODUCED, WRONG = "reproduced", "not reproduced", "arithmetic wrong"
UNTESTABLE, OPEN = "not testable here", "open"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, WRONG, UNTESTABLE, OPEN)
LEVEL = 0.95
MIN_SEEDS = 3  # fewer seeds leave a claim open

RULES = {
    "a number": "Our value agrees with a printed number if it rounds to that number, or if it is within the tolerance stated in the ledger.",
    "seeds": (
        "The source's figure of one run agrees if it lies in the 95 % prediction interval for one further run of ours "
        "(t distribution over our seeds; Bonferroni correction if a claim has "
        f"several such figures). A bound is compared with the mean over our seeds. Fewer than {MIN_SEEDS} finished seeds leave a claim open."
    ),
    "a difference": (
        "A difference between arms is claimed only by the paired comparison of whence.statistics (compare_paired): values of "
        "one seed are paired, and all contrasts of a study share the error rate that its spec states. Two studies share no seeds and are "
        "compared with Welch's test. One run of each arm allows no test."
    ),
    "verdicts": (
        "'Reproduced' requires that every check of a claim agrees. A failed check means 'arithmetic wrong' if the source's "
        "own figures or formula give another number, and 'not reproduced' otherwise."
    ),
}


@dataclass(frozen=True)
class CheckResult:
    """One check and its result."""

    check: FigureCheck
    result: str
    agrees: bool


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
    values = [_figure_values(claim, check, evidence.figures) for check in claim.checks]
    few = [check.figure for check, value in zip(claim.checks, values, strict=True) if _has_too_few_seeds(value)]
    if few:
        return Judgement(claim, OPEN, f"waits for more seeds of {few[0].replace('_', ' ')}", (), evidence)
    statistical = sum(isinstance(value, list) for value in values)
    level = 1 - (1 - LEVEL) / max(1, statistical)
    checked = tuple(evaluate_check(check, value, level) for check, value in zip(claim.checks, values, strict=True))
    words = str(evidence.figures.get("words", ""))
    wrong = [one for one in checked if not one.agrees]
    selection = wrong or list(checked)
    sentences = list(dict.fromkeys(_describe_result(one) for one in selection))
    reason = "; ".join(sentences[:3]) + (f"; and {len(sentences) - 3} more" if len(sentences) > 3 else "")
    verdict = REPRODUCED if not wrong else WRONG if claim.arithmetic else NOT_REPRODUCED
    return Judgement(claim, verdict, f"{reason}. {words}" if words else reason, checked, evidence)


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


def prediction_interval(values: list[float], level: float = LEVEL) -> tuple[float, float]:
    """The interval in which one more value of the same kind lies with this probability.

    The interval of a mean of n values has half-width t * s / sqrt(n); that of one further value t * s * sqrt(1 + 1/n).

    >>> low, high = prediction_interval([70.0, 71.0, 72.0])
    >>> round(low, 3), round(high, 3)
    (66.032, 75.968)
    """
    sample = summary(values, level)
    if sample.interval is None:
        return sample.mean, sample.mean
    half = (sample.interval.high - sample.mean) * math.sqrt(sample.n + 1)
    return sample.mean - half, sample.mean + half


def _evaluate_on_seeds(check: FigureCheck, values: list[float], level: float) -> CheckResult:
    low, high = prediction_interval(values, level)
    mean = math.fsum(values) / len(values)
    digits = max(1, len(check.text.partition(".")[2]))
    agrees = {
        "equals": low - check.within <= check.number <= high + check.within,  # the source reports one run
        "at_most": mean <= check.number,  # a bound is a statement about all runs
        "at_least": mean >= check.number,
        "below": mean < check.number,
        "above": mean > check.number,
    }[check.relation]
    return CheckResult(
        check,
        f"{mean:,.{digits}f} (mean of {len(values)} runs, prediction interval {low:,.{digits}f} to {high:,.{digits}f})",
        agrees,
    )


def _describe_result(one: CheckResult) -> str:
    """The result, and the source's number if the two disagree."""
    relation = f"{one.check.relation.replace('_', ' ')} " if one.check.relation != "equals" else ""
    return f"{one.check.figure.replace('_', ' ')} {one.result}" + (
        "" if one.agrees else f", but the source says {relation}{one.check.text}"
    )


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
    counts = {v: sum(claim["verdict"] == v for source in rows for claim in source["claims"]) for v in VERDICTS}
    return {"sources": rows, "counts": counts, "rules": RULES}


def to_json(judgement: Judgement) -> dict[str, Any]:
    """One claim with its verdict, as plain JSON."""
    claim = judgement.claim
    return {
        "id": claim.id, "source": claim.source, "claim": claim.claim, "where": claim.where, "how": claim.how,
        "method": claim.method, "by": claim.by, "arguments": dict(claim.arguments), "verdict": judgement.verdict,
        "reason": judgement.reason, "record": judgement.evidence.record,
        "checks": [
            {
                "statement": one.check.statement, "figure": one.check.figure, "printed": one.check.text, "result": one.result,
                "agrees": one.agrees, "note": one.check.note,
            }
            for one in judgement.checked
        ] or [
            {"statement": check.statement, "figure": check.figure, "printed": check.text, "result": "", "agrees": None, "note": check.note}
            for check in claim.checks
        ],
        "figures": judgement.evidence.figures or {},
    }  # fmt: skip

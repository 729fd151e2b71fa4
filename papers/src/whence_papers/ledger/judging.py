"""From a claim and its evidence to a verdict. Nothing here is typed in: change the evidence and the verdict follows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from whence.errors import usage_error
from whence.statistics import summary
from whence_papers.ledger.evidence import Evidence, evidence_of
from whence_papers.ledger.ledger import Check, Claim, Source
from whence_papers.ledger.places import Places

REPRODUCED, NOT_REPRODUCED, WRONG = "reproduced", "not reproduced", "arithmetic wrong"
UNTESTABLE, OPEN = "not testable here", "open"
VERDICTS = (REPRODUCED, NOT_REPRODUCED, WRONG, UNTESTABLE, OPEN)
LEVEL = 0.95
FEWEST = 3  # seeds below which nothing is said of a figure

RULES = {
    "a number": "Ours agrees with a printed number if it rounds to it, or lies within the tolerance the ledger states.",
    "seeds": (
        "A figure of one run is held against several seeds of ours: it agrees if it lies in the interval in which one "
        "further run of ours would lie with 95 % (t distribution of our seeds; Bonferroni's correction where a claim has "
        f"several such figures). A bound is said of all runs and held against their mean. Fewer than {FEWEST} finished seeds leave it open."
    ),
    "a difference": (
        "A difference between arms is claimed only if Welch's test does so after Bonferroni's correction and the "
        "permutation test could, given the number of seeds (whence.statistics.compare); the source's own number of runs "
        "is judged by the same rule."
    ),
    "verdicts": (
        "Every check of a claim must agree for 'reproduced'. A failing check means 'arithmetic wrong' where the source's "
        "own figures or formula give the other number, and 'not reproduced' elsewhere."
    ),
}


@dataclass(frozen=True)
class Checked:
    """One check with what was found."""

    check: Check
    found: str
    agrees: bool


@dataclass(frozen=True)
class Judgement:
    """A claim, its verdict, and why."""

    claim: Claim
    verdict: str
    because: str
    checked: tuple[Checked, ...]
    evidence: Evidence


def judge(claim: Claim, places: Places) -> Judgement:
    """The verdict on a claim from the evidence there is."""
    if claim.way == "untestable":
        return Judgement(claim, UNTESTABLE, claim.by, (), Evidence(None))
    if claim.way == "waits_for":
        return Judgement(claim, OPEN, f"waits for {claim.by}", (), Evidence(None, waits_for=claim.by))
    evidence = evidence_of(claim, places)
    if evidence.found is None:
        return Judgement(claim, OPEN, f"waits for {evidence.waits_for}", (), evidence)
    values = [_figure(claim, check, evidence.found) for check in claim.checks]
    few = [check.figure for check, value in zip(claim.checks, values, strict=True) if _too_few(value)]
    if few:
        return Judgement(claim, OPEN, f"waits for more seeds of {few[0].replace('_', ' ')}", (), evidence)
    statistical = sum(isinstance(value, list) for value in values)
    level = 1 - (1 - LEVEL) / max(1, statistical)
    checked = tuple(hold(check, value, level) for check, value in zip(claim.checks, values, strict=True))
    words = str(evidence.found.get("words", ""))
    wrong = [one for one in checked if not one.agrees]
    shown = wrong or list(checked)
    told = list(dict.fromkeys(_told(one) for one in shown))
    because = "; ".join(told[:3]) + (f"; and {len(told) - 3} more" if len(told) > 3 else "")
    verdict = REPRODUCED if not wrong else WRONG if claim.arithmetic else NOT_REPRODUCED
    return Judgement(claim, verdict, f"{because}. {words}" if words else because, checked, evidence)


def hold(check: Check, found: float | list[float], level: float = LEVEL) -> Checked:
    """What was found held against what was said.

    >>> hold(Check("x", "said", 4.7, "4.7", 0.05), 4.68).agrees, hold(Check("x", "below", 0.7, "0.7"), 0.7).agrees
    (True, False)
    """
    if isinstance(found, list):
        return _hold_seeds(check, found, level)
    agrees = {
        "said": abs(found - check.number) <= check.within,
        "at_most": found <= check.number,
        "at_least": found >= check.number,
        "below": found < check.number,
        "above": found > check.number,
    }[check.relation]
    return Checked(check, shown(found, check), agrees)


def further_run(values: list[float], level: float = LEVEL) -> tuple[float, float]:
    """The interval in which one more value of the same kind lies with this probability.

    The interval of a mean of n values has half-width t * s / sqrt(n); that of one further value t * s * sqrt(1 + 1/n).

    >>> low, high = further_run([70.0, 71.0, 72.0])
    >>> round(low, 3), round(high, 3)
    (66.032, 75.968)
    """
    found = summary(values, level)
    if found.interval is None:
        return found.mean, found.mean
    half = (found.interval.high - found.mean) * math.sqrt(found.n + 1)
    return found.mean - half, found.mean + half


def _hold_seeds(check: Check, values: list[float], level: float) -> Checked:
    low, high = further_run(values, level)
    mean = math.fsum(values) / len(values)
    digits = max(1, len(check.text.partition(".")[2]))
    agrees = {
        "said": low - check.within <= check.number <= high + check.within,  # the source's figure is of one run
        "at_most": mean <= check.number,  # a limit is said of all runs
        "at_least": mean >= check.number,
        "below": mean < check.number,
        "above": mean > check.number,
    }[check.relation]
    return Checked(
        check,
        f"{mean:,.{digits}f} on average of {len(values)} runs, a further one within {low:,.{digits}f} to {high:,.{digits}f}",
        agrees,
    )


def _told(one: Checked) -> str:
    """What was found, and what the source says where that is something else."""
    said = f"{one.check.relation.replace('_', ' ')} " if one.check.relation != "said" else ""
    return f"{one.check.figure.replace('_', ' ')} {one.found}" + ("" if one.agrees else f", not {said}{one.check.text}")


def _figure(claim: Claim, check: Check, found: dict[str, Any]) -> float | list[float]:
    value = found.get(check.figure)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        raise usage_error(
            f"claims/{claim.source}.toml, {claim.id},",
            f"no number {check.figure!r} in its evidence, which has {', '.join(found)}",
            "a check names a number that was found",
            "correct the check, or compute the record again",
        )
    numbers = [float(v) for v in values if v is not None]
    return numbers if isinstance(value, list) else numbers[0]


def _too_few(value: float | list[float]) -> bool:
    return isinstance(value, list) and len(value) < FEWEST


def shown(value: float, check: Check | None = None) -> str:
    """A number with one digit more than the source prints, or in four digits.

    >>> shown(2.9787, Check("x", "said", 4.7, "4.7")), shown(394240.0), shown(1.2e-16), shown(0.36788)
    ('2.98', '394,240', '1.2e-16', '0.3679')
    """
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if (
        check is not None
        and check.relation == "said"
        and abs(value) >= 10.0 ** -(len(check.text.partition(".")[2]) + 1)
    ):
        return f"{value:,.{len(check.text.partition('.')[2]) + 1}f}"
    if abs(value) < 1e-4 or abs(value) >= 1e7:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def findings(sources: list[Source], places: Places) -> dict[str, Any]:
    """Every claim with its verdict, as plain JSON for a terminal or a page."""
    told: list[dict[str, Any]] = [
        {
            "name": source.name, "number": source.number, "title": source.title, "kind": source.kind,
            "claims": [to_json(judge(claim, places)) for claim in source.claims],
        }
        for source in sources
    ]  # fmt: skip
    counts = {v: sum(claim["verdict"] == v for source in told for claim in source["claims"]) for v in VERDICTS}
    return {"sources": told, "counts": counts, "rules": RULES}


def to_json(judgement: Judgement) -> dict[str, Any]:
    """One claim with its verdict, as plain JSON."""
    claim = judgement.claim
    return {
        "id": claim.id, "source": claim.source, "claim": claim.claim, "where": claim.where, "how": claim.how,
        "way": claim.way, "by": claim.by, "given": dict(claim.given), "verdict": judgement.verdict,
        "because": judgement.because, "record": judgement.evidence.record,
        "checks": [
            {
                "says": one.check.says, "figure": one.check.figure, "said": one.check.text, "found": one.found,
                "agrees": one.agrees, "note": one.check.note,
            }
            for one in judgement.checked
        ] or [
            {"says": check.says, "figure": check.figure, "said": check.text, "found": "", "agrees": None, "note": check.note}
            for check in claim.checks
        ],
        "found": judgement.evidence.found or {},
    }  # fmt: skip

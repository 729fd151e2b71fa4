"""What the record of each hypothesis holds, and how sure an answer must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whence.errors import usage_error
from whence.probe import run_folder
from whence.probe.probed_model import ProbedModel
from whence.records import rerun_command

ENOUGH_TEXTS, ENOUGH_TOKENS, ENOUGH_ITEMS = 32, 500, 50


def hypothesis_record(
    lm: ProbedModel,
    hypothesis: str,
    claim: str,
    rule: str,
    answer: bool | None,
    numbers: dict[str, Any],
    **settings: Any,
) -> dict[str, Any]:
    """One experiment as evidence.

    ``claim`` is what the survey doubts, in our words. ``rule`` says in words how the numbers decide; it stands in the
    code before a run. ``answer`` is True where the claim held here, False where it did not, None where the numbers do not
    tell, or were too few to.
    """
    return {
        "kind": "hypothesis",
        "source": "002",
        "hypothesis": hypothesis,
        "claim": claim,
        "rule": rule,
        "answer": answer,
        "model": {"name": lm.name, **lm.about},
        "settings": settings,
        "numbers": numbers,
        "started": run_folder.utc_now(),  # when it was written down
        "command": rerun_command(),
        "environment": run_folder.environment(lm),
    }


def enough_texts(texts: int, tokens: int) -> bool:
    """Whether an answer about hidden states may be given at all: means of fewer texts are mostly their noise."""
    return texts >= ENOUGH_TEXTS and tokens >= ENOUGH_TOKENS


def both_ways(signs: Sequence[float]) -> bool | None:
    """True where all are above 0, False where all are below it, None otherwise.

    >>> both_ways([0.1, 0.2]), both_ways([-0.1, -0.2]), both_ways([0.1, -0.1]), both_ways([0.0])
    (True, False, None, None)
    """
    if all(sign > 0 for sign in signs):
        return True
    return False if all(sign < 0 for sign in signs) else None


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def require_texts(texts: int, tokens: int) -> None:
    if texts < 4 or tokens < 40:
        raise usage_error(
            "a hypothesis", f"{texts} texts of {tokens} tokens", "it needs 4 of 40 at the least", "take more"
        )

"""``Evidence``: what a statement was tried on, the worst that was found, and the example that shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Evidence:
    """The outcome of trying a statement on numbers. It claims nothing beyond what was checked.

    ``violation`` is by how much the worst case misses the statement, 0 where none does; ``allowed`` is what rounding
    alone may bring. ``counter_example`` is the worst case itself wherever more than that was found.

    >>> found = Evidence("x is below 2", "x = 1, 2, 3", 3, violation=1.0, counter_example={"x": 3.0})
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
        """Whether the worst case is within rounding. A NaN is no agreement."""
        return self.checked > 0 and self.violation <= self.allowed

    def record(self) -> dict[str, Any]:
        """All of it as plain JSON; what is not finite becomes None."""
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
        found = "holds" if self.holds else f"FAILS by {self.violation:.6g}"
        text = f"{self.statement}: {found} (allowed {self.allowed:.3g}; {self.checked} checks: {self.where})"
        if self.counter_example is None:
            return text
        return f"{text}; for example " + ", ".join(f"{name} = {x:.6g}" for name, x in self.counter_example.items())


def _plain(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def _all_plain(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _plain(x) for name, x in numbers.items()}

"""The plan of a small probe, and its findings."""

from whence.probe.findings import findings
from whence.probe.plan import Plan, TaskSpec

PLAN = Plan(
    "quick",
    (TaskSpec("key-value", 3, 3, {"pairs": 3}), TaskSpec("needle", 2, 2, {"pieces": 2, "words": 5})),
    ("likelihood",), texts=3, tokens=48, intervention_items=1, items_per_record=2,
)  # fmt: skip


def load_findings(probed):
    return findings(probed[1], "whence probe <quick>")

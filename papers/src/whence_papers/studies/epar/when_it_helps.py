"""When does EPAR help? One condition is changed at a time: length, importance, order, noise or distance.

Votes are weighted by their distance (task ``votes``); a longer input poses the same question over more positions, so that only
the length changes. Retrieval asks for a marked symbol that is near, in the middle or far (task ``places``). EPAR is compared
with no position, rotary, ALiBi and T5's bias table. The part of a question before the colon is the group of its row in the
figure that ``whence conditions`` draws.

Every claim is corrected for all comparisons of all conditions: the conditions are one family. Hence seven seeds per arm.

Nearly every run finds a mark among 64 positions, so distance shows no effect there. The conditions with 128 positions were
added after this was seen. They are corrected for all conditions including the added ones; the first conditions keep the
correction under which they were decided.
"""

from dataclasses import dataclass, field
from typing import Any

from whence.lab.arms import Arm, parse_arm
from whence.lab.study import Budget, Decision, Study

SEEDS = (0, 1, 2, 3, 4, 5, 6)
ARMS = (
    Arm("EPAR", "Epar(learnable=True)"),
    parse_arm("none"),
    parse_arm("rotary"),
    parse_arm("alibi"),
    parse_arm("t5"),
)
MODEL = {"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 64, "dropout": 0.0}
VOTES = {
    "length": 64, "votes": 15, "run": 2, "questions": 8, "structure": "near", "order": "fixed", "noise": 0.0,
    "longest": 1, "items": 256,
}  # fmt: skip
MARKED = {"count": 64, "symbols": 4, "kind": "anywhere", "longest": 1, "items": 256}


@dataclass(frozen=True)
class Condition:
    """A question and the settings that differ from the default; long inputs get fewer steps and smaller batches."""

    question: str
    changed: dict[str, Any] = field(default_factory=dict)
    task: str = "votes"
    steps: int = 150
    batch_size: int = 8
    evaluations: int = 2

    @property
    def settings(self) -> dict[str, Any]:
        return (VOTES if self.task == "votes" else MARKED) | self.changed

    @property
    def lr(self) -> float:
        return 5e-3 if self.task == "votes" else 3e-3


def _stretched(length: int) -> dict[str, Any]:
    """The default input at another length: the same number of votes, each over more positions."""
    return {"length": length, "run": length // 32}


def _marked(band: str, among: str = "", **changed: int) -> Condition:
    words = {"near": "in the nearest quarter", "middle": "in the middle quarter", "far": "in the farthest quarter"}
    question = f"Retrieval distance: mark {words[band]}{among}"
    return Condition(question, {"band": band, **changed}, "places", steps=120, batch_size=16)


FIRST = (
    Condition("Length: 64 tokens, the default"),
    Condition("Length: 256 tokens", _stretched(256)),
    Condition("Length: 1024 tokens", _stretched(1024) | {"items": 128}, steps=100, batch_size=4),
    Condition("Length: 4096 tokens", _stretched(4096) | {"items": 48}, steps=80, batch_size=2, evaluations=1),
    Condition("Importance: in waves", {"structure": "waves"}),
    Condition("Importance: in blocks", {"structure": "blocks"}),
    Condition("Importance: at random", {"structure": "random"}),
    Condition("Importance: uniform", {"structure": "flat"}),
    Condition("Order and noise: order shuffled", {"order": "shuffled"}),
    Condition("Order and noise: 10 % of the votes wrong", {"noise": 0.1}),
    Condition("Order and noise: 30 % of the votes wrong", {"noise": 0.3}),
    _marked("near"),
    _marked("middle"),
    _marked("far"),
)
LATER = (
    _marked("near", " of 128 tokens", count=128),
    _marked("far", " of 128 tokens", count=128),
)


def studies() -> list[Study]:
    families = [(condition, len(FIRST)) for condition in FIRST]
    families += [(condition, len(FIRST) + len(LATER)) for condition in LATER]
    return [_study(number, condition, conditions) for number, (condition, conditions) in enumerate(families)]


def _study(number: int, condition: Condition, conditions: int) -> Study:
    steps = condition.steps
    return Study(
        name=f"epar-when-{number:02}",
        question=condition.question,
        task=condition.task,
        task_settings=condition.settings,
        model=MODEL,
        arms=ARMS,
        seeds=SEEDS,
        budget=Budget(
            steps=steps, batch_size=condition.batch_size, lr=condition.lr, warmup_steps=steps // 10, schedule="cosine",
            evaluate_every=steps // condition.evaluations,
        ),
        decision=Decision(baseline="EPAR", comparisons=(len(ARMS) - 1) * conditions),
    )  # fmt: skip

"""The plan of a trial of cures, fixed before it starts: tasks, the split of the items, the margin and the rounds.

The cures are not part of the plan. A cure that is tried later joins the others in the same folder, uses their records of
the untouched model, and counts in the correction for the number of cures.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.errors import usage_error
from whence.probe.likelihood import MAX_SCORED_TOKENS
from whence.probe.plan import SCORES, TaskSpec
from whence.probe.probed_model import DTYPES, QUICK

SEARCH, JUDGE = "search", "judge"
MARGIN = 2.0  # points of accuracy
MIN_ITEMS = 4
SEARCH_ITEMS = 16  # of each task, where time is not short
BEST_SLOT_ITEMS = (
    8  # of each task's search half, at least, that find the best slot of the untouched model, where it has so many
)

#: settings that keep the search of a cure short, for trials of minutes
SHORT_SEARCH: dict[str, str] = {
    "scale-channel": "scale-channel(texts=2, tokens=256, candidates=2, scales=[0.0, -0.5], compat='official', samples=2)",
    "calibration": "calibration(temperatures=[0.5], query_counts=[1, 32], samples=2)",
}


@dataclass(frozen=True)
class TrialPlan:
    """Everything that determines the results of a trial, besides the cures. Its hash names the folder of the records.

    Args:
        model: name or path.
        tasks: the tasks with their items and gold slots.
        score: ``"likelihood"`` or ``"generation"``.
        scored_tokens: tokens of an answer that are scored.
        seed: of the split of the items into two halves.
        margin: a cure whose difference is certainly below it is equivalent, in points.
        rounds: the judging half is measured in so many rounds, with a look at the verdicts after each.
        search_items: items of each task's search half that a cure may choose its settings on.
        texts: plain texts for the perplexity.
        tokens: their length.
        attention_items: items of each task, slot and round whose attention to the gold is recorded.
    """

    model: str
    tasks: tuple[TaskSpec, ...]
    score: str = "likelihood"
    scored_tokens: int = MAX_SCORED_TOKENS
    seed: int = 0
    margin: float = MARGIN
    rounds: int = 2
    search_items: int = SEARCH_ITEMS
    texts: int = 4
    tokens: int = 192
    attention_items: int = 4
    dtype: str = "float32"
    chat: bool = False
    revision: str | None = None
    identity: dict[str, Any] | None = None  # of the untouched model

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise usage_error("whence mend --score", repr(self.score), f"they are {', '.join(SCORES)}", "choose one")
        if self.dtype not in DTYPES:
            raise usage_error("whence mend --dtype", repr(self.dtype), f"they are {', '.join(DTYPES)}", "choose one")
        if not self.tasks or len({one.label for one in self.tasks}) < len(self.tasks):
            raise usage_error(
                "TrialPlan(tasks=...)",
                "a task twice" if self.tasks else "no tasks",
                "records are stored under the name of their task",
                "pass each task once",
            )
        few = [one for one in self.tasks if one.items < MIN_ITEMS]
        if few:
            raise usage_error(
                "whence mend --items",
                f"{few[0].items} items of {few[0].label}",
                f"half of at least {MIN_ITEMS} items chooses settings and the other half judges",
                f"pass {MIN_ITEMS} or more",
            )
        if self.rounds < 1:
            raise usage_error("TrialPlan(rounds=...)", str(self.rounds), "there is at least one", "pass 1 or more")
        if not self.margin > 0:
            raise usage_error("whence mend --margin", f"{self.margin:g}", "it is above 0", "pass points, such as 2")

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:12]

    def folder(self, base: Path) -> Path:
        """The folder of the records, named after the model and the hash of the plan."""
        return base / f"{re.sub(r'[^A-Za-z0-9._]+', '-', Path(self.model).name)}-{self.hash}"


def read_trial_plan(fields: dict[str, Any]) -> TrialPlan:
    """The plan from its JSON values."""
    tasks = tuple(TaskSpec(**{**one, "gold_slots": tuple(one["gold_slots"])}) for one in fields["tasks"])
    return TrialPlan(**{**fields, "tasks": tasks})


def split_items(items: int, seed: int) -> tuple[list[int], list[int]]:
    """The items of the search half and of the judging half, which gets the odd one.

    >>> search, judge = split_items(7, seed=0)
    >>> len(search), len(judge), sorted(search + judge) == list(range(7))
    (3, 4, True)
    """
    order = list(range(items))
    random.Random(seed).shuffle(order)
    return sorted(order[: items // 2]), sorted(order[items // 2 :])


def split_rounds(items: list[int], rounds: int) -> list[list[int]]:
    """The items of each round, as even as possible. With more rounds than items some rounds are empty.

    >>> split_rounds([3, 5, 6, 8, 9], 2)
    [[3, 5], [6, 8, 9]]
    """
    return [items[len(items) * number // rounds : len(items) * (number + 1) // rounds] for number in range(rounds)]


def quick_trial_plan() -> TrialPlan:
    """A smoke test on the tiny random model."""
    tasks = (
        TaskSpec("key-value", 4, 3, {"pairs": 3}),
        TaskSpec("needle", 4, 3, {"pieces": 3, "words": 6}),
    )
    return TrialPlan(QUICK, tasks, rounds=1, search_items=1, texts=2, tokens=64, attention_items=2)


def extend_plan(plan: TrialPlan) -> TrialPlan:
    """The plan where time is not short: more items choose settings, and more plain text measures harm.

    >>> plan = extend_plan(quick_trial_plan())
    >>> plan.search_items, plan.texts, plan.tokens, plan.attention_items
    (16, 16, 512, 8)
    """
    return dataclasses.replace(plan, search_items=SEARCH_ITEMS, texts=16, tokens=512, attention_items=8)


def default_trial_plan(model: str, include_documents: bool) -> TrialPlan:
    """Every task with short prompts, for a model of a hundred million parameters. For claims, pass more items and use a GPU."""
    tasks = [
        TaskSpec("key-value", 16, 3, {"pairs": 4}),
        TaskSpec("needle", 16, 3, {"pieces": 6, "words": 10, "distractors": 5}),
    ]
    if include_documents:
        tasks.append(TaskSpec("documents", 16, 3, {"count": 3, "words": 40}))
    return TrialPlan(model, tuple(tasks), rounds=4, search_items=1, texts=2, tokens=128, attention_items=2)


def short_trial_plan(model: str, include_documents: bool) -> TrialPlan:
    """The default on a CPU: two tasks with the shortest prompts.

    The first of eight rounds measures every cure of SmolLM2 within 15 minutes on two cores; the same command goes on with the
    others.

    >>> plan = short_trial_plan("smollm2", include_documents=False)
    >>> [(one.label, one.items) for one in plan.tasks], plan.rounds
    ([('key-value', 16), ('needle', 16)], 8)
    """
    second = TaskSpec("needle", 16, 3, {"pieces": 6, "words": 10, "distractors": 5})
    if include_documents:
        second = TaskSpec("documents", 16, 3, {"count": 3, "words": 25})
    tasks = (TaskSpec("key-value", 16, 3, {"pairs": 3}), second)
    return TrialPlan(model, tasks, rounds=8, search_items=1, texts=2, tokens=128, attention_items=1)

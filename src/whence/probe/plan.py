"""The plan of a probe, fixed before it starts: the tasks, the number of items and gold slots, and the scores."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from whence.errors import usage_error
from whence.lab.data.corpora import content_hash
from whence.probe.likelihood import MAX_SCORED_TOKENS
from whence.probe.probed_model import DTYPES
from whence.probe.tasks import ITEMS, TASKS, ProbeTask, build_task, spread_slots

SCORES = ("likelihood", "generation")


@dataclass(frozen=True)
class TaskSpec:
    """One task of a plan, by short name, with its settings."""

    task: str
    items: int
    num_gold_slots: int = 5
    settings: dict[str, Any] = field(default_factory=dict)
    name: str = ""  # distinguishes the same task at several lengths, and custom tasks
    gold_slots: tuple[int, ...] = ()  # the slots of the gold, counted from 0, if they are chosen explicitly
    items_hash: str = ""  # for custom items and tasks, whose file may change: a hash of the items

    @property
    def label(self) -> str:
        """The name in records and tables."""
        return self.name or re.sub(r"[^A-Za-z0-9._]+", "-", self.task.rpartition(":")[2]).strip("-")

    @property
    def is_custom(self) -> bool:
        """Whether the task is not built in."""
        return self.task not in TASKS

    def build(self) -> ProbeTask:
        """Build the task. A custom task must have the same items as when the plan was made."""
        task = build_task(self.task, self.items, **self.settings)
        if self.items_hash and self.items_hash != hash_items(task):
            raise usage_error(
                f"the task {self.label}",
                "items that differ from those of its plan",
                "the items of a plan do not change",
                "restore them, or rerun the command to start a new plan; whence report needs no items",
            )
        return task

    def with_items_hash(self) -> TaskSpec:
        """A copy with the hash of its items, so that changed items give another plan."""
        return dataclasses.replace(self, items_hash=hash_items(dataclasses.replace(self, items_hash="").build()))

    def select_slots(self, task: ProbeTask) -> tuple[int, ...]:
        """The slots of the gold."""
        beyond = [place for place in self.gold_slots if not 0 <= place < task.slots]
        if beyond:
            raise usage_error(
                f"the task {self.label}",
                f"slot {beyond[0] + 1}",
                f"it has the slots 1 to {task.slots}",
                "choose among them",
            )
        return self.gold_slots or spread_slots(task.slots, self.num_gold_slots)


@dataclass(frozen=True)
class Plan:
    """All settings that determine the results of a probe. Its hash names the folder of the records."""

    model: str
    tasks: tuple[TaskSpec, ...]
    scores: tuple[str, ...] = ("likelihood",)
    scored_tokens: int = MAX_SCORED_TOKENS
    texts: int = 8  # number of texts for hidden states
    tokens: int = 256  # and their length
    attention_items: int = 40  # items of each task whose attention is captured
    intervention_items: int = 2  # items of the emphasis and ablation analyses
    ablation_slots: int = 3  # gold slots of the ablation
    items_per_record: int = 4  # items in one record
    dtype: str = "float32"  # of the measurements; analyses run in float32
    chat: bool = False  # prompts go into the tokenizer's chat template
    layers: tuple[int, ...] | None = None  # layers whose attention is captured; all by default
    revision: str | None = None  # branch, tag or commit on the hub
    endpoint: str | None = None  # URL of the server, for a model behind an endpoint
    position: str | None = None  # the mechanism attached to the model, as text
    keep_rotary: bool = True  # whether the model's own rotation stays active beside it
    intervention: str | None = None  # the intervention applied to the model, as text
    identity: dict[str, Any] | None = None  # of the model, see identity.py; None in older records

    def __post_init__(self) -> None:
        if not self.tasks:
            raise usage_error(
                "Plan(tasks=...)", "no tasks", "a probe has at least one task", f"name one of {', '.join(TASKS)}"
            )
        unknown = [score for score in self.scores if score not in SCORES]
        if not self.scores or unknown:
            raise usage_error(
                "Plan(scores=...)",
                f"scores {unknown}" if unknown else "no scores",
                f"they are {', '.join(SCORES)}",
                "name some",
            )
        if self.dtype not in DTYPES:
            raise usage_error(
                "Plan(dtype=...)", f"dtype {self.dtype}", f"they are {', '.join(DTYPES)}", "choose one of them"
            )
        if len({one.label for one in self.tasks}) < len(self.tasks):
            raise usage_error(
                "Plan(tasks=...)",
                "a task twice",
                "records are stored under the name of their task",
                "pass it once, or use --length",
            )
        if any(len(one.gold_slots) == 1 or len(set(one.gold_slots)) < len(one.gold_slots) for one in self.tasks):
            raise usage_error(
                "Plan(tasks=...)", "one slot, or one twice", "a curve needs at least two", "choose more slots"
            )
        if self.endpoint is not None and self.scores != ("generation",):
            raise usage_error(
                "Plan(scores=...)",
                f"scores {', '.join(self.scores)}",
                "an endpoint returns generated answers and no likelihoods",
                "pass --score generation alone",
            )
        minimum_one = {"items_per_record": self.items_per_record, "scored_tokens": self.scored_tokens}
        too_low = [f"{name}={value}" for name, value in minimum_one.items() if value < 1]
        if too_low:
            raise usage_error("Plan(...)", ", ".join(too_low), "these are at least 1", "raise them")

    def to_json(self) -> dict[str, Any]:
        """All fields; optional ones only if they differ from their default, so that new options do not change the hashes of other plans."""
        fields = _set_fields(self, OPTIONAL_FIELDS)
        return fields | {"tasks": [_set_fields(one, OPTIONAL_TASK_FIELDS) for one in self.tasks]}

    @property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:12]


OPTIONAL_FIELDS = ("chat", "layers", "revision", "endpoint", "position", "keep_rotary", "intervention", "identity")
OPTIONAL_TASK_FIELDS = ("gold_slots", "items_hash")


def _set_fields(spec: Plan | TaskSpec, optional: tuple[str, ...]) -> dict[str, Any]:
    defaults = {one.name: one.default for one in dataclasses.fields(spec)}
    fields = dataclasses.asdict(spec)
    return {name: value for name, value in fields.items() if name not in optional or value != defaults[name]}


def hash_items(task: ProbeTask) -> str:
    """A hash of the items of a task and of how answers are scored."""
    return content_hash([task.hash, task.metric, str(task.paired)])


#: the setting with the number of slots of each task
LENGTHS = {"key-value": "pairs", "documents": "count", "needle": "pieces", ITEMS: "slots"}


def at_lengths(tasks: Sequence[TaskSpec], lengths: Sequence[int]) -> tuple[TaskSpec, ...]:
    """Each task once for each number of slots, for curves at several lengths.

    >>> [one.label for one in at_lengths([TaskSpec("needle", 4)], (8, 16))]
    ['needle-of-8', 'needle-of-16']
    """
    fixed = [one.task for one in tasks if one.task not in LENGTHS]
    if fixed:
        supported = ", ".join(name for name in LENGTHS if name in TASKS)
        raise usage_error(
            "at_lengths(tasks, lengths)", ", ".join(fixed), f"those of {supported} can be chosen", "leave it out"
        )
    return tuple(
        dataclasses.replace(
            one,
            name=f"{one.label}-of-{length}",
            settings={**_limit_distractors(one.settings, min(lengths)), LENGTHS[one.task]: length},
        )
        for one in tasks
        for length in lengths
    )


def _limit_distractors(settings: dict[str, Any], shortest: int) -> dict[str, Any]:
    """Settings with no more distractors than the shortest prompt has room for, so that chance is the same at all lengths."""
    if "distractors" not in settings:
        return settings
    return {**settings, "distractors": min(settings["distractors"], shortest - 1)}


def quick_plan() -> Plan:
    """A smoke test on the tiny random model, in seconds. It says nothing about any model."""
    tasks = (
        TaskSpec("key-value", 2, 3, {"pairs": 3}),
        TaskSpec("needle", 2, 3, {"pieces": 3, "words": 12}),
    )
    return Plan("quick", tasks, ("likelihood", "generation"), texts=3, tokens=64, intervention_items=1)


def default_plan(model: str, include_documents: bool) -> Plan:
    """Minutes on two cores for a model of a hundred million parameters: short contexts, likelihood only.

    With few items the intervals are wide; use ``full_plan`` for claims.
    """
    tasks = [
        TaskSpec("key-value", 6, 5, {"pairs": 6}),
        TaskSpec("needle", 6, 5, {"pieces": 10, "words": 12, "distractors": 9}),
    ]
    if include_documents:
        tasks.insert(1, TaskSpec("documents", 6, 5, {"count": 5, "words": 60}))
    return Plan(model, tuple(tasks), intervention_items=2)


def full_plan(model: str) -> Plan:
    """Intervals of about five points at every slot, by both scores, for a GPU.

    A share of one half among 400 items has a Wilson interval of 4.9 points to each side; other shares have narrower ones.
    The plan has 400 items x 5 slots x 4 tasks and two baselines for each task: 11,200 prompts of about 800 tokens (10
    pairs), 1,250 (10 documents), 1,150 (needle) and 5,400 (75 pairs). Each is scored by likelihood and by generation. The
    longest come last, so that a stopped run has most of the curves.
    """
    tasks = (
        TaskSpec("key-value", 400, 5, {"pairs": 10}),
        TaskSpec("documents", 400, 5, {"count": 10}),
        TaskSpec("needle", 400, 5, {"pieces": 20, "words": 40}),
        TaskSpec("key-value-75", 400, 5),
    )
    return Plan(model, tasks, SCORES, texts=32, tokens=512, attention_items=50, intervention_items=50, ablation_slots=5, items_per_record=200,
                dtype="bfloat16")  # fmt: skip

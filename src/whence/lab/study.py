"""A study: everything that decides what is run, frozen before anything runs; its hash names the results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from whence.errors import usage_error
from whence.lab.arms import Arm

SCHEDULES = ("constant", "cosine")
OPTIMIZERS = ("Adam", "AdamW")
PRECISIONS = ("no", "bf16")
METRICS = ("accuracy", "perplexity")  # every evaluation counts what both need


@dataclass(frozen=True)
class Budget:
    """How long and how an arm trains; the same for all arms of a study."""

    steps: int | None = None  # either steps ...
    epochs: int | None = None  # ... or whole passes over the training data
    batch_size: int = 16
    lr: float = 1e-3
    optimizer: str = "AdamW"
    weight_decay: float = 0.01
    warmup_steps: int = 0  # steps
    schedule: str = "constant"
    max_grad_norm: float | None = 1.0
    grad_accum_steps: int = 1
    mixed_precision: str = "no"
    compile: bool = False  # torch.compile: pays off in long runs on a GPU
    evaluate_every: int | None = None  # steps, or epochs if those are counted; None: at the end only
    patience: int | None = None  # evaluations without a better one before a run stops; it keeps its best weights

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise _refused("budget", f"steps={self.steps}, epochs={self.epochs}", "one of them counts", "give one")
        whole = {
            name: getattr(self, name) for name in ("steps", "epochs", "batch_size", "grad_accum_steps", "evaluate_every", "patience")
        }  # fmt: skip
        for name, value in whole.items():
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise _refused(f"budget.{name}", repr(value), "it is a whole number of at least 1", "give one")
        for name in ("lr", "weight_decay", "max_grad_norm"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) or (name == "max_grad_norm" and value is None)) or isinstance(
                value, bool
            ):
                raise _refused(f"budget.{name}", repr(value), "it is a number", "give one")
        if not isinstance(self.warmup_steps, int) or self.warmup_steps < 0:
            raise _refused(
                "budget.warmup_steps", repr(self.warmup_steps), "it is a number of steps, at least 0", "give one"
            )
        if not self.lr > 0 or self.weight_decay < 0 or (self.max_grad_norm is not None and not self.max_grad_norm > 0):
            got = f"lr={self.lr}, weight_decay={self.weight_decay}, max_grad_norm={self.max_grad_norm}"
            raise _refused(
                "budget", got, "lr and max_grad_norm are above 0, weight decay is at least 0", "correct them"
            )
        if self.patience is not None and self.evaluate_every is None:
            got = f"patience={self.patience} without evaluate_every"
            raise _refused("budget", got, "patience counts evaluations on the way", "say how often to evaluate")
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("mixed_precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise _refused(
                    f"budget.{name}", repr(getattr(self, name)), f"it is one of {', '.join(known)}", "choose"
                )


@dataclass(frozen=True)
class Decision:
    """What will be concluded from which numbers, said before there are any."""

    split: str = "test"
    baseline: str = ""
    alpha: float = 0.05
    comparisons: int | None = None  # m of the correction; None: all arms but the baseline
    metric: str = ""  # one of METRICS; empty: the task's own

    def __post_init__(self) -> None:
        if not (isinstance(self.alpha, float) and 0 < self.alpha < 1):
            raise _refused("decision.alpha", repr(self.alpha), "it is a level between 0 and 1", "try 0.05")
        if self.metric not in ("", *METRICS):
            raise _refused("decision.metric", repr(self.metric), f"it is one of {', '.join(METRICS)}", "choose")


@dataclass(frozen=True)
class Study:
    """One task, one model, several arms."""

    name: str
    question: str
    task: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    budget: Budget
    decision: Decision
    model: Mapping[str, Any] = field(default_factory=dict)  # settings of whence.models.ModelSpec
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""  # notes for the report; no part of the hash

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if not names or len(set(names)) < len(names):
            raise _refused("study.arms", repr(names), "a study has arms, and each its own name", "rename one")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise _refused("study.seeds", repr(self.seeds), "a study has seeds, each once", "give others")
        if self.decision.baseline not in names:
            got = f"baseline {self.decision.baseline!r} with arms {', '.join(names)}"
            raise _refused("study.decision", got, "the baseline is one of the arms", "name one of them")
        if self.decision.comparisons is not None and self.decision.comparisons < len(names) - 1:
            got = f"{self.decision.comparisons} comparisons with {len(names)} arms"
            raise _refused("study.decision", got, "every arm is compared with the baseline", "count them all")

    @property
    def comparisons(self) -> int:
        """How many comparisons the correction counts."""
        return self.decision.comparisons or max(1, len(self.arms) - 1)

    def spec(self) -> dict[str, Any]:
        """All that decides the results, as plain JSON."""
        whole = asdict(self)
        del whole["about"]
        return json.loads(json.dumps(whole))

    @property
    def hash(self) -> str:
        """Of all settings that are not at their defaults, so that a setting added later leaves old results their name."""
        whole = self.spec()
        for part, kind in (("budget", Budget), ("decision", Decision)):
            usual = {field.name: field.default for field in fields(kind)}
            whole[part] = {name: value for name, value in whole[part].items() if value != usual[name]}
        whole["arms"] = [
            {name: value for name, value in arm.items() if name != "model" or value} for arm in whole["arms"]
        ]
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def runs(self) -> list[Run]:
        """Every arm and seed: seeds outermost, so that an interrupted study has whole seeds."""
        return [Run(self, arm, seed) for seed in self.seeds for arm in self.arms]


@dataclass(frozen=True)
class Run:
    """One arm with one seed."""

    study: Study
    arm: Arm
    seed: int

    @property
    def file_name(self) -> str:
        """Readable, and unique whatever an arm is called."""
        plain = "".join(c if c.isalnum() else "-" for c in self.arm.name).strip("-")[:40]
        mark = hashlib.sha256(f"{self.arm.name}\0{self.arm.position}".encode()).hexdigest()[:6]
        return f"{plain}-{mark}-seed{self.seed}.json"


def _refused(asked: str, got: str, rule: str, mend: str) -> Exception:
    return usage_error(asked, got, rule, mend)

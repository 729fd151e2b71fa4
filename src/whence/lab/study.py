"""A study: a frozen spec of everything that determines the results. Its hash names their folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from whence.errors import usage_error
from whence.lab.arms import Arm
from whence.lab.setting_errors import rename_arm_settings
from whence.plugins import did_you_mean
from whence.statistics.analysis_plan import FAMILIES, MIN_ALPHA, SCALES

SCHEDULES = ("constant", "cosine")
OPTIMIZERS = ("Adam", "AdamW")
PRECISIONS = ("no", "bf16")
#: every evaluation records the counts for accuracy and perplexity; one of classification also those for balanced_accuracy,
#: macro_f1 and mcc, and one of two classes binary_f1; one that translates has bleu and chrf, one that summarizes rouge1, rouge2
#: and rougeL, one that answers questions exact_match and token_f1, one that predicts similarity pearson and spearman
METRICS = (
    "accuracy", "perplexity", "balanced_accuracy", "macro_f1", "mcc", "binary_f1", "bleu", "chrf", "rouge1", "rouge2", "rougeL",
    "exact_match", "token_f1", "pearson", "spearman",
)  # fmt: skip
#: shown in percent
PERCENT_METRICS = (
    "accuracy", "balanced_accuracy", "macro_f1", "binary_f1", "rouge1", "rouge2", "rougeL", "exact_match", "token_f1",
)  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """The training budget, the same for all arms of a study."""

    steps: int | None = None  # exactly one of steps ...
    epochs: int | None = None  # ... or epochs, passes over the training data
    batch_size: int = 16
    lr: float = 1e-3
    optimizer: str = "AdamW"
    weight_decay: float = 0.01
    warmup_steps: int = 0
    schedule: str = "constant"
    max_grad_norm: float | None = 1.0
    grad_accum_steps: int = 1
    mixed_precision: str = "no"
    compile: bool = False  # torch.compile: worthwhile for long runs on a GPU
    evaluate_every: int | None = None  # in steps, or in epochs if epochs is set; None: at the end only
    patience: int | None = None  # early stopping: evaluations without improvement; the best weights are returned
    min_lr_ratio: float = 0.0  # where the cosine ends, as a share of lr
    adam_beta2: float = 0.999  # decay of Adam's second moment; 0.95 is usual for language models with large batches
    decay_matrices_only: bool = False  # no weight decay for biases, norms and the parameters of positions

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise usage_error(
                "Budget(steps=..., epochs=...)",
                f"steps={self.steps}, epochs={self.epochs}",
                "exactly one of steps and epochs must be set",
                "set one of them",
            )
        counts = {
            name: getattr(self, name) for name in ("steps", "epochs", "batch_size", "grad_accum_steps", "evaluate_every", "patience")
        }  # fmt: skip
        for name, value in counts.items():
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise usage_error(
                    f"Budget({name}=...)", repr(value), "it must be a whole number of at least 1", "set another value"
                )
        for name in ("lr", "weight_decay", "max_grad_norm", "min_lr_ratio", "adam_beta2"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) or (name == "max_grad_norm" and value is None)) or isinstance(
                value, bool
            ):
                raise usage_error(f"Budget({name}=...)", repr(value), "it must be a number", "set another value")
        if not isinstance(self.warmup_steps, int) or isinstance(self.warmup_steps, bool) or self.warmup_steps < 0:
            raise usage_error(
                "Budget(warmup_steps=...)",
                repr(self.warmup_steps),
                "it must be a whole number of at least 0",
                "set another value",
            )
        for name in ("lr", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise usage_error(f"Budget({name}=...)", repr(value), "it must be above 0", "set another value")
        if not 0 <= self.min_lr_ratio <= 1:
            rule = "it must be a share of lr, from 0 to 1"
            raise usage_error("Budget(min_lr_ratio=...)", repr(self.min_lr_ratio), rule, "set 0.1, for example")
        if self.min_lr_ratio and self.schedule == "constant":
            got = f"{self.min_lr_ratio} with a constant schedule"
            raise usage_error("Budget(min_lr_ratio=...)", got, "only a cosine decays", "set schedule to cosine")
        if not 0 <= self.adam_beta2 < 1:
            rule = "it must be at least 0 and below 1"
            raise usage_error("Budget(adam_beta2=...)", repr(self.adam_beta2), rule, "set 0.95, for example")
        for name in ("compile", "decay_matrices_only"):
            if not isinstance(getattr(self, name), bool):
                rule = "it must be true or false"
                raise usage_error(f"Budget({name}=...)", repr(getattr(self, name)), rule, "set one of them")
        if not self.weight_decay >= 0:
            rule = "it must be at least 0"
            raise usage_error("Budget(weight_decay=...)", repr(self.weight_decay), rule, "set another value")
        if self.patience is not None and self.evaluate_every is None:
            got = f"patience={self.patience} without evaluate_every"
            raise usage_error(
                "Budget(patience=...)", got, "patience counts evaluations during training", "set evaluate_every"
            )
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("mixed_precision", PRECISIONS)):
            if getattr(self, name) not in known:
                raise usage_error(
                    f"Budget({name}=...)",
                    repr(getattr(self, name)),
                    f"it must be one of {', '.join(known)}",
                    did_you_mean(str(getattr(self, name)), known, "choose one of them"),
                )


@dataclass(frozen=True)
class Decision:
    """What decides the comparison, fixed before the runs."""

    split: str = "test"
    baseline: str = ""
    alpha: float = 0.05
    comparisons: int | None = None  # size of the family, if other studies belong to it; None: this study's contrasts
    metric: str = ""  # one of METRICS; empty: the task's metric
    family: str = "baseline"  # every arm with the baseline, or "pairs": every two arms
    margin: float | None = None  # in points, units of the metric or, on the scale "log", per cent: less is equivalent
    looks: tuple[int, ...] = ()  # numbers of seeds after which the records are judged; empty: once, after all
    perplexity_scale: str = "value"  # "log" compares perplexities by ratios; plans without this setting compare values

    def __post_init__(self) -> None:
        if not (isinstance(self.alpha, float) and 0 < self.alpha < 1):
            raise usage_error(
                "Decision(alpha=...)", repr(self.alpha), "it must be a level between 0 and 1", "use 0.05, for example"
            )
        if self.family not in FAMILIES:
            remedy = did_you_mean(str(self.family), FAMILIES, "choose one of them")
            raise usage_error(
                "Decision(family=...)", repr(self.family), f"it must be one of {', '.join(FAMILIES)}", remedy
            )
        if self.margin is not None and not (isinstance(self.margin, int | float) and 0 < self.margin < math.inf):
            rule = "it must be a difference above 0 in points or units of the metric"
            raise usage_error("Decision(margin=...)", repr(self.margin), rule, "leave it out to claim no equivalence")
        looks = tuple(self.looks)
        if not all(isinstance(n, int) and n >= 2 for n in looks) or any(a >= b for a, b in pairwise(looks)):
            rule = "it must be increasing numbers of seeds, 2 or more"
            raise usage_error("Decision(looks=...)", repr(self.looks), rule, "use (3, 5, 8), for example")
        object.__setattr__(self, "looks", looks)
        if self.perplexity_scale not in SCALES:
            remedy = did_you_mean(str(self.perplexity_scale), SCALES, "choose one of them")
            rule = f"it must be one of {', '.join(SCALES)}"
            raise usage_error("Decision(perplexity_scale=...)", repr(self.perplexity_scale), rule, remedy)
        if self.metric not in ("", *METRICS):
            raise usage_error(
                "Decision(metric=...)",
                repr(self.metric),
                f"it must be one of {', '.join(METRICS)}",
                did_you_mean(str(self.metric), METRICS, "choose one of them"),
            )


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
    about: str = ""  # notes for the report; not part of the hash
    sources: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the user's code; see sources.pin_sources

    def __post_init__(self) -> None:
        if "/" in self.name or "\\" in self.name:
            rule = "the name begins the name of a folder, so it has no path separator"
            raise usage_error("Study(name=...)", repr(self.name), rule, "write - in its place")
        if not isinstance(self.seeds, list | tuple) or not all(type(seed) is int for seed in self.seeds):
            rule = "the seeds are a tuple of integers"
            raise usage_error("Study(seeds=...)", repr(self.seeds), rule, "pass a tuple such as (0, 1, 2)")
        names = [arm.name for arm in self.arms]
        for arm in self.arms:
            merge_budget(self.budget, arm)  # a wrong setting fails here
        if not names or len(set(names)) < len(names):
            raise usage_error("Study(arms=...)", repr(names), "a study needs arms with different names", "rename one")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise usage_error("Study(seeds=...)", repr(self.seeds), "a study needs different seeds", "change them")
        if self.decision.baseline not in names:
            got = f"baseline {self.decision.baseline!r} with arms {', '.join(names)}"
            raise usage_error("Study(decision=...)", got, "the baseline must be one of the arms", "name one of them")
        if self.decision.comparisons is not None and self.decision.comparisons < self.contrasts:
            got = f"{self.decision.comparisons} comparisons with {len(names)} arms"
            raise usage_error(
                "Study(decision=...)",
                got,
                f"the study itself has {self.contrasts}",
                f"set comparisons={self.contrasts} or more",
            )
        share = self.decision.alpha * self.contrasts / self.comparisons
        if share < MIN_ALPHA:
            got = f"alpha={self.decision.alpha:g} for {self.comparisons} comparisons"
            rule = f"the share of this study's {self.contrasts} is {share:.1g}, below {MIN_ALPHA:g}"
            raise usage_error("Study(decision=...)", got, rule, "reduce comparisons")
        if self.looks[-1] != len(self.seeds):
            got = f"looks={self.looks} with {len(self.seeds)} seeds"
            raise usage_error(
                "Study(decision=...)", got, "the last look comes after all seeds", "change looks or seeds"
            )

    @property
    def contrasts(self) -> int:
        """The number of comparisons in this study."""
        arms = len(self.arms)
        return max(1, arms - 1 if self.decision.family == "baseline" else arms * (arms - 1) // 2)

    @property
    def comparisons(self) -> int:
        """The number of comparisons in the family."""
        return self.decision.comparisons or self.contrasts

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds after which the records are judged."""
        return self.decision.looks or (len(self.seeds),)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any], about: str = "") -> Study:
        """The study of a spec, as ``spec()`` returns it."""
        return cls(
            name=spec["name"], question=spec["question"], task=spec["task"],
            arms=tuple(Arm(**arm) for arm in spec["arms"]), seeds=tuple(spec["seeds"]),
            budget=Budget(**spec["budget"]), decision=Decision(**spec["decision"]), model=spec["model"],
            task_settings=spec["task_settings"], about=about, sources=spec.get("sources", {}),
        )  # fmt: skip

    def spec(self) -> dict[str, Any]:
        """All that determines the results, as plain JSON."""
        spec = asdict(self)
        del spec["about"]
        if not self.sources:  # a study without code of the user has no such entry
            del spec["sources"]
        return json.loads(json.dumps(spec))

    @cached_property
    def hash(self) -> str:
        """Hash of all settings that differ from their defaults, so that a new setting does not rename old results."""
        spec = self.spec()
        for part, kind in (("budget", Budget), ("decision", Decision)):
            defaults = json.loads(json.dumps({field.name: field.default for field in fields(kind)}, default=list))
            spec[part] = {name: value for name, value in spec[part].items() if value != defaults[name]}
        spec["arms"] = [
            {name: value for name, value in arm.items() if name not in ("model", "budget") or value}
            for arm in spec["arms"]
        ]
        text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def runs(self) -> list[Run]:
        """Every arm and seed. Seeds are the outer loop, so that an interrupted study has complete seeds."""
        return [Run(self, arm, seed) for seed in self.seeds for arm in self.arms]


def merge_budget(budget: Budget, arm: Arm) -> Budget:
    """The budget of an arm: the study's, with the arm's own settings. Its own ``steps`` replace ``epochs``, and vice versa."""
    own = dict(arm.budget)
    known = [field.name for field in fields(Budget)]
    unknown = [name for name in own if name not in known]
    if unknown:
        remedy = did_you_mean(unknown[0], known, "rename or remove it")
        raise usage_error(f"budget of the arm {arm.name!r}", unknown[0], f"the settings are {', '.join(known)}", remedy)
    other = {"steps": "epochs", "epochs": "steps"}
    with rename_arm_settings(arm.name):
        return replace(budget, **{other[name]: None for name in own if name in other and other[name] not in own} | own)


def share_family(studies: Sequence[Study]) -> list[Study]:
    """The studies with all their comparisons as one family."""
    if len(studies) < 2:
        return list(studies)
    total = sum(study.contrasts for study in studies)
    return [replace(study, decision=replace(study.decision, comparisons=total)) for study in studies]


@dataclass(frozen=True)
class Run:
    """One arm with one seed."""

    study: Study
    arm: Arm
    seed: int

    @property
    def budget(self) -> Budget:
        return merge_budget(self.study.budget, self.arm)

    @property
    def model(self) -> dict[str, Any]:
        """The model settings of the study, with those of the arm."""
        return dict(self.study.model) | dict(self.arm.model)

    @property
    def file_name(self) -> str:
        """Readable, and unique for every arm name."""
        plain = "".join(c if c.isalnum() else "-" for c in self.arm.name).strip("-")[:40]
        mark = hashlib.sha256(f"{self.arm.name}\0{self.arm.position}".encode()).hexdigest()[:6]
        return f"{plain}-{mark}-seed{self.seed}.json"

    @property
    def weights_name(self) -> str:
        """The file name of the weights, in the study's folder ``weights``."""
        return f"{self.file_name.removesuffix('.json')}.safetensors"

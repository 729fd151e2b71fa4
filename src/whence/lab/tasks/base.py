"""What a task is to a trainer: batches to learn from, fixed batches to be scored on, and what it was built from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.lab.arms import Arm
from whence.lab.tasks.metrics import IGNORE_INDEX as IGNORE_INDEX
from whence.lab.tasks.metrics import MetricAccumulator
from whence.models import ModelSpec, build
from whence.position.expression import ModelDims

#: at most so many tokens go into one evaluation batch, so that long inputs need no more memory than short ones
EVALUATION_TOKENS = 8192


@dataclass(frozen=True)
class Batch:
    """Inputs and what is asked of them."""

    tokens: Tensor  # [B, T] int64
    targets: Tensor  # [B] for classification; [B, T] otherwise, NOT_ASKED where nothing is asked
    key_mask: Tensor | None = None  # [B, T] bool, True where a token is real; None when nothing is hidden
    extras: Mapping[str, Tensor] = field(default_factory=dict)  # what else a task's own model reads, [B, ...] each

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Every tensor changed in the same way: moved to a device, or some of its rows."""
        key_mask = None if self.key_mask is None else change(self.key_mask)
        extras = {name: change(extra) for name, extra in self.extras.items()}
        return Batch(change(self.tokens), change(self.targets), key_mask, extras)


class Task(ABC):
    """The base of all tasks. ``settings`` goes into the record, and with it a hash of the data."""

    name: str
    kind: str  # "classify", "lm" or "retrieve"; a task with a model of its own may be of another
    vocabulary: int
    classes: int | None = None
    context: int  # tokens of the longest training input
    metric: str  # "accuracy" or "perplexity"
    pad: int | None = None  # the token that only fills, where there is one
    settings: dict[str, Any]
    validation: str | None = None  # the split by which a budget with patience stops, and chooses the weights it keeps

    @property
    def higher_is_better(self) -> bool:
        return self.metric == "accuracy"

    def facts(self) -> dict[str, Any]:
        """What a report must know of the task beside its records, kept with them: a reader may not have the data."""
        return {
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "lengths": self.splits(),
            "trained_length": self.context,
        }

    def build_model(self, settings: Mapping[str, Any], arm: Arm, seed: int) -> nn.Module:
        """The model of an arm, with weights that the seed decides; a task may bring another than whence.models has."""
        kind = "encoder" if self.kind == "classify" else "decoder"
        given: dict[str, Any] = {"vocab_size": self.vocabulary, "kind": kind}
        if kind == "encoder":
            given["num_classes"] = self.classes
        require_known("study.model", settings, ModelSpec)
        spec = ModelSpec(**(given | dict(settings)))
        dims = ModelDims(spec.heads, spec.embed_dim // spec.heads, spec.embed_dim, self.context, kind == "decoder")
        # build's own seed gives all arms of a seed the same weights but for what their positions bring
        return build(spec, lambda layer: arm.build(dims), seed=seed)

    def answers(self, model: nn.Module, batch: Batch) -> Tensor:
        """What a model says to a batch: scores before the softmax, or log-probabilities, which it leaves as they are."""
        return model(batch.tokens, key_mask=batch.key_mask)

    def tally(self) -> MetricAccumulator:
        """What counts an evaluation's answers; it gives at least ``value``."""
        return MetricAccumulator(self.metric)

    def notes(self, model: nn.Module) -> dict[str, Any]:
        """What of a trained model goes into the record beside its values, as plain JSON."""
        return {}

    def kept(self, model: nn.Module) -> dict[str, Any]:
        """What must stay with a model's weights so that they can be used without the task, as plain JSON."""
        return {}

    def baselines(self) -> dict[str, Any]:
        """What simple rules reach, as plain JSON; a study writes it down once."""
        return {}

    @staticmethod
    def exhibits(runs: Mapping[str, list[dict[str, Any]]], baselines: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What else a report shows, from each arm's records and what the simple rules reached.

        A table has ``kind="table"``, ``title``, ``head``, ``rows`` of texts and ``note``; a chart has ``kind="lines"``,
        ``title``, ``x``, ``y``, ``lines`` (arm, seed, points) and ``note``.
        """
        return []

    @abstractmethod
    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        """A random batch, decided by the generator's state alone."""

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Everything once in random order; the last batch may be smaller."""
        raise usage_error(
            f"{self.name}.epoch",
            "a task that makes up its inputs",
            "an epoch goes once through a fixed training set",
            "draw train_batch as often as needed",
        )

    @abstractmethod
    def splits(self) -> dict[str, int]:
        """The names of the evaluations, each with the length of its inputs."""

    @abstractmethod
    def evaluation(self, split: str) -> list[Batch]:
        """The batches of an evaluation, the same at every call."""

    @abstractmethod
    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        """Each token as text, for the axes of an attention map."""

    def examples(self, count: int) -> list[Batch]:
        """A few test inputs, each a batch of one, to draw attention maps for; spread over the first evaluation."""
        batches = self.evaluation(next(iter(self.splits())))
        rows = [(batch, row) for batch in batches for row in range(len(batch.tokens))]
        chosen = [rows[len(rows) * number // count] for number in range(min(count, len(rows)))]
        return [row_of(batch, row) for batch, row in chosen]

    def known_split(self, split: str) -> int:
        """The length of a split's inputs; an unknown one is refused."""
        lengths = self.splits()
        if split not in lengths:
            raise usage_error(
                f"{self.name}.evaluation",
                f"the split {split!r}",
                f"this task has {', '.join(lengths)}",
                "give one of these",
            )
        return lengths[split]


def row_of(batch: Batch, row: int) -> Batch:
    """One row as a batch of its own."""
    return batch.each(lambda tensor: tensor[row : row + 1])


def as_numbers(tokens: Tensor | Iterable[int]) -> list[int]:
    """Tokens as plain integers, from a tensor or anything else."""
    return [int(token) for token in (tokens.flatten().tolist() if isinstance(tokens, Tensor) else tokens)]


def batch_rows(length: int) -> int:
    """How many inputs of a length make an evaluation batch.

    >>> batch_rows(64), batch_rows(512), batch_rows(100_000)
    (128, 16, 1)
    """
    return max(1, EVALUATION_TOKENS // length)


def at_least(task: str, setting: str, got: int, least: int) -> None:
    """Refuse a setting that is too small to make a task of."""
    if got < least:
        raise usage_error(f'load("{task}")', f"{setting}={got}", f"it must be at least {least}", "give a larger one")


def one_of(task: str, setting: str, got: str, choices: tuple[str, ...]) -> None:
    """Refuse a setting that is none of its choices."""
    if got not in choices:
        raise usage_error(
            f'load("{task}")', f"{setting}={got!r}", f"it is one of {', '.join(map(repr, choices))}", "give one of them"
        )


def fixed_generator(*names: object) -> torch.Generator:
    """Randomness decided by names, for evaluations that must be the same in every process."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))


def longer(context: int, factors: Iterable[int] = (1, 2, 4, 8)) -> dict[str, int]:
    """The usual evaluations: at the training length, and at multiples of it that training never saw.

    >>> longer(64)
    {'test': 64, '2x': 128, '4x': 256, '8x': 512}
    """
    return {"test" if factor == 1 else f"{factor}x": factor * context for factor in factors}


def require_known(asked: str, settings: Mapping[str, Any], kind: type) -> None:
    """Refuse a setting that a dataclass does not have, with those that it has."""
    known = [field.name for field in fields(kind)]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise usage_error(
            asked, f"the setting {unknown[0]}", f"it knows {', '.join(known)}", "leave it out or rename it"
        )

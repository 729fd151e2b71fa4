"""The ``Task`` interface: training batches, fixed evaluation batches, a metric, and what the data was."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import usage_error
from whence.lab.arms import Arm
from whence.lab.tasks.metrics import BINARY_METRICS, CLASSIFICATION_METRICS, PREDICTION_METRICS, classification_scores
from whence.models import ModelSpec, build
from whence.plugins import did_you_mean
from whence.position.expression import ModelDims

#: marks a target that is not scored; the default ``ignore_index`` of torch's cross_entropy
IGNORE_INDEX = -100
#: largest number of tokens in an evaluation batch, so that long inputs need no more memory than short ones
EVALUATION_TOKENS = 8192
#: a larger mean cross-entropy counts as this, so that its perplexity, 5e299, is below what ``whence.statistics`` accepts
LARGEST_CROSS_ENTROPY = 690.0


@dataclass(frozen=True)
class Batch:
    """Inputs and targets."""

    tokens: Tensor  # [B, T] int64
    targets: Tensor  # [B] for classification; [B, T] otherwise, IGNORE_INDEX where nothing is scored
    key_mask: Tensor | None = None  # [B, T] bool, True for real tokens; None when nothing is masked
    extras: Mapping[str, Tensor] = field(default_factory=dict)  # further inputs of a task's own model, [B, ...] each

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Apply a function to every tensor, such as a move to a device or a selection of rows."""
        key_mask = None if self.key_mask is None else change(self.key_mask)
        extras = {name: change(extra) for name, extra in self.extras.items()}
        return Batch(change(self.tokens), change(self.targets), key_mask, extras)


class MetricAccumulator:
    """Sum correct predictions and cross-entropy over the batches of an evaluation.

    For classification it also counts the confusion matrix, from which every metric of classification follows.
    """

    def __init__(self, metric: str, num_classes: int | None = None) -> None:
        self.metric = metric
        self.targets = self.correct = 0
        self.cross_entropy = 0.0
        self.prediction_scores: dict[str, float] = {}  # see Task.score_predictions
        self.confusion = None if num_classes is None else torch.zeros(num_classes, num_classes, dtype=torch.int64)

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Count one batch."""
        logits, targets = logits.reshape(-1, logits.shape[-1]), batch.targets.reshape(-1)
        self.targets += int((targets != IGNORE_INDEX).sum())
        self.correct += int(is_top_prediction(logits, targets).sum())
        self.cross_entropy += float(F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum"))
        if self.confusion is not None:
            scored = targets != IGNORE_INDEX
            self.confusion += count_confusion(targets[scored], logits[scored].argmax(-1), len(self.confusion))

    def result(self) -> dict[str, Any]:
        """The value of the metric and the counts behind it, under the keys that records use."""
        mean = self.cross_entropy / self.targets
        row: dict[str, Any] = {"num_targets": self.targets, "correct": self.correct, "cross_entropy": mean}
        if self.confusion is not None:
            row["confusion"] = self.confusion.tolist()
        row |= self.prediction_scores
        return {"value": compute_metric(self.metric, row), **row}


def compute_metric(metric: str, row: Mapping[str, Any]) -> float:
    """The value of a metric from the counts that an evaluation records.

    >>> compute_metric("accuracy", {"num_targets": 4, "correct": 3}), compute_metric("perplexity", {"cross_entropy": 0.0})
    (0.75, 1.0)
    """
    if metric == "perplexity":
        return math.exp(min(row["cross_entropy"], LARGEST_CROSS_ENTROPY))
    if metric in PREDICTION_METRICS:
        return row[metric]
    return (
        row["correct"] / row["num_targets"] if metric == "accuracy" else classification_scores(row["confusion"])[metric]
    )


def count_confusion(targets: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """The confusion matrix ``[classes, classes]`` on the CPU: rows are true classes, columns are predicted ones.

    >>> count_confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return (targets * classes + predicted).bincount(minlength=classes * classes).reshape(classes, classes).cpu()


def is_top_prediction(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether each target has the largest logit, the first one among ties; ``[rows]``.

    On a CPU ``amax`` takes a tenth of the time of ``argmax``, so ``argmax`` runs only on rows where the target ties with
    the maximum.

    >>> logits = torch.tensor([[1.0, 3.0, 3.0]] * 3 + [[9.0, 0.0, 0.0]])
    >>> is_top_prediction(logits, torch.tensor([0, 1, 2, IGNORE_INDEX])).tolist()
    [False, True, False, False]
    """
    own = logits.gather(-1, targets.clamp(min=0)[:, None])[:, 0]
    top = (own == logits.amax(-1)) & (targets != IGNORE_INDEX)
    rows = top.nonzero()[:, 0]
    top[rows] = logits[rows].argmax(-1) == targets[rows]
    return top


class Task(ABC):
    """Base class of all tasks. ``settings``, which includes a hash of the data, goes into every record."""

    name: str
    kind: str  # "classify", "lm" or "retrieve"; a task with its own model may use another word
    vocab_size: int
    num_classes: int | None = None
    context: int  # tokens of the longest training input
    metric: str  # "accuracy", "perplexity", for classification one of CLASSIFICATION_METRICS, or of prediction_metrics
    pad: int | None = None  # padding token, if there is one
    settings: dict[str, Any]
    validation: str | None = None  # split for early stopping and for choosing weights
    #: arguments that only choose splits: training stays the same, and so do the inputs of each split while ``settings`` are equal
    evaluation_settings: tuple[str, ...] = ()
    lengths: tuple[int, ...] | None = None  # chosen lengths of the evaluation, as multiples of the trained length
    #: whether a study also delivers its weights: runs that have a record and no weights are trained again
    needs_weights: bool = False
    #: whether evaluations also have the running score on the training batches since the last one, with dropout
    tracks_training: bool = False

    @property
    def higher_is_better(self) -> bool:
        return self.metric in (*CLASSIFICATION_METRICS, *BINARY_METRICS, *PREDICTION_METRICS)

    @property
    def prediction_metrics(self) -> tuple[str, ...]:
        """The metrics that ``score_predictions`` returns."""
        return ()

    def facts(self) -> dict[str, Any]:
        """What a report needs to know about the task. It is stored with the records, since a reader may lack the data."""
        return {
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "lengths": self.splits(),
            "trained_length": self.context,
        }

    def build_model(self, settings: Mapping[str, Any], arm: Arm, seed: int) -> nn.Module:
        """The model of an arm, initialised by the seed. Override it to use a model outside whence.models."""
        kind = "encoder" if self.kind == "classify" else "decoder"
        defaults: dict[str, Any] = {"vocab_size": self.vocab_size, "kind": kind}
        if kind == "encoder":
            defaults["num_classes"] = self.num_classes
        require_known_fields("Study(model=...)", settings, ModelSpec)
        spec = ModelSpec(**(defaults | dict(settings)))
        dims = ModelDims(spec.heads, spec.effective_head_dim, spec.embed_dim, self.context, kind == "decoder")
        # all arms of a seed start from the same weights, apart from the parameters of their positions
        return build(spec, lambda layer: arm.build(replace(dims, layer=layer)), seed=seed)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """The model's scores before the softmax. Log-probabilities work too: the softmax leaves them unchanged."""
        return model(batch.tokens, key_mask=batch.key_mask)

    def metric_accumulator(self) -> MetricAccumulator:
        """A new accumulator for one evaluation; its result has at least ``value``."""
        return MetricAccumulator(self.metric, self.num_classes)

    def score_predictions(self, model: nn.Module, split: str) -> dict[str, float]:
        """Scores of what the model predicts for a split beside logits, by metric: texts, answers or numbers; empty if there are none."""
        return {}

    def notes(self, model: nn.Module) -> dict[str, Any]:
        """Facts about a trained model to add to its record, as plain JSON."""
        return {}

    def weights_metadata(self, model: nn.Module) -> dict[str, Any]:
        """What is stored with a model's weights so that they can be used without the task, as plain JSON."""
        return {}

    def baselines(self) -> dict[str, Any]:
        """Scores of predictors that are not trained networks, by name, as plain JSON. A study computes them once.

        Each entry has ``kind``, ``splits`` (for each split a value for each metric) and ``about``, a sentence. The kinds are
        "constant" (the same answer for every input: an arm that does not beat it has learned nothing), "rule" (a simple rule
        on the input) and "ceiling" (the best possible). Reports draw them as lines. ``whence.lab.tasks.baselines`` computes
        the usual ones.
        """
        return {}

    def describe_data(self) -> dict[str, Any]:
        """Facts about the data for the top of a report, as plain JSON; empty if there is nothing to say.

        Keys that reports show: ``items`` (by split), ``classes`` (by label and split), ``lengths`` and ``duplicates`` (see
        ``whence.lab.data.splits``), ``unknown`` (share of unknown tokens by split), ``bad_rows``, ``split`` (how the parts
        were chosen) and ``tokens`` (what a token is).
        """
        return {}

    @staticmethod
    def panels(runs: Mapping[str, list[dict[str, Any]]], baselines: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Further panels of a report, from each arm's records and the baselines.

        A table has ``kind="table"``, ``title``, ``head``, ``rows`` of texts and ``note``; a chart has ``kind="lines"``,
        ``title``, ``x``, ``y``, ``lines`` (arm, seed, points) and ``note``.
        """
        return []

    @staticmethod
    def remarks(runs: Mapping[str, list[dict[str, Any]]], baselines: Mapping[str, Any]) -> list[str]:
        """Sentences that belong to the verdict beside the comparison, from each arm's records and the baselines."""
        return []

    @abstractmethod
    def train_batch(self, size: int, generator: torch.Generator) -> Batch:
        """A random batch that depends on the generator's state alone."""

    def epoch(self, size: int, generator: torch.Generator) -> Iterator[Batch]:
        """The training set once in random order; the last batch may be smaller."""
        raise usage_error(
            f"{self.name}.epoch",
            "a task that generates its inputs",
            "an epoch is one pass over a fixed training set",
            "set Budget(steps=...), which draws from train_batch",
        )

    def hold_out_validation(self) -> None:
        """Set a part of the training data aside as the split ``validation``, for a task without a validation split.

        Sweeps call it on a task of their own; the task of the comparison trains on all training data.
        """
        raise usage_error(
            f"task {self.name!r}",
            "a request for validation data",
            "the task has no validation split, and none can be made from its training data",
            f"name a split in {type(self).__name__}.validation, or write hold_out_validation there",
        )

    @abstractmethod
    def splits(self) -> dict[str, int]:
        """The evaluation splits, each with the length of its inputs."""

    def training_splits(self) -> list[str]:
        """The splits that are evaluated during training; the others are evaluated once, at its end.

        Chosen lengths beyond the trained one are among the others, so that a later choice can be evaluated from the weights.
        """
        splits = self.splits()
        return [name for name, length in splits.items() if self.lengths is None or length <= self.context]

    @abstractmethod
    def evaluation(self, split: str) -> list[Batch]:
        """The batches of a split, the same at every call."""

    @abstractmethod
    def decode(self, tokens: Tensor | Iterable[int]) -> list[str]:
        """Each token as text, for the axes of an attention map."""

    def examples(self, count: int) -> list[Batch]:
        """A few inputs of the first split, evenly spaced, each as a batch of one; for attention maps."""
        batches = self.evaluation(next(iter(self.splits())))
        rows = [(batch, row) for batch in batches for row in range(len(batch.tokens))]
        chosen = [rows[len(rows) * number // count] for number in range(min(count, len(rows)))]
        return [select_row(batch, row) for batch, row in chosen]

    def split_length(self, split: str) -> int:
        """The length of a split's inputs, or an error for an unknown split."""
        lengths = self.splits()
        if split not in lengths:
            raise usage_error(
                f"{self.name}.evaluation",
                f"the split {split!r}",
                f"this task has {', '.join(lengths)}",
                "choose one of these",
            )
        return lengths[split]


def select_row(batch: Batch, row: int) -> Batch:
    """One row as a batch of its own."""
    return batch.map(lambda tensor: tensor[row : row + 1])


def to_ints(tokens: Tensor | Iterable[int]) -> list[int]:
    """Tokens as plain integers, from a tensor or any iterable."""
    return [int(token) for token in (tokens.flatten().tolist() if isinstance(tokens, Tensor) else tokens)]


def evaluation_batch_size(length: int) -> int:
    """The number of inputs of a length in an evaluation batch.

    >>> evaluation_batch_size(64), evaluation_batch_size(512), evaluation_batch_size(100_000)
    (128, 16, 1)
    """
    return max(1, EVALUATION_TOKENS // length)


def require_at_least(task: str, setting: str, got: int, least: int) -> None:
    """Reject a task setting below its minimum."""
    if got < least:
        raise usage_error(f"task {task!r}", f"{setting}={got}", f"it must be at least {least}", f"increase {setting}")


def require_choice(task: str, setting: str, got: str, choices: tuple[str, ...]) -> None:
    """Reject a task setting that is not one of its choices."""
    if got not in choices:
        listed = ", ".join(map(repr, choices))
        raise usage_error(f"task {task!r}", f"{setting}={got!r}", f"it must be one of {listed}", "choose one of these")


def named_generator(*names: object) -> torch.Generator:
    """A generator seeded by names, for evaluations that must be the same in every process."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))


#: the usual lengths of an evaluation, as multiples of the trained length
LENGTHS = (1, 2, 4, 8)


def require_lengths(task: str, lengths: Sequence[int] | None) -> tuple[int, ...] | None:
    """Chosen multiples of the trained length, sorted. The trained length itself is always among them.

    >>> require_lengths("copy", [16, 2]), require_lengths("copy", None)
    ((1, 2, 16), None)
    """
    if lengths is None:
        return None
    wrong = [one for one in lengths if isinstance(one, bool) or not isinstance(one, int) or one < 1]
    if wrong or not lengths:
        got = f"lengths={list(lengths)!r}"
        raise usage_error(f"task {task!r}", got, "they are whole multiples of the trained length", "pass [1, 2, 4]")
    return tuple(sorted({1, *lengths}))


def extrapolation_lengths(context: int, multiples: Iterable[int] = LENGTHS) -> dict[str, int]:
    """The usual splits: the training length, and multiples of it that training never saw.

    >>> extrapolation_lengths(64)
    {'test': 64, '2x': 128, '4x': 256, '8x': 512}
    """
    return {"test" if multiple == 1 else f"{multiple}x": multiple * context for multiple in multiples}


def require_known_fields(subject: str, settings: Mapping[str, Any], kind: type) -> None:
    """Reject a setting that is not a field of a dataclass."""
    known = [field.name for field in fields(kind)]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise usage_error(
            subject,
            f"the setting {unknown[0]}",
            f"the settings are {', '.join(known)}",
            did_you_mean(unknown[0], known, "remove or rename it"),
        )

"""Studies of the EPAR source's tasks: the arms, seeds and decision of its protocol with a task and a size.

The source compares EPAR with rotary, ALiBi, Shaw and Transformer-XL with seeds 42 to 46 and Bonferroni's correction at 0.01. It
adds position vectors to the input of its models as well, so EPAR is also tried together with learned and with sinusoidal vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from whence.lab.study import Budget, Decision, Study
from whence_papers.studies.epar.protocol import ARMS, SEEDS, WITH_VECTORS

TASK_ARMS = ARMS + WITH_VECTORS


@dataclass(frozen=True)
class TrainingSize:
    """The size of the model and of the training. ``source`` has that of the source: about 110 million parameters."""

    embed_dim: int
    heads: int
    layers: int
    dropout: float
    steps: int
    batch_size: int
    lr: float
    precision: str = "no"
    seeds: tuple[int, ...] = SEEDS
    epochs: float | None = None  # how often an input of the data occurs; None where it is not known beforehand

    def describe(self, what: str) -> str:
        """A sentence about the size; ``what`` is one input of a batch, in the plural."""
        layers = "1 layer" if self.layers == 1 else f"{self.layers} layers"
        passes = "" if self.epochs is None else f", {self.epochs:g} epochs"
        return (
            f"{layers}, {self.embed_dim} wide, {self.heads} heads; {self.steps:,} steps of {self.batch_size} {what}{passes}. The "
            "source has about 110 million parameters."
        )


#: a smoke test of seconds; two cores; one large accelerator; the size of the source
SIZES = {
    "small": TrainingSize(16, 2, 1, 0.0, steps=4, batch_size=8, lr=3e-3, seeds=SEEDS[:2]),
    "cpu": TrainingSize(64, 4, 2, 0.1, steps=800, batch_size=32, lr=1e-3),
    "gpu": TrainingSize(256, 4, 2, 0.1, steps=2000, batch_size=64, lr=5e-4, precision="bf16"),
    "source": TrainingSize(768, 12, 12, 0.1, steps=100_000, batch_size=64, lr=1e-4, precision="bf16"),
}


def size_for(scale: str, inputs: int = 0, epochs: float = 0, **changes: Any) -> TrainingSize:
    """The size of a scale for a data set: so many steps that each of its ``inputs`` occurs ``epochs`` times.

    Small models on an accelerator are limited by the launches of kernels, so a run of the scale "gpu" has about 2,000
    steps, and 4,000 at most: the nine arms with five seeds then take a few minutes with twelve runs side by side.

    >>> size_for("gpu", inputs=216, epochs=30, batch_size=16).steps
    405
    """
    size = replace(SIZES[scale], **changes)
    if not inputs:
        return size
    return replace(size, steps=max(1, round(inputs * epochs / size.batch_size)), epochs=epochs)


def build_task_study(
    name: str,
    question: str,
    task: str,
    task_settings: Mapping[str, Any],
    size: TrainingSize,
    about: str,
    split: str = "test",
    metric: str = "",
) -> Study:
    """A study with the nine arms. ``metric`` is that of the source; empty for the task's own."""
    return Study(
        name=name,
        question=question,
        task=task,
        task_settings=dict(task_settings),
        model={
            "embed_dim": size.embed_dim, "heads": size.heads, "layers": size.layers, "ffn_dim": 4 * size.embed_dim,
            "dropout": size.dropout,
        },
        arms=TASK_ARMS,
        seeds=size.seeds,
        budget=Budget(
            steps=size.steps, batch_size=size.batch_size, lr=size.lr, warmup_steps=size.steps // 10, schedule="cosine",
            mixed_precision=size.precision, evaluate_every=size.steps // 2,
        ),
        decision=Decision(baseline="rotary", alpha=0.01, metric=metric, split=split),
        about=about,
    )  # fmt: skip

"""Scores on training batches as they are trained: with dropout, and with weights that change from batch to batch.

Many reports print this running mean as training accuracy. It is lower than the score of the weights at the end of the interval
in evaluation mode, which is a split of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whence.lab.tasks import Batch, MetricAccumulator, Task
from whence.lab.tasks.base import compute_metric


class RunningScore:
    """The accuracy and the cross-entropy of the batches since the last evaluation."""

    def __init__(self, task: Task, state: Mapping[str, Any] | None = None) -> None:
        """``state`` continues an interval that a checkpoint interrupted."""
        self.metric = task.metric if task.metric in ("accuracy", "perplexity") else "accuracy"
        self.counts = MetricAccumulator(self.metric)
        if state:
            self.counts.targets, self.counts.correct = state["targets"], state["correct"]
            self.counts.cross_entropy = state["cross_entropy"]

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Count one batch, or this process's share of it."""
        self.counts.add(logits.detach(), batch)

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {name: getattr(self.counts, name) for name in ("targets", "correct", "cross_entropy")}

    def take(self, accelerator: Any) -> dict[str, Any]:
        """The score of the interval over all processes. A new interval begins."""
        own = torch.tensor([float(value) for value in self.state().values()], dtype=torch.float64)
        targets, correct, cross_entropy = accelerator.reduce(own.to(accelerator.device), "sum").tolist()
        self.counts = MetricAccumulator(self.metric)
        row = {"num_targets": int(targets), "correct": int(correct), "cross_entropy": cross_entropy / targets}
        return {"value": compute_metric(self.metric, row), **row}

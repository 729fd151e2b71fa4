"""Which weights a run keeps, and when it may stop."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from whence.lab import checkpoints
from whence.lab.study import Budget
from whence.lab.tasks import Task


class Choice:
    """Which weights are kept: the last, or with patience the best on the validation split, and then when to stop."""

    def __init__(
        self, task: Task, budget: Budget, evaluations: list[dict[str, Any]], best: dict[str, Tensor] | None
    ) -> None:
        self.task, self.patience, self.evaluations = task, budget.patience, evaluations
        self.best = best or {}
        # with patience only the split that decides is evaluated on the way; the others see what is kept
        self.splits = list(task.splits()) if budget.patience is None else [str(task.validation)]

    @property
    def _place(self) -> int:
        """The number of the best evaluation, the earliest of equals."""
        values = [row["splits"][self.splits[0]]["value"] for row in self.evaluations]
        return values.index(max(values) if self.task.higher_is_better else min(values))

    @property
    def step(self) -> int:
        return self.evaluations[self._place]["step"]

    @property
    def made(self) -> bool:
        if self.patience is None or not self.evaluations:
            return False
        return len(self.evaluations) - 1 - self._place >= self.patience

    def look(self, model: nn.Module) -> None:
        """After each evaluation: take a copy of the weights, if there were none better. Every process must ask."""
        if self.patience is not None and self._place == len(self.evaluations) - 1:
            self.best = {name: tensor.detach().cpu().clone() for name, tensor in checkpoints.weights_in(model).items()}

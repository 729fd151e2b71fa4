"""Early stopping: when a run stops, and which weights it returns."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from whence.lab import checkpoints
from whence.lab.study import Budget
from whence.lab.tasks import Task


class EarlyStopping:
    """Track the best evaluation. Without patience nothing stops early, and the last weights are returned."""

    def __init__(
        self, task: Task, budget: Budget, evaluations: list[dict[str, Any]], best: dict[str, Tensor] | None
    ) -> None:
        self.task, self.patience, self.evaluations = task, budget.patience, evaluations
        self.best = best or {}
        # with patience only the validation split is evaluated during training, the others once at the end
        self.splits = task.training_splits() if budget.patience is None else [str(task.validation)]

    @property
    def _best_index(self) -> int:
        """The index of the best evaluation, the earliest among ties."""
        values = [row["splits"][self.splits[0]]["value"] for row in self.evaluations]
        return values.index(max(values) if self.task.higher_is_better else min(values))

    @property
    def best_step(self) -> int:
        return self.evaluations[self._best_index]["step"]

    @property
    def should_stop(self) -> bool:
        if self.patience is None or not self.evaluations:
            return False
        return len(self.evaluations) - 1 - self._best_index >= self.patience

    def update(self, model: nn.Module) -> None:
        """Copy the weights if the last evaluation is the best. In distributed training every process must call this."""
        if self.patience is not None and self._best_index == len(self.evaluations) - 1:
            weights = checkpoints.gather_weights(model)
            self.best = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}

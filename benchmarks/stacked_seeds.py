"""Training time on a CPU: the seeds of an arm one after another, or stacked into one model with torch.func.vmap.

    python benchmarks/stacked_seeds.py             # a few minutes; writes benchmarks/records/stacked_seeds.json

Small models spend most of a step outside the kernels, so a stack of seeds could share that time. Both variants take the
same steps on one thread, in turn, in the same process; times are CPU time, and only their ratio is used. Before that, both
take a few steps from the same weights on the same data, and the largest difference of the weights is recorded.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from whence import records
from whence.lab import default_studies
from whence.lab.kernels import training_kernels
from whence.lab.study import Run, Study
from whence.lab.study_task import build_model, load_task
from whence.lab.tasks import IGNORE_INDEX, Batch, Task
from whence.lab.training import compute_loss, count_targets, seed_generator

ROOT = Path(__file__).resolve().parent.parent
CHECKED_STEPS = 5


class SeparateSeeds:
    """One model and one optimizer for each seed."""

    def __init__(self, models: list[nn.Module], task: Task, study: Study) -> None:
        self.models, self.task, self.budget = models, task, study.budget
        self.optimizers = [
            torch.optim.AdamW(model.parameters(), lr=self.budget.lr, weight_decay=self.budget.weight_decay, fused=True)
            for model in models
        ]

    def step(self, batches: list[Batch]) -> None:
        for model, optimizer, batch in zip(self.models, self.optimizers, batches, strict=True):
            compute_loss(self.task, model, batch, count_targets(batch)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), self.budget.max_grad_norm or torch.inf)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, Tensor]:
        return {name: torch.stack([dict(m.named_parameters())[name] for m in self.models]) for name, _ in self.models[0].named_parameters()}  # fmt: skip


class StackedSeeds:
    """One model whose parameters have a leading axis of seeds. The norm of the gradient is clipped for each seed."""

    def __init__(self, models: list[nn.Module], task: Task, study: Study) -> None:
        self.task, self.budget = task, study.budget
        parameters, self.buffers = stack_module_state(models)
        self.parameters = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        self.model = copy.deepcopy(models[0]).to("meta")
        for name, buffer in models[0].named_buffers():  # some are read in Python
            owner, _, last = name.rpartition(".")
            self.model.get_submodule(owner)._buffers[last] = buffer
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=self.budget.lr, weight_decay=self.budget.weight_decay, fused=True
        )

    def _logits(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], tokens: Tensor) -> Tensor:
        return functional_call(self.model, (parameters, buffers), (tokens,))

    def step(self, batches: list[Batch]) -> None:
        tokens = torch.stack([batch.tokens for batch in batches])
        targets = torch.stack([batch.targets for batch in batches])
        logits = torch.vmap(self._logits)(self.parameters, self.buffers, tokens).float()
        losses = nn.functional.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
        ).unflatten(0, targets.shape)
        (losses.flatten(1).sum(1) / (targets != IGNORE_INDEX).flatten(1).sum(1)).sum().backward()
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
        if self.budget.max_grad_norm is not None:
            factor = (self.budget.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(factor.reshape(-1, *[1] * (gradient.ndim - 1)))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.parameters.items()}


def draw_batches(study: Study, task: Task, seeds: int, step: int) -> list[Batch]:
    return [task.train_batch(study.budget.batch_size, seed_generator(seed, step)) for seed in range(seeds)]


def seconds_per_step(advance: Callable[[list[Batch]], None], batches: list[list[Batch]]) -> float:
    began = time.process_time()
    for batch in batches:
        advance(batch)
    return (time.process_time() - began) / len(batches)


@training_kernels()
def measure(study: Study, arm: str, seeds: int, rounds: int, steps: int) -> dict[str, Any]:
    """CPU milliseconds of a step of all seeds, for both variants, and the largest difference of their weights."""
    task = load_task(study)
    own = next(one for one in study.arms if one.name == arm)
    models = [build_model(Run(study, own, seed), task) for seed in range(seeds)]
    variants = {
        "separate": SeparateSeeds([copy.deepcopy(model) for model in models], task, study),
        "stacked": StackedSeeds(models, task, study),
    }
    for step in range(CHECKED_STEPS):
        for variant in variants.values():
            variant.step(draw_batches(study, task, seeds, step))
    separate, stacked = (variant.weights() for variant in variants.values())
    difference = max(float((separate[name] - stacked[name]).detach().abs().max()) for name in separate)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        batches = [draw_batches(study, task, seeds, 1000 + number * steps + step) for step in range(steps)]
        for name, variant in variants.items():
            times[name].append(1000 * seconds_per_step(variant.step, batches))
    ratio = statistics.median(a / b for a, b in zip(times["separate"], times["stacked"], strict=True))
    return {"task": study.task, "arm": arm, "seeds": seeds, "milliseconds": times, "ratio": ratio, "difference": difference}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--arm", nargs="+", default=list(default_studies.DEFAULT_POSITIONS))
    parser.add_argument("--task", nargs="+", default=list(default_studies.DEFAULT_TASKS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "stacked_seeds.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for study in default_studies.build_studies(options.task):
        for arm in options.arm:
            for seeds in options.seeds:
                row = measure(study, arm, seeds, options.rounds, options.steps)
                rows.append(row)
                separate, stacked = (statistics.median(row["milliseconds"][name]) for name in ("separate", "stacked"))
                print(
                    f"{study.task:8} {arm:11} {seeds} seeds: separate {separate:6.1f} ms, stacked {stacked:6.1f} ms, "
                    f"ratio {row['ratio']:.2f}, difference {row['difference']:.1e}",
                    flush=True,
                )
    environment = records.describe_environment(("torch",))
    records.write(options.out, {"command": records.rerun_command(), "environment": environment, "rows": rows})


if __name__ == "__main__":
    main()

"""One plain training loop. Data of a step depend on the seed and the step alone, so every arm of a seed sees the same
data, and a run that was stopped goes on as if it had not been."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import require_package
from whence.lab import checkpoints
from whence.lab.early_stopping import Choice
from whence.lab.kernels import chosen_kernels
from whence.lab.study import Budget
from whence.lab.tasks import IGNORE_INDEX, Batch, Task, row_of

#: steps after which processes that share a run agree on whether to save it
TOGETHER = 20


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever watches it."""

    step: int
    steps: int
    loss: float
    values: dict[str, float] | None = None  # of an evaluation, by split


class Diverged(Exception):
    """A loss, a gradient or an evaluation that is not a number; the step and the last good checkpoint are in the record."""

    def __init__(self, step: int, what: str, curves: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{what} at step {step}")
        self.step, self.curves = step, dict(curves or {})  # up to there


def accelerator_for(budget: Budget) -> Any:
    """Hugging Face accelerate: one device here, several under ``accelerate launch`` or ``torchrun``, the same spec."""
    require_package("accelerate", "training", "lab")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    # else all runs of a process have the precision of the first, and none after it is sharded; their group stays
    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(mixed_precision=budget.mixed_precision, cpu=not torch.cuda.is_available())


def asked_of(batch: Batch) -> int:
    """How many answers a batch asks for."""
    return int((batch.targets != IGNORE_INDEX).sum())


def loss_of(task: Task, model: nn.Module, batch: Batch, asked: int) -> Tensor:
    """The surprise at a batch over the number of answers asked for in all of which it is a part."""
    logits = task.answers(model, batch).float()
    logits, targets = logits.reshape(-1, logits.shape[-1]), batch.targets.flatten()
    return F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum") / asked


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, batches: list[Batch], device: torch.device) -> dict[str, Any]:
    """The metric's value over all that is asked in some batches, with what it was counted from."""
    was_training = model.training
    model.eval()
    tally = task.tally()
    for batch in batches:
        batch = moved(batch, device)
        tally.add(task.answers(model, batch).float(), batch)
    model.train(was_training)
    return tally.result()


def moved(batch: Batch, device: torch.device) -> Batch:
    return batch.each(lambda tensor: tensor.to(device))


def share(batch: Batch, index: int, count: int) -> Batch:
    """One part of several, by rows; where there are too few rows, one that asks nothing, since every part must run."""
    if count == 1:
        return batch
    mine = batch.each(lambda tensor: tensor[index::count])
    if len(mine.tokens) > 0:
        return mine
    first = row_of(batch, 0)
    return replace(first, targets=torch.full_like(first.targets, IGNORE_INDEX))


def drawn(seed: int, number: int) -> torch.Generator:
    """Randomness for a step or an epoch, the same whenever it is asked for."""
    return torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)


class Schedule:
    """How many steps there are, and the learning rate of each."""

    def __init__(self, task: Task, budget: Budget) -> None:
        self.budget = budget
        self.an_epoch = 0
        if budget.epochs is not None:
            self.an_epoch = sum(1 for _ in task.epoch(budget.batch_size, drawn(0, 0)))
        self.steps = budget.steps if budget.steps is not None else self.an_epoch * (budget.epochs or 0)
        every = budget.evaluate_every
        self.every = None if every is None else every * (self.an_epoch or 1)

    def lr(self, step: int) -> float:
        b = self.budget
        if step < b.warmup_steps:
            return b.lr * (step + 1) / b.warmup_steps
        if b.schedule == "constant":
            return b.lr
        done = (step - b.warmup_steps) / max(1, self.steps - b.warmup_steps)
        return b.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def evaluates_after(self, step: int) -> bool:
        return step + 1 == self.steps or (self.every is not None and (step + 1) % self.every == 0)


def batches(task: Task, budget: Budget, schedule: Schedule, seed: int, first: int) -> Iterator[Batch]:
    """The batches of all steps from ``first`` on."""
    if budget.epochs is None:
        for step in range(first, schedule.steps):
            yield task.train_batch(budget.batch_size, drawn(seed, step))
        return
    for epoch in range(first // schedule.an_epoch, budget.epochs):
        for number, batch in enumerate(task.epoch(budget.batch_size, drawn(seed, epoch))):
            if epoch * schedule.an_epoch + number >= first:
                yield batch


@chosen_kernels()
def train(
    model: nn.Module,
    task: Task,
    budget: Budget,
    seed: int,
    state: Path,
    notify: Callable[[Progress], None] = lambda progress: None,
    save_every: float = 60.0,
) -> dict[str, Any]:
    """Train a model in place and give back its curves. A checkpoint in the file ``state`` is gone on from."""
    accelerator = accelerator_for(budget)
    processes, index = accelerator.num_processes, accelerator.process_index
    kind = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}[budget.optimizer]
    # where processes share a run, each may hold a part of the weights only: a copy is trained, and the model stays whole
    learner = model if accelerator.distributed_type == "NO" else copy.deepcopy(model)
    optimizer = kind(learner.parameters(), lr=budget.lr, weight_decay=budget.weight_decay, fused=True)
    schedule = Schedule(task, budget)
    ready, optimizer = accelerator.prepare(learner, optimizer)
    stepped: Any = torch.compile(ready) if budget.compile else ready
    # last of all before the loop: what was loaded until here may have drawn numbers of its own
    torch.manual_seed(seed + 1_000_000_007 * index)
    before = checkpoints.load(state, ready, optimizer.optimizer) or {"step": 0, "losses": [], "evaluations": []}
    losses, evaluations, first = before["losses"], before["evaluations"], before["step"]
    choice = Choice(task, budget, evaluations, before.get("best"))
    ready.train()
    saved = time.monotonic()
    recent: list[float] = before.get("recent", [])
    curves = {"losses": losses, "evaluations": evaluations}

    def keep(steps_done: int) -> None:
        progress = {"step": steps_done, "recent": recent, **curves}
        main = accelerator.is_main_process
        checkpoints.save(state, ready, optimizer.optimizer, progress, best=choice.best, write=main)

    step = first - 1
    for step, batch in enumerate(batches(task, budget, schedule, seed, first), start=first):
        if choice.made:  # by an evaluation before this step, perhaps of a process that was killed after it
            step -= 1
            break
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr(step)
        asked, total = asked_of(batch), torch.zeros((), device=accelerator.device)
        for part in range(budget.grad_accum_steps):
            mine = share(share(batch, part, budget.grad_accum_steps), index, processes)
            with accelerator.autocast():
                loss = loss_of(task, stepped, moved(mine, accelerator.device), asked)
            accelerator.backward(loss * processes)  # gradients of several processes are averaged
            total += loss.detach()
        mean = float(accelerator.reduce(total, "sum"))
        if not math.isfinite(mean):
            keep(step)
            raise Diverged(step, f"the loss became {mean}", curves)
        norm = accelerator.clip_grad_norm_(
            ready.parameters(), math.inf if budget.max_grad_norm is None else budget.max_grad_norm
        )
        if not math.isfinite(float(norm)):  # seen before the weights are spoiled, so every checkpoint is a good one
            keep(step)
            raise Diverged(step, f"the gradient became {float(norm)}", curves)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(mean)
        values = None
        if schedule.evaluates_after(step):
            found = {
                split: evaluate(task, ready, task.evaluation(split), accelerator.device) for split in choice.splits
            }
            require_numbers(found, step, curves)
            evaluations.append({"step": step + 1, "splits": found})
            choice.look(ready)
            losses.append({"step": step + 1, "loss": sum(recent) / len(recent)})
            recent = []
            values = {split: row["value"] for split, row in found.items()}
        if budget.patience is None or step + 1 < schedule.steps:  # with patience the end comes after a last evaluation
            notify(Progress(step + 1, schedule.steps, mean, values))
        # several processes must agree, which costs a message: they are not asked at every step
        asked_now = processes == 1 or (step + 1) % TOGETHER == 0
        if asked_now and _agreed(accelerator, time.monotonic() - saved > save_every):
            keep(step + 1)
            saved = time.monotonic()
    accelerator.wait_for_everyone()
    model.load_state_dict(choice.best or checkpoints.weights_in(ready))
    ended = {"steps": schedule.steps, **curves}
    if accelerator.distributed_type != "NO":
        ended["shared_by"] = str(accelerator.distributed_type.value)  # how processes shared it: copies, or a part each
    if budget.patience is None:
        return ended
    model.to(accelerator.device)
    last = {split: evaluate(task, model, task.evaluation(split), accelerator.device) for split in task.splits()}
    require_numbers(last, step, ended)
    evaluations.append({"step": choice.step, "splits": last})  # of what is kept, on everything there is
    notify(Progress(schedule.steps, schedule.steps, mean_of(losses), {s: row["value"] for s, row in last.items()}))
    return ended | {"stopped": step + 1, "kept": choice.step}


def require_numbers(found: dict[str, dict[str, Any]], step: int, curves: Mapping[str, Any]) -> None:
    """Refuse an evaluation whose numbers are none: nothing can be compared with them, and no record holds them."""
    for split, row in found.items():
        wrong = [value for value in row.values() if isinstance(value, float) and not math.isfinite(value)]
        if wrong:
            raise Diverged(step, f"the evaluation on {split} became {wrong[0]}", curves)


def mean_of(losses: list[dict[str, Any]]) -> float:
    return losses[-1]["loss"] if losses else math.nan


def _agreed(accelerator: Any, mine: bool) -> bool:
    """What the first process thinks: clocks differ, and saving needs all."""
    if accelerator.num_processes == 1:
        return mine
    said = torch.tensor(float(mine and accelerator.is_main_process), device=accelerator.device)
    return bool(accelerator.reduce(said, "sum") > 0)

"""The training loop. The data of a step depends on the seed and the step alone, so all arms of a seed see the same data,
and a resumed run continues exactly as an uninterrupted one."""

from __future__ import annotations

import copy
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import NonFiniteHook, Terminated, require_package
from whence.lab import checkpoints
from whence.lab.early_stopping import EarlyStopping
from whence.lab.kernels import training_kernels
from whence.lab.running_score import RunningScore
from whence.lab.study import Budget
from whence.lab.tasks import IGNORE_INDEX, Batch, Task, select_row
from whence.position.base import Position

#: steps between two checks by the processes of a distributed run whether to save a checkpoint
SYNC_INTERVAL = 20
#: signals that end a run after its next step, with a checkpoint
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)


@dataclass(frozen=True)
class Progress:
    """The state of a run, for progress displays."""

    step: int
    steps: int
    loss: float
    values: dict[str, float] | None = None  # of an evaluation, by split


class DivergenceError(Exception):
    """The loss, the gradient or a metric is not finite. The record has the step and the last good checkpoint."""

    def __init__(self, step: int, what: str, curves: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{what} at step {step}")
        self.step, self.curves = step, dict(curves or {})  # up to there


@contextmanager
def catch_stop_signals() -> Iterator[Callable[[], int | None]]:
    """Yield a function that returns the number of a stop signal that the process got, or None.

    Clusters send SIGTERM when they take a machine back, Slurm SIGUSR2 before a time limit, and Ctrl-C sends SIGINT. A Ctrl-C
    after another signal raises KeyboardInterrupt at once. A process with a SIGINT handler of its own, such as a worker, keeps it.
    Signals can be handled in the main thread only; in other threads the function returns None.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def receive(number: int, frame: Any) -> None:
        if number == signal.SIGINT and received:
            raise KeyboardInterrupt
        received.append(number)
        if number == signal.SIGINT:
            with suppress(OSError):  # print may not run inside another print
                os.write(2, b"\nStopping after this step. Press Ctrl-C again to stop at once.\n")

    own_interrupts = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    numbers = [number for number in STOP_SIGNALS if not (own_interrupts and number == signal.SIGINT)]
    before = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def build_accelerator(budget: Budget) -> Any:
    """Hugging Face's Accelerator: one device, or several under ``accelerate launch`` or ``torchrun``."""
    require_package("accelerate", "training", "lab")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    # without the reset, every run of a process keeps the precision and sharding of the first; the process group stays
    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(mixed_precision=budget.mixed_precision, cpu=not torch.cuda.is_available())


def count_targets(batch: Batch) -> int:
    """The number of scored targets of a batch."""
    return int((batch.targets != IGNORE_INDEX).sum())


def sum_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of the cross-entropy in float32. Compiled, it reads the logits without a copy in float32, which is large for large vocabularies."""
    logits = logits.float().reshape(-1, logits.shape[-1])
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")


def compute_loss(
    task: Task,
    model: nn.Module,
    batch: Batch,
    total_targets: int,
    running: RunningScore | None = None,
    cross_entropy: Callable[[Tensor, Tensor], Tensor] = sum_cross_entropy,
) -> Tensor:
    """Cross-entropy sum of a part of a batch, divided by the number of targets in the full batch.

    ``running`` counts the batch for the running score.
    """
    logits = task.logits(model, batch)
    if running is not None:
        running.add(logits.float(), batch)
    return cross_entropy(logits, batch.targets) / total_targets


def sum_penalties(model: nn.Module) -> Tensor | None:
    """The sum of the penalties of a model's positions, such as that of ``FreeTable``; None if there is none."""
    found: list[Any] = [getattr(part, "penalty", None) for part in model.modules() if isinstance(part, Position)]
    terms = [term for term in (penalty() for penalty in found if penalty is not None) if term is not None]
    return torch.stack(terms).sum() if terms else None


def evaluate_split(task: Task, model: nn.Module, split: str, device: torch.device) -> dict[str, Any]:
    """The value of the metric on a split, with the counts behind it and the scores of what the model predicts."""
    return evaluate(task, model, task.evaluation(split), device, split)


@torch.no_grad()
def evaluate(
    task: Task, model: nn.Module, batches: list[Batch], device: torch.device, split: str | None = None
) -> dict[str, Any]:
    """The value of the metric over some batches, with the counts behind it. Texts and answers are predicted for a named split only."""
    was_training = model.training
    model.eval()
    accumulator = task.metric_accumulator()
    for batch in batches:
        batch = to_device(batch, device)
        accumulator.add(task.logits(model, batch).float(), batch)
    if split is not None:
        accumulator.prediction_scores = task.score_predictions(model, split)
    model.train(was_training)
    return accumulator.result()


@training_kernels()
def evaluate_weights(model: nn.Module, task: Task, budget: Budget, splits: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Evaluate a trained model as ``train`` does at its end."""
    accelerator = build_accelerator(budget)
    ready = accelerator.prepare(model)
    return {split: evaluate_split(task, ready, split, accelerator.device) for split in splits}


def to_device(batch: Batch, device: torch.device) -> Batch:
    return batch.map(lambda tensor: tensor.to(device))


def shard_batch(batch: Batch, index: int, count: int) -> Batch:
    """Every ``count``-th row from ``index`` on. If there is none, one row without targets, since every shard must run."""
    if count == 1:
        return batch
    shard = batch.map(lambda tensor: tensor[index::count])
    if len(shard.tokens) > 0:
        return shard
    first = select_row(batch, 0)
    return replace(first, targets=torch.full_like(first.targets, IGNORE_INDEX))


def seed_generator(seed: int, number: int) -> torch.Generator:
    """The generator of a step or an epoch, the same at every call."""
    return torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)


def build_optimizer(model: nn.Module, budget: Budget) -> torch.optim.Optimizer:
    """The optimizer of a budget, with a group of its own for parameters without weight decay."""
    optimizer_class = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}[budget.optimizer]
    parameters: Any = model.parameters()
    if budget.decay_matrices_only:
        inside = {id(p) for part in model.modules() if isinstance(part, Position) for p in part.parameters()}
        every = list(model.parameters())
        decayed = [p for p in every if p.ndim >= 2 and id(p) not in inside]
        others = [p for p in every if p.ndim < 2 or id(p) in inside]
        parameters = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        parameters = [group for group in parameters if group["params"]]
    betas = (0.9, budget.adam_beta2)
    return optimizer_class(parameters, lr=budget.lr, betas=betas, weight_decay=budget.weight_decay, fused=True)


class Schedule:
    """The number of steps, and the learning rate of each."""

    def __init__(self, task: Task, budget: Budget) -> None:
        self.budget = budget
        self.steps_per_epoch = 0
        if budget.epochs is not None:
            self.steps_per_epoch = sum(1 for _ in task.epoch(budget.batch_size, seed_generator(0, 0)))
        self.steps = budget.steps if budget.steps is not None else self.steps_per_epoch * (budget.epochs or 0)
        every = budget.evaluate_every
        self.evaluation_interval = None if every is None else every * (self.steps_per_epoch or 1)

    def lr(self, step: int) -> float:
        b = self.budget
        if step < b.warmup_steps:
            return b.lr * (step + 1) / b.warmup_steps
        if b.schedule == "constant":
            return b.lr
        done = (step - b.warmup_steps) / max(1, self.steps - b.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return b.lr * (b.min_lr_ratio + (1 - b.min_lr_ratio) * cosine)

    def evaluates_after(self, step: int) -> bool:
        return step + 1 == self.steps or (
            self.evaluation_interval is not None and (step + 1) % self.evaluation_interval == 0
        )


def batches(task: Task, budget: Budget, schedule: Schedule, seed: int, first: int) -> Iterator[Batch]:
    """The batches of all steps from step ``first`` on."""
    if budget.epochs is None:
        for step in range(first, schedule.steps):
            yield task.train_batch(budget.batch_size, seed_generator(seed, step))
        return
    for epoch in range(first // schedule.steps_per_epoch, budget.epochs):
        for number, batch in enumerate(task.epoch(budget.batch_size, seed_generator(seed, epoch))):
            if epoch * schedule.steps_per_epoch + number >= first:
                yield batch


@training_kernels()
def train(
    model: nn.Module,
    task: Task,
    budget: Budget,
    seed: int,
    state: Path,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    save_every: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train a model in place and return its curves. If the checkpoint file ``state`` exists, training resumes from it.

    A checkpoint is saved every ``save_every`` seconds, and when ``should_stop`` returns True, which raises ``Terminated``.
    """
    accelerator = build_accelerator(budget)
    processes, index = accelerator.num_processes, accelerator.process_index
    # in distributed training each process may hold a shard of the weights: a copy is trained, and the model stays whole
    learner = model if accelerator.distributed_type == "NO" else copy.deepcopy(model)
    optimizer = build_optimizer(learner, budget)
    schedule = Schedule(task, budget)
    ready, optimizer = accelerator.prepare(learner, optimizer)
    forward: Any = torch.compile(ready) if budget.compile else ready
    cross_entropy: Any = torch.compile(sum_cross_entropy) if budget.compile else sum_cross_entropy
    # seed after all setup: imports above may have consumed random numbers
    torch.manual_seed(seed + 1_000_000_007 * index)
    before = checkpoints.load(state, ready, optimizer.optimizer) or {"step": 0, "losses": [], "evaluations": []}
    losses, evaluations, first = before["losses"], before["evaluations"], before["step"]
    stopping = EarlyStopping(task, budget, evaluations, before.get("best"))
    ready.train()
    saved = time.monotonic()
    recent: list[float] = before.get("recent", [])
    running = RunningScore(task, before.get("running")) if task.tracks_training else None
    curves = {"losses": losses, "evaluations": evaluations}

    def save_checkpoint(steps_done: int) -> None:
        progress = {"step": steps_done, "recent": recent, **curves}
        if running is not None:
            progress["running"] = running.state()
        main = accelerator.is_main_process
        checkpoints.save(state, ready, optimizer.optimizer, progress, best=stopping.best, write=main)

    def evaluate_at(step: int, split: str, trained: nn.Module) -> dict[str, Any]:
        try:
            return evaluate_split(task, trained, split, accelerator.device)
        except NonFiniteHook as error:
            raise DivergenceError(step, f"in the evaluation on {split} {first_clause(error)}", curves) from error

    step = first - 1
    for step, batch in enumerate(batches(task, budget, schedule, seed, first), start=first):
        if stopping.should_stop:  # after the previous evaluation, which may stem from a process that was killed since
            step -= 1
            break
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr(step)
        targets, total = count_targets(batch), torch.zeros((), device=accelerator.device)
        for part in range(budget.grad_accum_steps):
            shard = shard_batch(shard_batch(batch, part, budget.grad_accum_steps), index, processes)
            try:
                with accelerator.autocast():
                    part_batch = to_device(shard, accelerator.device)
                    loss = compute_loss(task, forward, part_batch, targets, running, cross_entropy)
            except NonFiniteHook as error:  # it names the mechanism
                if processes > 1:  # another process may have no such error, and saving needs all of them
                    raise
                save_checkpoint(step)
                raise DivergenceError(step, first_clause(error), curves) from error
            penalty = sum_penalties(learner)  # the reported loss is the cross-entropy alone
            own = 0 if penalty is None else penalty / (budget.grad_accum_steps * processes)
            accelerator.backward((loss + own) * processes)  # gradients are averaged over processes
            total += loss.detach()
        mean = float(accelerator.reduce(total, "sum"))
        if not math.isfinite(mean):
            save_checkpoint(step)
            raise DivergenceError(step, f"the loss became {mean}", curves)
        norm = accelerator.clip_grad_norm_(
            ready.parameters(), math.inf if budget.max_grad_norm is None else budget.max_grad_norm
        )
        if not math.isfinite(float(norm)):  # checked before the weights change, so every checkpoint is finite
            save_checkpoint(step)
            raise DivergenceError(step, f"the gradient became {float(norm)}", curves)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(mean)
        values = None
        if schedule.evaluates_after(step):
            at_end = step + 1 == schedule.steps and budget.patience is None
            metrics = {
                split: evaluate_at(step, split, ready) for split in task.splits() if at_end or split in stopping.splits
            }
            require_finite(metrics, step, curves)
            evaluations.append({"step": step + 1, "splits": metrics})
            if running is not None:
                evaluations[-1]["training"] = running.take(accelerator)
            stopping.update(ready)
            losses.append({"step": step + 1, "loss": sum(recent) / len(recent)})
            recent = []
            values = {split: row["value"] for split, row in metrics.items()}
        if (
            budget.patience is None or step + 1 < schedule.steps
        ):  # with patience the last progress follows the final evaluation
            on_progress(Progress(step + 1, schedule.steps, mean, values))
        # several processes must agree, which costs communication, so they do not check at every step
        sync_now = processes == 1 or (step + 1) % SYNC_INTERVAL == 0
        stop = sync_now and _broadcast_decision(accelerator, should_stop())
        if stop or (sync_now and _broadcast_decision(accelerator, time.monotonic() - saved > save_every)):
            save_checkpoint(step + 1)
            saved = time.monotonic()
        if stop and step + 1 < schedule.steps:  # a run that is complete by now ends as usual
            raise Terminated(f"stopped at step {step + 1}; run the command again to resume")
    accelerator.wait_for_everyone()
    model.load_state_dict(stopping.best or checkpoints.gather_weights(ready))
    result = {"steps": schedule.steps, **curves}
    if accelerator.distributed_type != "NO":
        result["shared_by"] = str(accelerator.distributed_type.value)  # replicated or sharded weights
    if budget.patience is None:
        return result
    model.to(accelerator.device)
    last = {split: evaluate_at(step, split, model) for split in task.splits()}
    require_finite(last, step, result)
    evaluations.append({"step": stopping.best_step, "splits": last})  # the returned weights on all splits
    on_progress(
        Progress(schedule.steps, schedule.steps, last_loss(losses), {s: row["value"] for s, row in last.items()})
    )
    return result | {"last_step": step + 1, "best_step": stopping.best_step}


def require_finite(metrics: dict[str, dict[str, Any]], step: int, curves: Mapping[str, Any]) -> None:
    """Raise ``DivergenceError`` for an evaluation that is not finite: nothing can be compared with it."""
    for split, row in metrics.items():
        wrong = [value for value in row.values() if isinstance(value, float) and not math.isfinite(value)]
        if wrong:
            raise DivergenceError(step, f"the evaluation on {split} became {wrong[0]}", curves)


def first_clause(error: Exception) -> str:
    """The mechanism, the hook and what it returned, without the rule and the remedy."""
    return str(error).partition(", but ")[0]


def last_loss(losses: list[dict[str, Any]]) -> float:
    return losses[-1]["loss"] if losses else math.nan


def _broadcast_decision(accelerator: Any, own: bool) -> bool:
    """The decision of the main process: clocks differ, and all processes must save together."""
    if accelerator.num_processes == 1:
        return own
    decision = torch.tensor(float(own and accelerator.is_main_process), device=accelerator.device)
    return bool(accelerator.reduce(decision, "sum") > 0)

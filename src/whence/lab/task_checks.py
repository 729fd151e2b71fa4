"""Checks of a task's batches before training: the first training batch and every evaluation, with errors that name the task."""

from __future__ import annotations

import torch

from whence.errors import usage_error
from whence.lab.study import Study
from whence.lab.study_labels import label_task
from whence.lab.tasks import IGNORE_INDEX, Batch, Task
from whence.lab.tasks.metrics import BINARY_METRICS, CLASSIFICATION_METRICS
from whence.plugins import is_reference

#: kinds of tasks whose model is built from whence.models
KINDS = ("classify", "lm", "retrieve")
#: model settings with which the model of a task is another one than its kind says
MODEL_SETTINGS = ("kind", "num_classes", "vocab_size")
TRAINING = "training"


def read_batches(study: Study, task: Task) -> dict[str, list[Batch]]:
    """A training batch and the batches of each split, by the name of the split. What no model could process is an error."""
    subject = f"task {label_task(study.task, study.task_settings)!r}"
    require_kind(subject, task)
    require_metric(subject, task)
    in_epochs, draw = study.budget.epochs is not None, torch.Generator().manual_seed(0)
    source = "epoch" if in_epochs else "train_batch"
    size = study.budget.batch_size
    first = next(iter(task.epoch(size, draw)), None) if in_epochs else task.train_batch(size, draw)
    found = {TRAINING: [require_batch(subject, source, first)]}
    if is_reference(study.task) and not in_epochs:
        require_repeatable(subject, found[TRAINING], [task.train_batch(size, torch.Generator().manual_seed(0))], source)
    for split in task.splits():
        where, own = f"evaluation({split!r})", task.evaluation(split)
        if not isinstance(own, list | tuple) or not own:
            got = "an empty list" if isinstance(own, list | tuple) else f"a {type(own).__name__}"
            rule = "every split is a list of at least one Batch"
            raise usage_error(f"{subject}, {where}", got, rule, "return such a list")
        found[split] = [require_batch(subject, where, batch) for batch in own]
        if is_reference(study.task):
            require_repeatable(subject, found[split], list(task.evaluation(split)), where)
    if has_own_model(task) or any(name in arm for name in MODEL_SETTINGS for arm in _model_settings(study)):
        return found
    for name, batches in found.items():
        where = source if name == TRAINING else f"evaluation({name!r})"
        for batch in batches:
            require_contents(f"{subject}, {where}", task, batch)
        if name != TRAINING and not any(bool((batch.targets != IGNORE_INDEX).any()) for batch in batches):
            rule = f"an evaluation needs targets other than {IGNORE_INDEX}, which is not scored"
            raise usage_error(f"{subject}, {where}", "no target that is scored", rule, "add some, or drop the split")
    return found


def has_own_model(task: Task) -> bool:
    """Whether a task builds or calls its model itself, so that its kind says nothing about its batches."""
    own = type(task)
    return own.build_model is not Task.build_model or own.logits is not Task.logits


def require_kind(subject: str, task: Task) -> None:
    """Require what the default ``build_model`` reads."""
    if type(task).build_model is not Task.build_model:
        return
    if task.kind not in KINDS:
        rule = f"the kind is one of {', '.join(KINDS)}"
        raise usage_error(subject, f"kind={task.kind!r}", rule, "set one of them, or write build_model in the task")
    if task.kind == "classify" and task.num_classes is None:
        raise usage_error(subject, "no num_classes", "a task of kind 'classify' has classes", "set num_classes")


def require_metric(subject: str, task: Task) -> None:
    """Require a metric that follows from the answers, unless the task computes its own."""
    if type(task).metric_accumulator is not Task.metric_accumulator:
        return
    known = ["accuracy", "perplexity"]
    if task.num_classes is not None:
        known += [*CLASSIFICATION_METRICS[1:], *(BINARY_METRICS if task.num_classes == 2 else ())]
    known += task.prediction_metrics
    if task.metric not in known:
        rule = f"the metrics of this task are {', '.join(known)}"
        raise usage_error(subject, f"metric={task.metric!r}", rule, "set one of them, or write metric_accumulator")


def require_batch(subject: str, where: str, batch: object) -> Batch:
    """Require a ``Batch`` with rows of tokens; None stands for an epoch without one."""
    if batch is None:
        raise usage_error(f"{subject}, {where}", "no batch", "an epoch has at least one Batch", "yield batches")
    if not isinstance(batch, Batch):
        got, rule = f"a {type(batch).__name__}", "each batch is a whence.lab.tasks.Batch"
        raise usage_error(f"{subject}, {where}", got, rule, "return Batch(tokens, targets)")
    for name, tensor in (("tokens", batch.tokens), ("targets", batch.targets)):
        if not isinstance(tensor, torch.Tensor):
            got, rule = f"{name} of type {type(tensor).__name__}", "tokens and targets are tensors"
            raise usage_error(f"{subject}, {where}", got, rule, "pass torch.tensor(...)")
    if batch.tokens.ndim < 2 or not batch.tokens.numel():
        got = f"tokens of shape {list(batch.tokens.shape)}"
        raise usage_error(f"{subject}, {where}", got, "tokens have the shape [B, T]", "return rows of tokens")
    return batch


def require_repeatable(subject: str, batches: list[Batch], again: list[Batch], where: str) -> None:
    """Require equal batches from two equal calls of a user's task: all arms with a seed have the same data."""
    same = len(batches) == len(again) and all(
        torch.equal(one.tokens, other.tokens) and torch.equal(one.targets, other.targets)
        for one, other in zip(batches, again, strict=True)
    )
    if not same:
        rule = "arms with the same seed train and are evaluated on the same data"
        remedy = "draw with the generator of train_batch, and in an evaluation with one of a fixed seed"
        raise usage_error(f"{subject}, {where}", "other batches in a second call", rule, remedy)


def require_contents(where: str, task: Task, batch: Batch) -> None:
    """Require tokens and targets that the model of the task's kind can take."""
    for name, tensor, types in (
        ("tokens", batch.tokens, (torch.int64, torch.int32)),
        ("targets", batch.targets, (torch.int64,)),
    ):
        if tensor.dtype not in types:
            raise usage_error(where, f"{name} of {tensor.dtype}", f"{name} are torch.int64", f"pass {name}.long()")
    if batch.tokens.ndim != 2:
        got = f"tokens of shape {list(batch.tokens.shape)}"
        raise usage_error(where, got, "tokens have the shape [B, T]", "return rows of tokens")
    mask = batch.key_mask
    if mask is not None and (mask.dtype != torch.bool or mask.shape != batch.tokens.shape):
        got = f"key_mask of {mask.dtype} and shape {list(mask.shape)}"
        rule = f"key_mask is True for real tokens, in the shape of tokens, {list(batch.tokens.shape)}"
        raise usage_error(where, got, rule, "return a boolean mask, such as tokens != 0")
    rows, length = batch.tokens.shape
    shape, kind = ([rows], "[B]") if task.kind == "classify" else ([rows, length], "[B, T]")
    if list(batch.targets.shape) != shape:
        got = f"targets of shape {list(batch.targets.shape)} with tokens of shape [{rows}, {length}]"
        raise usage_error(where, got, f"targets of kind {task.kind!r} are {kind}", f"return targets of shape {shape}")
    _require_range(where, "token", batch.tokens, task.vocab_size, "vocab_size")
    scored = batch.targets[batch.targets != IGNORE_INDEX]
    if task.kind == "classify":
        _require_range(where, "target", scored, task.num_classes or 0, "num_classes")
    else:
        _require_range(where, "target", scored, task.vocab_size, "vocab_size")


def _require_range(where: str, what: str, values: torch.Tensor, size: int, setting: str) -> None:
    outside = values[(values < 0) | (values >= size)]
    if outside.numel():
        rule = f"every {what} is from 0 to {size - 1} with {setting}={size}"
        raise usage_error(where, f"the {what} {int(outside[0])}", rule, f"correct it, or increase {setting}")


def _model_settings(study: Study) -> list[dict[str, object]]:
    return [dict(study.model), *(dict(arm.model) for arm in study.arms)]

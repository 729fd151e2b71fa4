"""The task of a study and the models of its runs."""

from __future__ import annotations

import torch

from whence.errors import usage_error
from whence.lab import tasks
from whence.lab.study import Run, Study
from whence.lab.study_labels import label_task
from whence.lab.tasks.metrics import BINARY_METRICS, PREDICTION_METRICS

#: how a task on pairs of texts gets a metric of predicted texts
REMEDIES = {
    metric: f"set {count} (--{count} 200) of a task on pairs of texts, or "
    for count, metrics in {"translations": ("bleu", "chrf"), "summaries": ("rouge1", "rouge2", "rougeL")}.items()
    for metric in metrics
}


def load_task(study: Study) -> tasks.Task:
    """The task of a study, with the metric that the study's decision names."""
    task = tasks.load(study.task, **study.task_settings)
    metric = study.decision.metric or task.metric
    if metric != task.metric and type(task).metric_accumulator is not tasks.Task.metric_accumulator:
        raise usage_error(
            "Decision(metric=...)",
            repr(metric),
            f"{label_task(study.task, study.task_settings)} computes {task.metric} itself",
            "leave out metric",
        )
    if metric in PREDICTION_METRICS and metric not in (task.metric, *task.prediction_metrics):
        raise usage_error(
            "Decision(metric=...)",
            repr(metric),
            f"{label_task(study.task, study.task_settings)} predicts nothing that it scores",
            f"{REMEDIES.get(metric, '')}choose another metric",
        )
    if metric in BINARY_METRICS and task.num_classes not in (None, 2):
        raise usage_error(
            "Decision(metric=...)",
            repr(metric),
            f"{label_task(study.task, study.task_settings)} has {task.num_classes} classes, and it is the F1 of two",
            "choose macro_f1",
        )
    if task.num_classes is None and metric not in ("accuracy", "perplexity", task.metric, *task.prediction_metrics):
        raise usage_error(
            "Decision(metric=...)",
            repr(metric),
            f"{label_task(study.task, study.task_settings)} is not a classification task",
            "choose accuracy or perplexity",
        )
    task.metric = metric
    return task


def build_model(run: Run, task: tasks.Task) -> torch.nn.Module:
    """The model of a run, initialised by its seed."""
    return task.build_model(run.model, run.arm, run.seed)

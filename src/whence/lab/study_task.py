"""The task of a study and the models of its runs."""

from __future__ import annotations

import torch

from whence.errors import usage_error
from whence.lab import tasks
from whence.lab.study import Run, Study
from whence.lab.study_labels import label_task
from whence.lab.tasks.metrics import GENERATION_METRICS


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
    if metric in GENERATION_METRICS and metric not in (task.metric, *task.generation_metrics):
        raise usage_error(
            "Decision(metric=...)",
            repr(metric),
            f"{label_task(study.task, study.task_settings)} translates nothing",
            "set translations (--translations 200) of a task on pairs of texts, or choose another metric",
        )
    if task.num_classes is None and metric not in ("accuracy", "perplexity", task.metric, *task.generation_metrics):
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

"""Measure the positional bias of a pretrained model and find where it comes from.

    from whence import probe
    lm = probe.load("smollm2")
    folder, records = probe.measure(lm, probe.default_plan("smollm2", include_documents=False), Path("build/probe"))
    probe.curve([record for record in records if record["task"] == "key-value"], "likelihood")

``whence probe`` runs all of it from the command line. ``whence.probe.arrays`` holds the methods as functions of arrays.
"""

from whence.probe.analyses import explain
from whence.probe.curves import curve
from whence.probe.findings import compare_probes, findings
from whence.probe.likelihood import score_choices
from whence.probe.measurement import measure
from whence.probe.plan import Plan, TaskSpec, default_plan, full_plan, quick_plan
from whence.probe.probed_model import ProbedModel, load, tiny_random_model
from whence.probe.tasks import Item, ProbeTask, build_task

__all__ = [
    "Item", "Plan", "ProbeTask", "ProbedModel", "TaskSpec", "build_task", "compare_probes", "curve", "default_plan",
    "explain", "findings", "full_plan", "load", "measure", "quick_plan", "score_choices", "tiny_random_model",
]  # fmt: skip

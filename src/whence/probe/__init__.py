"""A pretrained model's positional bias: measured, and traced to where it comes from.

    from whence import bias
    subject = bias.load("smollm2")
    folder, records = bias.measure(subject, bias.usual("smollm2", documents=False), Path("build/probe"))
    bias.curve([record for record in records if record["task"] == "key-value"], "likelihood")

``whence probe`` does all of it. ``bias.arrays`` holds the methods as functions of arrays; ``bias.doubts`` tests three doubts.
"""

from whence.probe.curves import curve
from whence.probe.explaining import explain
from whence.probe.findings import findings
from whence.probe.likelihood import contest
from whence.probe.measuring import measure
from whence.probe.plan import Asked, Plan, full, quick, usual
from whence.probe.subject import Subject, load, quick_subject
from whence.probe.tasks import task

__all__ = [
    "Asked", "Plan", "Subject", "contest", "curve", "explain", "findings", "full", "load", "measure", "quick",
    "quick_subject", "task", "usual",
]  # fmt: skip

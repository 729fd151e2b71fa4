"""A whole probe of the tiny model on a GPU says what it says on the CPU: every answer, every explanation."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from whence import records
from whence.probe import explaining, measuring
from whence.probe.plan import Asked, Plan
from whence.probe.subject import Subject, quick_subject

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here; run on a machine with a GPU"),
]
PLAN = Plan(
    "quick",
    (Asked("key-value", 3, 3, {"pairs": 3}), Asked("needle", 2, 2, {"pieces": 2, "words": 5})),
    ("likelihood",), texts=3, tokens=48, intervened=1, chunk=2,
)  # fmt: skip


def probed(subject: Subject, base: Path) -> dict[str, dict]:
    folder, _ = measuring.measure(subject, PLAN, base)
    explaining.explain(subject, PLAN, folder, lambda *about: None)
    return {path.name: records.read(path) for path in folder.glob("*.json")}


def test_a_probe_on_the_gpu_says_what_one_on_the_cpu_says(tmp_path):
    here = probed(quick_subject(layers=2), tmp_path / "cpu")
    subject = quick_subject(layers=2)
    subject.model.cuda()
    there = probed(subject, tmp_path / "cuda")
    assert set(here) == set(there)
    for way in explaining.WAYS:
        assert set(here[explaining.file_name(way)]["found"]) == set(there[explaining.file_name(way)]["found"])
    assert torch.allclose(*(_shares(found) for found in (here, there)), atol=1e-3)


def _shares(found: dict[str, dict]) -> torch.Tensor:
    rows = [row for name in sorted(found) if name.startswith("key-value") for row in found[name]["rows"]]
    return torch.tensor([row["share"] for row in rows])

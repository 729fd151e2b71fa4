"""A whole probe of the tiny model on a GPU says what it says on the CPU: every answer, every explanation."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from whence import records
from whence.probe import analyses, measurement
from whence.probe.plan import Plan, TaskSpec
from whence.probe.probed_model import ProbedModel, tiny_random_model

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device here; run on a machine with a GPU", allow_module_level=True)
PLAN = Plan(
    "quick",
    (TaskSpec("key-value", 3, 3, {"pairs": 3}), TaskSpec("needle", 2, 2, {"pieces": 2, "words": 5})),
    ("likelihood",), texts=3, tokens=48, intervention_items=1, items_per_record=2,
)  # fmt: skip


def probed(lm: ProbedModel, base: Path) -> dict[str, dict]:
    folder, _ = measurement.measure(lm, PLAN, base)
    analyses.explain(lm, PLAN, folder, lambda *about: None)
    return {path.name: records.read(path) for path in folder.glob("*.json")}


def test_a_probe_on_the_gpu_says_what_one_on_the_cpu_says(tmp_path):
    here = probed(tiny_random_model(layers=2), tmp_path / "cpu")
    lm = tiny_random_model(layers=2)
    lm.model.cuda()
    there = probed(lm, tmp_path / "cuda")
    assert set(here) == set(there)
    for way in analyses.ANALYSES:
        assert set(here[analyses.file_name(way)]["result"]) == set(there[analyses.file_name(way)]["result"])
    assert torch.allclose(*(_shares(result) for result in (here, there)), atol=1e-3)


def _shares(result: dict[str, dict]) -> torch.Tensor:
    rows = [row for name in sorted(result) if name.startswith("key-value") for row in result[name]["rows"]]
    return torch.tensor([row["probability"] for row in rows])

"""Training on a GPU: what the CPU learns, again and again the same, in bfloat16, and with the weights sharded (FSDP)."""

import json
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("accelerate")
from safetensors.torch import load_file

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device here; run on a machine with a GPU", allow_module_level=True)
STUDY = """
from whence.lab.arms import parse_arm
from whence.lab.study import Budget, Decision, Study


def studies():
    return [Study(
        name="on-gpu-PRECISION", question="is it the same", task="retrieval",
        task_settings={"pairs": 2, "keys": 16, "values": 4, "items": 64},
        model={"embed_dim": 32, "heads": 2, "layers": 2, "ffn_dim": 32, "dropout": 0.0},
        arms=tuple(parse_arm(name) for name in ("none", "rotary", "alibi", "epar", "t5", "power")), seeds=(0,),
        budget=Budget(steps=20, batch_size=16, evaluate_every=10, mixed_precision="PRECISION", grad_accum_steps=2),
        decision=Decision(baseline="none"),
    )]
"""
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
ONE_OF_ONE = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")


def records_of(folder, precision="no", start=(), env=None):
    """Every arm's record and weights of the study, run as a command."""
    folder.mkdir()
    (folder / "study.py").write_text(STUDY.replace("PRECISION", precision))
    done = subprocess.run(
        [sys.executable, *start, "-m", "whence", "run", str(folder / "study.py"), "--jobs", "1", "--out", str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}), capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    actual = {path.name: json.loads(path.read_text()) for path in folder.rglob("*seed0.json")}
    assert len(actual) == 6
    return actual, {path.name: load_file(path) for path in folder.rglob("weights/*.safetensors")}


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    return records_of(tmp_path_factory.mktemp("gpu") / "once")


def require_alike(one, other, within):
    for name, record in one.items():
        for a, b in zip(record["result"]["losses"], other[name]["result"]["losses"], strict=True):
            assert a["loss"] == pytest.approx(b["loss"], rel=within), name


def test_it_learns_what_the_cpu_learns(on_gpu, tmp_path):
    assert all(record["environment"]["machine"].get("accelerator") for record in on_gpu[0].values())
    require_alike(on_gpu[0], records_of(tmp_path / "cpu", env=HIDDEN)[0], 2e-3)


def test_the_same_seed_gives_the_same_bits(on_gpu, tmp_path):
    again, weights = records_of(tmp_path / "again")
    require_alike(on_gpu[0], again, 0.0)
    assert weights.keys() == on_gpu[1].keys() and weights
    for name, tensors in weights.items():
        assert all(torch.equal(tensor, on_gpu[1][name][part]) for part, tensor in tensors.items()), name


def test_in_bfloat16_it_learns_nearly_the_same_with_weights_in_float32(on_gpu, tmp_path):
    narrow, weights = records_of(tmp_path / "narrow", precision="bf16")
    require_alike(on_gpu[0], narrow, 3e-2)
    assert {tensor.dtype for tensors in weights.values() for tensor in tensors.values()} == {torch.float32}
    assert all(narrow[name]["result"]["losses"] != record["result"]["losses"] for name, record in on_gpu[0].items())


def test_and_with_the_weights_sharded(on_gpu, tmp_path):
    """One process, for NCCL refuses two on one GPU; the weights go through FSDP's sharding all the same."""
    sharded, weights = records_of(tmp_path / "sharded", start=ONE_OF_ONE, env=SHARDED)
    require_alike(on_gpu[0], sharded, 1e-3)
    assert {record["result"]["shared_by"] for record in sharded.values()} == {"FSDP"}  # every run, not the first alone
    assert weights.keys() == on_gpu[1].keys() and weights
    for name, tensors in weights.items():
        for part, tensor in tensors.items():
            torch.testing.assert_close(tensor, on_gpu[1][name][part], rtol=1e-2, atol=1e-3)

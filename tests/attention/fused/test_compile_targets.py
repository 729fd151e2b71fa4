"""``benchmarks/compile_targets.py``: a killed run resumes, and no run takes the cases of another."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "compile_targets.py"


class Serial:
    """A pool in this process."""

    def __init__(self, *arguments, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    map = map


@pytest.fixture
def script(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", ""))  # the script hides GPUs
    spec = importlib.util.spec_from_file_location("compile_targets", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ProcessPoolExecutor", Serial)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def run(script, monkeypatch, *arguments, failing=""):
    """The cases that a run compiled; the one of ``failing`` raises."""
    compiled = []

    def compile_case(target, name, head_dim, dtype):
        if target == failing:
            raise KeyboardInterrupt
        compiled.append((target, name))
        return [{"target": target, "position": name, "head_dim": head_dim, "dtype": "bfloat16", "kernel": "a",
                 "shared": 1, "limit": 2}]  # fmt: skip

    monkeypatch.setattr(script, "compile_case", compile_case)
    monkeypatch.setattr(sys, "argv", ["compile_targets.py", *arguments])
    if failing:
        with pytest.raises(KeyboardInterrupt):
            script.main()
    else:
        script.main()
    return compiled


def test_a_killed_run_resumes(script, monkeypatch, tmp_path, capsys):
    arguments = [
        "--positions",
        "none",
        "--head-dims",
        "64",
        "--targets",
        "sm_80",
        "sm_86",
        "--out",
        str(tmp_path / "out.json"),
    ]
    assert run(script, monkeypatch, *arguments, failing="sm_86") == [("sm_80", "none")] * 2  # two dtypes
    run(script, monkeypatch, "--quick", "--targets", "sm_80")
    other = run(script, monkeypatch, *arguments[:-1], str(tmp_path / "other" / "out.json"))
    assert len(other) == 4  # neither takes the cases of the killed run
    assert run(script, monkeypatch, *arguments) == [("sm_86", "none")] * 2
    record = script.records.read(tmp_path / "out.json")
    assert [row["target"] for row in record["kernels"]] == ["sm_80", "sm_80", "sm_86", "sm_86"]
    assert "--targets sm_80 sm_86" in record["command"]
    assert not list((tmp_path / "build").iterdir())
    monkeypatch.setattr(script, "__file__", __file__)  # another source
    assert run(script, monkeypatch, *arguments, failing="sm_86") == [("sm_80", "none")] * 2
    monkeypatch.setattr(script, "__file__", str(SCRIPT))
    assert len(run(script, monkeypatch, *arguments)) == 4

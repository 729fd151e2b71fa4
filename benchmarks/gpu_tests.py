"""Run the GPU tests and compute-sanitizer on an NVIDIA GPU, and record the results.

python benchmarks/gpu_tests.py                 # minutes on an H200; writes benchmarks/records/gpu_tests.json
python benchmarks/gpu_tests.py --jobs 12 --sanitizer /usr/local/cuda/bin/compute-sanitizer
"""

from __future__ import annotations

import argparse
import collections
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import torch

from whence import records

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/attention", "tests/probe/test_probe_on_gpu.py", "tests/lab/test_lab_on_gpu.py")
SMOKE_SCRIPT = "tests/attention/fused/sanitizer_case.py"


def run_tests(jobs: str) -> dict[str, Any]:
    """Passed tests per file, failed tests, and skipped tests with reasons."""
    with tempfile.TemporaryDirectory() as folder:
        xml_report = Path(folder) / "tests.xml"
        options = [
            "-o",
            "addopts=",
            "-q",
            "-ra",
            "-p",
            "no:cacheprovider",
            "-m",
            "gpu",
            "--dist",
            "worksteal",
            "-n",
            jobs,
        ]
        started = time.monotonic()
        process = subprocess.run(
            [sys.executable, "-m", "pytest", *options, f"--junitxml={xml_report}", *TESTS], cwd=ROOT
        )
        seconds = time.monotonic() - started
        cases = list(ET.parse(xml_report).iter("testcase")) if xml_report.exists() else []
    passed: collections.Counter[str] = collections.Counter()
    failed, skipped = [], []
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif (reason := case.find("skipped")) is not None:
            skipped.append({"test": name, "reason": reason.get("message")})
        else:
            passed[str(case.get("classname"))] += 1
    return {
        "exit_code": process.returncode, "seconds": seconds, "passed": sum(passed.values()),
        "passed_by_file": dict(sorted(passed.items())), "failed": failed, "skipped": skipped,
    }  # fmt: skip


def run_sanitizer(sanitizer: str) -> dict[str, Any]:
    """The summary of compute-sanitizer for a small case of every kernel."""
    command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "1", sys.executable, SMOKE_SCRIPT]
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return {"exit_code": None, "message": f"{sanitizer} not found"}
    lines = (process.stdout + process.stderr).strip().splitlines()
    return {"exit_code": process.returncode, "message": lines[-1].strip("= ") if lines else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="auto", help="Number of parallel test processes.")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="Path of compute-sanitizer.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "gpu_tests.json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu_tests.py needs a CUDA device")
    environment = records.describe_environment(("torch", "triton"), accelerator=torch.cuda.get_device_name())
    tests, memory = run_tests(args.jobs), run_sanitizer(args.sanitizer)
    records.write(args.out, {"command": "make gpu-test", "environment": environment, "tests": tests, "memory": memory})
    print(f"{tests['passed']} passed, {len(tests['failed'])} failed; {memory['message']}")
    if tests["exit_code"] or memory["exit_code"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""The fused kernels' tests on an NVIDIA GPU and a memory check of a small case, and a record of how they ended.

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
SMALL_CASE = "tests/attention/fused/small_case.py"


def tested(jobs: str) -> dict[str, Any]:
    """How many tests of each file passed, which failed, and why some were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "tests.xml"
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
        began = time.monotonic()
        ended = subprocess.run([sys.executable, "-m", "pytest", *options, f"--junitxml={page}", *TESTS], cwd=ROOT)
        seconds = time.monotonic() - began
        cases = list(ET.parse(page).iter("testcase")) if page.exists() else []
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
        "exit_code": ended.returncode, "seconds": seconds, "passed": sum(passed.values()),
        "passed_by_file": dict(sorted(passed.items())), "failed": failed, "skipped": skipped,
    }  # fmt: skip


def memory_checked(sanitizer: str) -> dict[str, Any]:
    """What compute-sanitizer says of every kernel on a small case."""
    command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "1", sys.executable, SMALL_CASE]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return {"exit_code": None, "said": f"there is no {sanitizer} here"}
    lines = (ended.stdout + ended.stderr).strip().splitlines()
    return {"exit_code": ended.returncode, "said": lines[-1].strip("= ") if lines else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="auto", help="tests side by side")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="where it is")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "gpu_tests.json")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu_tests.py tests on a CUDA device, and there is none here")
    where = records.describe_environment(("torch", "triton"), accelerator=torch.cuda.get_device_name())
    tests, memory = tested(given.jobs), memory_checked(given.sanitizer)
    records.write(given.out, {"command": "make gpu-test", "environment": where, "tests": tests, "memory": memory})
    print(f"{tests['passed']} passed, {len(tests['failed'])} failed; {memory['said']}")
    if tests["exit_code"] or memory["exit_code"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

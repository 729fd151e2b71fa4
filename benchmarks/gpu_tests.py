"""Run the GPU tests and compute-sanitizer on an NVIDIA GPU, and record the results.

python benchmarks/gpu_tests.py                 # minutes on an H200; writes benchmarks/records/gpu_tests.json
python benchmarks/gpu_tests.py --jobs 12 --sanitizer /usr/local/cuda/bin/compute-sanitizer
python benchmarks/gpu_tests.py --parts sanitizer            # one part; the record keeps the other, if it is of the same commit
python benchmarks/gpu_tests.py --limit 540                  # end the tests after these seconds; the record says how many ran

Tests run in several processes: each takes every n-th test, so pytest-xdist is not needed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import signal
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
PARTS = {"tests": "tests", "sanitizer": "memory"}  # what can be run, and its key in the record
SANITIZER_LIMIT = 400  # seconds
NO_TESTS = 5  # pytest's exit status of a process without a test
SMOKE_SCRIPT = "tests/attention/fused/sanitizer_case.py"


def run_tests(jobs: int, limit: float) -> dict[str, Any]:
    """Passed tests per file, failed tests, and skipped tests with reasons."""
    started = time.monotonic()
    options = ["-o", "addopts=", "-q", "-ra", "-p", "no:cacheprovider", "-p", "every_nth_test", "-m", "gpu"]
    paths = os.pathsep.join([str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / f"tests_{index}.xml" for index in range(jobs)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, f"--junitxml={report}", *TESTS],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": paths, "TEST_SHARD": f"{index}/{jobs}"},
            )
            for index, report in enumerate(reports)
        ]
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, started + limit - time.monotonic()))
        late = [process for process in processes if process.poll() is None]
        for process in late:
            process.send_signal(signal.SIGINT)  # pytest then writes its report
        for process in late:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        seconds = time.monotonic() - started
        cases = [case for report in reports if report.exists() for case in ET.parse(report).iter("testcase")]
    codes = [process.returncode for process in processes]
    return {
        "exit_code": next((code for code in codes if code not in (0, NO_TESTS)), 0), "seconds": seconds,
        "ended": not late,
        **summarize(cases),
    }  # fmt: skip


def summarize(cases: list[ET.Element]) -> dict[str, Any]:
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
        "passed": sum(passed.values()),
        "passed_by_file": dict(sorted(passed.items())),
        "failed": failed,
        "skipped": skipped,
    }


def run_sanitizer(sanitizer: str) -> dict[str, Any]:
    """The summary of compute-sanitizer for a small case of every kernel."""
    command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "1", sys.executable, SMOKE_SCRIPT]
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SANITIZER_LIMIT)
    except FileNotFoundError:
        return {"exit_code": None, "message": f"{sanitizer} not found"}
    except subprocess.TimeoutExpired:
        return {"exit_code": None, "message": f"not ended after {SANITIZER_LIMIT} s"}
    lines = (process.stdout + process.stderr).strip().splitlines()
    return {"exit_code": process.returncode, "message": lines[-1].strip("= ") if lines else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=12, help="Number of parallel test processes.")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="Path of compute-sanitizer.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="What to run.")
    parser.add_argument("--limit", type=float, default=1500.0, help="Time limit of the tests, in seconds.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "gpu_tests.json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu_tests.py needs a CUDA device")
    environment = records.describe_environment(("torch", "triton"), accelerator=torch.cuda.get_device_name())
    record: dict[str, Any] = {"command": "make gpu-test gpu-sanitize", "environment": environment}
    record |= {"tests": summarize([]) | {"exit_code": None}, "memory": {"exit_code": None, "message": "not run"}}
    if args.out.exists():
        before = records.read(args.out)
        same = before["environment"].get("commit") == environment.get("commit")
        record |= {key: before[key] for key in ("tests", "memory") if same}
    if "tests" in args.parts:
        tests = record["tests"] = run_tests(args.jobs, args.limit)
        records.write(args.out, record)  # before the sanitizer, which may take long
        print(f"{tests['passed']} passed, {len(tests['failed'])} failed in {tests['seconds']:.0f} s")
    if "sanitizer" in args.parts:
        record["memory"] = run_sanitizer(args.sanitizer)
        records.write(args.out, record)
        print(record["memory"]["message"])
    if any(record[key]["exit_code"] != 0 for part, key in PARTS.items() if part in args.parts):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""Trial: the backward pass at head dim 128 as warp-specialised Gluon kernels, one for dq and one for dk and dv.

    python benchmarks/gluon_backward --out trial.json       # on a Hopper GPU: check, then time; under 6 minutes
    python benchmarks/gluon_backward --check                # the same without times
    python benchmarks/gluon_backward --compile              # on a CPU: registers, spills, shared memory for sm_90
    python benchmarks/gluon_backward --emulate              # on a CPU: results and barriers with threads for roles

The kernels take the inputs of the Triton kernels ``backward_dq_kernel`` and ``backward_dkdv_kernel`` and give their results, for
causal attention without position, with a table of the score scale, or with a table of the bias. Each configuration is checked and
timed in a process of its own with a time limit, so that one that fails or never ends leaves the others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for gpu_timing and gpu_variants

from compile_facts import compile_all
from configs import CONFIGS
from emulator import emulate
from gpu_calls import MECHANISMS, TIMED_SHAPES
from gpu_checks import check_config, summarize_checks
from gpu_times import print_times, time_shape
from whence import records
from workers import run_workers

CHECK_SECONDS, TIME_SECONDS, TOTAL_SECONDS = 170, 75, 350


def run_on_gpu(out: Path | None, check_only: bool) -> None:
    start = time.monotonic()
    tasks = {config.name: ["--worker", "check", str(i)] for i, config in enumerate(CONFIGS)}
    rows, failures = run_workers(tasks, CHECK_SECONDS, len(tasks))
    good = [i for i, config in enumerate(CONFIGS) if summarize_checks(rows, failures, config)]

    def save() -> None:
        if out is not None:
            environment = records.describe_environment(("torch", "triton"))
            out.write_text(json.dumps({"environment": environment, "rows": rows, "failures": failures}, indent=1))

    save()
    print(f"checks took {time.monotonic() - start:.0f} s", flush=True)
    if check_only or not good:
        return
    for shape, mechanism in itertools.product(TIMED_SHAPES, MECHANISMS):
        for numbers in (good, *([i] for i in good)):  # each by itself only if all together fail
            left = TOTAL_SECONDS - (time.monotonic() - start)
            if left < 20:
                print(f"no time left for {mechanism}, {shape}")
                break
            task = ["--worker", "time", mechanism, json.dumps(shape), json.dumps(numbers)]
            name = f"times of {mechanism}, {shape}, configurations {numbers}"
            found, failed = run_workers({name: task}, min(TIME_SECONDS, left), 1)
            rows, failures = rows + found, failures | failed
            for row in found:
                print_times(row)
            for title, reason in failed.items():
                print(f"{title}: {reason}")
            save()
            sys.stdout.flush()
            if not failed:
                break
    print(f"all took {time.monotonic() - start:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="Compare results, without times.")
    parser.add_argument("--compile", action="store_true", help="Compile for compute capability 9.0 on a CPU.")
    parser.add_argument("--emulate", action="store_true", help="Run the kernels on a CPU with threads for roles.")
    parser.add_argument("--out", type=Path, help="A JSON file for the results.")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compile:
        compile_all(args.out)
    elif args.emulate:
        emulate()
    elif not torch.cuda.is_available():
        raise SystemExit("no CUDA device: checks and times need a Hopper GPU; --emulate and --compile run on a CPU")
    elif args.worker and args.worker[0] == "check":
        check_config(int(args.worker[1]))
    elif args.worker:
        time_shape(args.worker[1], tuple(json.loads(args.worker[2])), json.loads(args.worker[3]))
    else:
        run_on_gpu(args.out, args.check)


if __name__ == "__main__":
    main()

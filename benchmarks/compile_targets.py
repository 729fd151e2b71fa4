"""Compile every fused kernel ahead of time for GPUs that are not here, and compare its shared memory with their limits.

    python benchmarks/compile_targets.py                     # minutes on a CPU; writes benchmarks/records/compile_targets.json
    python benchmarks/compile_targets.py --targets sm_80 --quick

Triton compiles for a target without owning it. The host code runs on CPU tensors with its own tiles and arguments; each
launch compiles the kernel and stops there. The record says which kernels were compiled, never that they ran.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import whence
from whence import records
from whence.attention.fused import direct_launch, packing
from whence.attention.fused.backend import max_head_dim

ROOT = Path(__file__).resolve().parent.parent
#: bytes of shared memory that one program can have, from NVIDIA's table of compute capabilities
SHARED_LIMITS = {"sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_89": 99 * 1024, "sm_90": 227 * 1024}
POSITIONS = {
    "none": lambda heads: None,
    "epar": lambda heads: whence.Epar(heads, learnable=True),
    "alibi": lambda heads: whence.Alibi(heads, learnable=True),
    "prior": lambda heads: whence.PowerPrior(heads, alpha=0.01),
    "t5": lambda heads: whence.T5Bias(heads, std=1.0),
    "rotary + epar": lambda heads: whence.Rotary() + whence.Epar(heads),
    "epar + t5 + sink": lambda heads: whence.Epar(heads, learnable=True) + whence.T5Bias(heads) + whence.Sink(heads),
}
HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.bfloat16, torch.float32)


class CompilingDriver:
    """What Triton asks of a driver before a launch, for a GPU that is not here."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@contextlib.contextmanager
def compile_only(target: str) -> Iterator[list[dict[str, Any]]]:
    """Compile every kernel that is launched inside, for a target such as ``sm_80``; yields what was compiled."""
    compiled: list[dict[str, Any]] = []
    launch, seen = JITFunction.run, set()

    def compile_kernel(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = launch(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            compiled.append(
                {"kernel": kernel.metadata.name, "shared": kernel.metadata.shared, "warps": kernel.metadata.num_warps}
            )
        return kernel

    capability = int(target.removeprefix("sm_"))
    with (
        mock.patch.object(JITFunction, "run", compile_kernel),
        mock.patch.object(triton.runtime.driver, "_active", CompilingDriver(capability)),
        mock.patch.object(packing, "has_tma", return_value=capability >= 90),
        mock.patch("whence.attention.fused.backend.is_interpreted", return_value=True),  # the kernels take CPU tensors
        mock.patch.object(direct_launch, "KNOWN_VERSIONS", ()),  # later launches of a plan come here too
        mock.patch.object(packing, "num_multiprocessors", return_value=100),
    ):
        yield compiled


def run_calls(name: str, head_dim: int, dtype: torch.dtype) -> None:
    """Forward and backward: over a whole sequence, over earlier keys, and by the plan of a repeated call."""
    heads = 4
    for queries, keys, repeats in ((128, 128, 2), (9, 9, 2), (2, 300, 1)):
        position = POSITIONS[name](heads)
        q, k, v = (
            torch.zeros(1, n, length, head_dim, dtype=dtype, requires_grad=True)
            for n, length in ((heads, queries), (2, keys), (2, keys))
        )
        where = {"q_positions": torch.arange(keys - queries, keys), "k_positions": torch.arange(keys)}
        for _ in range(repeats):
            out = whence.attend(
                q, k, v, position=position, causal=True, backend="triton", **({} if queries == keys else where)
            )
            out.sum().backward()


def compile_case(target: str, name: str, head_dim: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """The kernels of one mechanism, head dimension and dtype on one target."""
    with compile_only(target) as compiled:
        run_calls(name, head_dim, dtype)
    case = {"target": target, "position": name, "head_dim": head_dim, "dtype": str(dtype).removeprefix("torch.")}
    return [{**case, **row, "limit": SHARED_LIMITS[target]} for row in compiled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(SHARED_LIMITS), choices=list(SHARED_LIMITS))
    parser.add_argument("--head-dims", nargs="+", type=int, default=list(HEAD_DIMS))
    parser.add_argument("--positions", nargs="+", default=list(POSITIONS), choices=list(POSITIONS))
    parser.add_argument("--quick", action="store_true", help="One mechanism, one head dimension, bfloat16; no record.")
    parser.add_argument("--jobs", type=int, default=1, help="Number of parallel processes.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "compile_targets.json")
    args = parser.parse_args()
    cases = [
        (target, name, head_dim, dtype)
        for target, name, head_dim, dtype in itertools.product(args.targets, args.positions, args.head_dims, DTYPES)
        if head_dim <= max_head_dim(divmod(int(target.removeprefix("sm_")), 10), dtype)  # the backend refuses others
    ]
    if args.quick:
        cases = [(target, "epar", 64, torch.bfloat16) for target in args.targets]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for result in pool.map(compile_case, *zip(*cases, strict=True)):
            rows += result
            for row in result:
                where = f"{row['target']} {row['position']:18} {row['head_dim']:4} {row['dtype']:9} {row['kernel']:26}"
                fits = "" if row["shared"] <= row["limit"] else "  TOO LARGE"
                print(f"{where} {row['shared'] / 1024:6.1f} of {row['limit'] // 1024} KB{fits}", flush=True)
    environment = records.describe_environment(("torch", "triton"))
    content = {"command": "python benchmarks/compile_targets.py", "environment": environment, "kernels": rows}
    if not args.quick:
        records.write(args.out, content)
    if any(row["shared"] > row["limit"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

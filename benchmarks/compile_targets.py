"""Compile every fused kernel ahead of time for GPUs that are not here, and compare its shared memory with their limits.

    python benchmarks/compile_targets.py                     # an hour of a CPU; writes benchmarks/records/compile_targets.json
    python benchmarks/compile_targets.py --targets sm_80 --quick
    python benchmarks/compile_targets.py --targets sm_90 --quick        # the Gluon kernels

Triton compiles for a target without owning it. The host code runs on CPU tensors with its own tiles and arguments; each
launch compiles the kernel and stops there. The record says which kernels were compiled, never that they ran. A GPU of this
machine is hidden.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import multiprocessing
import os
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # also in the worker processes, which import this file

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import whence
from whence import records
from whence.attention.content_tables import MAX_GATED_HEAD_DIM
from whence.attention.fused import backend, diagonals, direct_launch, eager, gluon_launch, ops, packing, tile_configs
from whence.attention.fused.tile_configs import max_head_dim

ROOT = Path(__file__).resolve().parent.parent
#: bytes of shared memory that one program can have, from NVIDIA's table of compute capabilities and AMD's of local data share
SHARED_LIMITS = {"sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_89": 99 * 1024, "sm_90": 227 * 1024, "sm_120": 99 * 1024}
SHARED_LIMITS["gfx942"] = 64 * 1024
TARGETS = ("sm_80", "sm_86", "sm_89", "gfx942")  # compute capability 9.0 is tested on a GPU
POSITIONS = {
    "epar + t5 + sink": lambda heads, head_dim: (
        whence.Epar(heads, learnable=True) + whence.T5Bias(heads) + whence.Sink(heads)
    ),
    "rotary + epar": lambda heads, head_dim: whence.Rotary() + whence.Epar(heads, learnable=True),
    "epar + t5": lambda heads, head_dim: whence.Epar(heads, learnable=True) + whence.T5Bias(heads, std=1.0),
    "alibi": lambda heads, head_dim: whence.Alibi(heads, learnable=True),
    "t5": lambda heads, head_dim: whence.T5Bias(heads, std=1.0),
    "prior": lambda heads, head_dim: whence.PowerPrior(heads, alpha=0.01),
    "forget": lambda heads, head_dim: whence.ForgetGate(8, heads),
    "forget + t5 + sink": lambda heads, head_dim: (
        whence.ForgetGate(8, heads) + whence.T5Bias(heads, std=1.0) + whence.Sink(heads)
    ),
    "fire": lambda heads, head_dim: whence.Fire(heads),
    "epar, query": lambda heads, head_dim: whence.Epar(heads, length="query", learnable=True),
    "shaw": lambda heads, head_dim: whence.Shaw(head_dim),
    "query table + t5": lambda heads, head_dim: whence.QueryTable(heads, head_dim) + whence.T5Bias(heads, std=1.0),
    "swin": lambda heads, head_dim: whence.SwinBias(heads, (16, 16)),
    "cope": lambda heads, head_dim: whence.Cope(head_dim),
    "transformer-xl": lambda heads, head_dim: whence.TransformerXL(heads, head_dim),
    "grape": lambda heads, head_dim: whence.GrapeA(heads, head_dim),
    "dape": lambda heads, head_dim: whence.Dape(heads),
    "none": lambda heads, head_dim: None,
}
DTYPES = (torch.bfloat16, torch.float32)
WITH_DROPOUT = ("epar + t5", "alibi")  # which no mechanism changes
#: mechanisms that are also compiled with tiles of two parts, which no mechanism changes
IN_PARTS = ("epar + t5 + sink", "rotary + epar", "forget")


class CompilingDriver:
    """What Triton asks of a driver before a launch, for a GPU that is not here."""

    def __init__(self, target: str) -> None:
        nvidia = target.startswith("sm_")
        self.target = GPUTarget("cuda", int(target.removeprefix("sm_")), 32) if nvidia else GPUTarget("hip", target, 64)

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

    is_amd, is_hopper = target.startswith("gfx"), target == "sm_90"
    plain_loads = tl.constexpr(True) if is_amd else diagonals.PLAIN_LOADS
    with (
        mock.patch.object(JITFunction, "run", compile_kernel),
        mock.patch.object(triton.runtime.driver, "_active", CompilingDriver(target)),
        mock.patch.object(packing, "IS_AMD", is_amd),
        mock.patch.object(diagonals, "PLAIN_LOADS", plain_loads),
        mock.patch.object(packing, "is_hopper", return_value=is_hopper),
        mock.patch.object(gluon_launch, "ENABLED", is_hopper),
        mock.patch("whence.attention.clock._sums_by_kernel", return_value=True),
        mock.patch("whence.attention.attend.require_finite_hooks"),  # no kernel has written the results
        # a short sequence has the kernels of a long one, with TMA
        mock.patch.object(tile_configs, "FEW_PAIRS", 0 if is_hopper else tile_configs.FEW_PAIRS),
        mock.patch.object(packing, "shared_memory", return_value=SHARED_LIMITS[target]),
        mock.patch("whence.attention.fused.backend.is_interpreted", return_value=True),  # the kernels take CPU tensors
        mock.patch.object(direct_launch, "KNOWN_VERSIONS", ()),  # later launches of a plan come here too
        mock.patch.object(packing, "num_multiprocessors", return_value=100),
        # what was kept for another target
        mock.patch.object(ops.operator_facts, "kept", {}),
        mock.patch.dict(vars(backend.TRITON), {eager.ATTRIBUTE: {}}),
    ):
        yield compiled


def run_calls(name: str, head_dim: int, dtype: torch.dtype) -> None:
    """Forward and backward over a whole sequence, the same with padding and deterministic gradients, with dropout, and decode steps."""

    def attend(heads: int, kv_heads: int, queries: int, keys: int, **options: Any) -> torch.Tensor:
        q, k, v = (
            torch.zeros(1, n, length, head_dim, dtype=dtype, requires_grad=True)
            for n, length in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
        )
        position = POSITIONS[name](heads, head_dim)
        if position is not None and "clock" in position.effects:
            options["clock"] = torch.zeros(1, heads, keys, requires_grad=True)
        return whence.attend(q, k, v, position=position, causal=True, backend="triton", **options)

    attend(4, 2, 128, 128).sum().backward()  # by a plan, where there is one
    torch.use_deterministic_algorithms(name not in ("swin", "grape"))  # gradients added by atomics
    attend(4, 2, 128, 128, lengths=torch.tensor([100])).sum().backward()
    torch.use_deterministic_algorithms(False)
    if name in WITH_DROPOUT:
        attend(4, 2, 128, 128, dropout=0.1).sum().backward()
    with torch.no_grad():
        positions = torch.arange(300)
        attend(4, 2, 2, 300, q_positions=positions[-2:], k_positions=positions)
        padded = {"key_mask": torch.ones(1, 300, dtype=torch.bool)}
        rows = tile_configs.max_decode_rows(head_dim, dtype.itemsize, name == "swin")
        for heads in {8, rows // 16}:  # the largest tile of the decode kernel, and more queries than it takes
            attend(heads, 1, 16, 300, q_positions=positions[-16:], k_positions=positions, **padded)


def compile_case(target: str, name: str, head_dim: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """The kernels of one mechanism, head dimension and dtype on one target."""
    with compile_only(target) as compiled:
        run_calls(name, head_dim, dtype)
    case = {"target": target, "position": name, "head_dim": head_dim, "dtype": str(dtype).removeprefix("torch.")}
    return [{**case, **row, "limit": SHARED_LIMITS[target]} for row in compiled]


def largest_head_dim(target: str, dtype: torch.dtype, name: str) -> int:
    largest = MAX_GATED_HEAD_DIM if name == "cope" else tile_configs.MAX_HEAD_DIM
    if target == "gfx942":  # the backend refuses AMD; this shows that the kernels compile
        return 64 if dtype == torch.bfloat16 else 0
    limit = SHARED_LIMITS[target]
    return min(largest, max_head_dim(limit >= packing.TMA_SHARED_MEMORY, limit, dtype.itemsize))


def default_head_dims(target: str, dtype: torch.dtype, name: str) -> list[int]:
    """The largest; for some mechanisms also one whose tiles have two parts."""
    largest = largest_head_dim(target, dtype, name)
    return [largest, largest * 3 // 4] if name in IN_PARTS else [largest]


def run_cases(
    cases: list[tuple[Any, ...]], jobs: int, partial: Path | None, sources: str
) -> Iterator[list[dict[str, Any]]]:
    """The kernels of each case, in order. A killed run resumes from the cases in ``partial``, if ``sources`` are the same."""
    kept = records.read(partial) if partial is not None and partial.exists() else {}
    done = kept["cases"] if kept.get("sources") == sources else {}
    rest = [case for case in cases if str(case) not in done]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, max_tasks_per_child=1) as pool:  # a target for each process
        results = pool.map(compile_case, *zip(*rest, strict=True)) if rest else iter(())
        for case in cases:
            if str(case) not in done:
                done[str(case)] = next(results)
                if partial is not None:
                    records.write(partial, {"sources": sources, "cases": done})
            yield done[str(case)]


def partial_path(out: Path) -> Path:
    """Where the finished cases of a run that writes ``out`` are kept until its end."""
    name = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:12]
    return ROOT / "build" / f"compile_targets-{name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(SHARED_LIMITS))
    parser.add_argument(
        "--head-dims",
        nargs="+",
        type=int,
        help="Default: the largest of each target and dtype, for some mechanisms also 3/4 of it.",
    )
    parser.add_argument("--positions", nargs="+", default=list(POSITIONS), choices=list(POSITIONS))
    parser.add_argument(
        "--quick", action="store_true", help="One mechanism, head dimension 64 (sm_90: and 128), bfloat16; no record."
    )
    parser.add_argument("--jobs", type=int, default=1, help="Number of parallel processes.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "compile_targets.json")
    args = parser.parse_args()
    cases = [
        (target, name, head_dim, dtype)
        for name, target, dtype in itertools.product(args.positions, args.targets, DTYPES)
        for head_dim in args.head_dims or default_head_dims(target, dtype, name)
        if 0 < head_dim <= largest_head_dim(target, dtype, name)  # the backend refuses others
    ]
    if args.quick:
        cases = [
            (target, "rotary + epar", head_dim, torch.bfloat16)
            for target in args.targets
            for head_dim in ((64, 128) if target == "sm_90" else (64,))
        ]
    rows: list[dict[str, Any]] = []
    environment = records.describe_environment(("torch", "triton"))
    sources = environment["source_hash"] + hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    partial = None if args.quick else partial_path(args.out)
    for result in run_cases(cases, args.jobs, partial, sources):
        rows += result
        for row in result:
            where = f"{row['target']} {row['position']:18} {row['head_dim']:4} {row['dtype']:9} {row['kernel']:26}"
            fits = "" if row["shared"] <= row["limit"] else "  TOO LARGE"
            print(f"{where} {row['shared'] / 1024:6.1f} of {row['limit'] // 1024} KB{fits}", flush=True)
    spec = {"targets": args.targets, "positions": args.positions, "limits": SHARED_LIMITS}
    content = {
        "command": shlex.join(["python", "benchmarks/compile_targets.py", *sys.argv[1:]]),
        "environment": environment,
        "spec": spec,
        "kernels": rows,
    }
    if partial is not None:
        records.write(args.out, content)
        partial.unlink()
    if any(row["shared"] > row["limit"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

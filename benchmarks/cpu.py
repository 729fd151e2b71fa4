"""Time and peak memory of attention with learnable position on a CPU, against position-free SDPA and dense torch code.

    python benchmarks/cpu.py                 # 1024 to 8192 tokens, about fifteen minutes; writes
    benchmarks/records/cpu.json python benchmarks/cpu.py --lengths 1024 --rounds 1 --out build/cpu.json

Causal attention, batch 1, 8 heads, head dimension 64, float32, all cores. Four variants per mechanism: position-free
SDPA (the baseline), dense torch, SDPA with the bias as a dense mask (impossible for a score scale), and whence.
Position parameters are learned in all but the baseline. Times are interleaved in one process; memory is the peak
resident size minus the resident size before, in a process per variant.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import whence
from whence import records
from whence.position.evaluate import evaluate_table

HEADS, HEAD_DIM = 8, 64
LONG_STEP_SECONDS = 8.0  # seconds
ROOT = Path(__file__).resolve().parent.parent
VARIANTS = ("floor", "dense", "sdpa", "whence")
LABELS = {"floor": "SDPA, no position", "dense": "plain torch, dense", "sdpa": "SDPA, dense bias", "whence": "whence"}


def mechanism(name: str, length: int) -> whence.Position:
    return whence.Epar(HEADS, context=length, learnable=True) if name == "Epar" else whence.Alibi(HEADS, learnable=True)


def expand_to_matrix(position: whence.Position, hook: str, length: int) -> Tensor:
    """The effect as a dense matrix ``[heads, length, length]``, with the fastest gather of torch on a CPU."""
    distance = torch.arange(1 - length, length, dtype=torch.float32)
    effect = evaluate_table(position, hook, distance, HEADS, length)
    assert effect is not None
    token = torch.arange(length)
    index = (token[:, None] - token[None, :] + length - 1).flatten()
    return effect.index_select(1, index).view(HEADS, length, length)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, position: whence.Position) -> Tensor:
    length = q.shape[2]
    scores = (q @ k.transpose(-1, -2)) * HEAD_DIM**-0.5
    if "score_scale" in position.effects:
        scores = scores * expand_to_matrix(position, "score_scale", length)
    if "bias" in position.effects:
        scores = scores + expand_to_matrix(position, "bias", length)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(future, -torch.inf), -1) @ v


def sdpa_with_mask(q: Tensor, k: Tensor, v: Tensor, position: whence.Position) -> Tensor:
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    mask = expand_to_matrix(position, "bias", q.shape[2]).masked_fill(future, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None])


def make_step(variant: str, name: str, length: int, passes: str) -> Callable[[], None]:
    """One step of one variant, as a function."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM, requires_grad=passes == "both") for _ in range(3))
    grad_out = torch.randn(1, HEADS, length, HEAD_DIM)
    position = mechanism(name, length)
    parameters = [] if variant == "floor" else list(position.parameters())

    def forward() -> Tensor:
        if variant == "floor":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if variant == "dense":
            return dense_attention(q, k, v, position)
        if variant == "sdpa":
            return sdpa_with_mask(q, k, v, position)
        return whence.attend(q, k, v, position=position, causal=True)

    def step() -> None:
        if passes == "forward":
            with torch.no_grad():
                forward()
        else:
            torch.autograd.grad(forward(), [q, k, v, *parameters], grad_out)

    return step


def peak_megabytes(variant: str, name: str, length: int, passes: str) -> float:
    """Peak resident memory of one step, beyond the resident memory before it."""
    step = make_step(variant, name, length, passes)
    for warm in ("Epar", "Alibi"):  # load libraries and thread pools before measuring
        if not (variant == "sdpa" and warm == "Epar"):
            make_step(variant, warm, 64, passes)()
    before = kilobytes("/proc/self/status", "VmRSS")
    step()
    return (kilobytes("/proc/self/status", "VmHWM") - before) / 1024


def kilobytes(file: str, entry: str) -> int:
    """An entry of a /proc file (rusage of a process would inherit the peak of its parent)."""
    line = next(line for line in Path(file).read_text().splitlines() if line.startswith(entry + ":"))
    return int(line.split()[1])


def estimate_megabytes(variant: str, length: int, passes: str) -> float:
    """A conservative estimate, so that a dense variant is skipped instead of killed."""
    return 0.0 if variant in ("floor", "whence") else (8 if passes == "both" else 5) * HEADS * length**2 * 4 / 2**20


def cases(lengths: list[int]) -> list[tuple[str, str, int]]:
    return [
        (name, passes, length) for length in lengths for name in ("Epar", "Alibi") for passes in ("forward", "both")
    ]


def measure(lengths: list[int], rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    todo, started = cases(lengths), time.monotonic()
    weights = [length**2 * (3 if passes == "both" else 1) for _, passes, length in todo]
    spawn = multiprocessing.get_context("spawn")
    for index, (name, passes, length) in enumerate(todo):
        done, left = sum(weights[:index]), sum(weights[index:])
        remaining = f", about {(time.monotonic() - started) / done * left:.0f} s left" if done else ""
        print(f"[{index + 1}/{len(todo)}] {name}, {length} tokens, {passes}{remaining}", file=sys.stderr, flush=True)
        variants = [w for w in VARIANTS if not (w == "sdpa" and name == "Epar")]
        skipped = [
            w
            for w in variants
            if estimate_megabytes(w, length, passes) > 0.8 * kilobytes("/proc/meminfo", "MemAvailable") / 1024
        ]
        memory: dict[str, float] = {}
        for variant in variants:
            if variant not in skipped:
                with spawn.Pool(1) as pool:
                    memory[variant] = pool.apply(peak_megabytes, (variant, name, length, passes))
        steps = {variant: make_step(variant, name, length, passes) for variant in variants if variant not in skipped}
        seconds = time_interleaved(steps, rounds)
        for variant in variants:
            rows.append(
                {
                    "mechanism": name, "length": length, "passes": passes, "variant": variant,
                    "seconds": seconds.get(variant), "extra_megabytes": memory.get(variant),
                    "left_out": "not enough memory for a dense matrix" if variant in skipped else None,
                }
            )  # fmt: skip
    return rows


def time_interleaved(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each variant, interleaved.

    An untimed step of the same variant precedes each timed one, so that no variant pays for memory that another one
    freed. A variant slower than ``LONG_STEP_SECONDS`` is timed once.
    """
    seconds: dict[str, list[float]] = {variant: [] for variant in steps}
    for _ in range(rounds):
        for variant, step in steps.items():
            if seconds[variant] and seconds[variant][0] > LONG_STEP_SECONDS:
                continue
            step()
            start = time.perf_counter()
            step()
            seconds[variant].append(time.perf_counter() - start)
    return seconds


def format_table(rows: list[dict[str, object]]) -> str:
    """The measurements as a text table with ratios to the baseline."""
    floor = {(r["mechanism"], r["length"], r["passes"]): r for r in rows if r["variant"] == "floor"}
    lines = [
        f"{'mechanism':10}{'tokens':>7}  {'passes':8} {'variant':20}{'seconds':>9}{'/SDPA':>8}{'extra MB':>10}{'/dense':>8}"
    ]
    dense = {(r["mechanism"], r["length"], r["passes"]): r for r in rows if r["variant"] == "dense"}
    for r in rows:
        key = (r["mechanism"], r["length"], r["passes"])
        start = f"{r['mechanism']:10}{r['length']:>7}  {r['passes']:8} {LABELS[str(r['variant'])]:20}"
        if r["seconds"] is None:
            lines.append(start + f"  {r['left_out']}")
            continue
        seconds = statistics.median(r["seconds"])  # type: ignore[arg-type]
        ratio = seconds / statistics.median(floor[key]["seconds"])  # type: ignore[arg-type]
        dense_megabytes = dense[key]["extra_megabytes"]
        share = f"{r['extra_megabytes'] / dense_megabytes:>8.3f}" if dense_megabytes else f"{'':>8}"  # type: ignore[operator]
        lines.append(start + f"{seconds:>9.3f}{ratio:>8.2f}{r['extra_megabytes']:>10.0f}{share}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="Sequence lengths.")
    parser.add_argument("--rounds", type=int, default=3, help="Timed rounds per variant.")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "records" / "cpu.json", help="Path of the record."
    )
    args = parser.parse_args()
    spec = {
        "batch": 1, "heads": HEADS, "head_dim": HEAD_DIM, "dtype": "float32", "causal": True, "lengths": args.lengths,
        "rounds": args.rounds, "threads": torch.get_num_threads(), "variants": LABELS,
    }  # fmt: skip
    environment = records.describe_environment()
    rows = measure(args.lengths, args.rounds)
    records.write(
        args.out, {"command": "python benchmarks/cpu.py", "spec": spec, "environment": environment, "rows": rows}
    )
    print(format_table(rows))
    print(f"\nrecord: {args.out.relative_to(ROOT) if args.out.is_relative_to(ROOT) else args.out}")


if __name__ == "__main__":
    main()

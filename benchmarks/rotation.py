"""Forward time of rotary positions on a GPU: rotation before the attention kernel against rotation inside it.

    python benchmarks/rotation.py                  # a minute on an H200; writes benchmarks/records/rotation.json

Inside: every block of queries rotates every block of keys it loads, in a small kernel written for this question:
causal, bfloat16, forward only. Before: torch.compile rotates queries and keys in one pass, and the kernel of whence
runs on the result. The same small kernel without rotation is the control. Each variant is captured into a CUDA graph;
it is timed only if its output agrees with float64.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

import whence
from gpu import MAX_ERROR
from gpu_timing import capture_graph, time_step
from whence import records

ROOT = Path(__file__).resolve().parent.parent
SHAPES = [(4, 16, 4096, 64), (4, 16, 4096, 128), (1, 16, 16384, 128)]
CHECKED_TOKENS = 512
TILES = [(64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 64, 8, 2)]
LABELS = {
    "none": "whence, no position",
    "before": "rotation before (compiled), then whence",
    "control": "small kernel, no rotation",
    "inside": "small kernel, rotation inside",
}


@triton.jit
def load_halves(X, COS, SIN, b, h, start, ROWS: tl.constexpr, HALF: tl.constexpr, ROTATE_INSIDE: tl.constexpr):
    first = tl.reshape(X.load([b, h, start, 0]), [ROWS, HALF])
    second = tl.reshape(X.load([b, h, start, HALF]), [ROWS, HALF])
    if ROTATE_INSIDE:
        cos = COS.load([start, 0])
        sin = SIN.load([start, 0])
        a = first.to(tl.float32)
        c = second.to(tl.float32)
        first, second = (a * cos - c * sin).to(tl.bfloat16), (c * cos + a * sin).to(tl.bfloat16)
    return first, second


@triton.jit
def rotary_attention_kernel(Q, K, V, OUT, QCOS, QSIN, KCOS, KSIN, heads, rows, qk_scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
           HALF: tl.constexpr, NUM_STAGES: tl.constexpr, ROTATE_INSIDE: tl.constexpr):  # fmt: skip
    blocks = rows // BLOCK_M
    rank = tl.program_id(0) // blocks
    block = blocks - 1 - tl.program_id(0) % blocks
    b = rank // heads
    h = rank % heads
    start_m = block * BLOCK_M
    q1, q2 = load_halves(Q, QCOS, QSIN, b, h, start_m, BLOCK_M, HALF, ROTATE_INSIDE)
    acc = tl.zeros([BLOCK_M, 2 * HALF], tl.float32)
    row_max = tl.full([BLOCK_M], -float("inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    row = start_m + tl.arange(0, BLOCK_M)[:, None]
    for part in tl.static_range(2):
        low = 0 if part == 0 else start_m
        high = start_m if part == 0 else start_m + BLOCK_M
        for start_n in tl.range(low, high, BLOCK_N, num_stages=NUM_STAGES):
            k1, k2 = load_halves(K, KCOS, KSIN, b, h, start_n, BLOCK_N, HALF, ROTATE_INSIDE)
            logits = tl.dot(q1, tl.trans(k1))
            logits = tl.dot(q2, tl.trans(k2), logits) * qk_scale
            if part == 1:
                logits = tl.environment(row >= start_n + tl.arange(0, BLOCK_N)[None, :], logits, -float("inf"))
            new_max = tl.maximum(row_max, tl.max(logits, 1))
            p = tl.exp2(logits - new_max[:, None])
            rescale = tl.exp2(row_max - new_max)
            row_sum = row_sum * rescale + tl.sum(p, 1)
            acc = acc * rescale[:, None]
            v = tl.reshape(V.load([b, h, start_n, 0]), [BLOCK_N, 2 * HALF])
            acc = tl.dot(p.to(tl.bfloat16), v, acc)
            row_max = new_max
    OUT.store([b, h, start_m, 0], tl.reshape((acc / row_sum[:, None]).to(tl.bfloat16), [1, 1, BLOCK_M, 2 * HALF]))


def run_small_kernel(q: Tensor, k: Tensor, v: Tensor, rotate_inside: bool, tile: tuple[int, ...]) -> Tensor:
    rows, keys, warps, stages = tile
    batch, heads, length, head_dim = q.shape
    frequency = 10000.0 ** (-torch.arange(0, head_dim, 2, device=q.device) / head_dim)
    angle = torch.arange(length, device=q.device)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    out = torch.empty_like(q)

    def describe(x: Tensor, n: int, double_position: int) -> TensorDescriptor:
        return TensorDescriptor(x, list(x.shape), list(x.stride()), [1] * (x.dim() - 2) + [n, double_position])

    half = head_dim // 2
    rotary_attention_kernel[(batch * heads * length // rows,)](
        describe(q, rows, half), describe(k, keys, half), describe(v, keys, head_dim), describe(out, rows, head_dim), describe(cos, rows, half),
        describe(sin, rows, half), describe(cos, keys, half), describe(sin, keys, half), heads, length,
        head_dim**-0.5 * 1.4426950408889634, BLOCK_M=rows, BLOCK_N=keys, HALF=half, NUM_STAGES=stages, ROTATE_INSIDE=rotate_inside, num_warps=warps,
    )  # fmt: skip
    return out


def variants(shape: tuple[int, ...]) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    rotary = whence.Rotary()

    @torch.compile(dynamic=False)
    def rotate_qk(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(q.shape[2], device=q.device)[None]
        return rotary.rotate(q, k, positions, positions)

    def attend_triton(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return whence.attend(q, k, v, causal=True, backend="triton")

    found_variants: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "none": attend_triton,
        "before": lambda q, k, v: attend_triton(*rotate_qk(q, k), v),
    }
    for tile in TILES:
        name = "x".join(map(str, tile))
        found_variants[f"control {name}"] = lambda q, k, v, tile=tile: run_small_kernel(q, k, v, False, tile)
        found_variants[f"inside {name}"] = lambda q, k, v, tile=tile: run_small_kernel(q, k, v, True, tile)
    return found_variants


def measure(shape: tuple[int, ...]) -> list[dict[str, Any]]:
    batch, heads, length, head_dim = shape
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, heads, length, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    short = [x[:1, :2, :CHECKED_TOKENS].contiguous() for x in (q, k, v)]
    rows = []
    for name, run in variants(shape).items():
        kind = name.split()[0]
        row: dict[str, Any] = {"variant": kind, "tile": name[len(kind) + 1 :] or None, "shape": list(shape)}
        rows.append(row)
        try:
            with torch.no_grad():
                position = whence.Rotary() if kind in ("before", "inside") else None
                exact = whence.attend(*(x.double() for x in short), position=position, causal=True, backend="reference")
                row["error"] = ((run(*short).double() - exact).norm() / exact.norm()).item()
                if row["error"] >= MAX_ERROR:
                    row["left_out"] = "wrong: the comparison with float64 failed"
                    continue
                step = capture_graph(lambda run=run: run(q, k, v))
                row["milliseconds"] = [] if step is None else time_step(step, 3) and time_step(step, 25)
        except Exception as error:
            row["left_out"] = f"failed: {(str(error).strip().splitlines() or [type(error).__name__])[0][:200]}"
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/records/rotation.json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/rotation.py needs a CUDA device")
    rows = [row for shape in SHAPES for row in measure(shape)]
    device = torch.cuda.get_device_name()
    environment = records.describe_environment(("torch", "triton"), accelerator=device)
    record = {"command": "python benchmarks/rotation.py", "environment": environment, "rows": rows}
    records.write(args.out, record)
    for shape in SHAPES:
        print("batch {}, heads {}, {} tokens, head_dim {}; forward".format(*shape))
        for kind, text in LABELS.items():
            timed = [r for r in rows if r["variant"] == kind and tuple(r["shape"]) == shape and r.get("milliseconds")]
            if not timed:
                print(f"  {text:44}{next(r.get('left_out', '?') for r in rows if r['variant'] == kind)}")
                continue
            best = min(timed, key=lambda r: statistics.median(r["milliseconds"]))
            print(f"  {text:44}{statistics.median(best['milliseconds']):8.3f} ms  {best['tile'] or ''}")


if __name__ == "__main__":
    main()

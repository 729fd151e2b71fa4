"""Rotary positions before the attention kernel, or inside it: which is faster?

    python benchmarks/rotation.py                  # a minute on an H200; writes benchmarks/records/rotation.json

Inside, every block of queries turns every block of keys it meets once more, in a kernel written here for this question
alone: causal, bfloat16, forward. Before, torch.compile makes one pass over queries and keys, and whence's own kernel runs
on what comes out. The same small kernel without the turning is its control. Each way is captured into a CUDA graph and
timed in turns; a way is timed only after its output was held against float64.
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
from gpu import ALLOWED
from gpu_timing import captured, milliseconds
from whence import records

ROOT = Path(__file__).resolve().parent.parent
SHAPES = [(4, 16, 4096, 64), (4, 16, 4096, 128), (1, 16, 16384, 128)]
CHECKED = 512
TILES = [(64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (128, 64, 8, 2)]
TEXT = {
    "none": "whence, no position",
    "before": "rotation before (compiled), then whence",
    "control": "the small kernel, not turned",
    "inside": "the small kernel, turned inside",
}


@triton.jit
def halves(X, COS, SIN, b, h, start, ROWS: tl.constexpr, HALF: tl.constexpr, TURNED: tl.constexpr):
    one = tl.reshape(X.load([b, h, start, 0]), [ROWS, HALF])
    two = tl.reshape(X.load([b, h, start, HALF]), [ROWS, HALF])
    if TURNED:
        cos = COS.load([start, 0])
        sin = SIN.load([start, 0])
        a = one.to(tl.float32)
        c = two.to(tl.float32)
        one, two = (a * cos - c * sin).to(tl.bfloat16), (c * cos + a * sin).to(tl.bfloat16)
    return one, two


@triton.jit
def kernel(Q, K, V, OUT, QCOS, QSIN, KCOS, KSIN, heads, rows, unit, BM: tl.constexpr, BN: tl.constexpr,
           HALF: tl.constexpr, STAGES: tl.constexpr, TURNED: tl.constexpr):  # fmt: skip
    blocks = rows // BM
    rank = tl.program_id(0) // blocks
    block = blocks - 1 - tl.program_id(0) % blocks
    b = rank // heads
    h = rank % heads
    row0 = block * BM
    q1, q2 = halves(Q, QCOS, QSIN, b, h, row0, BM, HALF, TURNED)
    acc = tl.zeros([BM, 2 * HALF], tl.float32)
    top = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    row = row0 + tl.arange(0, BM)[:, None]
    for part in tl.static_range(2):
        low = 0 if part == 0 else row0
        high = row0 if part == 0 else row0 + BM
        for key0 in tl.range(low, high, BN, num_stages=STAGES):
            k1, k2 = halves(K, KCOS, KSIN, b, h, key0, BN, HALF, TURNED)
            z = tl.dot(q1, tl.trans(k1))
            z = tl.dot(q2, tl.trans(k2), z) * unit
            if part == 1:
                z = tl.where(row >= key0 + tl.arange(0, BN)[None, :], z, -float("inf"))
            higher = tl.maximum(top, tl.max(z, 1))
            p = tl.exp2(z - higher[:, None])
            shrink = tl.exp2(top - higher)
            total = total * shrink + tl.sum(p, 1)
            acc = acc * shrink[:, None]
            v = tl.reshape(V.load([b, h, key0, 0]), [BN, 2 * HALF])
            acc = tl.dot(p.to(tl.bfloat16), v, acc)
            top = higher
    OUT.store([b, h, row0, 0], tl.reshape((acc / total[:, None]).to(tl.bfloat16), [1, 1, BM, 2 * HALF]))


def small(q: Tensor, k: Tensor, v: Tensor, turned: bool, tile: tuple[int, ...]) -> Tensor:
    rows, keys, warps, stages = tile
    batch, heads, length, width = q.shape
    frequency = 10000.0 ** (-torch.arange(0, width, 2, device=q.device) / width)
    angle = torch.arange(length, device=q.device)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    out = torch.empty_like(q)

    def cut(x: Tensor, n: int, wide: int) -> TensorDescriptor:
        return TensorDescriptor(x, list(x.shape), list(x.stride()), [1] * (x.dim() - 2) + [n, wide])

    half = width // 2
    kernel[(batch * heads * length // rows,)](
        cut(q, rows, half), cut(k, keys, half), cut(v, keys, width), cut(out, rows, width), cut(cos, rows, half),
        cut(sin, rows, half), cut(cos, keys, half), cut(sin, keys, half), heads, length,
        width**-0.5 * 1.4426950408889634, BM=rows, BN=keys, HALF=half, STAGES=stages, TURNED=turned, num_warps=warps,
    )  # fmt: skip
    return out


def ways(shape: tuple[int, ...]) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    rotary = whence.Rotary()

    @torch.compile(dynamic=False)
    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(q.shape[2], device=q.device)[None]
        return rotary.rotate(q, k, places, places)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return whence.attend(q, k, v, causal=True, backend="triton")

    found: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "none": plain,
        "before": lambda q, k, v: plain(*turn(q, k), v),
    }
    for tile in TILES:
        name = "x".join(map(str, tile))
        found[f"control {name}"] = lambda q, k, v, tile=tile: small(q, k, v, False, tile)
        found[f"inside {name}"] = lambda q, k, v, tile=tile: small(q, k, v, True, tile)
    return found


def measure(shape: tuple[int, ...]) -> list[dict[str, Any]]:
    batch, heads, length, width = shape
    torch.manual_seed(0)
    q, k, v = (torch.randn(batch, heads, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    short = [x[:1, :2, :CHECKED].contiguous() for x in (q, k, v)]
    rows = []
    for name, run in ways(shape).items():
        kind = name.split()[0]
        row: dict[str, Any] = {"way": kind, "tile": name[len(kind) + 1 :] or None, "shape": list(shape)}
        rows.append(row)
        try:
            with torch.no_grad():
                position = whence.Rotary() if kind in ("before", "inside") else None
                exact = whence.attend(*(x.double() for x in short), position=position, causal=True, backend="reference")
                row["error"] = ((run(*short).double() - exact).norm() / exact.norm()).item()
                if row["error"] >= ALLOWED:
                    row["left_out"] = "wrong: the comparison with float64 failed"
                    continue
                step = captured(lambda run=run: run(q, k, v))
                row["milliseconds"] = [] if step is None else milliseconds(step, 3) and milliseconds(step, 25)
        except Exception as error:
            row["left_out"] = f"failed: {(str(error).strip().splitlines() or [type(error).__name__])[0][:200]}"
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/records/rotation.json")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/rotation.py measures on a CUDA device, and there is none here")
    rows = [row for shape in SHAPES for row in measure(shape)]
    device = torch.cuda.get_device_name()
    environment = records.describe_environment(("torch", "triton"), accelerator=device)
    record = {"command": "python benchmarks/rotation.py", "environment": environment, "rows": rows}
    records.write(given.out, record)
    for shape in SHAPES:
        print("batch {}, heads {}, {} tokens, width {}; forward".format(*shape))
        for kind, text in TEXT.items():
            here = [r for r in rows if r["way"] == kind and tuple(r["shape"]) == shape and r.get("milliseconds")]
            if not here:
                print(f"  {text:44}{next(r.get('left_out', '?') for r in rows if r['way'] == kind)}")
                continue
            best = min(here, key=lambda r: statistics.median(r["milliseconds"]))
            print(f"  {text:44}{statistics.median(best['milliseconds']):8.3f} ms  {best['tile'] or ''}")


if __name__ == "__main__":
    main()

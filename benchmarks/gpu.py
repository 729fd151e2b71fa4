"""Time and memory of fused attention with position on a GPU, against position-free SDPA, FlexAttention and dense torch.

    python benchmarks/gpu.py                       # minutes on an H200; writes benchmarks/records/gpu.json
    python benchmarks/gpu.py --shapes 4,16,16,4096,64 --variants flash epar
    python benchmarks/gpu.py --rows rotary dims    # rows of gpu_rows.py: other head dimensions, lengths and models
    python benchmarks/gpu.py --rows all --dry-run  # tiny sizes on a CPU, to see that every row works

Causal attention in bfloat16; ``gpu_variants.py`` lists the variants. Each variant is captured into a CUDA graph and its
replays are interleaved with those of the others, so that the times exclude host overhead; the eager time, launches
included, is recorded too. Learnable variants also compute the gradients of their parameters. Before timing, the output
and all gradients of each variant are compared with float64 on a shorter sequence, in parallel processes; a variant that
fails is recorded as wrong and not timed. Memory is the peak minus the memory allocated before.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import gpu_decode
import gpu_rows
from gpu_measure import CHECKED_TOKENS, MAX_ERROR, MAX_PARAMETER_ERROR, check_variant, measure
from gpu_variants import LABELS
from whence import records

ROOT = Path(__file__).resolve().parent.parent
SHAPES = [(4, 16, 16, 4096, 64), (4, 16, 16, 4096, 128), (1, 16, 16, 16384, 128), (1, 32, 8, 32768, 128)]


def median_milliseconds(row: dict[str, Any], passes: str) -> float:
    times = row["milliseconds"][passes]
    return statistics.median(times["device"] or times["eager"])


def format_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for shape in dict.fromkeys(tuple(row["shape"]) for row in rows):
        of_shape = {row["variant"]: row for row in rows if tuple(row["shape"]) == shape}
        flash, cudnn = (of_shape.get(name) for name in ("flash", "cudnn"))
        batch, heads, kv_heads, length, head_dim = shape
        lines.append(
            f"\nbatch {batch}, heads {heads}/{kv_heads}, {length} tokens, head_dim {head_dim}; forward + backward"
        )
        lines.append(
            f"{'':48}{'fwd ms':>9}{'both ms':>9}{'/flash':>8}{'/cuDNN':>8}{'eager ms':>10}{'MB':>8}{'error':>9}"
        )
        for name, row in of_shape.items():
            if "left_out" in row:
                lines.append(f"{LABELS[name]:48}  {row['left_out']}")
                continue
            both = median_milliseconds(row, "both")
            ratios = "".join(
                f"{both / median_milliseconds(base, 'both'):>8.2f}" if base and "milliseconds" in base else f"{'':8}"
                for base in (flash, cudnn)
            )
            eager = statistics.median(row["milliseconds"]["both"]["eager"])
            lines.append(
                f"{LABELS[name]:48}{median_milliseconds(row, 'forward'):>9.3f}{both:>9.3f}{ratios}{eager:>10.3f}"
                f"{row['extra_megabytes']:>8.0f}{max(row['errors'].values()):>9.1e}"
            )
    return "\n".join(lines)


def rerun_command(shapes: list[str] | None, variants: list[str], budget: float) -> str:
    """The command that repeats this measurement."""
    parts = ["python benchmarks/gpu.py", f"--budget {budget:g}"]
    parts += ["--shapes", *shapes] if shapes else []
    parts += ["--variants", *map(shlex.quote, variants)] if variants != list(LABELS) else []
    return " ".join(parts)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", help="batch,heads,kv_heads,tokens,head_dim of each shape.")
    parser.add_argument(
        "--variants", nargs="+", default=list(LABELS), choices=list(LABELS), help="Variants to measure."
    )
    parser.add_argument("--budget", type=float, default=0.5, help="Seconds of timed replays per variant.")
    parser.add_argument(
        "--out",
        type=Path,
        help="Path of the record. Default: benchmarks/records/gpu.json for a complete run, else build/gpu.json.",
    )
    parser.add_argument(
        "--rows", nargs="+", choices=["all", *gpu_rows.ROWS], help="Measure these rows instead of shapes and variants."
    )
    parser.add_argument("--limit", type=float, default=90.0, help="Time limit of each row, in seconds.")
    parser.add_argument("--dry-run", action="store_true", help="Tiny sizes on a CPU, to test the rows.")
    args = parser.parse_args(argv)
    if args.rows:
        names = list(gpu_rows.ROWS) if "all" in args.rows else list(dict.fromkeys(args.rows))
        rows_out = args.out or ROOT / ("build" if args.dry_run else "benchmarks/records") / "gpu_rows.json"
        gpu_rows.run(names, args.budget, args.limit, rows_out, dry_run=args.dry_run)
        return
    complete = args.shapes is None and args.variants == list(LABELS)
    out = args.out or ROOT / ("benchmarks/records" if complete else "build") / "gpu.json"
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py needs a CUDA device")
    shapes = [tuple(int(n) for n in text.split(",")) for text in args.shapes] if args.shapes else SHAPES
    environment = records.describe_environment(("torch", "triton"), accelerator=torch.cuda.get_device_name())
    rows: list[dict[str, Any]] = []
    started, jobs = time.monotonic(), [(shape, name) for shape in shapes for name in args.variants]
    spec = {
        "dtype": "bfloat16",
        "causal": True,
        "checked_on": CHECKED_TOKENS,
        "allowed_error": MAX_ERROR,
        "allowed_parameter_error": MAX_PARAMETER_ERROR,
        "variants": LABELS,
    }
    record = {
        "command": rerun_command(args.shapes, args.variants, args.budget),
        "spec": spec,
        "environment": environment,
        "rows": rows,
        "decode": [],
    }
    print(f"comparing {len(jobs)} variants with float64", file=sys.stderr, flush=True)
    with multiprocessing.get_context("spawn").Pool(min(12, len(jobs))) as pool:
        checked = pool.map(check_variant, [(name, shape) for shape, name in jobs], chunksize=1)
    for shape in shapes:
        of_shape = [row for row in checked if tuple(row["shape"]) == shape]
        measure(
            of_shape,
            args.budget,
            lambda words: print(f"{time.monotonic() - started:4.0f} s  {words}", file=sys.stderr, flush=True),
        )
        rows += of_shape
        records.write(out, record)  # after each shape, so that an interruption loses little
        gc.collect()
        torch.cuda.empty_cache()
    print(format_table(rows), flush=True)
    if not args.shapes:
        record["decode"] = gpu_decode.measure(args.budget, MAX_ERROR)
        records.write(out, record)
        print(gpu_decode.format_table(record["decode"]))


if __name__ == "__main__":
    main()

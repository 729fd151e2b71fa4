"""Time and memory of fused attention with position on a GPU, against position-free SDPA, FlexAttention and dense torch.

    python benchmarks/gpu.py                       # minutes on an H200; writes benchmarks/records/gpu.json
    python benchmarks/gpu.py --shapes 4,16,16,4096,64 --variants flash epar

Causal attention in bfloat16; ``gpu_variants.py`` lists the variants. Each variant is captured into a CUDA graph and its
replays are interleaved with those of the others, so that the times exclude host overhead; the eager time, launches
included, is recorded too. Learnable variants also compute the gradients of their parameters. Before timing, the output
and all gradients of each variant are compared with float64 on a shorter sequence, in parallel processes; a variant that
fails is recorded as wrong and not timed. Memory is the peak minus the memory allocated before.
"""

from __future__ import annotations

import argparse
import copy
import gc
import multiprocessing
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gpu_decode
import whence
from gpu_timing import time_eager_and_capture, time_interleaved
from gpu_variants import LABELS, make_variant, random_inputs
from whence import records
from whence.attention.fused.tile_configs import LONG_QUERIES

ROOT = Path(__file__).resolve().parent.parent
SHAPES = [(4, 16, 16, 4096, 64), (4, 16, 16, 4096, 128), (1, 16, 16, 16384, 128), (1, 32, 8, 32768, 128)]
CHECKED_TOKENS = 512  # in the comparison with float64
MAX_DENSE_BYTES = 24 * 2**30  # of scores, for a dense variant
MAX_ERROR = 2e-2  # relative; typical bfloat16 errors are 3e-3, those of parameters a few times larger


def relative_errors(name: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Relative errors of the output and the gradients against float64, on a shorter sequence with the same kernels."""
    torch.manual_seed(1)
    _, heads, kv_heads, length, head_dim = shape
    group_size, tokens = heads // kv_heads, CHECKED_TOKENS
    if length > LONG_QUERIES:  # long sequences use other tiles: just enough tokens to select them, with four heads
        heads, kv_heads, tokens = max(4, group_size), max(1, 4 // group_size), LONG_QUERIES + 64
    shape = (1, heads, kv_heads, length, head_dim)
    run, parameters, position = make_variant(name, shape, tokens)
    inputs, grad_out = random_inputs(shape, tokens)
    out = run(*inputs)
    results = [out, *torch.autograd.grad(out, [*inputs, *parameters], grad_out)]
    double_position = None if position is None else copy.deepcopy(position).double()
    exact_inputs = [x.detach().double().requires_grad_(True) for x in inputs]
    exact_out = whence.attend(*exact_inputs, position=double_position, causal=True, backend="reference")
    double_parameters = [] if double_position is None or not parameters else list(double_position.parameters())
    exact = [exact_out, *torch.autograd.grad(exact_out, [*exact_inputs, *double_parameters], grad_out.double())]
    titles = ["out", "dq", "dk", "dv", *(f"parameter {i}" for i in range(len(parameters)))]
    return {
        title: ((a.double() - x.reshape(a.shape)).norm() / x.norm()).item()
        for title, a, x in zip(titles, results, exact, strict=True)
    }


def check_variant(job: tuple[str, tuple[int, ...]]) -> dict[str, Any]:
    """Compare a variant with float64, in a worker process. This also compiles its kernels."""
    name, shape = job
    row: dict[str, Any] = {"variant": name, "shape": list(shape)}
    batch, heads, _, length, _ = shape
    if name == "eager" and batch * heads * length**2 * 2 * 6 > MAX_DENSE_BYTES:
        return row | {"left_out": "a dense matrix of scores would not fit"}
    if name == "flex, learnable" and batch * heads * length**2 > 16 * 16384**2:
        return row | {"left_out": "over the time budget at this length"}
    try:
        row["errors"] = relative_errors(name, shape)
        if name.startswith("flex"):  # compiled for a single length
            run, parameters, _ = make_variant(name, shape, length)
            inputs, grad_out = random_inputs(shape, length)
            torch.autograd.grad(run(*inputs), [*inputs, *parameters], grad_out)
            with torch.no_grad():
                run(*inputs)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        return row | {"left_out": f"failed: {reason}"}
    if not all(error < MAX_ERROR for error in row["errors"].values()):  # NaN fails, too
        wrong = {name: str(error) for name, error in row["errors"].items()}
        return row | {"errors": wrong, "left_out": "wrong: the comparison with float64 failed"}
    return row


def prepare_variant(row: dict[str, Any], budget: float) -> dict[str, Callable[[], None]]:
    """Write memory and eager times of a checked variant into its row; return its passes as CUDA graphs."""
    name, shape = row["variant"], tuple(row["shape"])
    length = shape[3]
    torch.manual_seed(0)
    run, parameters, _ = make_variant(name, shape, length)
    inputs, grad_out = random_inputs(shape, length)

    def both() -> object:
        return torch.autograd.grad(run(*inputs), [*inputs, *parameters], grad_out)

    def forward() -> object:
        with torch.no_grad():
            return run(*inputs)

    both()
    forward()  # compile the kernels without gradients, too
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both()
    torch.cuda.synchronize()
    row["extra_megabytes"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    graphs = {}
    row["milliseconds"] = {}
    for passes, step in (("forward", forward), ("both", both)):
        eager, graph = time_eager_and_capture(step, budget / 3)
        row["milliseconds"][passes] = {"eager": eager, "device": []}
        if graph is not None:
            graphs[passes] = graph
    return graphs


def measure(rows: list[dict[str, Any]], budget: float, report_progress: Callable[[str], None]) -> None:
    """Write times and memory of the variants of one shape into their rows."""
    graphs: dict[tuple[int, str], Callable[[], None]] = {}
    for number, row in enumerate(rows):
        if "left_out" in row:
            continue
        report_progress(f"{row['variant']}, {row['shape']}")
        try:
            graphs |= {(number, passes): graph for passes, graph in prepare_variant(row, budget).items()}
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            row["left_out"] = f"failed: {reason}"
            row.pop("milliseconds", None)  # incomplete
    report_progress("interleaved replays")
    for passes in ("forward", "both"):
        steps = {number: graph for (number, graph_passes), graph in graphs.items() if graph_passes == passes}
        for number, times in time_interleaved(steps, budget if passes == "both" else budget / 3).items():
            rows[number]["milliseconds"][passes]["device"] = times


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


def main() -> None:
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
    args = parser.parse_args()
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

"""Time and memory of fused attention with position on a GPU, as ratios to position-free SDPA, in one run.

    python benchmarks/gpu.py                       # minutes on an H200; writes benchmarks/records/gpu.json
    python benchmarks/gpu.py --shapes 4,16,16,4096,64 --ways flash epar

Causal attention in bfloat16. Each way is captured into a CUDA graph once and its replays are timed in turns, so that the
numbers are the device's work and not the host's; the eager time (launches included) stands beside it. A way that learns
has gradients for its parameters too. Before anything is timed, the output and every gradient of each way are held against
float64 on a shorter sequence, side by side in processes; a way that fails is recorded as wrong and not timed. Memory is the peak over what stood there before.
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
from gpu_timing import in_turns, launched
from gpu_ways import TEXT, tensors, way
from whence import records
from whence.attention.fused.tile_configs import LONG_QUERIES

ROOT = Path(__file__).resolve().parent.parent
SHAPES = [(4, 16, 16, 4096, 64), (4, 16, 16, 4096, 128), (1, 16, 16, 16384, 128), (1, 32, 8, 32768, 128)]
CHECKED = 512  # tokens of the comparison with float64
DENSE = 24 * 2**30  # bytes of scores that a dense way may take
ALLOWED = 2e-2  # relative error; bfloat16 computations stand near 3e-3, parameters up to a few times that


def errors(name: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Relative errors of the output and the gradients against float64, on a shorter sequence with the same kernels."""
    torch.manual_seed(1)
    _, heads, groups, length, width = shape
    share, tokens = heads // groups, CHECKED
    if length > LONG_QUERIES:  # long sequences have tiles of their own: as many tokens as choose them, of four heads
        heads, groups, tokens = max(4, share), max(1, 4 // share), LONG_QUERIES + 64
    shape = (1, heads, groups, length, width)
    run, learnt, position = way(name, shape, tokens)
    inputs, upstream = tensors(shape, tokens)
    out = run(*inputs)
    found = [out, *torch.autograd.grad(out, [*inputs, *learnt], upstream)]
    wide = None if position is None else copy.deepcopy(position).double()
    exact_inputs = [x.detach().double().requires_grad_(True) for x in inputs]
    exact_out = whence.attend(*exact_inputs, position=wide, causal=True, backend="reference")
    own = [] if wide is None or not learnt else list(wide.parameters())
    exact = [exact_out, *torch.autograd.grad(exact_out, [*exact_inputs, *own], upstream.double())]
    titles = ["out", "dq", "dk", "dv", *(f"parameter {i}" for i in range(len(learnt)))]
    return {
        title: ((a.double() - x.reshape(a.shape)).norm() / x.norm()).item()
        for title, a, x in zip(titles, found, exact, strict=True)
    }


def prepared(job: tuple[str, tuple[int, ...]]) -> dict[str, Any]:
    """In a process of its own, beside others: the comparison with float64, which also leaves the kernels compiled."""
    name, shape = job
    row: dict[str, Any] = {"way": name, "shape": list(shape)}
    batch, heads, _, length, _ = shape
    if name == "eager" and batch * heads * length**2 * 2 * 6 > DENSE:
        return row | {"left_out": "a dense matrix of scores would not fit"}
    if name == "flex, learnable" and batch * heads * length**2 > 16 * 16384**2:
        return row | {"left_out": "over the time budget at this length"}
    try:
        row["errors"] = errors(name, shape)
        if name.startswith("flex"):  # compiled for one length only
            run, learnt, _ = way(name, shape, length)
            inputs, upstream = tensors(shape, length)
            torch.autograd.grad(run(*inputs), [*inputs, *learnt], upstream)
            with torch.no_grad():
                run(*inputs)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        return row | {"left_out": f"failed: {reason}"}
    if not all(error < ALLOWED for error in row["errors"].values()):  # a NaN is no less wrong than a large number
        wrong = {name: str(error) for name, error in row["errors"].items()}
        return row | {"errors": wrong, "left_out": "wrong: the comparison with float64 failed"}
    return row


def readied(row: dict[str, Any], budget: float) -> dict[str, Callable[[], None]]:
    """The memory and the launched times of a way that was found right, into its row; its passes as graphs."""
    name, shape = row["way"], tuple(row["shape"])
    length = shape[3]
    torch.manual_seed(0)
    run, learnt, _ = way(name, shape, length)
    inputs, upstream = tensors(shape, length)

    def both() -> object:
        return torch.autograd.grad(run(*inputs), [*inputs, *learnt], upstream)

    def forward() -> object:
        with torch.no_grad():
            return run(*inputs)

    both()
    forward()  # without gradients another kernel may have to be compiled
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
        eager, graph = launched(step, budget / 3)
        row["milliseconds"][passes] = {"eager": eager, "device": []}
        if graph is not None:
            graphs[passes] = graph
    return graphs


def measure(rows: list[dict[str, Any]], budget: float, tell: Callable[[str], None]) -> None:
    """Times and memory of one shape's ways, into their rows."""
    graphs: dict[tuple[int, str], Callable[[], None]] = {}
    for number, row in enumerate(rows):
        if "left_out" in row:
            continue
        tell(f"{row['way']}, {row['shape']}")
        try:
            graphs |= {(number, passes): graph for passes, graph in readied(row, budget).items()}
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            row["left_out"] = f"failed: {reason}"
            row.pop("milliseconds", None)  # what was measured until then is half of something
    tell("in turns")
    for passes in ("forward", "both"):
        chosen = {number: graph for (number, own), graph in graphs.items() if own == passes}
        for number, times in in_turns(chosen, budget if passes == "both" else budget / 3).items():
            rows[number]["milliseconds"][passes]["device"] = times


def middle(row: dict[str, Any], passes: str) -> float:
    times = row["milliseconds"][passes]
    return statistics.median(times["device"] or times["eager"])


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = []
    for shape in dict.fromkeys(tuple(row["shape"]) for row in rows):
        here = {row["way"]: row for row in rows if tuple(row["shape"]) == shape}
        flash, cudnn = (here.get(name) for name in ("flash", "cudnn"))
        batch, heads, groups, length, width = shape
        lines.append(f"\nbatch {batch}, heads {heads}/{groups}, {length} tokens, width {width}; forward + backward")
        lines.append(
            f"{'':48}{'fwd ms':>9}{'both ms':>9}{'/flash':>8}{'/cuDNN':>8}{'eager ms':>10}{'MB':>8}{'error':>9}"
        )
        for name, row in here.items():
            if "left_out" in row:
                lines.append(f"{TEXT[name]:48}  {row['left_out']}")
                continue
            both = middle(row, "both")
            ratios = "".join(
                f"{both / middle(base, 'both'):>8.2f}" if base and "milliseconds" in base else f"{'':8}"
                for base in (flash, cudnn)
            )
            eager = statistics.median(row["milliseconds"]["both"]["eager"])
            lines.append(
                f"{TEXT[name]:48}{middle(row, 'forward'):>9.3f}{both:>9.3f}{ratios}{eager:>10.3f}"
                f"{row['extra_megabytes']:>8.0f}{max(row['errors'].values()):>9.1e}"
            )
    return "\n".join(lines)


def command(shapes: list[str] | None, ways: list[str], budget: float) -> str:
    """What measures the same again, wherever the record goes."""
    parts = ["python benchmarks/gpu.py", f"--budget {budget:g}"]
    parts += ["--shapes", *shapes] if shapes else []
    parts += ["--ways", *map(shlex.quote, ways)] if ways != list(TEXT) else []
    return " ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", help="batch,heads,key heads,tokens,width")
    parser.add_argument("--ways", nargs="+", default=list(TEXT), choices=list(TEXT), help="which to measure")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds of timed repeats for each way")
    parser.add_argument("--out", type=Path, help="benchmarks/records/gpu.json for a whole run; else build/gpu.json")
    given = parser.parse_args()
    whole = given.shapes is None and given.ways == list(TEXT)
    out = given.out or ROOT / ("benchmarks/records" if whole else "build") / "gpu.json"
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py measures on a CUDA device, and there is none here")
    shapes = [tuple(int(n) for n in text.split(",")) for text in given.shapes] if given.shapes else SHAPES
    where = records.describe_environment(("torch", "triton"), accelerator=torch.cuda.get_device_name())
    rows: list[dict[str, Any]] = []
    begun, todo = time.monotonic(), [(shape, name) for shape in shapes for name in given.ways]
    spec = {"dtype": "bfloat16", "causal": True, "checked_on": CHECKED, "allowed_error": ALLOWED, "ways": TEXT}
    record = {
        "command": command(given.shapes, given.ways, given.budget),
        "spec": spec,
        "environment": where,
        "rows": rows,
        "decode": [],
    }
    print(f"comparing {len(todo)} ways with float64", file=sys.stderr, flush=True)
    with multiprocessing.get_context("spawn").Pool(min(12, len(todo))) as pool:
        ready = pool.map(prepared, [(name, shape) for shape, name in todo], chunksize=1)
    for shape in shapes:
        here = [row for row in ready if tuple(row["shape"]) == shape]
        measure(
            here,
            given.budget,
            lambda words: print(f"{time.monotonic() - begun:4.0f} s  {words}", file=sys.stderr, flush=True),
        )
        rows += here
        records.write(out, record)  # after each, so that nothing measured is lost
        gc.collect()
        torch.cuda.empty_cache()
    print(table_of(rows), flush=True)
    if not given.shapes:
        record["decode"] = gpu_decode.measure(given.budget, ALLOWED)
        records.write(out, record)
        print(gpu_decode.table_of(record["decode"]))


if __name__ == "__main__":
    main()

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
import math
import multiprocessing
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import whence
from gpu_ways import POSITIONS, TEXT, tensors, way
from whence import records
from whence.attention.fused.tiling import LONG

ROOT = Path(__file__).resolve().parent.parent
SHAPES = [(4, 16, 16, 4096, 64), (4, 16, 16, 4096, 128), (1, 16, 16, 16384, 128), (1, 32, 8, 32768, 128)]
CHECKED = 512  # tokens of the comparison with float64
DENSE = 24 * 2**30  # bytes of scores that a dense way may take
WARM = 60.0  # milliseconds of replays before any counts: a device that stood idle is slower at first
ALLOWED = 2e-2  # relative error; bfloat16 computations stand near 3e-3, parameters up to a few times that


def errors(name: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Relative errors of the output and the gradients against float64, on a shorter sequence with the same kernels."""
    torch.manual_seed(1)
    _, heads, groups, length, width = shape
    share, tokens = heads // groups, CHECKED
    if length > LONG:  # long sequences have tiles of their own: as many tokens as choose them, of four heads
        heads, groups, tokens = max(4, share), max(1, 4 // share), LONG + 64
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


def captured(step: Callable[[], object]) -> Callable[[], None] | None:
    """The step as a graph, or None where it cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except Exception as error:  # a stock kernel may refuse; the eager time remains
        print(f"  not captured: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        torch.cuda.synchronize()
        return None
    return graph.replay


def milliseconds(step: Callable[[], object], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in times]


def timed(step: Callable[[], object], seconds: float) -> dict[str, list[float]]:
    """Replays and eager steps, as many as fit the time given."""
    first = milliseconds(step, 1)
    if first[0] > 200:  # nothing to gain from a graph, and one reading tells enough
        return {"eager": first, "device": []}
    repeats = max(3, min(25, int(seconds * 1000 / max(first[0], 1e-3))))
    eager = milliseconds(step, repeats)
    graph = captured(step)
    return {"eager": eager, "device": [] if graph is None else warm_milliseconds(graph, repeats)}


def warm_milliseconds(replay: Callable[[], None], repeats: int) -> list[float]:
    begun = milliseconds(replay, 2)
    milliseconds(replay, math.ceil(WARM / max(begun[1], 1e-3)))
    return milliseconds(replay, repeats)


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


def measure(row: dict[str, Any], budget: float) -> dict[str, Any]:
    """Times and memory of a way that was found right."""
    if "left_out" in row:
        return row
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
    row["milliseconds"] = {"forward": timed(forward, budget / 3), "both": timed(both, budget)}
    return row


def decode(budget: float) -> list[dict[str, Any]]:
    """One query a head against a long cache: bytes of keys and values over time, beside a plain copy's."""
    batch, heads, groups, keys, width = 8, 32, 8, 65536, 128
    torch.manual_seed(0)
    k, v = (torch.randn(batch, groups, keys, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(batch, heads, 1, width, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(k)
    copying = timed(lambda: target.copy_(k), budget)
    rows: list[dict[str, Any]] = [{"way": "copy", "milliseconds": copying, "bytes": 2 * k.nbytes}]
    for name in ("none", "alibi", "epar", "t5"):
        made = POSITIONS[name](heads, keys)
        position = None if made is None else made.cuda()
        cache = whence.KVCache(capacity=keys)
        cache.extend(
            q.expand(-1, -1, keys - 1, -1), k[:, :, :-1], v[:, :, :-1], causal=True, window=None, q_positions=None, k_positions=None, lengths=None,
            padding=None, documents=None,
        )  # fmt: skip
        held = cache.mark()

        def step(position: Any = position, cache: Any = cache, held: Any = held) -> Tensor:
            cache.restore(held)
            with torch.no_grad():
                return whence.attend(
                    q, k[:, :, -1:], v[:, :, -1:], position=position, causal=True, cache=cache, backend="triton"
                )

        out = step().clone()
        wide = None if position is None else copy.deepcopy(position).double()
        places = torch.arange(keys, device="cuda")
        exact = whence.attend(
            q[:1].double(), k[:1].double(), v[:1].double(), position=wide, causal=True, q_positions=places[-1:],
            k_positions=places, backend="reference",
        )  # fmt: skip
        error = ((out[:1].double() - exact).norm() / exact.norm()).item()
        del exact
        if error < ALLOWED:
            times = timed(step, budget)
            rows.append({"way": name, "milliseconds": times, "bytes": k.nbytes + v.nbytes, "error": error})
        else:
            rows.append({"way": name, "error": error, "left_out": "wrong: the comparison with float64 failed"})
        del cache
    return rows


def middle(row: dict[str, Any], passes: str) -> float:
    times = row["milliseconds"][passes]
    return statistics.median(times["device"] or times["eager"])


def table_of(rows: list[dict[str, Any]], decoding: list[dict[str, Any]]) -> str:
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
    if decoding:
        copying = decoding[0]["bytes"] / statistics.median(decoding[0]["milliseconds"]["device"]) / 1e9
        lines.append(f"\ndecoding, batch 8, heads 32/8, 65536 keys, width 128; a copy moves {copying:.2f} TB/s")
        for row in decoding[1:]:
            if "left_out" in row:
                lines.append(f"{TEXT[row['way']]:48}  {row['left_out']}")
                continue
            times = row["milliseconds"]
            took = statistics.median(times["device"] or times["eager"])
            speed = row["bytes"] / took / 1e9
            lines.append(f"{TEXT[row['way']]:48}{took:>9.3f} ms{speed:>7.2f} TB/s{speed / copying:>7.0%} of the copy")
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
    where = records.environment(ROOT, ("torch", "triton"), torch.cuda.get_device_name())
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
    for number, row in enumerate(ready):
        spent = time.monotonic() - begun
        print(f"[{number + 1}/{len(todo)}] {row['way']}, {row['shape']}, {spent:.0f} s", file=sys.stderr, flush=True)
        try:
            rows.append(measure(row, given.budget))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            rows.append(row | {"left_out": f"failed: {reason}"})
        records.write(out, record)  # after each, so that nothing measured is lost
        gc.collect()
        torch.cuda.empty_cache()
    print(table_of(rows, []), flush=True)
    if not given.shapes:
        record["decode"] = decode(given.budget)
        records.write(out, record)
        print(table_of([], record["decode"]))


if __name__ == "__main__":
    main()

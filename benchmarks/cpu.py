"""Time and peak memory of learnable position on a CPU, as ratios to what a user would pick instead, in one run.

    python benchmarks/cpu.py                 # 1024 to 8192 tokens, about fifteen minutes; writes benchmarks/records/cpu.json
    python benchmarks/cpu.py --lengths 1024 --rounds 1 --out build/cpu.json

Causal attention, batch 1, 8 heads, width 64, float32, all cores. Four ways for each mechanism: position-free SDPA (the
floor), plain dense torch, SDPA with the bias as a dense mask (a factor cannot be one), and whence. The position's
parameters learn in all but the floor. Times are taken in turns in one process; memory is the peak of the
resident size over what stood there before, in a process of its own.
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

HEADS, WIDTH = 8, 64
LONG = 8.0  # seconds
ROOT = Path(__file__).resolve().parent.parent
WAYS = ("floor", "dense", "sdpa", "whence")
NAMES = {"floor": "SDPA, no position", "dense": "plain torch, dense", "sdpa": "SDPA, dense bias", "whence": "whence"}


def mechanism(name: str, length: int) -> whence.Position:
    return whence.Epar(HEADS, context=length, learnable=True) if name == "Epar" else whence.Alibi(HEADS, learnable=True)


def expand(position: whence.Position, hook: str, length: int) -> Tensor:
    """The effect as a dense ``[heads, length, length]`` matrix, by the fastest gather that torch has on a CPU."""
    distance = torch.arange(1 - length, length, dtype=torch.float32)
    effect = evaluate_table(position, hook, distance, HEADS, length)
    assert effect is not None
    here = torch.arange(length)
    index = (here[:, None] - here[None, :] + length - 1).flatten()
    return effect.index_select(1, index).view(HEADS, length, length)


def plain(q: Tensor, k: Tensor, v: Tensor, position: whence.Position) -> Tensor:
    length = q.shape[2]
    scores = (q @ k.transpose(-1, -2)) * WIDTH**-0.5
    if "score_scale" in position.effects:
        scores = scores * expand(position, "score_scale", length)
    if "bias" in position.effects:
        scores = scores + expand(position, "bias", length)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(later, -torch.inf), -1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor, position: whence.Position) -> Tensor:
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    mask = expand(position, "bias", q.shape[2]).masked_fill(later, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None])


def job(way: str, name: str, length: int, passes: str) -> Callable[[], None]:
    """One step of one way, ready to be called again and again."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=passes == "both") for _ in range(3))
    upstream = torch.randn(1, HEADS, length, WIDTH)
    position = mechanism(name, length)
    learnt = [] if way == "floor" else list(position.parameters())

    def forward() -> Tensor:
        if way == "floor":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if way == "dense":
            return plain(q, k, v, position)
        if way == "sdpa":
            return masked(q, k, v, position)
        return whence.attend(q, k, v, position=position, causal=True)

    def step() -> None:
        if passes == "forward":
            with torch.no_grad():
                forward()
        else:
            torch.autograd.grad(forward(), [q, k, v, *learnt], upstream)

    return step


def peak(way: str, name: str, length: int, passes: str) -> float:
    """Megabytes of resident memory that one step needs at its peak, beyond what stood there before."""
    step = job(way, name, length, passes)
    for warm in ("Epar", "Alibi"):  # libraries and thread pools are loaded before the mark is taken
        if not (way == "sdpa" and warm == "Epar"):
            job(way, warm, 64, passes)()
    before = kilobytes("/proc/self/status", "VmRSS")
    step()
    return (kilobytes("/proc/self/status", "VmHWM") - before) / 1024


def kilobytes(file: str, entry: str) -> int:
    """An entry of Linux's own accounting (a process's rusage would inherit the peak of its parent)."""
    line = next(line for line in Path(file).read_text().splitlines() if line.startswith(entry + ":"))
    return int(line.split()[1])


def needed_megabytes(way: str, length: int, passes: str) -> float:
    """A cautious guess, so that a dense way is left out rather than killed."""
    return 0.0 if way in ("floor", "whence") else (8 if passes == "both" else 5) * HEADS * length**2 * 4 / 2**20


def cases(lengths: list[int]) -> list[tuple[str, str, int]]:
    return [
        (name, passes, length) for length in lengths for name in ("Epar", "Alibi") for passes in ("forward", "both")
    ]


def measure(lengths: list[int], rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    todo, begun = cases(lengths), time.monotonic()
    weights = [length**2 * (3 if passes == "both" else 1) for _, passes, length in todo]
    fresh = multiprocessing.get_context("spawn")
    for number, (name, passes, length) in enumerate(todo):
        done, left = sum(weights[:number]), sum(weights[number:])
        rest = f", about {(time.monotonic() - begun) / done * left:.0f} s left" if done else ""
        print(f"[{number + 1}/{len(todo)}] {name}, {length} tokens, {passes}{rest}", file=sys.stderr, flush=True)
        ways = [w for w in WAYS if not (w == "sdpa" and name == "Epar")]
        skipped = [
            w
            for w in ways
            if needed_megabytes(w, length, passes) > 0.8 * kilobytes("/proc/meminfo", "MemAvailable") / 1024
        ]
        memory: dict[str, float] = {}
        for way in ways:
            if way not in skipped:
                with fresh.Pool(1) as pool:
                    memory[way] = pool.apply(peak, (way, name, length, passes))
        steps = {way: job(way, name, length, passes) for way in ways if way not in skipped}
        seconds = take_turns(steps, rounds)
        for way in ways:
            rows.append(
                {
                    "mechanism": name, "length": length, "passes": passes, "way": way,
                    "seconds": seconds.get(way), "extra_megabytes": memory.get(way),
                    "left_out": "not enough memory for a dense matrix" if way in skipped else None,
                }
            )  # fmt: skip
    return rows


def take_turns(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, in turns. Each timed step follows an untimed one of the same way, so that no way pays for the
    memory another gave back; a way that is slower than ``LONG`` has one turn only."""
    seconds: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(rounds):
        for way, step in steps.items():
            if seconds[way] and seconds[way][0] > LONG:
                continue
            step()
            start = time.perf_counter()
            step()
            seconds[way].append(time.perf_counter() - start)
    return seconds


def table_of(rows: list[dict[str, object]]) -> str:
    """The measurements as a text table, each time and memory beside its ratio to the floor."""
    floor = {(r["mechanism"], r["length"], r["passes"]): r for r in rows if r["way"] == "floor"}
    lines = [
        f"{'mechanism':10}{'tokens':>7}  {'passes':8} {'way':20}{'seconds':>9}{'/floor':>8}{'extra MB':>10}{'/dense':>8}"
    ]
    dense = {(r["mechanism"], r["length"], r["passes"]): r for r in rows if r["way"] == "dense"}
    for r in rows:
        key = (r["mechanism"], r["length"], r["passes"])
        start = f"{r['mechanism']:10}{r['length']:>7}  {r['passes']:8} {NAMES[str(r['way'])]:20}"
        if r["seconds"] is None:
            lines.append(start + f"  {r['left_out']}")
            continue
        middle = statistics.median(r["seconds"])  # type: ignore[arg-type]
        ratio = middle / statistics.median(floor[key]["seconds"])  # type: ignore[arg-type]
        most = dense[key]["extra_megabytes"]
        share = f"{r['extra_megabytes'] / most:>8.3f}" if most else f"{'':>8}"  # type: ignore[operator]
        lines.append(start + f"{middle:>9.3f}{ratio:>8.2f}{r['extra_megabytes']:>10.0f}{share}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192], help="numbers of tokens")
    parser.add_argument("--rounds", type=int, default=3, help="timed turns of each way")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "records" / "cpu.json", help="where the record goes"
    )
    given = parser.parse_args()
    spec = {
        "batch": 1, "heads": HEADS, "width": WIDTH, "dtype": "float32", "causal": True, "lengths": given.lengths,
        "rounds": given.rounds, "threads": torch.get_num_threads(), "ways": NAMES,
    }  # fmt: skip
    where = records.describe_environment()
    rows = measure(given.lengths, given.rounds)
    records.write(given.out, {"command": "python benchmarks/cpu.py", "spec": spec, "environment": where, "rows": rows})
    print(table_of(rows))
    print(f"\nrecord: {given.out.relative_to(ROOT) if given.out.is_relative_to(ROOT) else given.out}")


if __name__ == "__main__":
    main()

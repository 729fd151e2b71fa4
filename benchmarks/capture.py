"""Memory and time of capture in a long forward pass on a CPU: SmolLM2 with each recorder, each in its own process.

    python benchmarks/capture.py                  # 8192 tokens; writes benchmarks/records/capture.json
    python benchmarks/capture.py --length 1024 --out build/capture.json

All layers are recorded, and every result is read once. The peak is the largest resident size meanwhile, minus the size with
the model loaded. The record is written after each way and keeps the other ways if sources and settings are the same, so a
run that was stopped continues with ``--ways``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from whence import hf, records
from whence.hf.recorders import Recorder

ROOT = Path(__file__).resolve().parent.parent
ROWS, SEGMENTS = 16, 32
WAYS = {
    "plain": "the forward alone",
    "LastRow": "the last attention row",
    "AttentionRows": f"{ROWS} whole attention rows",
    "SegmentMass": f"the mass of all rows on each of {SEGMENTS} segments",
    "KeyProfile": "the mean weight by key",
    "DistanceProfile": "the mean weight by distance",
    "HiddenStates": "the hidden states",
    "RotatedQK": "queries and keys before and after rotation",
    "everything": "all of these in one forward",
}
LIMIT = 2e9  # bytes beyond the model for any one recorder; all at once keep the sum


def resident() -> int:
    """This process's memory now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def build_recorders(way: str, length: int) -> list[Recorder]:
    """New recorders for one way; none for the forward pass alone."""
    segments = torch.arange(length) * SEGMENTS // length
    by_name: dict[str, Recorder] = {
        "LastRow": hf.LastRow(),
        "AttentionRows": hf.AttentionRows(torch.linspace(0, length - 1, ROWS).long()),
        "SegmentMass": hf.SegmentMass(segments, rows=torch.arange(length)),
        "KeyProfile": hf.KeyProfile(),
        "DistanceProfile": hf.DistanceProfile(),
        "HiddenStates": hf.HiddenStates(),
        "RotatedQK": hf.RotatedQK(),
    }
    return [recorder for name, recorder in by_name.items() if way in (name, "everything")]


def measure(way: str, length: int, out: multiprocessing.Queue[dict[str, float]]) -> None:
    model, _ = hf.load("smollm2")
    tokens = torch.randint(100, 40000, (1, length), generator=torch.Generator().manual_seed(0))
    recorders = build_recorders(way, length)
    sum(float(weight.detach().sum()) for weight in model.parameters())  # weights are in memory once they were looked at
    before, peak, done = resident(), [0], threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident())

    looking = threading.Thread(target=look)
    looking.start()
    begin = time.perf_counter()
    with torch.inference_mode():
        with hf.capture(model, *recorders) if recorders else nullcontext():
            model(tokens, use_cache=False, logits_to_keep=1)
        for one in recorders:
            for layer in one:
                one[layer].sum()
    seconds = time.perf_counter() - begin
    done.set()
    looking.join()
    out.put({"seconds": seconds, "bytes": peak[0] - before, "model_bytes": before})


def others(out: Path, record: dict[str, Any]) -> dict[str, Any]:
    """What a record has already, if the same sources measured it in the same way."""
    there = records.read(out) if out.exists() else {}
    same = there.get("about") == record["about"]
    return (
        there["results"] if same and there["environment"]["source_hash"] == record["environment"]["source_hash"] else {}
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "capture.json")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    about = {"length": given.length, "threads": torch.get_num_threads(), "limit_bytes": LIMIT, "ways": WAYS}
    environment = records.describe_environment(("torch", "transformers"))
    results: dict[str, dict[str, float]] = {}
    for way in given.ways:
        queue: multiprocessing.Queue[dict[str, float]] = context.Queue()
        process = context.Process(target=measure, args=(way, given.length, queue))
        process.start()
        results[way] = queue.get()
        process.join()
        print(
            f"{WAYS[way]}: {results[way]['seconds']:.0f} s, {results[way]['bytes'] / 1e9:.2f} GB beyond the model",
            flush=True,
        )
        record = {"environment": environment, "about": about}
        records.write(given.out, {**record, "results": others(given.out, record) | results})
    over = [way for way, found in results.items() if found["bytes"] > LIMIT and way != "everything"]
    if over:
        print(f"over {LIMIT / 1e9:.0f} GB: {', '.join(over)}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

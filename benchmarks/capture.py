"""Memory and time of looking inside a long forward on a CPU: SmolLM2, with and without capture, each in its own process.

    python benchmarks/capture.py                  # 8192 tokens; writes benchmarks/records/capture.json
    python benchmarks/capture.py --length 1024 --out build/capture.json

What is captured: in all layers the last attention row, the mean weight by distance and by key, and the hidden states. The
peak is the largest resident size while the forward runs, over what stood there with the model loaded.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import threading
import time
from pathlib import Path

import torch

from whence import hf, records

ROOT = Path(__file__).resolve().parent.parent
WAYS = {"plain": "the forward alone", "rows": "last rows and states", "all": "last rows, states, by distance, by key"}
LIMIT = 2e9  # bytes beyond the model


def resident() -> int:
    """This process's memory now, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(way: str, length: int, out: multiprocessing.Queue[dict[str, float]]) -> None:
    model, _ = hf.load("smollm2")
    tokens = torch.randint(100, 40000, (1, length), generator=torch.Generator().manual_seed(0))
    watchers = {"plain": [], "rows": [hf.LastRow(), hf.Hidden()]}.get(way)
    if watchers is None:
        watchers = [hf.LastRow(), hf.Hidden(), hf.ByDistance(), hf.ByKey()]
    sum(float(weight.detach().sum()) for weight in model.parameters())  # weights are in memory once they were looked at
    before, peak, done = resident(), [0], threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident())

    looking = threading.Thread(target=look)
    looking.start()
    begin = time.perf_counter()
    with torch.inference_mode():
        if watchers:
            with hf.capture(model, *watchers):
                model(tokens, use_cache=False, logits_to_keep=1)
        else:
            model(tokens, use_cache=False, logits_to_keep=1)
    seconds = time.perf_counter() - begin
    done.set()
    looking.join()
    out.put({"seconds": seconds, "bytes": peak[0] - before, "model_bytes": before})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "capture.json")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results = {}
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
    about = {"length": given.length, "threads": torch.get_num_threads(), "limit_bytes": LIMIT, "ways": WAYS}
    environment = records.environment(ROOT, ("torch", "transformers"))
    records.write(given.out, {"environment": environment, "about": about, "results": results})
    over = [way for way, found in results.items() if found["bytes"] > LIMIT]
    if over:
        print(f"over {LIMIT / 1e9:.0f} GB: {', '.join(over)}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())

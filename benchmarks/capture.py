"""Memory and time of recording internals of a long forward pass on a CPU, against the same forward pass alone.

    python benchmarks/capture.py                  # 8192 tokens; writes benchmarks/records/capture.json
    python benchmarks/capture.py --length 1024 --out build/capture.json

SmolLM2 runs once per recorder of ``whence.hf``, each in its own process. All layers are recorded and every recorded
tensor is read once. The peak is the largest resident size minus the resident size with the model loaded. The record is
written after each variant and keeps the results of other variants if source and settings are the same, so that an
interrupted run can be continued with ``--variants``.
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
VARIANTS = {
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
MAX_EXTRA_BYTES = 2e9  # beyond the model, for any single recorder; all of them together hold the sum


def resident_bytes() -> int:
    """The current resident size of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def make_recorders(variant: str, length: int) -> list[Recorder]:
    """New recorders of one variant; none for the forward pass alone."""
    segments = torch.arange(length) * SEGMENTS // length
    recorders: dict[str, Recorder] = {
        "LastRow": hf.LastRow(),
        "AttentionRows": hf.AttentionRows(torch.linspace(0, length - 1, ROWS).long()),
        "SegmentMass": hf.SegmentMass(segments, rows=torch.arange(length)),
        "KeyProfile": hf.KeyProfile(),
        "DistanceProfile": hf.DistanceProfile(),
        "HiddenStates": hf.HiddenStates(),
        "RotatedQK": hf.RotatedQK(),
    }
    return [recorder for name, recorder in recorders.items() if variant in (name, "everything")]


def measure(variant: str, length: int, out: multiprocessing.Queue[dict[str, float]]) -> None:
    model, _ = hf.load("smollm2")
    tokens = torch.randint(100, 40000, (1, length), generator=torch.Generator().manual_seed(0))
    recorders = make_recorders(variant, length)
    sum(float(weight.detach().sum()) for weight in model.parameters())  # load memory-mapped weights
    before, peak, done = resident_bytes(), [0], threading.Event()

    def sample_memory() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident_bytes())

    sampler = threading.Thread(target=sample_memory)
    sampler.start()
    start = time.perf_counter()
    with torch.inference_mode():
        with hf.capture(model, *recorders) if recorders else nullcontext():
            model(tokens, use_cache=False, logits_to_keep=1)
        for recorder in recorders:
            for layer in recorder:
                recorder[layer].sum()
    seconds = time.perf_counter() - start
    done.set()
    sampler.join()
    out.put({"seconds": seconds, "bytes": peak[0] - before, "model_bytes": before})


def read_other_results(out: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Results already in the record, if the same source measured them with the same settings."""
    existing = records.read(out) if out.exists() else {}
    same = existing.get("about") == record["about"]
    return (
        existing["results"]
        if same and existing["environment"]["source_hash"] == record["environment"]["source_hash"]
        else {}
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "capture.json")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    about = {
        "length": args.length,
        "threads": torch.get_num_threads(),
        "limit_bytes": MAX_EXTRA_BYTES,
        "variants": VARIANTS,
    }
    environment = records.describe_environment(("torch", "transformers"))
    results: dict[str, dict[str, float]] = {}
    for variant in args.variants:
        queue: multiprocessing.Queue[dict[str, float]] = context.Queue()
        process = context.Process(target=measure, args=(variant, args.length, queue))
        process.start()
        results[variant] = queue.get()
        process.join()
        print(
            f"{VARIANTS[variant]}: {results[variant]['seconds']:.0f} s, {results[variant]['bytes'] / 1e9:.2f} GB beyond the model",
            flush=True,
        )
        command = f"python benchmarks/capture.py --length {args.length}"
        record = {"command": command, "environment": environment, "about": about}
        records.write(args.out, {**record, "results": read_other_results(args.out, record) | results})
    exceeded = [
        variant for variant, found in results.items() if found["bytes"] > MAX_EXTRA_BYTES and variant != "everything"
    ]
    if exceeded:
        print(f"over {MAX_EXTRA_BYTES / 1e9:.0f} GB: {', '.join(exceeded)}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())

"""CPU time of pointer attention: scaled dot product, with and without a recency bias, against additive attention.

    python benchmarks/pointers.py                 # writes benchmarks/records/pointers.json
    python benchmarks/pointers.py --rounds 5 --out build/pointers.json

One step is a forward and a backward pass over a batch of padded histories, as in training. The variants are interleaved
on one thread, so that background load affects all of them, and an untimed step precedes each timed one. Times are
processor times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from whence import Recency, records
from whence.attention.pointer import PointerAttention
from whence_papers.pointer.next_location.model import AdditivePointer

ROOT = Path(__file__).resolve().parent.parent
BATCH, VISITS, EMBED_DIM = 128, 50, 64


def variants() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    return {
        "dot product": PointerAttention(EMBED_DIM),
        "dot product, Recency": PointerAttention(EMBED_DIM, Recency(VISITS + 1)),
        "additive": AdditivePointer(EMBED_DIM),
    }


def make_step(variant: torch.nn.Module, encoded: Tensor, key_mask: Tensor) -> Callable[[], None]:
    def step() -> None:
        log_weights = variant(encoded, key_mask=key_mask)
        log_weights[:, 0].sum().backward()  # every history has a first visit

    return step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "pointers.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    encoded = torch.randn(BATCH, VISITS, EMBED_DIM, generator=generator, requires_grad=True)
    lengths = torch.randint(VISITS // 2, VISITS + 1, (BATCH,), generator=generator)
    key_mask = torch.arange(VISITS) < lengths[:, None]
    steps = {name: make_step(variant, encoded, key_mask) for name, variant in variants().items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.rounds):
        for name, step in steps.items():
            step()
            start = time.process_time()
            step()
            times[name].append(1e3 * (time.process_time() - start))
    for name, row in times.items():
        print(f"{name}: {median(row):.2f} ms")
    about = {"batch": BATCH, "visits": VISITS, "embed_dim": EMBED_DIM, "turns": args.rounds, "threads": 1}
    results = {name: {"milliseconds": [round(value, 4) for value in row]} for name, row in times.items()}
    environment = records.describe_environment(("torch",))
    command = f"python benchmarks/pointers.py --rounds {args.rounds}"
    records.write(args.out, {"command": command, "environment": environment, "about": about, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())

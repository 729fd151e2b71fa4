"""Time of pointing on a CPU: the scaled dot-product pointer, with and without a bias, and additive attention as a pointer.

    python benchmarks/pointers.py                 # writes benchmarks/records/pointers.json
    python benchmarks/pointers.py --turns 5 --out build/pointers.json

One turn is a forward and a backward over a batch of padded histories, as in training. The ways take turns on one thread, so
that whatever else the machine does falls on all of them, and each timed pass follows an untimed one of the same way. Times
are those of the processor, without waiting for others.
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
BATCH, VISITS, WIDTH = 128, 50, 64


def ways() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    return {
        "dot product": PointerAttention(WIDTH),
        "dot product, Recency": PointerAttention(WIDTH, Recency(VISITS + 1)),
        "additive": AdditivePointer(WIDTH),
    }


def passing(way: torch.nn.Module, encoded: Tensor, key_mask: Tensor) -> Callable[[], None]:
    def step() -> None:
        log_weights = way(encoded, key_mask=key_mask)
        log_weights[:, 0].sum().backward()  # every history has a first visit

    return step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records" / "pointers.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    drawn = torch.Generator().manual_seed(0)
    encoded = torch.randn(BATCH, VISITS, WIDTH, generator=drawn, requires_grad=True)
    lengths = torch.randint(VISITS // 2, VISITS + 1, (BATCH,), generator=drawn)
    key_mask = torch.arange(VISITS) < lengths[:, None]
    steps = {name: passing(way, encoded, key_mask) for name, way in ways().items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(given.turns):
        for name, step in steps.items():
            step()
            begin = time.process_time()
            step()
            times[name].append(1e3 * (time.process_time() - begin))
    for name, row in times.items():
        print(f"{name}: {median(row):.2f} ms")
    about = {"batch": BATCH, "visits": VISITS, "width": WIDTH, "turns": given.turns, "threads": 1}
    results = {name: {"milliseconds": [round(value, 4) for value in row]} for name, row in times.items()}
    environment = records.describe_environment(("torch",))
    records.write(given.out, {"environment": environment, "about": about, "results": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())

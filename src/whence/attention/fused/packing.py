"""Laying numbers out for the kernels: tables side by side, rows that the copy engine can read, whole blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG2E = math.log2(math.e)
MARGIN = 256  # entries before and after a packed table: a tile may overhang it by its own size
NUMBERS, SLOPE, AMPLITUDE = 8, 4, 5  # slots of partial sums: up to four rates, then a slope's and an amplitude's
FEW_QUERIES = 16  # up to here keys are split over programs, and nothing is skipped


def pack(tables: list[Tensor], units: list[float]) -> Tensor | None:
    """Tables ``[H, n]`` in the kernels' units, side by side with margins around: ``[H, MARGIN + n + MARGIN, 1, 2 or 4]``,
    float32; None where there are none.

    It is outside the operator so that a compiler makes one kernel of it and of the mechanism that computes the tables.
    """
    if not tables:
        return None
    heads, entries = tables[0].shape
    width = (1, 2, 4, 4)[len(tables) - 1]
    target = torch.zeros(heads, entries + 2 * MARGIN, width, device=tables[0].device, dtype=torch.float32)
    for column, (table, unit) in enumerate(zip(tables, units, strict=True)):
        target[:, MARGIN : MARGIN + entries, column].add_(table, alpha=unit)
    return target


def aligned(x: Tensor) -> Tensor:
    """x itself where the copy engine can read it: rows together, every step a multiple of 16 bytes; else a copy, of a
    width that fits."""
    whole = 16 // x.element_size()
    steps = [stride for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    if x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(step > 0 and step % whole == 0 for step in steps):
        return x if x.shape[-1] % whole == 0 else torch.nn.functional.pad(x, (0, -x.shape[-1] % whole))
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % whole)).contiguous()


def empty_out(q: Tensor, v: Tensor) -> Tensor:
    """Room for the output, in the order of q where it has the shape of q."""
    return torch.empty_like(q) if q.shape[3] == v.shape[3] else q.new_empty(*q.shape[:3], v.shape[3])


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)  # triton's own, made for kernels, costs the host far more


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def line(rows: int) -> int:
    """Room for the rows' normalisers: whole blocks of any tile."""
    return ceil_div(rows, 128) * 128


def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4

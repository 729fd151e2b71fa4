"""Decoding against a long cache: the share of a plain copy's bandwidth, for benchmarks/gpu.py."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import whence
from gpu_timing import captured, in_turns
from gpu_ways import POSITIONS, TEXT


def measure(budget: float, allowed: float) -> list[dict[str, Any]]:
    """One query a head against a long cache: bytes of keys and values over time, beside a plain copy's."""
    batch, heads, groups, keys, width = 8, 32, 8, 65536, 128
    torch.manual_seed(0)
    k, v = (torch.randn(batch, groups, keys, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(batch, heads, 1, width, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(k)
    # a copy in a graph is the driver's own, which is slower here than a kernel: the fastest of three is the yardstick
    copies = {
        "copy": lambda: target.copy_(k),
        "copy in a graph": captured(lambda: target.copy_(k)),
        "copy by a kernel": captured(lambda: torch.bitwise_or(k.view(torch.int16), 0, out=target.view(torch.int16))),
    }
    rows: list[dict[str, Any]] = [{"way": name, "bytes": 2 * k.nbytes} for name in copies]
    steps: dict[str, Callable[[], object]] = {name: step for name, step in copies.items() if step is not None}
    for name in ("none", "alibi", "epar", "t5"):
        made = POSITIONS[name](heads, keys)
        position = None if made is None else made.cuda()
        cache = whence.KVCache(capacity=keys)
        cache.extend(
            q.expand(-1, -1, keys - 1, -1), k[:, :, :-1], v[:, :, :-1], causal=True, window=None, q_positions=None, k_positions=None, lengths=None,
            key_mask=None, segment_ids=None,
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
        row = {
            "way": name,
            "bytes": k.nbytes + v.nbytes,
            "error": ((out[:1].double() - exact).norm() / exact.norm()).item(),
        }
        del exact
        graph = captured(step) if row["error"] < allowed else None
        if graph is None:
            row["left_out"] = "not captured" if row["error"] < allowed else "wrong: the comparison with float64 failed"
        else:
            steps[name] = graph
        rows.append(row)
    for name, times in in_turns(steps, budget).items():
        next(row for row in rows if row["way"] == name)["milliseconds"] = times
    return rows


def table_of(decoding: list[dict[str, Any]]) -> str:
    copying = copy_speed(decoding)
    lines = [f"\ndecoding, batch 8, heads 32/8, 65536 keys, width 128; a copy moves {copying:.2f} TB/s"]
    for row in decoding:
        if row["way"].startswith("copy"):
            continue
        if "left_out" in row:
            lines.append(f"{TEXT[row['way']]:48}  {row['left_out']}")
            continue
        took = statistics.median(row["milliseconds"])
        speed = row["bytes"] / took / 1e9
        lines.append(f"{TEXT[row['way']]:48}{took:>9.3f} ms{speed:>7.2f} TB/s{speed / copying:>7.0%} of the copy")
    return "\n".join(lines)


def copy_speed(decoding: list[dict[str, Any]]) -> float:
    """Terabytes a second of the fastest copy, read and written."""
    copies = [row for row in decoding if row["way"].startswith("copy") and row.get("milliseconds")]
    return max(row["bytes"] / statistics.median(row["milliseconds"]) / 1e9 for row in copies)

"""Part of ``gpu.py``: decode of one token over a long cache, as a share of the bandwidth of a plain copy."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import whence
from gpu_timing import capture_graph, time_interleaved
from gpu_variants import LABELS, POSITIONS
from whence.attention.arguments import Arguments


def measure(budget: float, max_error: float) -> list[dict[str, Any]]:
    """One query per head over a long cache: bytes of keys and values per time, and the same for plain copies."""
    batch, heads, kv_heads, kv_len, head_dim = 8, 32, 8, 65536, 128
    torch.manual_seed(0)
    k, v = (torch.randn(batch, kv_heads, kv_len, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(batch, heads, 1, head_dim, device="cuda", dtype=torch.bfloat16)
    destination = torch.empty_like(k)
    # a captured copy is the driver's own, which is slower than a kernel: the fastest of three is the baseline
    copies = {
        "copy": lambda: destination.copy_(k),
        "copy in a graph": capture_graph(lambda: destination.copy_(k)),
        "copy by a kernel": capture_graph(
            lambda: torch.bitwise_or(k.view(torch.int16), 0, out=destination.view(torch.int16))
        ),
    }
    rows: list[dict[str, Any]] = [{"variant": name, "bytes": 2 * k.nbytes} for name in copies]
    steps: dict[str, Callable[[], object]] = {name: step for name, step in copies.items() if step is not None}
    for name in ("none", "alibi", "epar", "t5"):
        mechanism = POSITIONS[name](heads, kv_len, head_dim)
        position = None if mechanism is None else mechanism.cuda()
        cache = whence.KVCache(capacity=kv_len)
        prompt = Arguments(q.expand(-1, -1, kv_len - 1, -1), k[:, :, :-1], v[:, :, :-1], causal=True, cache=cache)
        cache.extend(prompt, learnable=False, below=kv_len)  # without attention over the prompt
        saved_state = cache.mark()

        def step(position: Any = position, cache: Any = cache, saved_state: Any = saved_state) -> Tensor:
            cache.restore(saved_state)
            with torch.no_grad():
                return whence.attend(
                    q, k[:, :, -1:], v[:, :, -1:], position=position, causal=True, cache=cache, backend="triton"
                )

        out = step().clone()
        double_position = None if position is None else copy.deepcopy(position).double()
        positions = torch.arange(kv_len, device="cuda")
        exact = whence.attend(
            q[:1].double(), k[:1].double(), v[:1].double(), position=double_position, causal=True, q_positions=positions[-1:],
            k_positions=positions, backend="reference",
        )  # fmt: skip
        row = {
            "variant": name,
            "bytes": k.nbytes + v.nbytes,
            "error": ((out[:1].double() - exact).norm() / exact.norm()).item(),
        }
        del exact
        graph = capture_graph(step) if row["error"] < max_error else None
        if graph is None:
            row["left_out"] = (
                "not captured" if row["error"] < max_error else "wrong: the comparison with float64 failed"
            )
        else:
            steps[name] = graph
        rows.append(row)
    for name, times in time_interleaved(steps, budget).items():
        next(row for row in rows if row["variant"] == name)["milliseconds"] = times
    return rows


def format_table(rows: list[dict[str, Any]]) -> str:
    copy_bandwidth = best_copy_bandwidth(rows)
    lines = [f"\ndecoding, batch 8, heads 32/8, 65536 keys, head_dim 128; a copy moves {copy_bandwidth:.2f} TB/s"]
    for row in rows:
        if row["variant"].startswith("copy"):
            continue
        if "left_out" in row:
            lines.append(f"{LABELS[row['variant']]:48}  {row['left_out']}")
            continue
        milliseconds = statistics.median(row["milliseconds"])
        bandwidth = row["bytes"] / milliseconds / 1e9
        lines.append(
            f"{LABELS[row['variant']]:48}{milliseconds:>9.3f} ms{bandwidth:>7.2f} TB/s{bandwidth / copy_bandwidth:>7.0%} of the copy"
        )
    return "\n".join(lines)


def best_copy_bandwidth(rows: list[dict[str, Any]]) -> float:
    """Terabytes per second of the fastest copy, reads plus writes."""
    copies = [row for row in rows if row["variant"].startswith("copy") and row.get("milliseconds")]
    return max(row["bytes"] / statistics.median(row["milliseconds"]) / 1e9 for row in copies)

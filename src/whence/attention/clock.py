"""``Clock``: the running sum of a mechanism's steps at every query and key, from which the bias ``C_i - C_j`` is a difference.

C counts the steps of real tokens in the order of their positions, separately in each segment. Only differences within a
segment have an effect, so steps before the first stored token, or in another segment, cancel: a sliding cache needs no
sum of what it dropped.

The sums are float64. The bias of two near tokens is a small difference of two sums that grow with the length: after
65536 tokens with steps around -0.5, differences of sums in float32 are wrong by 4e-3, those of float64 by 2e-6 after rounding
(tests/attention/test_clock_precision.py). The difference is as small as the bias and is rounded once, to the dtype of the
scores.

In half precision, kernels keep the sums of a block of tokens relative to its first one in float32, which a step of -1e6 would
leave without digits. Steps beyond ``MAX_STEP`` are limited there: a weight of exp(-4096) is 0, as one of exp(-1e6).
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

from whence import torch_modes
from whence.attention.fused.packing import MIN_CAPABILITY
from whence.attention.layout import Layout

MAX_STEP = 4096.0  # nats; far beyond the differences of scores in half precision


@dataclass(frozen=True)
class Clock:
    """Running sums in float64."""

    q: Tensor  # [B, H, T]
    k: Tensor  # [B, H, S]

    def bias(self, dtype: torch.dtype, rows: slice | None = None) -> Tensor:
        """``C_i - C_j`` of some query rows and all keys, ``[B, H, T, S]``."""
        q = self.q if rows is None else self.q[:, :, rows]
        return (q[..., :, None] - self.k[..., None, :]).to(dtype)


def run_clock(steps: Tensor, layout: Layout, dtype: torch.dtype) -> Clock:
    """The running sums of the steps ``[B, H, S]`` of all keys, at the position of every query and key; ``dtype`` is that of q."""
    limit = MAX_STEP if dtype in (torch.float16, torch.bfloat16) else torch.inf
    if layout.real is not None:
        steps = torch.where(layout.real[:, None, :], steps, 0.0)
    if layout.offset is None or layout.k_segment_ids is not None:
        return _sum_by_position(_limit(steps, limit).double(), layout)
    sums, queries = _sum_in_order(steps, limit), layout.q_positions.shape[1]
    if layout.offset == 0 and queries == sums.shape[-1]:
        return Clock(sums, sums)
    if layout.offset >= 0 and layout.offset + queries <= sums.shape[-1]:
        return Clock(sums[..., layout.offset : layout.offset + queries], sums)
    # queries before the first key, where the sum is 0, or after the last one
    index = (torch.arange(queries, device=sums.device) + layout.offset + 1).clamp(0, sums.shape[-1])
    return Clock(torch.nn.functional.pad(sums, (1, 0))[..., index], sums)


def _limit(steps: Tensor, limit: float) -> Tensor:
    return steps if limit == torch.inf else steps.clamp(-limit, limit)


def _sum_in_order(steps: Tensor, limit: float) -> Tensor:
    if not _sums_by_kernel(steps):
        return _limit(steps, limit).double().cumsum(-1)
    from whence.attention.fused.running_sum import running_sum

    return running_sum(steps, limit)


def _sums_by_kernel(steps: Tensor) -> bool:
    """Whether one kernel sums: where Triton compiles for the GPU and nothing intercepts torch's operators.

    A CUDA graph captures the kernel, too.
    """
    return (
        steps.is_cuda
        and torch.version.hip is None
        and torch_modes.has_values(steps)
        and not torch_modes.is_transforming()
        and torch.cuda.get_device_capability(steps.device) >= MIN_CAPABILITY
        and importlib.util.find_spec("triton") is not None
    )


def _sum_by_position(steps: Tensor, layout: Layout) -> Clock:
    """Sums over tokens in any order: the sum at a position holds every key of the same segment at or before it."""
    batch, heads, keys = steps.shape
    queries = layout.q_positions.shape[1]
    tokens = keys + queries
    index = torch.arange(tokens, device=steps.device)
    # queries are tokens without a step, which stand where their own position is
    steps = torch.cat([steps, steps.new_zeros(batch, heads, queries)], -1)
    positions = _join(layout.k_positions.double(), layout.q_positions.double(), batch)
    # equal positions have equal sums, so their order has no effect; ONNX has no stable sort
    order = positions.argsort(dim=-1)
    first = positions.gather(1, order)
    is_last = first[:, 1:] != first[:, :-1]
    if layout.k_segment_ids is not None and layout.q_segment_ids is not None:
        segment_ids = _join(layout.k_segment_ids, layout.q_segment_ids, batch).gather(1, order)
        segment_ids, by_segment = segment_ids.sort(dim=-1, stable=True)
        order, first = order.gather(1, by_segment), first.gather(1, by_segment)
        is_last = (first[:, 1:] != first[:, :-1]) | (segment_ids[:, 1:] != segment_ids[:, :-1])
    is_last = torch.nn.functional.pad(is_last, (0, 1), value=True)
    last = torch.where(is_last, index, tokens).flip(-1).cummin(-1).values.flip(-1)
    sums = steps.gather(-1, _by_head(order, heads)).cumsum(-1)
    sums = sums.gather(-1, _by_head(last.gather(1, order.argsort(dim=-1)), heads))
    return Clock(sums[..., keys:], sums[..., :keys])


def _join(keys: Tensor, queries: Tensor, batch: int) -> Tensor:
    return torch.cat([keys.expand(batch, -1), queries.expand(batch, -1)], 1)


def _by_head(index: Tensor, heads: int) -> Tensor:
    return index[:, None].expand(-1, heads, -1)

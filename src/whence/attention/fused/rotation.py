"""One kernel that rotates q and k, forward and, with the opposite angle, backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whence.attention.fused.direct_launch import DirectLaunch, wait_for_gpu
from whence.attention.fused.packing import ceil_div, next_power_of_two
from whence.position.rotary import Rotary

ROWS = 32  # per program


@triton.jit
def rotate_rows(
    x, out, COS, SIN, b, h, start, length, first_position, SIGN: tl.constexpr, INTERLEAVED: tl.constexpr,
    PAIRS: tl.constexpr, REST: tl.constexpr, BLOCK_PAIRS: tl.constexpr, BLOCK_REST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rotate some rows of ``x = (pointer, strides of batch, head and row)``; columns beyond the pairs are copied."""
    rows = start + tl.arange(0, ROWS)
    pair = tl.arange(0, BLOCK_PAIRS)
    mask = (rows < length)[:, None] & (pair < PAIRS)[None, :]
    angle = (first_position + rows).to(tl.int64)[:, None] * PAIRS + pair[None, :]
    cos = tl.load(COS + angle, mask=mask, other=0.0)
    sin = tl.load(SIN + angle, mask=mask, other=0.0) * SIGN
    source = x[0] + b.to(tl.int64) * x[1] + h.to(tl.int64) * x[2] + rows.to(tl.int64)[:, None] * x[3]
    target = out[0] + b.to(tl.int64) * out[1] + h.to(tl.int64) * out[2] + rows.to(tl.int64)[:, None] * out[3]
    if INTERLEAVED:
        first_column = 2 * pair[None, :]
        second_column = first_column + 1
    else:
        first_column = pair[None, :]
        second_column = first_column + PAIRS
    first = tl.load(source + first_column, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + second_column, mask=mask, other=0.0).to(tl.float32)
    dtype = out[0].dtype.element_ty
    tl.store(target + first_column, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(target + second_column, (second * cos + first * sin).to(dtype), mask=mask)
    if REST > 0:
        column = tl.arange(0, BLOCK_REST)
        mask = (rows < length)[:, None] & (column < REST)[None, :]
        rest = tl.load(source + 2 * PAIRS + column[None, :], mask=mask, other=0.0)
        tl.store(target + 2 * PAIRS + column[None, :], rest, mask=mask)


@triton.jit(do_not_specialize=["heads", "kv_heads", "q_len", "kv_len", "q_start", "k_start", "q_programs"])
def rotate_kernel(
    Q, K, Q_OUT, K_OUT, COS, SIN, heads, kv_heads, q_len, kv_len, q_start, k_start, q_programs,
    SIGN: tl.constexpr, INTERLEAVED: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr, BLOCK_REST: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Blocks of rows of all heads of q, then of k. Row i of q has the position ``q_start + i``. In place is allowed."""
    index = tl.program_id(0)
    if index < q_programs:
        blocks = tl.cdiv(q_len, ROWS)
        rank = index // blocks
        rotate_rows(
            Q, Q_OUT, COS, SIN, rank // heads, rank % heads, index % blocks * ROWS, q_len, q_start, SIGN, INTERLEAVED,
            PAIRS, REST, BLOCK_PAIRS, BLOCK_REST, ROWS,
        )  # fmt: skip
    else:
        index = index - q_programs
        blocks = tl.cdiv(kv_len, ROWS)
        rank = index // blocks
        rotate_rows(
            K, K_OUT, COS, SIN, rank // kv_heads, rank % kv_heads, index % blocks * ROWS, kv_len, k_start, SIGN,
            INTERLEAVED, PAIRS, REST, BLOCK_PAIRS, BLOCK_REST, ROWS,
        )  # fmt: skip


class Rotation:
    """The rotation of one signature: the launches, and cosines and sines of the positions that have occurred."""

    def __init__(self, rotary: Rotary, head_dim: int, device: torch.device) -> None:
        pairs = rotary.resolve_rotary_dim(head_dim) // 2
        rest = head_dim - 2 * pairs
        constants = {
            "INTERLEAVED": rotary.layout == "interleaved", "PAIRS": pairs, "REST": rest,
            "BLOCK_PAIRS": next_power_of_two(pairs), "BLOCK_REST": next_power_of_two(max(1, rest)), "ROWS": ROWS,
        }  # fmt: skip
        self._forward = DirectLaunch(rotate_kernel, {"SIGN": 1, **constants}, {}, device)
        self._backward = DirectLaunch(rotate_kernel, {"SIGN": -1, **constants}, {}, device)
        self._rotary, self._pairs, self._device = rotary, pairs, device
        self._cos = self._sin = torch.empty(0)

    def cos_sin(self, length: int) -> tuple[Tensor, Tensor]:
        """``[at least length, pairs]``; the same numbers as ``Rotary.rotate`` computes."""
        if self._cos.shape[0] < length:
            rotary = self._rotary
            with torch.no_grad(), torch.inference_mode(False):
                frequencies = rotary.frequencies(
                    2 * self._pairs, rotary.context, dtype=torch.float32, device=self._device
                ).reshape(1, self._pairs)
                positions = torch.arange(next_power_of_two(length), device=self._device, dtype=torch.float32)
                angle = positions[:, None] * frequencies
                cos, sin = angle.cos() * rotary.attention_factor, angle.sin() * rotary.attention_factor
            if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return cos, sin  # computed when the graph is replayed, so not for other calls
            wait_for_gpu(self._device)
            self._cos, self._sin = cos, sin
        return self._cos, self._sin

    def rotate(self, q: Tensor, k: Tensor, q_start: int) -> tuple[Tensor, Tensor]:
        """q and k rotated, in new tensors; keys count from 0."""
        q_out, k_out = torch.empty_like(q), torch.empty_like(k)
        self._launch(self._forward, q, k, q_out, k_out, q_start)
        return q_out, k_out

    def rotate_gradients(self, dq: Tensor, dk: Tensor) -> None:
        """Rotate gradients back, in place; queries and keys count from 0."""
        self._launch(self._backward, dq, dk, dq, dk, 0)

    def _launch(self, launch: DirectLaunch, q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor, q_start: int) -> None:
        (batch, heads, q_len, _), (_, kv_heads, kv_len, _) = q.shape, k.shape
        cos, sin = self.cos_sin(max(kv_len, q_start + q_len))
        q_programs = batch * heads * ceil_div(q_len, ROWS)
        launch(
            q_programs + batch * kv_heads * ceil_div(kv_len, ROWS), _rows(q), _rows(k), _rows(q_out), _rows(k_out), cos,
            sin, heads, kv_heads, q_len, kv_len, q_start, 0, q_programs,
        )  # fmt: skip


def _rows(x: Tensor) -> tuple[Any, ...]:
    return (x, *x.stride()[:3])

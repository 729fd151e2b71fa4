"""Host-side layout for the kernels: packed tables, TMA-aligned tensors, sizes rounded to whole blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MIN_CAPABILITY = (8, 0)  # below 9.0, kernels load tiles by pointers; compiled for such GPUs, not run on one
LOG2E = math.log2(math.e)
TABLE_PADDING = 256  # zero entries before and after a packed table: a tile may exceed the table by its own size
# slots of the partial sums per head: up to four derivative tables, then the slope and the amplitude
NUM_SLOTS, SLOPE_SLOT, AMPLITUDE_SLOT = 8, 4, 5
IS_AMD = torch.version.hip is not None  # kernels compile for gfx942 and have not run there; the backend refuses it
TMA_SHARED_MEMORY = 227 * 1024  # bytes per program on GPUs with TMA for which tiles are made
#: up to this number of queries, the split-k decode kernels read many keys, and no block is skipped
MAX_DECODE_QUERIES = 16


def base_2_factor(temperature: float) -> float:
    """What turns a logit before the division by the temperature into a base-2 logit."""
    # a literal: with dynamic=True, torch.compile makes a symbol of a module's number, which blocks of rows cannot read
    return 1.4426950408889634 / temperature


def pack_tables(tables: list[Tensor], scales: list[float]) -> Tensor | None:
    """Interleave scaled tables ``[H, n]`` and pad them: ``[H, n + 2 * TABLE_PADDING, 1, 2 or 4]``, float32.

    None if there are no tables. This runs outside the operator, so that a compiler fuses it with the computation of the
    tables.
    """
    if not tables:
        return None
    heads, entries = tables[0].shape
    columns = (1, 2, 4, 4)[len(tables) - 1]
    packed = torch.zeros(heads, entries + 2 * TABLE_PADDING, columns, device=tables[0].device, dtype=torch.float32)
    for column, (table, scale) in enumerate(zip(tables, scales, strict=True)):
        packed[:, TABLE_PADDING : TABLE_PADDING + entries, column].add_(table, alpha=scale)
    return packed


def distance_range(offset: int, causal: bool, window: int | None, q_len: int, kv_len: int) -> tuple[int, int]:
    """The smallest visible distance and one past the largest; the range has at least one distance."""
    first, end = offset - kv_len + 1, offset + q_len
    if causal:
        first = max(first, 0)
    if window is not None:
        first, end = max(first, 1 - window), min(end, window)
    if end <= first:  # no query sees any key
        return (0, 1) if causal or window is not None else (first, first + 1)
    return first, end


def effective_window(offset: int, window: int | None, q_len: int, kv_len: int) -> int | None:
    """The window, or None if it hides nothing. The result is small enough for 32-bit sums in the kernels."""
    largest = max(abs(offset - kv_len + 1), abs(offset + q_len - 1))
    return None if window is None or window > largest else window


def draw_seed(device: torch.device) -> Tensor:
    """A seed of dropout on the device: a captured CUDA graph draws another one in each replay."""
    return torch.randint(2**31 - 1, (), dtype=torch.int64, device=device)


def align(x: Tensor) -> Tensor:
    """x if kernels can read it in place, else a padded copy."""
    if is_aligned(x):
        return x
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % (16 // x.element_size()))).contiguous()


def is_aligned(x: Tensor) -> bool:
    """Whether TMA can read x: last stride 1, its address, other strides and the size of a row multiples of 16 bytes."""
    unit = 16 // x.element_size()
    strides, shape = x.stride(), x.shape
    if strides[-1] != 1 or shape[-1] % unit or x.data_ptr() % 16:
        return False
    for stride, n in zip(strides[:-1], shape, strict=False):  # noqa: SIM110 -- a generator would take longer
        if n != 1 and (stride <= 0 or stride % unit):
            return False
    return True


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """An uninitialized output, with the strides of q if it has the shape of q."""
    return torch.empty_like(q) if q.shape[3] == v.shape[3] else q.new_empty(*q.shape[:3], v.shape[3])


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)  # triton.cdiv is made for kernels and far slower on the host


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def tile_columns(dim: int, element_size: int) -> tuple[int, int]:
    """The columns of both parts of a tile with a head dimension: powers of two, the second 0 if it would save nothing.

    A second part of 16 columns in float32 reads outside its memory on an H200, with any loads.
    """
    whole = max(16, next_power_of_two(dim))
    half = whole // 2
    rest = max(16 if element_size == 2 else 32, next_power_of_two(dim - half))
    return (half, rest) if half >= 16 and half + rest < whole else (whole, 0)


def padded_length(q_len: int) -> int:
    """q_len rounded up to whole blocks of any tile: the row length of the log-sum-exp and delta tensors."""
    return ceil_div(q_len, 128) * 128


def lse_shape(q: Tensor, has_bias: bool) -> tuple[int, ...]:
    """The shape ``[1 or 2, B, H, padded_length]`` of the log-sum-exp tensor.

    With a bias table, it also holds the factors of the rows (see ``tile_ops.store_log_sum_exp``).
    """
    return 2 if has_bias else 1, q.shape[0], q.shape[1], padded_length(q.shape[2])


def limit_finite(bias: Tensor, factor: float) -> Tensor:
    """The bias with finite numbers so limited that they stay finite when multiplied by a factor; gradients pass.

    A bias of ``finfo.min`` at every key of a row must not become -inf, which hides the row.
    """
    if factor <= 1:
        return bias
    largest = 0.999 * torch.finfo(bias.dtype).max / factor  # leaves room for rounding
    with torch.no_grad():
        excess = torch.nan_to_num(bias.clamp(-largest, largest).sub_(bias), nan=0.0, posinf=0.0, neginf=0.0)
    return bias + excess


def has_tma(device: torch.device) -> bool:
    """Whether kernels load and store tiles by TMA, the copy engine of compute capability 9.0; otherwise by pointers.

    Tiles for TMA need the shared memory of a data center GPU. Consumer GPUs of compute capability 12.0 have less.
    """
    return shared_memory(device) >= TMA_SHARED_MEMORY


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program can have, from NVIDIA's table of compute capabilities."""
    if device.type != "cuda":
        return TMA_SHARED_MEMORY
    capability = torch.cuda.get_device_capability(device)
    if capability in ((8, 0), (8, 7)):
        return 163 * 1024
    return TMA_SHARED_MEMORY if (9, 0) <= capability < (12, 0) else 99 * 1024


def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and not IS_AMD and torch.cuda.get_device_capability(device)[0] == 9


def num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4

"""Score terms by a gated count of keys (``Position.gated_bias_table``), in plain operations.

g_it = sigmoid(score_it)                         gate of query i for key t; 0 for masked keys
p_ij = min(sum of g_it for t from j on, n - 1)   the keys from j to the latest visible one, each counted by its gate
term = table_i[p_ij]                             linear interpolation between two of the n entries of the query
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.position.hook_types import Rows


def count_gates(rows: Rows, largest: int) -> Tensor:
    """The gated count at every key for every query, ``[B, H, T, S]``, clamped to ``largest``; float32 or float64."""
    scores = rows.scores.to(torch.promote_types(rows.scores.dtype, torch.float32))
    gates = torch.where(rows.visible, torch.sigmoid(scores), 0.0)
    # keys may be in any order: sum from the latest position backwards, then restore the order of the keys
    # a stable sort matters for equal positions only, and ONNX has none
    options = {} if torch.compiler.is_exporting() else {"stable": True}
    latest_first = rows.k_positions.sort(dim=-1, descending=True, **options).indices
    restore = latest_first.argsort(dim=-1)[:, None, None, :].expand_as(gates)
    sums = gates.gather(-1, latest_first[:, None, None, :].expand_as(gates)).cumsum(-1)
    return sums.gather(-1, restore).clamp(max=largest)


def interpolate(table: Tensor, counts: Tensor) -> Tensor:
    """The entries ``[B, H, T, n]`` at counts ``[B, H, T, S]``, in the dtype of the counts.

    >>> interpolate(torch.tensor([[[[0.0, 4.0, 5.0]]]]), torch.tensor([[[[0.25, 1.5, 2.0]]]])).tolist()
    [[[[1.0, 4.5, 5.0]]]]
    """
    floor = counts.floor()
    low = table.gather(-1, floor.long())
    high = table.gather(-1, counts.ceil().long())
    return torch.lerp(low.to(counts.dtype), high.to(counts.dtype), counts - floor)


def require_gated_table(mechanism: str, table: object, shape: tuple[int, ...]) -> Tensor:
    """The output of ``gated_bias_table``, where ``shape`` is that of the queries."""
    subject, remedy = f"{mechanism}.gated_bias_table", "return a tensor with the terms at the counts 0, 1, ..., n - 1"
    if not isinstance(table, Tensor):
        raise usage_error(subject, f"an output of type {type(table).__name__}", "it must return a tensor", remedy)
    if table.ndim != 4 or table.shape[:3] != shape[:3] or table.shape[3] < 2:
        sizes = ", ".join(map(str, shape[:3]))
        rule = f"its shape is [B, H, T, n], here with B, H, T = {sizes} and n of at least 2"
        raise usage_error(subject, f"shape {list(table.shape)}", rule, remedy)
    return table

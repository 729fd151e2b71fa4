"""``attend`` over a sequence of which every process holds a part."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from whence import shapes
from whence.attention.attend import attend as attend_whole
from whence.errors import usage_error
from whence.parallel.collectives import AllGather, AllToAll
from whence.parallel.sharding import LAYOUTS, all_pieces, pieces, restore_order, unshard
from whence.position.base import Position, require_position
from whence.position.head_slice import select_heads
from whence.validation import require_choice

METHODS = ("ulysses", "all_gather")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    position: Position | None = None,
    clock: Tensor | None = None,
    q_input: Tensor | None = None,
    method: str = "ulysses",
    layout: str = "contiguous",
    group: dist.ProcessGroup | None = None,
    causal: bool = False,
    window: int | None = None,
    segment_ids: Tensor | None = None,
    scale: float | None = None,
    temperature: float = 1.0,
    backend: str = "auto",
    skip_blocks: bool = True,
    check_shapes: bool = True,
) -> Tensor:
    """Attention of this process's queries over the keys of all processes: an output like q.

    Every process of the group calls it with its part of the same sequences, as ``shard`` divides them. Positions are those
    in the whole sequence, so the result equals ``whence.attend`` in one process, whatever the position.

    Args:
        clock: for a position with a clock, its steps ``[B, H, T]`` at this process's tokens, for all heads.
        q_input: for a position that reads the layer input, that of this process's tokens, ``[B, T, embed_dim]``.
        method: ``"ulysses"`` exchanges tokens for heads: every process computes all tokens of some heads. It needs at
            least as many key heads as processes, or a divisor of them. ``"all_gather"`` collects keys and values: every
            process computes all heads of its own queries; it takes any number of heads and every mechanism.
        layout: ``"contiguous"`` or ``"zigzag"``, as in ``shard``. With causal ``"all_gather"``, zigzag balances the work.
        group: the processes; all by default.
        segment_ids: ``[T]`` or ``[B, T]``, for this process's tokens of packed sequences.
        check_shapes: compare the shapes of all processes first, which waits for them. Unequal shapes otherwise end in an
            error of the communication library, or in waiting.

    ``position``, ``causal``, ``window``, ``scale``, ``temperature``, ``backend`` and ``skip_blocks`` are those of
    ``whence.attend``.
    """
    require_choice("parallel.attend", "method", method, METHODS)
    require_choice("parallel.attend", "layout", layout, LAYOUTS)
    if not dist.is_available() or not dist.is_initialized():
        raise usage_error(
            "parallel.attend",
            "no process group",
            "it computes with all processes of a group",
            "start the program with torchrun and call torch.distributed.init_process_group()",
        )
    if position is not None:
        require_position("parallel.attend(position=...)", position)
    shapes.require_qkv(q, k, v)
    _require_parts(q, k, layout)
    if check_shapes:
        _require_equal_shapes(q, k, v, group)
    options: dict[str, Any] = {
        "causal": causal, "window": window, "scale": scale, "temperature": temperature, "backend": backend,
        "skip_blocks": skip_blocks,
    }  # fmt: skip
    compute = _exchange_heads if method == "ulysses" else _gather_keys
    return compute(q, k, v, clock, q_input, position, layout, group, segment_ids, options)


def _exchange_heads(
    q: Tensor, k: Tensor, v: Tensor, clock: Tensor | None, q_input: Tensor | None, position: Position | None, layout: str,
    group: dist.ProcessGroup | None, segment_ids: Tensor | None, options: dict[str, Any],
) -> Tensor:  # fmt: skip
    rank, processes = dist.get_rank(group), dist.get_world_size(group)
    heads, kv_heads = q.shape[1], k.shape[1]
    if heads % processes or (kv_heads % processes and processes % kv_heads):
        raise usage_error(
            "parallel.attend(method='ulysses')",
            f"{heads} query heads and {kv_heads} key heads for {processes} processes",
            "the processes share the heads equally",
            "use method='all_gather', or another number of processes",
        )
    if kv_heads % processes:  # several processes need the same key head
        k, v = (x.repeat_interleave(processes // kv_heads, 1) for x in (k, v))
    if position is not None:
        share = heads // processes
        position = select_heads(position, rank * share, (rank + 1) * share)
    if segment_ids is not None:
        segment_ids = unshard(segment_ids.contiguous(), -1, layout=layout, group=group)
    whole = [_tokens_for_heads(x, layout, processes, group) for x in (q, k, v)]
    if clock is not None:
        clock = _tokens_for_heads(clock[..., None], layout, processes, group)[..., 0]
    if q_input is not None:
        q_input = unshard(q_input, 1, layout=layout, group=group)
    out = attend_whole(*whole, position=position, clock=clock, q_input=q_input, segment_ids=segment_ids, **options)
    return _heads_for_tokens(out, layout, processes, group)


def _tokens_for_heads(x: Tensor, layout: str, processes: int, group: dist.ProcessGroup | None) -> Tensor:
    """``[B, H, T / P, D]`` with all heads becomes ``[B, H / P, T, D]`` with all tokens."""
    sent = torch.stack(x.chunk(processes, 1))
    received: Tensor = AllToAll.apply(sent, group)
    return restore_order(torch.cat(received.unbind(0), 2), 2, layout, processes)


def _heads_for_tokens(x: Tensor, layout: str, processes: int, group: dist.ProcessGroup | None) -> Tensor:
    """The inverse of ``_tokens_for_heads``."""
    order = all_pieces(layout, processes)
    chunks = x.chunk(len(order), 2)
    each = len(order) // processes
    parts = [
        torch.cat([chunks[piece] for piece in order[rank * each : (rank + 1) * each]], 2) for rank in range(processes)
    ]
    received: Tensor = AllToAll.apply(torch.stack(parts), group)
    return torch.cat(received.unbind(0), 1)


def _gather_keys(
    q: Tensor, k: Tensor, v: Tensor, clock: Tensor | None, q_input: Tensor | None, position: Position | None, layout: str,
    group: dist.ProcessGroup | None, segment_ids: Tensor | None, options: dict[str, Any],
) -> Tensor:  # fmt: skip
    if segment_ids is not None and position is not None and not position.relative:
        raise usage_error(
            "parallel.attend(method='all_gather', segment_ids=...)",
            f"{type(position).__name__}, which depends on positions within a segment",
            "positions are counted over the whole packed sequence here",
            "use method='ulysses'",
        )
    rank, processes = dist.get_rank(group), dist.get_world_size(group)
    k, v = (unshard(x, 2, layout=layout, group=group) for x in (k, v))
    clock = None if clock is None else unshard(clock, 2, layout=layout, group=group)
    own = pieces(layout, rank, processes)
    queries = q.chunk(len(own), 2)
    inputs = (None,) * len(own) if q_input is None else q_input.chunk(len(own), 1)
    k_positions = torch.arange(k.shape[2], device=q.device)
    ids: list[tuple[Tensor, Tensor] | None] = [None] * len(own)
    if segment_ids is not None:
        of_keys = unshard(segment_ids, -1, layout=layout, group=group)
        ids = [(of_queries, of_keys) for of_queries in segment_ids.chunk(len(own), -1)]
    outputs = []
    for piece, part, x, segments in zip(
        own, queries, inputs, ids, strict=True
    ):  # the positions of a piece are consecutive
        size = part.shape[2]
        outputs.append(
            attend_whole(
                part, k, v, position=position, clock=clock, q_input=x,
                q_positions=k_positions[piece * size : (piece + 1) * size], k_positions=k_positions, segment_ids=segments, **options,
            )
        )  # fmt: skip
    return torch.cat(outputs, 2)


def _require_parts(q: Tensor, k: Tensor, layout: str) -> None:
    if q.shape[2] != k.shape[2]:
        raise usage_error(
            "parallel.attend",
            f"{q.shape[2]} queries and {k.shape[2]} keys",
            "queries and keys are the same tokens",
            "pass q, k and v of this process's tokens",
        )
    if layout == "zigzag" and q.shape[2] % 2:
        raise usage_error(
            "parallel.attend(layout='zigzag')", f"{q.shape[2]} tokens", "a process holds two equal pieces",
            "divide the sequence with parallel.shard(x, dim, layout='zigzag')",
        )  # fmt: skip


def _require_equal_shapes(q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup | None) -> None:
    own = torch.tensor([*q.shape, *k.shape, *v.shape], device=q.device)
    for rank, other in enumerate(AllGather.apply(own, group).tolist()):
        if other != own.tolist():
            raise usage_error(
                "parallel.attend",
                f"q, k, v of {own.tolist()} here and {other} in process {rank}",
                "all processes hold parts of equal shape",
                "divide the sequence with parallel.shard, which needs a length that the processes share equally",
            )

"""How a sequence is divided among processes, and back.

``"contiguous"``: process r of P holds the r-th of P equal pieces. ``"zigzag"``: it holds the r-th and the r-th last of 2P
pieces. In causal attention late queries see more keys, so that with zigzag every process has the same work.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from whence.errors import usage_error
from whence.parallel.collectives import AllGather
from whence.validation import require_choice

LAYOUTS = ("contiguous", "zigzag")


def pieces(layout: str, rank: int, processes: int) -> tuple[int, ...]:
    """Which equal pieces of the sequence a process holds, in order.

    >>> [pieces("zigzag", rank, 2) for rank in range(2)]
    [(0, 3), (1, 2)]
    """
    require_choice("parallel", "layout", layout, LAYOUTS)
    return (rank,) if layout == "contiguous" else (rank, 2 * processes - 1 - rank)


def all_pieces(layout: str, processes: int) -> list[int]:
    """The pieces in the order in which the processes hold them."""
    return [piece for rank in range(processes) for piece in pieces(layout, rank, processes)]


def shard(x: Tensor, dim: int, *, layout: str = "contiguous", group: dist.ProcessGroup | None = None) -> Tensor:
    """The part of a whole sequence that this process holds."""
    rank, processes = dist.get_rank(group), dist.get_world_size(group)
    own = pieces(layout, rank, processes)
    count = len(own) * processes
    if x.shape[dim] % count:
        raise usage_error(
            "parallel.shard",
            f"{x.shape[dim]} tokens",
            f"{layout} divides a sequence among {processes} processes into {count} equal pieces",
            f"pad the sequence to {x.shape[dim] + -x.shape[dim] % count} tokens",
        )
    chunks = x.chunk(count, dim)
    return torch.cat([chunks[piece] for piece in own], dim)


def unshard(x: Tensor, dim: int, *, layout: str = "contiguous", group: dist.ProcessGroup | None = None) -> Tensor:
    """The whole sequence from the parts of all processes; the inverse of ``shard``. Gradients flow back to the parts."""
    require_choice("parallel", "layout", layout, LAYOUTS)
    gathered = AllGather.apply(x, group)  # [P, ...]
    return restore_order(torch.cat(gathered.unbind(0), dim), dim, layout, dist.get_world_size(group))


def restore_order(x: Tensor, dim: int, layout: str, processes: int) -> Tensor:
    """A sequence whose pieces are in the order of the processes, in its own order."""
    if layout == "contiguous":
        return x
    order = all_pieces(layout, processes)
    chunks = x.chunk(len(order), dim)
    return torch.cat([chunks[order.index(piece)] for piece in range(len(order))], dim)


def positions(
    tokens: int,
    *,
    layout: str = "contiguous",
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """The positions in the whole sequence of the ``tokens`` tokens that this process holds, for embeddings."""
    own = pieces(layout, dist.get_rank(group), dist.get_world_size(group))
    size = tokens // len(own)
    return torch.cat([torch.arange(piece * size, (piece + 1) * size, device=device) for piece in own])

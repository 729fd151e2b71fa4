"""What new tokens must satisfy before a cache appends them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from whence import shapes, torch_modes
from whence.attention.arguments import Arguments
from whence.errors import usage_error
from whence.validation import LARGEST_TABLE, format_value, special_layout


def require_fit(
    arguments: Arguments,
    *,
    window: int | None,
    capacity: int | None,
    used: int,
    stored: tuple[Tensor, Tensor, Tensor | None] | None,
    learnable: bool,
) -> None:
    """Refuse tokens that do not fit a cache of this window, capacity and content."""
    q, k, v = arguments.q, arguments.k, arguments.v
    new = k.shape[2]
    if q.shape[2] != new:
        raise usage_error(
            "attend(cache=...)",
            f"{shapes.format_count(q.shape[2], 'query', 'queries')} with {shapes.format_count(new, 'new key')}",
            "each cached token brings one query and one key",
            "pass q, k and v of the same new tokens",
        )
    if not arguments.causal:
        raise usage_error(
            "attend(cache=...)",
            "causal=False",
            "cached tokens have not attended to the tokens after them",
            "pass causal=True",
        )
    if isinstance(arguments.segment_ids, tuple):
        raise usage_error(
            "attend(cache=..., segment_ids=...)",
            "a pair",
            "the new tokens are queries and keys at once",
            "pass one tensor",
        )
    if window is not None and (arguments.window is None or arguments.window > window):
        raise usage_error(
            "attend(cache=..., window=...)",
            f"window={arguments.window} with KVCache(window={window})",
            "a sliding cache has dropped the keys outside its own window",
            f"pass window={window}",
        )
    if capacity is not None and used + new > capacity:
        raise usage_error(
            "attend(cache=...)",
            f"{shapes.format_count(new, 'token')} with {used} of {capacity} slots used",
            "a preallocated cache does not grow",
            "build it with a larger capacity or use KVCache()",
        )
    if capacity is not None and capacity * k.shape[0] * k.shape[1] * max(k.shape[3], v.shape[3]) > LARGEST_TABLE:
        raise usage_error(
            "attend(cache=...)",
            f"a capacity of {capacity} tokens for keys of shape {shapes.format_shape(k)}",
            f"a preallocated cache holds at most {LARGEST_TABLE} numbers",
            "build it with a smaller capacity, or use KVCache()",
        )
    if (
        capacity is not None
        and torch.is_grad_enabled()
        and (learnable or any(x.requires_grad for x in (q, k, v, arguments.clock) if x is not None))
    ):
        raise usage_error(
            "attend(cache=...)",
            "a learnable position" if learnable else "queries, keys or values that require a gradient",
            "a preallocated cache overwrites its memory and carries no gradient",
            "decode under torch.no_grad(), or use KVCache()",
        )
    if (
        stored is not None
        and not torch_modes.is_tracing()
        and is_functorch_wrapped_tensor(stored[0])
        and not torch_modes.is_transforming()
    ):
        raise usage_error(
            "attend(cache=...)",
            "a cache that was extended inside vmap, grad or jvp of torch.func",
            "its keys and values exist only inside that function",
            "build the cache and use it inside the function",
        )
    if stored is not None:
        clock = arguments.clock
        if (stored[2] is None) != (clock is None):
            raise usage_error(
                "attend(cache=...)",
                "no clock" if clock is None else "a position with a clock",
                f"the tokens of the cache were stored {'without' if stored[2] is None else 'with'} the steps of a clock",
                "use one cache for each layer, with one position",
            )
        pairs = [("k", stored[0], k), ("v", stored[1], v)]
        if stored[2] is not None and clock is not None:
            pairs.append(("clock", stored[2][..., None], clock[..., None]))
        for name, cached, added in pairs:
            stored_shape, new_shape = (
                (cached.shape[0], cached.shape[2], cached.shape[3]),
                (added.shape[0], added.shape[1], added.shape[3]),
            )
            if stored_shape != new_shape or cached.dtype != added.dtype or cached.device != added.device:
                raise usage_error(
                    f"attend({name}, cache=...)",
                    f"[batch, heads, head_dim] {list(new_shape)} {added.dtype} on {added.device}",
                    f"the cache holds {list(stored_shape)} {cached.dtype} on {cached.device}",
                    "use one cache for each layer and batch",
                )


def require_order(
    last: tuple[Tensor, Tensor, Tensor] | None,
    real: Tensor | None,
    positions: Tensor,
    segment_ids: Tensor | None,
    *,
    explicit: bool,
) -> None:
    """A sliding cache drops tokens by count, so each must be real (after left padding) and at least 1 position after the
    previous token of its segment, and no segment is resumed."""
    batch, new = positions.shape
    now = torch.ones(batch, new, dtype=torch.bool, device=positions.device) if real is None else real
    segment = torch.zeros_like(now, dtype=torch.long) if segment_ids is None else segment_ids.expand(batch, new).long()
    where = positions
    if last is not None:
        now, where, segment = (torch.cat(pair, 1) for pair in zip(last, (now, where, segment), strict=True))
    after_real = (now[:, :-1] & ~now[:, 1:]).any()
    neighbours = now[:, :-1] & now[:, 1:]
    falling = (segment[:, 1:] < segment[:, :-1]) & neighbours
    crowded = (where[:, 1:] - where[:, :-1] < 1) & neighbours & (segment[:, 1:] == segment[:, :-1])
    if not torch_modes.can_read_values(after_real, where):
        if real is not None:
            torch._assert_async(~after_real, PADDING_WHILE_TRACING)
        if explicit:
            torch._assert_async(~(falling | crowded).any(), ORDER_WHILE_TRACING)
        return
    if bool(after_real):
        raise usage_error(
            "attend(cache=KVCache(window=...))",
            "lengths or padding that mark padding after a real token",
            "a sliding cache counts tokens, so padding would displace keys that are still inside the window",
            "pad on the left, or use KVCache()",
        )
    if explicit and bool(falling.any()):
        raise usage_error(
            "attend(cache=KVCache(window=...))",
            "q_positions or k_positions with segment_ids that decrease",
            "a sliding cache drops tokens in order, so no segment can be resumed",
            "pass increasing segment_ids, or use KVCache()",
        )
    if bool(crowded.any()):
        raise usage_error(
            "attend(cache=KVCache(window=...))",
            "q_positions or k_positions that do not increase by at least 1",
            "a sliding cache drops tokens in order, so each token is at least 1 position after the previous one of its segment",
            "use KVCache()",
        )


ORDER_WHILE_TRACING = (
    "attend(cache=KVCache(window=...)) got positions that do not increase by at least 1 in each segment; use KVCache()."
)
PADDING_WHILE_TRACING = (
    "attend(cache=KVCache(window=...)) got padding after a real token; pad on the left, or use KVCache()."
)


def require_rows(index: Tensor, stored: Tensor) -> Tensor:
    """Which rows of a cache to keep, ``[n]``, as int64 on its device."""
    rows = stored.shape[0]
    fits = shapes.is_integer(index) and index.ndim == 1 and index.numel() > 0 and not index.is_meta
    if not fits or (
        torch_modes.can_read_values(index) and not bool(((index.long() >= 0) & (index.long() < rows)).all())
    ):
        raise usage_error(
            "KVCache.reorder(index)",
            format_index(index),
            f"index is a 1-D integer tensor that names at least one of the rows 0 to {rows - 1}",
            "give one row for each beam",
        )
    return index.to(stored.device, torch.int64)


def format_index(index: object) -> str:
    if isinstance(index, Tensor) and not index.is_meta and special_layout(index) is None and index.numel() <= 16:
        return str(index.tolist())
    return format_value(index) if isinstance(index, Tensor) else type(index).__name__


def single_positions(q_positions: Tensor | None, k_positions: Tensor | None) -> tuple[str, Tensor | None]:
    """The positions of new tokens, which are queries and keys at once, and the argument they came in."""
    if q_positions is None or k_positions is None or q_positions is k_positions:
        return ("k_positions", k_positions) if q_positions is None else ("q_positions", q_positions)
    for name, positions in (("q_positions", q_positions), ("k_positions", k_positions)):
        if not shapes.is_numeric(positions) or positions.is_meta:
            return name, positions  # validation refuses it under this name
    alike = q_positions.shape == k_positions.shape and q_positions.device == k_positions.device
    if alike:
        same = (q_positions.double() == k_positions.double()).all()  # torch cannot compare two unsigned dtypes
        if not torch_modes.can_read_values(q_positions, k_positions):
            torch._assert_async(same, "q_positions and k_positions differ; pass one of them.")
            return "q_positions", q_positions
        if bool(same):
            return "q_positions", q_positions
    raise usage_error(
        "attend(cache=..., q_positions=..., k_positions=...)",
        "two that differ",
        "the new tokens are queries and keys at once",
        "pass one of them",
    )

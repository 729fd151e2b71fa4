"""``attend``: attention with any Position, and ``explain``: which backend would run it, and why."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from whence import hook_outputs, shapes
from whence.attention import blockwise, reference, sdpa
from whence.attention.cache import KVCache
from whence.attention.fused import backend as fused
from whence.attention.layout import Layout, resolve
from whence.attention.rules import positions_below, require_cache, require_position, require_settings
from whence.attention.support import SUPPORT, Request, prefer, why_not
from whence.errors import usage_error
from whence.position.base import Position
from whence.position.no_position import NoPosition
from whence.validation import require_flag

SegmentIds = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Call:
    """A validated call: keys rotated and joined with the cache, positions known, a backend chosen."""

    q: Tensor
    k: Tensor
    v: Tensor
    position: Position
    layout: Layout
    scale: float
    temperature: float
    dropout: float
    skip_blocks: bool
    request: Request
    backend: str
    why: str


@dataclass(frozen=True)
class Explanation:
    """Which backend runs a call and why; print it."""

    backend: str
    why: str
    others: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.why}"]
        return "\n".join(lines + [f"  {name}: {reason}" for name, reason in self.others])


class Arguments(TypedDict, total=False):
    """What ``attend`` and ``explain`` take beside q, k and v; ``attend`` says what each means."""

    position: Position | None
    causal: bool
    window: int | None
    q_positions: Tensor | None
    k_positions: Tensor | None
    lengths: Tensor | None
    key_mask: Tensor | None
    segment_ids: SegmentIds | None
    scale: float | None
    temperature: float
    dropout: float
    cache: KVCache | None
    backend: str
    skip_blocks: bool
    check_finite: bool


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, return_weights: Literal[False] = ..., **given: Unpack[Arguments]
) -> Tensor: ...
@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, return_weights: Literal[True], **given: Unpack[Arguments]
) -> tuple[Tensor, Tensor]: ...
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    position: Position | None = None,
    causal: bool = False,
    window: int | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    lengths: Tensor | None = None,
    key_mask: Tensor | None = None,
    segment_ids: SegmentIds | None = None,
    scale: float | None = None,
    temperature: float = 1.0,
    dropout: float = 0.0,
    cache: KVCache | None = None,
    backend: str = "auto",
    skip_blocks: bool = True,
    return_weights: bool = False,
    check_finite: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q ``[B, H, T, D]`` over k ``[B, G, S, D]`` and v ``[B, G, S, E]``: an output ``[B, H, T, E]``.

    Args:
        position: what position does to the scores; ``None`` for nothing.
        causal: a query sees keys at or before its own position.
        window: a query sees keys at distances below this number (on both sides unless causal).
        q_positions, k_positions: ``[T]`` or ``[B, T]``; by default tokens count from 0 in each text.
            When T == S they are taken to be the same tokens, and one of the two arguments serves both.
        lengths: ``[B]`` real tokens of right-padded sequences.
        key_mask: ``[B, S]``, True where a token is real, for padding on any side. Padding takes no position: a real
            token's position is the number of real tokens before it in its text, wherever the padding lies, in one pass
            and from a cache. Outputs of padded queries mean nothing.
        segment_ids: ``[T]`` or ``[B, T]`` document numbers of packed sequences; a pair for queries and keys that are not
            the same tokens. With a cache, these three describe the new tokens only.
        scale: multiplies q.k; ``D ** -0.5`` by default.
        temperature: divides the logits.
        dropout: probability of dropping a weight.
        cache: a ``KVCache`` to append k and v to; the queries then see all it holds. Keys are kept un-rotated.
        backend: ``"auto"``, ``"reference"``, ``"blockwise"``, ``"triton"`` or ``"sdpa"``. A named backend runs or
            raises.
        skip_blocks: let the ``triton`` backend leave out blocks of keys that provably cannot change the result, where a
            mechanism's bias decays: in causal attention over more than 1024 keys, without padding.
        return_weights: also return the weights ``[B, H, T, S]`` (before dropout).
        check_finite: refuse NaN and infinity in q, k and v.

    >>> q = k = v = torch.eye(4).reshape(1, 1, 4, 4)
    >>> attend(q, k, v, causal=True).shape
    torch.Size([1, 1, 4, 4])
    """
    held = cache.state() if isinstance(cache, KVCache) else None
    try:
        call = prepare(
            q, k, v, position=position, causal=causal, window=window, q_positions=q_positions, k_positions=k_positions,
            lengths=lengths, key_mask=key_mask, segment_ids=segment_ids, scale=scale, temperature=temperature,
            dropout=dropout, cache=cache, backend=backend, skip_blocks=skip_blocks, return_weights=return_weights, check_finite=check_finite,
        )  # fmt: skip
        # half precision around us must not reach into what is promised in at least float32
        with torch.autocast(q.device.type, enabled=False) if autocasting(q) else nullcontext():
            out, weights = run(call)
    except Exception:
        if cache is not None and held is not None:
            cache.undo(held)  # a call that was refused leaves no tokens behind
        raise
    return out if weights is None else (out, weights)


def autocasting(q: Tensor) -> bool:
    return torch.is_autocast_enabled(q.device.type)


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    """The output, and the weights where they were asked for, in the dtype of the queries."""
    tensors, dtype = (call.q, call.k, call.v), call.q.dtype
    if call.backend == "reference":
        out, weights = reference.attend(
            *tensors, position=call.position, layout=call.layout, scale=call.scale, temperature=call.temperature,
            dropout=call.dropout,
        )  # fmt: skip
        return out.to(dtype), weights.to(dtype) if call.request.weights else None
    if call.backend == "triton":
        out = fused.attend(
            *tensors, position=call.position, layout=call.layout, scale=call.scale, temperature=call.temperature,
            dropout=call.dropout, skip_blocks=call.skip_blocks,
        )  # fmt: skip
        return out, None
    fast = {"blockwise": blockwise.attend, "sdpa": sdpa.attend}[call.backend]
    out = fast(
        *tensors, position=call.position, layout=call.layout, scale=call.scale, temperature=call.temperature,
        dropout=call.dropout,
    )  # fmt: skip
    return out.to(dtype), None


def explain(
    q: Tensor, k: Tensor, v: Tensor, *, return_weights: bool = False, **given: Unpack[Arguments]
) -> Explanation:
    """Which backend ``attend`` would use for the same arguments, and why not the others. Nothing runs; no cache changes.

    >>> q = torch.zeros(1, 8, 4, 16)
    >>> print(explain(q, q, q, causal=True))
    sdpa: no part acts on the scores, so torch's own kernel does all of it
      reference: possible; memory quadratic in length
      blockwise: possible; memory linear in length
      triton: it needs a CUDA device, and q is on cpu
    """
    cache = given.get("cache")
    held = cache.state() if isinstance(cache, KVCache) else None
    try:
        call = prepare(q, k, v, return_weights=return_weights, **given)
    finally:
        if cache is not None and held is not None:
            cache.undo(held)
    others = tuple(
        (name, why_not(name, call.request) or f"possible; memory {support.memory} in length")
        for name, support in SUPPORT.items()
        if name != call.backend
    )
    return Explanation(call.backend, call.why, others)


def prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    position: Position | None = None,
    causal: bool = False,
    window: int | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    lengths: Tensor | None = None,
    key_mask: Tensor | None = None,
    segment_ids: SegmentIds | None = None,
    scale: float | None = None,
    temperature: float = 1.0,
    dropout: float = 0.0,
    cache: KVCache | None = None,
    backend: str = "auto",
    skip_blocks: bool = True,
    return_weights: bool = False,
    check_finite: bool = False,
) -> Call:
    """Validate everything before any work, then join the cache, rotate, and choose a backend."""
    position = NoPosition() if position is None else position
    require_settings(
        "attend", causal=causal, window=window, scale=scale, temperature=temperature, dropout=dropout, backend=backend,
        skip_blocks=skip_blocks,
    )  # fmt: skip
    require_flag("attend", "return_weights", return_weights)
    require_flag("attend", "check_finite", check_finite)
    shapes.require_qkv(q, k, v)
    if check_finite:
        shapes.require_finite(q, k, v)
    require_cache("attend", cache)
    several = any(given is not None for given in (lengths, key_mask, segment_ids))
    require_position(position, q, causal=causal, cached=cache is not None, several_texts=several)
    below = positions_below(position)
    if cache is None:
        layout = resolve(
            q, k, causal=causal, window=window, q_positions=q_positions, k_positions=k_positions, lengths=lengths,
            key_mask=key_mask, segment_ids=segment_ids, needs_positions=bool(position.effects), below=below,
        )  # fmt: skip
    else:
        k, v, layout = cache.extend(
            q, k, v, causal=causal, window=window, q_positions=q_positions, k_positions=k_positions, lengths=lengths,
            key_mask=key_mask, segment_ids=segment_ids, learning=position.trainable, below=below,
        )  # fmt: skip
    for part in position.parts:
        if "rotate" in part.effects:
            q, k = hook_outputs.turned(
                type(part).__name__, part.rotate(q, k, layout.q_positions, layout.k_positions), q, k
            )
    request = Request(
        effects=position.effects,
        weights=return_weights,
        bias_learns=position.trainable and torch.is_grad_enabled(),
        narrow=q.dtype in (torch.float16, torch.bfloat16),
        dense_numbers=layout.mask_rows * q.shape[1] * q.shape[2] * k.shape[2],
        mask_numbers=0 if sdpa.needs_no_mask(layout) else layout.mask_rows * q.shape[2] * k.shape[2],
        tables_closed=blockwise.why_not_tables(position, layout),
        fused_closed=fused.why_not_here(q, v, layout),
        compiling=torch.compiler.is_compiling(),
        exporting=shapes.exporting(),
        transformed=shapes.transformed(),
    )
    name, why = prefer(request) if backend == "auto" else (backend, "it was asked for by name")
    closed = why_not(name, request)
    if closed is not None:
        raise usage_error(
            f"attend(backend={name!r})",
            f"a call it cannot run: {closed}",
            "a named backend runs or refuses",
            f"use backend={prefer(request)[0]!r}",
        )
    scale = float(q.shape[3] ** -0.5) if scale is None else scale
    return Call(q, k, v, position, layout, scale, temperature, dropout, skip_blocks, request, name, why)

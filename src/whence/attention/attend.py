"""``attend``: attention with any Position, and ``explain``: which backend would run it, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from whence import shapes
from whence.attention import blockwise, reference, sdpa
from whence.attention.cache import KVCache
from whence.attention.layout import Layout, resolve
from whence.attention.support import SUPPORT, Request, prefer, why_not
from whence.errors import refusal
from whence.position.base import Position
from whence.position.no_position import NoPosition

Documents = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Call:
    """A validated call: keys rotated and joined with the cache, positions known, a backend chosen."""

    q: Tensor
    k: Tensor
    v: Tensor
    position: Position
    layout: Layout
    scale: float
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


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, position: Position | None = ..., causal: bool = ..., window: int | None = ...,
    q_positions: Tensor | None = ..., k_positions: Tensor | None = ..., lengths: Tensor | None = ...,
    padding: Tensor | None = ..., documents: Documents | None = ..., scale: float | None = ..., temperature: float = ...,
    dropout: float = ..., cache: KVCache | None = ..., backend: str = ..., return_weights: Literal[False] = ...,
    finite: bool = ...,
) -> Tensor: ...  # fmt: skip
@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, position: Position | None = ..., causal: bool = ..., window: int | None = ...,
    q_positions: Tensor | None = ..., k_positions: Tensor | None = ..., lengths: Tensor | None = ...,
    padding: Tensor | None = ..., documents: Documents | None = ..., scale: float | None = ..., temperature: float = ...,
    dropout: float = ..., cache: KVCache | None = ..., backend: str = ..., return_weights: bool, finite: bool = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
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
    padding: Tensor | None = None,
    documents: Documents | None = None,
    scale: float | None = None,
    temperature: float = 1.0,
    dropout: float = 0.0,
    cache: KVCache | None = None,
    backend: str = "auto",
    return_weights: bool = False,
    finite: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q ``[B, H, T, D]`` over k ``[B, G, S, D]`` and v ``[B, G, S, E]``: an output ``[B, H, T, E]``.

    Args:
        position: what position does to the scores; ``None`` for nothing.
        causal: a query sees keys at or before its own position.
        window: a query sees keys at distances below this number (on both sides unless causal).
        q_positions, k_positions: ``[T]`` or ``[B, T]``; by default tokens count from 0 in each text.
        lengths: ``[B]`` real tokens of right-padded sequences.
        padding: ``[B, S]``, True where a token is real, for padding on any side.
        documents: ``[T]`` or ``[B, T]`` document numbers of packed sequences (a pair when T != S).
        scale: multiplies q.k; ``D ** -0.5`` by default.
        temperature: divides the logits.
        dropout: probability of dropping a weight.
        cache: a ``KVCache`` to append k and v to; the queries then see all it holds. Keys are kept un-rotated.
        backend: ``"auto"``, ``"reference"``, ``"blockwise"`` or ``"sdpa"``. A named backend runs or raises.
        return_weights: also return the weights ``[B, H, T, S]`` (before dropout).
        finite: refuse NaN and infinity in q, k and v.

    >>> q = k = v = torch.eye(4).reshape(1, 1, 4, 4)
    >>> attend(q, k, v, causal=True).shape
    torch.Size([1, 1, 4, 4])
    """
    held = cache.mark() if isinstance(cache, KVCache) else None
    try:
        call = prepare(
            q, k, v, position, causal, window, q_positions, k_positions, lengths, padding, documents, scale,
            temperature, dropout, cache, backend, return_weights, finite,
        )  # fmt: skip
        return _run(call, temperature, dropout, return_weights)
    except Exception:
        if cache is not None and held is not None:
            cache.restore(held)  # a call that was refused leaves no tokens behind
        raise


def _run(call: Call, temperature: float, dropout: float, return_weights: bool) -> Tensor | tuple[Tensor, Tensor]:
    dtype = call.q.dtype
    if call.backend == "reference":
        out, weights = reference.attend(
            call.q, call.k, call.v, position=call.position, layout=call.layout, scale=call.scale, temperature=temperature,
            dropout=dropout,
        )  # fmt: skip
        return (out.to(dtype), weights.to(dtype)) if return_weights else out.to(dtype)
    run = {"blockwise": blockwise.attend, "sdpa": sdpa.attend}[call.backend]
    return run(
        call.q, call.k, call.v, position=call.position, layout=call.layout, scale=call.scale, temperature=temperature,
        dropout=dropout,
    ).to(dtype)  # fmt: skip


def explain(
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
    padding: Tensor | None = None,
    documents: Documents | None = None,
    scale: float | None = None,
    temperature: float = 1.0,
    dropout: float = 0.0,
    cache: KVCache | None = None,
    backend: str = "auto",
    return_weights: bool = False,
    finite: bool = False,
) -> Explanation:
    """Which backend ``attend`` would use for the same arguments, and why not the others. Nothing runs; no cache changes.

    >>> q = torch.zeros(1, 8, 4, 16)
    >>> print(explain(q, q, q, causal=True))
    sdpa: no part acts on the scores, so torch's own kernel does all of it
      reference: possible, but quadratic in memory
      blockwise: possible, but linear in memory
    """
    held = cache.mark() if isinstance(cache, KVCache) else None
    try:
        call = prepare(
            q, k, v, position, causal, window, q_positions, k_positions, lengths, padding, documents, scale,
            temperature, dropout, cache, backend, return_weights, finite,
        )  # fmt: skip
    finally:
        if cache is not None and held is not None:
            cache.restore(held)
    others = tuple(
        (name, why_not(name, call.request) or f"possible, but {support.memory} in memory")
        for name, support in SUPPORT.items()
        if name != call.backend
    )
    return Explanation(call.backend, call.why, others)


def prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Position | None,
    causal: bool,
    window: int | None,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    lengths: Tensor | None,
    padding: Tensor | None,
    documents: Documents | None,
    scale: float | None,
    temperature: float,
    dropout: float,
    cache: KVCache | None,
    backend: str,
    return_weights: bool,
    finite: bool,
) -> Call:
    """Validate everything before any work, then join the cache, rotate, and choose a backend."""
    position = NoPosition() if position is None else position
    if backend != "auto" and backend not in SUPPORT:
        raise refusal(
            "attend(backend=...)", repr(backend), f"backend is one of auto, {', '.join(SUPPORT)}", "choose one of them"
        )
    shapes.require_qkv(q, k, v)
    if finite:
        shapes.require_finite(q, k, v)
    if cache is not None and not isinstance(cache, KVCache):
        raise refusal(
            "attend(cache=...)", type(cache).__name__, "cache is a whence.KVCache", "build one for each layer"
        )
    _require_position(position, q, causal, cache)
    _require_numbers(window, scale, temperature, dropout)
    if cache is None:
        layout = resolve(
            q, k, causal=causal, window=window, q_positions=q_positions, k_positions=k_positions, lengths=lengths,
            padding=padding, documents=documents, needs_positions=bool(position.effects),
        )  # fmt: skip
    else:
        k, v, layout = cache.extend(
            q, k, v, causal=causal, window=window, q_positions=q_positions, k_positions=k_positions, lengths=lengths,
            padding=padding, documents=documents,
        )  # fmt: skip
    for part in position.parts:
        if "rotate" in part.effects:
            q, k = shapes.turned(type(part).__name__, part.rotate(q, k, layout.q_positions, layout.k_positions), q, k)
    request = Request(
        effects=position.effects,
        weights=return_weights,
        bias_learns=position.learnable and torch.is_grad_enabled(),
        dense_numbers=layout.q_positions.shape[0] * q.shape[1] * q.shape[2] * k.shape[2],
        tables_closed=blockwise.why_not_tables(position, layout),
        compiling=torch.compiler.is_compiling(),
        exporting=torch.compiler.is_exporting() or torch.jit.is_tracing(),
    )
    name, why = prefer(request) if backend == "auto" else (backend, "it was asked for by name")
    closed = why_not(name, request)
    if closed is not None:
        raise refusal(
            f"attend(backend={name!r})",
            f"a call it cannot run: {closed}",
            "a named backend runs or refuses",
            f"use backend={prefer(request)[0]!r}",
        )
    return Call(q, k, v, position, layout, q.shape[3] ** -0.5 if scale is None else scale, request, name, why)


def _require_position(position: Position, q: Tensor, causal: bool, cache: KVCache | None) -> None:
    if not isinstance(position, Position):
        raise refusal(
            "attend(position=...)", type(position).__name__, "position is a whence.Position", "subclass whence.Position"
        )
    for part in position.parts:
        name = type(part).__name__
        if part.heads is not None and part.heads != q.shape[1]:
            raise refusal(
                f"attend(position={name})",
                f"{part.heads} heads with {q.shape[1]} in q",
                "a mechanism has the heads of the queries",
                f"build it with heads={q.shape[1]}",
            )
        width = getattr(part, "head_width", None)
        if width is not None and width != q.shape[3]:
            raise refusal(
                f"attend(position={name})",
                f"head_width {width} with {q.shape[3]} in q",
                "a mechanism has the width of the queries",
                f"build it with head_width={q.shape[3]}",
            )
        if part.causal_only and not causal:
            raise refusal(
                f"attend(position={name})",
                "causal=False, which brings negative distances",
                f"{name} is defined for keys at or before the query",
                "pass causal=True, or use its symmetric form if it has one",
            )
        if "embed" in part.effects:
            raise refusal(
                f"attend(position={name})",
                "a mechanism that acts on embeddings",
                "attend sees queries and keys only",
                "call position.embed(x, positions) on the input, or let whence.Attention do it",
            )
        if part.length == "sequence" and cache is not None:
            raise refusal(
                f"attend(position={name}, cache=...)",
                "length='sequence'",
                "a length that grows with each token changes every earlier weight, so a cached model is not the trained one",
                "use length='context', or length='query' where there is one",
            )
        for tensor in (*part.parameters(), *part.buffers()):
            if tensor.device != q.device:
                raise refusal(
                    f"attend(position={name})",
                    f"parameters on {tensor.device} with q on {q.device}",
                    "all tensors share one device",
                    "move it with position.to(q.device)",
                )


def _require_numbers(window: int | None, scale: float | None, temperature: float, dropout: float) -> None:
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise refusal(
            "attend(window=...)",
            repr(window),
            "window is a whole number of at least 1",
            "leave it out to see every key",
        )
    if scale is not None and not (isinstance(scale, int | float) and math.isfinite(scale)):
        raise refusal("attend(scale=...)", repr(scale), "scale is a finite number", "leave it out for width ** -0.5")
    shapes.require_number("temperature", temperature, 0)
    shapes.require_number("dropout", dropout, 0, 1, low_allowed=True)

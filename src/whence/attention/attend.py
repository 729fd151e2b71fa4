"""``attend``: attention with any Position, and ``explain``: which backend would run it, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from whence.attention import blockwise, flex, reference, sdpa  # noqa: F401  each registers its backend
from whence.attention.arguments import Arguments, MaskFunction, SegmentIds
from whence.attention.backends import BACKENDS, INSTALLED, choose, require_backend_name, require_result
from whence.attention.cache import KVCache
from whence.attention.call import describe, prepare
from whence.attention.fused import backend as _triton  # noqa: F401
from whence.attention.fused import eager
from whence.attention.keywords import ATTEND, explain_keywords
from whence.attention.non_finite import require_finite_hooks
from whence.errors import usage_error
from whence.position.base import Position
from whence.torch_modes import without_autocast


@dataclass(frozen=True)
class Explanation:
    """Which backend runs a call and why; print it."""

    backend: str
    why: str
    others: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.why}"]
        return "\n".join(lines + [f"  {name}: {reason}" for name, reason in self.others])


class Options(TypedDict, total=False):
    """The keyword arguments of ``attend`` and ``explain`` for type checkers; ``attend`` documents each."""

    position: Position | None
    clock: Tensor | None
    q_input: Tensor | None
    causal: bool
    window: int | None
    q_positions: Tensor | None
    k_positions: Tensor | None
    lengths: Tensor | None
    key_mask: Tensor | None
    segment_ids: SegmentIds | None
    attn_mask: Tensor | None
    mask_fn: MaskFunction | None
    scale: float | None
    temperature: float
    dropout: float
    cache: KVCache | None
    backend: str
    skip_blocks: bool
    check_finite: bool


#: the remedy for ``attend(q, k, v, mask)``
KEYWORD_ONLY = "only q, k and v are positional, so pass attn_mask=... and the others by name"


@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, return_weights: Literal[False] = ..., **options: Unpack[Options]
) -> Tensor: ...
@overload
def attend(
    q: Tensor, k: Tensor, v: Tensor, *, return_weights: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, Tensor]: ...
@explain_keywords("attend", ATTEND, KEYWORD_ONLY)
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    position: Position | None = None,
    clock: Tensor | None = None,
    q_input: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    lengths: Tensor | None = None,
    key_mask: Tensor | None = None,
    segment_ids: SegmentIds | None = None,
    attn_mask: Tensor | None = None,
    mask_fn: MaskFunction | None = None,
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
        position: how position acts on the scores; ``None`` for nothing.
        clock: for a position with a clock, such as ``ForgetGate``: the steps ``position.clock(x)`` of the layer input x of
            the keys, ``[B, H, S]``. With a cache, those of the new tokens.
        q_input: for a position that reads the layer input, such as ``QueryTable(source="input")``: the layer input of the
            queries, ``[B, T, embed_dim]``.
        causal: a query attends to keys at or before its own position.
        window: a query attends to keys at distances below this number (on both sides unless causal).
        q_positions, k_positions: ``[T]`` or ``[B, T]``; by default the tokens of each sequence count from 0.
            When T == S, queries and keys are the same tokens, and one of the two arguments serves both.
        lengths: ``[B]`` real tokens of right-padded sequences.
        key_mask: ``[B, S]``, True where a token is real, for padding on any side. Padding takes no position: a real
            token's position is the number of real tokens before it in its segment, wherever the padding lies, in one
            pass and from a cache. Outputs of padded queries have no meaning.
        segment_ids: ``[T]`` or ``[B, T]`` segment ids of packed sequences; tokens of different segments do not attend to
            each other. A pair for queries and keys that are not the same tokens. With a cache, ``lengths``, ``key_mask``
            and ``segment_ids`` describe the new tokens only.
        attn_mask: as in SDPA, boolean (True = attend) or float (added to the logits): ``[T, S]`` or ``[B, H, T, S]``,
            where any axis may be 1. S counts the keys of the cache too. A float mask may require a gradient.
        mask_fn: a function of (batch, head, q_position, k_position) that returns True where a query attends to a key, on
            integer tensors that broadcast to ``[B, H, T, S]``. It is FlexAttention's ``mask_mod`` with positions instead
            of indices; the two are equal without padding, segments, cache and explicit positions. All masks combine: a
            query attends to the keys that every one of them allows, and a query without any key gives zeros.
        scale: multiplies q.k; ``D ** -0.5`` by default.
        temperature: divides the logits, bias and float attn_mask included.
        dropout: probability of dropping a weight.
        cache: a ``KVCache`` to append k and v to; the queries then attend to all its tokens. Keys are stored un-rotated.
        backend: ``"auto"``, ``"reference"``, ``"blockwise"``, ``"triton"``, ``"flex"``, ``"sdpa"`` or a registered backend.
            A named backend runs or raises.
        skip_blocks: let the ``triton`` backend skip blocks of keys that provably cannot change the result, where a
            mechanism's bias decays: in causal attention over more than 1024 keys.
        return_weights: also return the weights ``[B, H, T, S]`` (before dropout).
        check_finite: raise an error for NaN and infinity in q, k and v, and for a hook of the position whose NaN or infinity
            reaches the output. Such hooks are always reported on a CPU; on a GPU the check waits for the result.

    >>> import torch
    >>> q = k = v = torch.eye(4).reshape(1, 1, 4, 4)
    >>> attend(q, k, v, causal=True).shape
    torch.Size([1, 1, 4, 4])

    Every second key, as a mask and as a function:

    >>> even = torch.arange(4) % 2 == 0
    >>> by_mask = attend(q, k, v, attn_mask=even[None].expand(4, 4))
    >>> by_function = attend(q, k, v, mask_fn=lambda batch, head, q_position, k_position: k_position % 2 == 0)
    >>> torch.equal(by_mask, by_function)
    True
    """
    out, weights = compute(Arguments(
        q, k, v, position=position, clock=clock, q_input=q_input, causal=causal, window=window, q_positions=q_positions,
        k_positions=k_positions, lengths=lengths, key_mask=key_mask, segment_ids=segment_ids, attn_mask=attn_mask, mask_fn=mask_fn, scale=scale,
        temperature=temperature, dropout=dropout, cache=cache, backend=backend, skip_blocks=skip_blocks,
        return_weights=return_weights, check_finite=check_finite,
    ))  # fmt: skip
    return out if weights is None else (out, weights)


def compute(arguments: Arguments) -> tuple[Tensor, Tensor | None]:
    """The output, and the weights if ``return_weights`` is True, in the dtype of q."""
    use_plans = eager.ENABLED and not torch.compiler.is_compiling()
    eager_call = eager.describe_call(arguments) if use_plans else None
    if eager_call is not None and (plan := eager_call.find_plan()) is not None:
        planned = eager_call.run(plan)
        if planned is not None:
            return planned, None
        eager_call = None
    require_backend_name("attend", arguments.backend)
    cache = arguments.cache
    state = cache.state() if isinstance(cache, KVCache) else None
    try:
        call = prepare(arguments)
        backend, _ = choose(describe(call), arguments.backend)
        if eager_call is not None and backend.name == "triton" and (plan := eager_call.keep_plan()) is not None:
            planned = eager_call.run_prepared(plan)
            if planned is not None:
                return planned, None
        with without_autocast(call.q):  # backends compute in at least float32
            out, weights = require_result(backend, backend.run(call), call)
        inputs = (arguments.q, arguments.k, call.v)
        require_finite_hooks(call, inputs, out, always=arguments.check_finite)
        if call.return_weights and weights is None:
            raise usage_error(
                f"attend(backend={backend.name!r}, return_weights=True)",
                "no weights",
                "a backend with returns_weights=True returns them from run",
                "return (output, weights) there, or set returns_weights = False",
            )
    except Exception:
        if isinstance(cache, KVCache) and state is not None:
            cache.undo(state)  # a call that raises leaves no tokens behind
        raise
    dtype = arguments.q.dtype
    return out.to(dtype), None if weights is None else weights.to(dtype)


@explain_keywords("explain", ATTEND, KEYWORD_ONLY, ("q", "k", "v", "return_weights", *Options.__annotations__))
def explain(
    q: Tensor, k: Tensor, v: Tensor, *, return_weights: bool = False, **options: Unpack[Options]
) -> Explanation:
    """Which backend ``attend`` would use for the same arguments, and why not the others. Nothing runs; no cache changes.

    >>> import torch
    >>> q = torch.zeros(1, 8, 4, 16)
    >>> print(explain(q, q, q, causal=True))
    sdpa: no part acts on the scores, so torch's kernel computes the whole call
      blockwise: supported; memory linear in length
      flex: supported; memory linear in length on a GPU, quadratic on a CPU
      reference: supported; memory quadratic in length
      triton: it needs a CUDA device, and q is on cpu
    """
    keywords: dict[str, Any] = dict(options)  # Arguments declares cache as object
    arguments = Arguments(q, k, v, return_weights=return_weights, **keywords)
    require_backend_name("attend", arguments.backend)
    cache = arguments.cache
    state = cache.state() if isinstance(cache, KVCache) else None
    try:
        request = describe(prepare(arguments))
        backend, why = choose(request, arguments.backend)
    finally:
        if isinstance(cache, KVCache) and state is not None:
            cache.undo(state)
    others = tuple(
        (name, other.supports(request) or f"supported; memory {other.memory}")
        for name, other in {**BACKENDS, **INSTALLED}.items()
        if name != backend.name and other is not backend
    )
    return Explanation(backend.name, why, others)

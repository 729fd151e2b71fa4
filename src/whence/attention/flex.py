"""torch's FlexAttention, for calls whose mechanism gets no gradient: frozen mechanisms, inference, any mask, any score_mod.

A mechanism becomes a ``score_mod``: tables over distances and the running sums of a clock are read by it, and a function of ``from_score_mod``, or the
``pair_function`` of a mechanism with ``length="query"``, is called by it. Masks become a ``BlockMask`` without a matrix of all pairs. On a GPU FlexAttention is compiled, which takes seconds on
the first call of each kind. On a CPU it runs in plain operations, which shows that the score_mod is right.

Learnable tensors inside a score_mod are refused: FlexAttention adds their gradient with one atomic addition for each pair of a
query and a key, which takes hundreds of times as long as the rest (benchmarks/gpu.py measures it).
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.attention.backends import Backend, register_backend
from whence.attention.block_visibility import distance_indices, find_visible_blocks
from whence.attention.call import Call, Request
from whence.attention.clock import Clock
from whence.attention.layout import Layout
from whence.errors import usage_error
from whence.position.base import Position
from whence.position.evaluate import evaluate, evaluate_table
from whence.position.score_mod import ScoreMod
from whence.position.sum import combine_outputs

BLOCK = 128  # queries and keys of a block of the BlockMask, FlexAttention's own default
MIN_HEAD_DIM = 16  # of FlexAttention's GPU kernels
MIN_SCORES = 1 << 22  # scores of a call that repay the seconds of a compilation
RECOMPILE_LIMIT = 64  # variants of one call: hooks, masks, dtypes, shapes

#: (score, batch, head, query index, key index) -> the new score
Modify = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Flex(Backend):
    """``torch.nn.attention.flex_attention``."""

    name = "flex"
    effects = frozenset({"score_scale", "bias", "content_bias", "sink", "clock"})
    takes_masks = True
    takes_grouped_heads = True
    memory = "linear in length on a GPU, quadratic on a CPU"
    devices = "GPU; CPU for tests"
    dtypes = "fp32, fp16, bf16; fp64 on a CPU"
    gradients = "q, k and v on a GPU; a mechanism that learns is refused"
    tracing = "compile"
    purpose = "frozen mechanisms, any mask and score_mod on a GPU where triton cannot run"

    def supports(self, request: Request) -> str | None:
        unsupported = super().supports(request) or request.no_score_mod
        if unsupported is not None:
            return unsupported
        if request.learnable_scores or request.clock_gradient:
            return "FlexAttention computes the gradient of a learnable tensor by an atomic addition for each pair of tokens"
        if request.exporting:
            return "FlexAttention does not export"
        if request.transforming:
            return "FlexAttention has no rule for torch.func and forward-mode AD"
        if request.device.type == "cpu":
            return "on a CPU FlexAttention computes no gradient" if request.input_gradient else None
        if request.device.type != "cuda":
            return f"it runs on CUDA devices and CPUs, and q is on {request.device.type}"
        if request.dtype == torch.float64:
            return "its GPU kernels do not support float64"
        if min(request.head_dim, request.value_dim) < MIN_HEAD_DIM:
            return f"its GPU kernels support head dimensions of at least {MIN_HEAD_DIM}"
        if not request.compiling and "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
            return "triton, which compiles it, is not installed"
        return None

    def priority(self, request: Request) -> int:
        """Above blockwise on a GPU, where enough pairs of tokens repay the compilation; by name elsewhere."""
        return 22 if request.device.type == "cuda" and request.bias_numbers > MIN_SCORES else 0

    def reason(self, request: Request) -> str:
        return "nothing of the position learns, so compiled FlexAttention computes the whole call"

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The output ``[B, H, T, E]``."""
        q, k, v, layout = call.q, call.k, call.v, call.layout
        if not q.is_cuda:  # plain operations would round the scores to the dtype of q
            dtype = torch.promote_types(q.dtype, torch.float32)
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
            if not torch.is_grad_enabled():  # torch refuses a tensor that requires a gradient even then
                q, k, v = q.detach(), k.detach(), v.detach()
        arguments: dict[str, Any] = {
            "score_mod": build_score_mod(call),
            "block_mask": build_block_mask(layout, q),
            "scale": call.scale,
            "enable_gqa": q.shape[1] != k.shape[1],
        }
        if q.is_cuda and any(_parts_by_query(call, hook) for hook in ("score_scale", "bias")):
            # pipelined reads of the functions' numbers would exceed the shared memory
            arguments["kernel_options"] = {"num_stages": 1}
        if "sink" not in call.position.effects:
            return self._flex_attention(q, k, v, arguments), None
        from torch.nn.attention.flex_attention import AuxRequest

        out, aux = self._flex_attention(q, k, v, {**arguments, "return_aux": AuxRequest(lse=True)})
        return out * share_beside_sink(call, aux.lse).to(out.dtype), None

    def _flex_attention(self, q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any]) -> Any:
        from torch.nn.attention.flex_attention import flex_attention

        if torch.compiler.is_compiling():
            return flex_attention(q, k, v, **arguments)
        if q.is_cuda:
            with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT):
                return self._compiled(q, k, v, **arguments)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            return flex_attention(q, k, v, **arguments)

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        from torch.nn.attention.flex_attention import flex_attention

        return torch.compile(flex_attention, fullgraph=True)  # a graph break would run it in plain operations


def build_score_mod(call: Call) -> Modify | None:
    """The mechanism, a float ``attn_mask`` and the temperature as one function of a score; None if nothing changes it."""
    layout, q = call.layout, call.q
    steps: list[Modify] = []
    functions = [part for part in call.position.parts if isinstance(part, ScoreMod)]
    if functions:
        steps.append(_apply_functions([part.fn for part in functions], layout, q.shape[0]))
    if call.position.effects & {"score_scale", "bias"}:
        steps.append(_apply_distances(call))
    if call.clock is not None:
        steps.append(_add_clock(call.clock, torch.promote_types(q.dtype, torch.float32)))
    mask = layout.additive_mask(torch.promote_types(q.dtype, torch.float32))
    if mask is not None:
        steps.append(_add_mask(mask.expand(q.shape[0], q.shape[1], q.shape[2], call.k.shape[2])))
    if call.temperature != 1:
        steps.append(_divide(call.temperature))
    if not steps:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        for step in steps:
            score = step(score, b, h, q_idx, kv_idx)
        return score

    return score_mod


def _apply_functions(functions: list[Modify], layout: Layout, batch: int) -> Modify:
    """The functions of ``from_score_mod``, which receive positions. Several of them add their changes of the score."""
    q_positions, k_positions = (x.expand(batch, -1) for x in (layout.q_positions, layout.k_positions))

    def apply(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        changed = [fn(score, b, h, q_positions[b, q_idx], k_positions[b, kv_idx]) for fn in functions]
        total = changed[0]
        for other in changed[1:]:
            total = total + (other - score)
        return total

    return apply


def _apply_distances(call: Call) -> Modify:
    """``score_scale`` and ``bias``: from tables over all distances that can occur, or by the ``pair_function`` of a part."""
    q, layout, batch = call.q, call.layout, call.q.shape[0]
    dtype = torch.promote_types(q.dtype, torch.float32)
    q_index, k_index = distance_indices(layout)
    first, last = distance_bounds(layout)
    distance = layout.clamp_distance(torch.arange(first, last + 1, device=q.device).to(dtype))
    score_scale, bias = (_build_table(call, hook, distance) for hook in ("score_scale", "bias"))
    by_pair = {
        hook: [_bind_pair_function(call, part, hook, dtype) for part in _parts_by_query(call, hook)]
        for hook in ("score_scale", "bias")
    }
    rows, columns = (q_index - first).expand(batch, -1), k_index.expand(batch, -1)
    largest = last - first

    def apply(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        entry = (rows[b, q_idx] - columns[b, kv_idx]).clamp(0, largest)  # hidden pairs may lie outside
        far = distance[entry] if by_pair["score_scale"] or by_pair["bias"] else entry
        for function in by_pair["score_scale"]:
            score = score * function(b, h, q_idx, far)
        if score_scale is not None:
            score = score * score_scale[h, entry]
        for function in by_pair["bias"]:
            score = score + function(b, h, q_idx, far)
        return score if bias is None else score + bias[h, entry]

    return apply


def _parts_by_query(call: Call, hook: str) -> list[Position]:
    return [part for part in call.position.parts if hook in part.effects and part.length == "query"]


def _build_table(call: Call, hook: str, distance: Tensor) -> Tensor | None:
    """The table ``[heads, n]`` of all parts whose length does not depend on the query; None if no such part has the hook."""
    heads, total = call.q.shape[1], None
    for part in call.position.parts:
        if hook not in part.effects or part.length == "query":
            continue
        table = evaluate_table(part, hook, distance, heads, call.k.shape[2])
        assert table is not None
        _require_no_gradient(table)
        total = table if total is None else combine_outputs(hook, total, table, 1.0)
    return None if total is None else total.expand(heads, -1)


def _bind_pair_function(
    call: Call, part: Position, hook: str, dtype: torch.dtype
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """``pair_function`` of a part as a function of batch, head, query index and distance."""
    pair, q = part.pair_function(hook), call.q
    assert pair is not None
    _require_no_gradient(pair.numbers)
    numbers = pair.numbers.to(dtype).expand(q.shape[1], -1)
    lengths = call.layout.length_of(part)[..., 0].to(dtype).expand(q.shape[0], -1)

    def function(b: Tensor, h: Tensor, q_idx: Tensor, distance: Tensor) -> Tensor:
        # the compiler reads a captured tensor at indices that are tensors
        return pair.evaluate(lambda i: numbers[h, h * 0 + i], distance, lengths[b, q_idx])

    return function


def _require_no_gradient(x: Tensor) -> None:
    if x.requires_grad:
        raise usage_error(
            "attend(backend='flex')",
            "a mechanism with a gradient outside its parameters",
            "FlexAttention is used for what has no gradient",
            "detach its tensors, or use backend='blockwise'",
        )


def distance_bounds(layout: Layout) -> tuple[int, int]:
    """The smallest and the largest distance of a visible pair, or beyond."""
    queries, keys = layout.q_positions.shape[1], layout.k_positions.shape[1]
    if layout.offset is not None:
        first, last = layout.offset - keys + 1, layout.offset + queries - 1
    else:
        q, k = layout.q_positions, layout.k_positions
        first, last = (int(x) for x in torch.stack([q.min() - k.max(), q.max() - k.min()]))
    if layout.causal:
        first = max(first, 0)
    if layout.window is not None:
        first, last = max(first, 1 - layout.window), min(last, layout.window - 1)
    return first, max(first, last)


def _add_clock(clock: Clock, dtype: torch.dtype) -> Modify:
    """``C_i - C_j``. Each sum is a number of the dtype and what that leaves out: near tokens differ by less than sums in float32
    round. FlexAttention refuses a captured tensor that requires a gradient, even where none is computed."""
    q, k = clock.q.detach(), clock.k.detach()
    q_sum, k_sum = q.to(dtype), k.to(dtype)
    q_rest, k_rest = (q - q_sum).to(dtype), (k - k_sum).to(dtype)

    def add(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        difference = q_sum[b, h, q_idx] - k_sum[b, h, kv_idx]
        return score + (difference + (q_rest[b, h, q_idx] - k_rest[b, h, kv_idx]))

    return add


def _add_mask(mask: Tensor) -> Modify:
    def add(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score + mask[b, h, q_idx, kv_idx]

    return add


def _divide(temperature: float) -> Modify:
    def divide(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score / temperature

    return divide


def build_block_mask(layout: Layout, q: Tensor) -> Any:
    """All masks as a ``BlockMask``; None if every pair is visible."""
    if not layout.causal and layout.window is None and layout.plain:
        return None
    from torch.nn.attention.flex_attention import BlockMask

    some, every = find_visible_blocks(layout, BLOCK, BLOCK)
    some, every = some[:, None], every[:, None]
    if layout.pair_mask is not None:
        allowed, all_allowed = _find_pair_blocks(layout)
        some, every = some & allowed, every & all_allowed
    partial, full = (_order_blocks(x) for x in torch.broadcast_tensors(some & ~every, every))
    return BlockMask.from_kv_blocks(
        *partial,
        *full,
        BLOCK_SIZE=BLOCK,
        mask_mod=build_mask_mod(layout, q.shape[0]),
        seq_lengths=(layout.q_positions.shape[1], layout.k_positions.shape[1]),
    )


def _order_blocks(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of key blocks of each query block, and their indices before those of the other blocks."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int()


def _find_pair_blocks(layout: Layout) -> tuple[Tensor, Tensor]:
    """Blocks with some, and blocks with only, pairs that ``attn_mask`` and ``mask_fn`` allow. One row of blocks at a time."""
    assert layout.pair_mask is not None
    keys = layout.k_positions.shape[1]
    some: list[Tensor] = []
    every: list[Tensor] = []
    padding = -keys % BLOCK
    for first in range(0, layout.q_positions.shape[1], BLOCK):
        rows = slice(first, first + BLOCK)
        allowed = layout.pair_mask.visible(layout.q_positions[:, rows], layout.k_positions, rows)
        allowed = allowed.expand(*allowed.shape[:-1], keys)
        for found, value in ((some, False), (every, True)):
            padded = torch.nn.functional.pad(allowed, (0, padding), value=value).unflatten(-1, (-1, BLOCK))
            found.append(padded.all(-1).all(-2) if value else padded.any(-1).any(-2))
    return torch.stack(some, 2), torch.stack(every, 2)


def build_mask_mod(layout: Layout, batch: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Whether a query attends to a key, for one pair."""
    rows, columns = (x.expand(batch, -1) for x in distance_indices(layout))
    q_positions, k_positions = (x.expand(batch, -1) for x in (layout.q_positions, layout.k_positions))
    causal, window, real = layout.causal, layout.window, layout.real
    q_segments, k_segments = (
        None if ids is None else ids.expand(batch, -1) for ids in (layout.q_segment_ids, layout.k_segment_ids)
    )
    pair_mask = layout.pair_mask
    attn_mask = mask_fn = None
    if pair_mask is not None:
        mask_fn = pair_mask.mask_fn
        if pair_mask.attn_mask is not None:
            attn_mask = pair_mask.attn_mask
            attn_mask = ~torch.isneginf(attn_mask) if pair_mask.is_additive else attn_mask
            attn_mask = attn_mask.expand(batch, pair_mask.heads, rows.shape[1], columns.shape[1])

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        distance = rows[b, q_idx] - columns[b, kv_idx]
        visible = distance >= 0 if causal else distance == distance
        if window is not None:
            visible = visible & (distance.abs() < window)
        if real is not None:
            visible = visible & real[b, kv_idx]
        if q_segments is not None and k_segments is not None:
            visible = visible & (q_segments[b, q_idx] == k_segments[b, kv_idx])
        if attn_mask is not None:
            visible = visible & attn_mask[b, h, q_idx, kv_idx]
        if mask_fn is not None:
            visible = visible & mask_fn(b, h, q_positions[b, q_idx], k_positions[b, kv_idx])
        return visible

    return mask_mod


def share_beside_sink(call: Call, lse: Tensor) -> Tensor:
    """The part of each row's weights that the sink leaves to the keys, ``[B, H, T, 1]``."""
    places = call.layout.q_positions.to(lse.dtype)[..., None]
    sink = evaluate(call.position, "sink", places, call.q.shape[1], call.layout.length_of, temperature=call.temperature)
    assert sink is not None
    logit = (sink[..., 0] / call.temperature).transpose(0, 1)
    alone = torch.isneginf(lse)  # a row without visible keys is 0 already, and its gradient must not be NaN
    share = torch.sigmoid(lse.masked_fill(alone, 0.0) - logit)
    return share.masked_fill(alone, 0.0)[..., None]


register_backend(Flex())

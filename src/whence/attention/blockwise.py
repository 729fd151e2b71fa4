"""The blockwise backend: memory linear in length, gradients to everything, on CPU and GPU.

Effects that are functions of distance alone go through tables and the tiled operator, which also subtracts clocks. What depends on more (a length
that differs per query, content terms, positions that are not consecutive) is computed for a block of query rows at a time
and computed again in the backward pass, so only one block's matrix exists at any moment.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from whence import torch_modes
from whence.attention import ops
from whence.attention.backends import Backend, register_backend
from whence.attention.call import Call, Request, build_rows, why_no_table
from whence.attention.half_product import multiply_in_half
from whence.attention.recomputed_rows import run_in_blocks
from whence.position.base import Position
from whence.position.evaluate import evaluate, evaluate_content_bias, evaluate_table, evaluate_value_bias
from whence.position.hook_types import Rows

SCORES = 1 << 21  # scores in memory at once when rows are recomputed
HALF = (torch.float16, torch.bfloat16)
SCORES_ON_GPU = 1 << 24  # each kernel launch has a fixed cost, so blocks are larger


class Blockwise(Backend):
    """Exact attention in blocks of query rows."""

    name = "blockwise"
    effects = frozenset({"score_scale", "bias", "content_bias", "value_bias", "sink", "clock"})
    takes_masks = True
    takes_dropout = True
    takes_grouped_heads = True
    memory = "linear in length"
    devices = "CPU, GPU"
    dtypes = "fp64, fp32, fp16, bf16"
    gradients = "q, k, v and every parameter, of any order"
    tracing = "compile, where distance tables apply or nothing gets a gradient"
    purpose = "training and long inputs"

    def supports(self, request: Request) -> str | None:
        unsupported = super().supports(request)
        if unsupported is not None:
            return unsupported
        if request.exporting:
            return "its loops do not export"
        if request.compiling and request.no_table is not None and (request.learnable or request.input_gradient):
            return f"torch.compile cannot trace its recomputed rows, which are needed because {request.no_table}"
        return None

    def priority(self, request: Request) -> int:
        return 20

    def reason(self, request: Request) -> str:
        if request.no_table is not None:
            return f"rows are recomputed block by block ({request.no_table}), and memory stays linear in length"
        if not request.effects:
            return f"torch's kernel would need a dense mask of {request.mask_numbers} numbers"
        tables = " and ".join(sorted(request.effects - {"clock"}))
        of_distance = f"{tables} of distance alone: tiles read a table" if tables else ""
        of_tokens = "a clock of each token: tiles subtract two vectors" if "clock" in request.effects else ""
        return f"{', and '.join(filter(None, (of_distance, of_tokens)))}, and memory stays linear in length"

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        """The output ``[B, H, T, E]``, in at least float32."""
        by_tables = why_no_table(call.position, call.layout) is None
        if by_tables or not multiplies_in_half(call.q):
            dtype = torch.promote_types(call.q.dtype, torch.float32)
            call = replace(call, q=call.q.to(dtype), k=call.k.to(dtype), v=call.v.to(dtype))
        return (compute_by_tables if by_tables else compute_by_rows)(call), None


def multiplies_in_half(q: Tensor) -> bool:
    """Whether rows are multiplied in half precision, on tensor cores, with sums in float32."""
    return q.is_cuda and q.dtype in HALF and not torch_modes.is_transforming()


def compute_by_tables(call: Call) -> Tensor:
    """The tiled operator, which reads score_scale and bias from tables over the distances that occur."""
    q, k, v, position, layout, dropout = call.q, call.k, call.v, call.position, call.layout, call.dropout
    assert layout.offset is not None
    batch, heads, rows, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    span = torch.arange(layout.offset - keys + 1, layout.offset + rows, device=q.device)
    distance = layout.clamp_distance(span.to(q.dtype))
    score_scale, bias = (evaluate_table(position, hook, distance, heads, keys) for hook in ("score_scale", "bias"))
    places = layout.q_positions.to(q.dtype)[..., None]
    sink = evaluate(position, "sink", places, heads, layout.length_of, temperature=call.temperature)
    if sink is not None:
        sink = sink[..., 0].transpose(0, 1).expand(batch, heads, rows)
    seed = torch.randint(2**62, (), dtype=torch.int64) if dropout > 0 else None
    score_scale, bias = (None if t is None else t.expand(heads, -1) for t in (score_scale, bias))
    q_clock, k_clock = (None, None) if call.clock is None else (call.clock.q, call.clock.k)
    out, _, _ = ops.tiled_attention(
        q, k, v, score_scale, bias, sink, q_clock, k_clock, layout.real, layout.q_segment_ids, layout.k_segment_ids, layout.offset, layout.causal,
        layout.window, call.scale, call.temperature, dropout, seed,
    )  # fmt: skip
    return out


def compute_by_rows(call: Call) -> Tensor:
    """Blocks of query rows against the keys that they can see, recomputed in the backward pass."""
    q, half = call.q, call.q.dtype if call.q.dtype in HALF else None
    # gradients of blocks are summed in at least float32
    wide = torch.promote_types(q.dtype, torch.float32)
    call = replace(call, k=call.k.to(wide), v=call.v.to(wide))
    batch, heads, keys = q.shape[0], q.shape[1], call.k.shape[2]
    step = max(1, (SCORES_ON_GPU if q.is_cuda else SCORES) // (batch * heads * keys))
    all_keys = call.layout.pair_mask is not None or any(part.length == "sequence" for part in call.position.parts)

    def block(rows: slice) -> Tensor:
        return _dense_rows(call if all_keys else select_keys(call, call.layout.visible_keys(rows)), rows, half)

    return run_in_blocks(call, step, block)


def select_keys(call: Call, keys: slice) -> Call:
    """The call of all queries and some keys."""
    if keys == slice(0, call.k.shape[2]):
        return call
    return replace(
        call,
        k=call.k[:, :, keys],
        v=call.v[:, :, keys],
        projected_k=None if call.projected_k is None else call.projected_k[:, :, keys],
        layout=call.layout.select_keys(keys),
        clock=None if call.clock is None else replace(call.clock, k=call.clock.k[:, :, keys]),
    )


def _dense_rows(call: Call, rows: slice, half: torch.dtype | None) -> Tensor:
    """A block of query rows against the keys of a call; heads of one group stay together, so keys are not repeated.

    With ``half``, products are those of numbers of this dtype with sums in float32. All else is at least float32. Each operation on
    the scores costs about as much as a product, so those without an effect are left out.
    """
    q, k, v = call.q[:, :, rows], call.k, call.v
    position, layout, temperature = call.position, call.layout, call.temperature
    batch, heads, count, groups = q.shape[0], q.shape[1], q.shape[2], k.shape[1]
    dtype = k.dtype
    scores = _scale_products(q, k, call.scale, half)
    visible = layout.visible(rows)
    distance = layout.hook_distances(dtype, rows)

    def length_of(part: Position) -> object:
        return layout.length_of(part, rows)

    z = scores
    about: Rows | None = None
    if position.effects & {"content_bias", "value_bias"}:
        repeated = k if groups == heads else k.repeat_interleave(heads // groups, 1)
        about = build_rows(call, q.to(dtype), repeated, scores, visible, rows)
        term = evaluate_content_bias(position, about)
        z = z if term is None else z + term
    score_scale = evaluate(position, "score_scale", distance, heads, length_of)
    z = z if score_scale is None else z * score_scale.transpose(0, 1)
    bias = evaluate(position, "bias", distance, heads, length_of)
    z = z if bias is None else z + bias.transpose(0, 1)
    z = z if call.clock is None else z + call.clock.bias(dtype, rows)
    mask = layout.additive_mask(dtype, rows)
    z = z if mask is None else z + mask
    z = z if temperature == 1 else z / temperature
    if not (layout.plain and not layout.causal and layout.window is None):
        z = z.masked_fill(~visible, -torch.inf)
    # rows without a visible key: any finite logits do, because the output is set to 0
    alone = torch.isneginf(z.detach().amax(-1, keepdim=True))
    z = z.masked_fill(alone, 0.0)
    places = layout.q_positions[:, rows].to(dtype)[..., None]
    sink = evaluate(position, "sink", places, heads, length_of, temperature=temperature)
    if sink is not None:
        z = torch.cat([z, (sink / temperature).transpose(0, 1).expand(batch, heads, -1, -1)], -1)
    # softmax subtracts the row maximum: z - logsumexp(z) would lose log n to rounding if all logits are far below 0
    weights = torch.softmax(z, -1)
    weights = weights if sink is None else weights[..., :-1]
    if "value_bias" in position.effects:
        weights = weights.masked_fill(alone, 0.0)
    if call.dropout > 0:
        weights = torch.nn.functional.dropout(weights, call.dropout)
    folded = weights.reshape(batch, groups, -1, weights.shape[-1])
    out = (folded @ v if half is None else multiply_in_half(folded, v, half)).view(batch, heads, count, -1)
    out = out.masked_fill(alone, 0.0)
    more = None if about is None else evaluate_value_bias(position, weights, about, tuple(out.shape))
    return out if more is None else out + more


def _scale_products(q: Tensor, k: Tensor, scale: float, half: torch.dtype | None) -> Tensor:
    """``scale * q . k`` of heads that share keys, ``[B, H, T, S]``."""
    batch, groups = k.shape[:2]
    exact = half is None or abs(math.frexp(scale)[0]) == 0.5  # a power of 2, so that queries lose no digit
    folded = (q * scale if exact else q).reshape(batch, groups, -1, q.shape[3])
    products = folded @ k.mT if half is None else multiply_in_half(folded, k.mT, half)
    return (products if exact else products * scale).view(*q.shape[:3], -1)


register_backend(Blockwise())

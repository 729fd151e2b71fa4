"""The ``triton`` backend: evaluate a mechanism to tables over distances, then call one fused operator."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import replace

import torch
from torch import Tensor

from whence.attention.backends import Backend, register_backend
from whence.attention.call import Call, Request
from whence.attention.content_tables import (
    CONTENT,
    MAX_NETWORK_WIDTH,
    RelativeTerms,
    content_bias_table,
    coordinate_bias_table,
    distance_slopes,
    gated_bias_table,
    head_network,
    relative_terms,
    value_bias_table,
)
from whence.attention.fused import gated_ops, linear_bias, network_ops, ops, packing, row_blocks, scaled_distance
from whence.attention.fused.fused_call import EffectGradients, FusedCall, Mask, ScoreEffects, Softmax
from whence.attention.fused.packing import (
    MAX_DECODE_QUERIES,
    base_2_factor,
    distance_range,
    draw_seed,
    effective_window,
    limit_finite,
    pack_tables,
)
from whence.attention.fused.parameter_tables import parameter_tables
from whence.attention.fused.tile_configs import max_head_dim
from whence.attention.layout import Layout
from whence.position.base import Position, is_built_in
from whence.position.evaluate import evaluate, evaluate_table, fixed_length
from whence.position.head_network import HeadNetwork
from whence.position.hook_types import ParameterGradient

MAX_OFFSET = 2**29  # kernels compute distances in 32 bits
MIN_KEYS_TO_SKIP = 1024  # for fewer keys, computing the bound costs more than skipping saves
MAX_HEADS_TO_SKIP = 256  # one program sorts all heads by their largest distance


class Triton(Backend):
    """Fused GPU kernels that read score_scale and bias from tables over distances."""

    name = "triton"
    effects = frozenset({"score_scale", "bias", "sink", "clock"})
    takes_dropout = True
    takes_grouped_heads = True
    memory = "linear in length"
    devices = "NVIDIA GPU"
    dtypes = "fp32, fp16, bf16"
    gradients = "q, k, v and every parameter"
    tracing = "compile"
    purpose = "training, long inputs and decoding on a GPU"

    def supports(self, request: Request) -> str | None:
        no_table, content = request.no_table, request.effects & CONTENT
        if content:
            no_table = request.no_content_table
            if no_table is not None:
                return f"it does not apply {' and '.join(sorted(content))} here: {no_table}"
            request = replace(request, effects=request.effects - CONTENT)
        unsupported = super().supports(request) or why_unavailable(request)
        if request.pair_form is None:
            unsupported = unsupported or no_table
        return "its kernels do not export" if unsupported is None and request.exporting else unsupported

    def priority(self, request: Request) -> int:
        return 30

    def reason(self, request: Request) -> str:
        if not request.effects:
            return f"torch's kernel would need a dense mask of {request.mask_numbers} numbers"
        if request.pair_form is not None:
            return "its kernels evaluate the function of distance and query length for each pair"
        if request.network_width:
            return "content terms are a network over heads: kernels evaluate it for blocks of query rows"
        if request.effects & CONTENT:
            return "content terms are tables: one fused kernel gathers from them"
        tables = " and ".join(sorted(request.effects - {"clock"}))
        by_distance = f"{tables} of distance alone: one fused kernel reads a table" if tables else ""
        of_tokens = (
            "a clock of each token: one fused kernel subtracts two vectors" if "clock" in request.effects else ""
        )
        return ", and ".join(words for words in (by_distance, of_tokens) if words)

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        return attend(call), None


def why_unavailable(request: Request) -> str | None:
    """Why the kernels cannot run on tensors of this device, dtype and size, as a clause; None if they can."""
    if request.offset is not None and abs(request.offset) >= MAX_OFFSET:
        return f"queries and keys are {abs(request.offset)} positions apart, and it supports less than {MAX_OFFSET}"
    device, head_dim = request.device, max(request.head_dim, request.value_dim)
    if device.type != "cuda" and not (device.type == "cpu" and is_interpreted()):
        return f"it needs a CUDA device, and q is on {device.type}"
    if not torch.compiler.is_compiling() and "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    unsupported, largest = gpu_limits(device, request.dtype.itemsize)
    if unsupported is not None:
        return unsupported
    if request.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it does not support {str(request.dtype).removeprefix('torch.')}"
    if head_dim > largest:
        return f"it supports head dimensions up to {largest}, not {head_dim}"
    if request.network_width > MAX_NETWORK_WIDTH[request.dtype.itemsize]:
        at_most, dtype = MAX_NETWORK_WIDTH[request.dtype.itemsize], str(request.dtype).removeprefix("torch.")
        return f"in {dtype}, its networks over heads have at most {at_most} heads and hidden units, not {request.network_width}"
    return None


def gpu_limits(device: torch.device, element_size: int) -> tuple[str | None, int]:
    """Why a GPU cannot run the kernels, as a clause, or None; and the largest head dimension for this size of a number."""
    if device.type == "cuda":
        if torch.version.hip is not None:
            return "it needs an NVIDIA GPU", 0
        if torch.cuda.get_device_capability(device) < packing.MIN_CAPABILITY:
            return "it needs a GPU of compute capability {}.{} or newer".format(*packing.MIN_CAPABILITY), 0
    return None, max_head_dim(packing.has_tma(device), packing.shared_memory(device), element_size)


# torch.compile calls the function while it traces and takes the answer as a constant. torch.compiler.assume_constant_result
# sets the same mark, and imports the compiler, which takes seconds.
gpu_limits._dynamo_marked_constant = True  # type: ignore[attr-defined]


def is_interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU, which tests them without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


# What torch.compiler.assume_constant_result sets; calling it would import torch's compiler with the library.
is_interpreted._dynamo_marked_constant = True  # type: ignore[attr-defined]


def attend(call: Call) -> Tensor:
    """The output ``[B, H, T, E]`` in the dtype of q, or float32 with vectors added to the values."""
    if not call.position.effects & CONTENT:
        return attend_rows(call)
    network = head_network(call.position, call.q.shape[1])
    if network is not None:
        return attend_by_network(call, network)
    relative = relative_terms(call.position, call.q, *row_blocks.visible_distances(call))
    rows = row_blocks.rows_per_block(call, relative)
    if rows == call.q.shape[2]:
        return attend_rows(call, relative)
    return row_blocks.attend_in_blocks(call, rows, lambda block: attend_rows(block, relative))


def attend_rows(call: Call, relative: RelativeTerms | None = None) -> Tensor:
    """The same by one call of the operator. ``relative``: of a mechanism with ``relative_keys``."""
    q, k, v, position, layout = call.q, call.k, call.v, call.position, call.layout
    assert layout.offset is not None
    batch, heads, q_len, kv_len = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    # steps of a clock may be positive, so they have no bound, nor have terms of content
    bounded = call.clock is None and not position.effects & CONTENT
    skip = call.skip_blocks and bounded and has_decaying_bias(position) and heads <= MAX_HEADS_TO_SKIP
    mask = describe_mask(layout, q_len, kv_len, skip_blocks=skip and can_skip_blocks(layout, q_len, kv_len))
    seed = draw_seed(q.device) if call.dropout > 0 else None
    softmax = Softmax(call.scale, call.temperature, call.dropout, seed)
    unrotated_q = q if call.projected_q is None else call.projected_q
    gated = gated_bias_table(position, q, unrotated_q, call.scale)
    if gated is not None:
        return gated_ops.gated_attention(q, k, v, gated, mask, softmax)
    sink = None
    if "sink" in position.effects:
        places = layout.q_positions.float()[..., None]
        sink = evaluate(position, "sink", places, heads, layout.length_of, temperature=call.temperature)
        assert sink is not None
        sink = sink[..., 0].transpose(0, 1).expand(batch, heads, q_len)
    if call.pair_function is None:
        slope = linear_bias.slope_for_kernels(call, skips_blocks=mask.skip_blocks)
        effects, gradients = score_effects(q, kv_len, position, layout, softmax, sink, slope)
    else:
        effects, gradients = scaled_distance.function_effects(call.pair_function, q, kv_len, layout, softmax, sink)
    if call.clock is not None:
        shared = call.clock.q is call.clock.k
        effects = replace(effects, q_clock=None if shared else call.clock.q, k_clock=call.clock.k)
    content = content_bias_table(position, q, unrotated_q, call.scale, call.q_input)
    if relative is not None:
        content, q = relative.table(q, call.scale, *row_blocks.visible_distances(call)), relative.shift_queries(q)
    if content is not None:
        effects = replace(
            effects, content_table=content.values, content_first=content.first, content_clipped=content.clipped
        )
    unrotated_k = k if call.projected_k is None else call.projected_k
    slopes = distance_slopes(position, call.q, k, (unrotated_q, unrotated_k))
    if slopes is not None:
        effects = replace(effects, content_table=slopes)
    coordinates = coordinate_bias_table(position, heads, batch, layout)
    if coordinates is not None:
        values, q_places, k_places = coordinates
        effects = replace(effects, content_table=values, q_places=q_places, k_places=k_places)
    vectors = value_bias_table(position, heads, v.shape[3])
    if vectors is not None:
        effects = replace(
            effects, value_entries=vectors.entries, value_first=vectors.first, value_clipped=vectors.clipped
        )
    out, weight_sums = ops.fused_attention(FusedCall(q, k, v, effects, gradients, mask, softmax))
    return out if vectors is None else out + weight_sums @ vectors.values.to(weight_sums.dtype)


def describe_mask(layout: Layout, q_len: int, kv_len: int, *, skip_blocks: bool) -> Mask:
    assert layout.offset is not None
    return Mask(
        q_offset=layout.offset,
        causal=layout.causal,
        window=effective_window(layout.offset, layout.window, q_len, kv_len),
        key_mask=layout.real,
        q_segment_ids=layout.q_segment_ids,
        k_segment_ids=layout.k_segment_ids,
        skip_blocks=skip_blocks,
    )


def attend_by_network(call: Call, network: HeadNetwork) -> Tensor:
    """The output of a call whose ``content_bias`` is a network over heads, beside biases of distance."""
    heads, q_len, kv_len = call.q.shape[1], call.q.shape[2], call.k.shape[2]
    first, end = row_blocks.visible_distances(call)
    distance = torch.arange(first, end, device=call.q.device, dtype=torch.float32)
    of_hidden, of_logits = network.tables(distance)
    bias = evaluate_table(call.position, "bias", distance, heads, kv_len)
    of_logits = of_logits if bias is None else of_logits + bias.expand(heads, -1).T
    if not is_built_in(call.position):
        of_logits = limit_finite(of_logits, base_2_factor(call.temperature))
    return network_ops.network_attention(
        call.q, call.k, call.v, network.first[:, :heads], network.last, (of_hidden, of_logits), first,
        network.negative_slope, describe_mask(call.layout, q_len, kv_len, skip_blocks=False),
        Softmax(call.scale, call.temperature, 0.0, None),
    )  # fmt: skip


def score_effects(
    q: Tensor,
    kv_len: int,
    position: Position,
    layout: Layout,
    softmax: Softmax,
    sink: Tensor | None,
    slope: Tensor | None,
) -> tuple[ScoreEffects, EffectGradients]:
    """The mechanism as its slope or, without one, as tables over all distances that can occur, and how their gradients are
    computed."""
    heads, half_precision = q.shape[1], q.dtype != torch.float32
    assert layout.offset is not None
    first, end = distance_range(layout.offset, layout.causal, layout.window, q.shape[2], kv_len)
    score_scale = bias = parameters = None
    derivatives: tuple[ParameterGradient, ...] = ()
    if slope is None and position.effects & {"score_scale", "bias"}:
        distance = torch.arange(first, end, device=q.device, dtype=torch.float32)
        tables = parameter_tables(position, distance, heads, kv_len)
        if tables is None:
            score_scale, bias = (
                evaluate_table(position, hook, distance, heads, kv_len) for hook in ("score_scale", "bias")
            )
        else:
            score_scale, bias, parameters, derivatives = tables
    fixed_scale = score_scale is not None and not score_scale.requires_grad
    logit_scale = base_2_factor(softmax.temperature)
    if bias is not None and not is_built_in(position):  # no bias of the library's mechanisms is near the limit
        bias = limit_finite(bias, logit_scale)
    scaled = ((score_scale, softmax.scale * logit_scale), (bias, logit_scale))
    columns = [(table.expand(heads, -1), factor) for table, factor in scaled if table is not None]
    effects = ScoreEffects(
        table=pack_tables([table for table, _ in columns], [factor for _, factor in columns]),
        has_score_scale=score_scale is not None,
        has_bias=bias is not None,
        first_distance=first,
        num_knots=-1,
        slope=slope,
        decay=decay_per_head(position, layout, heads, kv_len) if half_precision and fixed_scale else None,
        sink=sink,
        q_clock=None,
        k_clock=None,
    )
    tabulated = [(item.hook, item.derivative) for item in derivatives if item.derivative is not None]
    gradients = EffectGradients(
        dense_score_scale=score_scale is not None and score_scale.requires_grad,
        dense_bias=bias is not None and bias.requires_grad,
        parameters=parameters,
        derivatives=pack_tables([table for _, table in tabulated], [1.0] * len(tabulated)),
        num_scale_derivatives=sum(hook == "score_scale" for hook, _ in tabulated),
        num_bias_derivatives=sum(hook == "bias" for hook, _ in tabulated),
        has_amplitude=len(tabulated) < len(derivatives),
    )
    return effects, gradients


def has_decaying_bias(position: Position) -> bool:
    """Whether the bias of some part falls without bound, so that blocks of distant keys may be skipped."""
    return any(part.decays for part in position.parts)


def can_skip_blocks(layout: Layout, q_len: int, kv_len: int) -> bool:
    """Whether each query has its own key among the keys, on which the bound relies, and there are enough keys to skip.

    Kernels find out for which queries padding or segments hide that key.
    """
    assert layout.offset is not None
    own_key = layout.causal and layout.offset >= 0 and layout.offset + q_len <= kv_len
    return own_key and q_len > MAX_DECODE_QUERIES and kv_len > MIN_KEYS_TO_SKIP


def decay_per_head(position: Position, layout: Layout, heads: int, kv_len: int) -> Tensor | None:
    """``[H, 3]``: floor, span and rate, if the only score effect is a score scale that decays exponentially to a floor.

    It equals the table within float32 rounding; a kernel may use either.
    """
    active = [part for part in position.parts if part.effects & {"score_scale", "bias"}]
    if len(active) != 1 or "bias" in active[0].effects or not layout.causal:
        return None
    with torch.no_grad():
        decay = active[0].score_scale_decay(fixed_length(active[0], kv_len))
        return None if decay is None else torch.stack([x.float().reshape(-1).expand(heads) for x in decay], -1)


TRITON = Triton()
register_backend(TRITON)

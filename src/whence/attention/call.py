"""From the arguments of ``attend`` to a call that a backend can run: validate, join the cache, rotate.

``Call`` is what a backend runs. ``Request`` holds the facts from which a backend decides whether it supports the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence import hook_outputs, shapes, torch_modes
from whence.attention.argument_validation import validate_arguments
from whence.attention.arguments import Arguments
from whence.attention.cache import KVCache
from whence.attention.clock import Clock, run_clock
from whence.attention.content_tables import network_width, why_no_content_tables
from whence.attention.layout import Layout, resolve_layout
from whence.attention.pair_mask import resolve_pair_mask
from whence.position.base import Position
from whence.position.hook_types import DECAY, LOG_NETWORK, PairFunction, Rows
from whence.position.no_position import NoPosition
from whence.position.score_mod import ScoreMod

ON_SCORES = frozenset({"score_scale", "bias", "content_bias", "value_bias"})
PAIR_FORM_HOOKS = {DECAY: {"score_scale"}, LOG_NETWORK: {"bias"}}
MAX_DISTANCES = 1 << 20  # of a table where positions leave gaps


@dataclass(frozen=True)
class Call:
    """A validated call. q and k are rotated, k and v hold the cache's tokens too, and every position is known."""

    q: Tensor  # [B, H, T, D]
    k: Tensor  # [B, G, S, D]
    v: Tensor  # [B, G, S, E]
    projected_q: Tensor | None  # q and k before rotation, where a content hook may read them
    projected_k: Tensor | None
    position: Position
    layout: Layout
    scale: float
    temperature: float
    dropout: float
    skip_blocks: bool
    return_weights: bool
    clock: Clock | None = None  # of a mechanism with a clock
    pair_function: PairFunction | None = None  # see find_pair_function
    q_input: Tensor | None = None  # [B, T, embed_dim], of a mechanism that reads the layer input


@dataclass(frozen=True)
class Request:
    """The facts of a call that decide which backend can run it. No tensor values are read."""

    effects: frozenset[
        str
    ]  # of score_scale, bias, content_bias, value_bias, sink, clock; embed and rotate happen earlier
    return_weights: bool
    learnable: bool  # the position or attn_mask gets a gradient
    learnable_scores: bool  # the same, sinks left out
    device: torch.device
    dtype: torch.dtype
    head_dim: int
    value_dim: int
    offset: int | None  # of the layout
    bias_numbers: int  # of a bias over all pairs of query and key
    mask_numbers: int  # of the dense mask that SDPA would need; 0 for none or plain causality
    pair_mask: str | None  # "boolean" or "additive", from attn_mask and mask_fn; None without them
    dropout: bool
    grouped_heads: bool  # k and v have fewer heads than q
    no_table: str | None  # why the effects are not one table over distances; None when they are
    no_content_table: str | None  # why the content effects are not tables beside such a table; None when they are
    pair_form: str | None  # form of the only effect of distance, where the query's length scales the distance
    compiling: bool
    exporting: bool
    transforming: bool  # inside torch.func or forward-mode AD
    input_gradient: bool  # q, k, v, a clock or the layer input gets a gradient
    no_score_mod: str | None  # why the effects are not a function of one score; None when they are
    clock_gradient: bool = False  # the steps of a clock get a gradient
    network_width: int = 0  # heads or hidden units, whichever are more, of a network over heads; 0 without one

    @property
    def half_precision(self) -> bool:
        return self.dtype in (torch.float16, torch.bfloat16)


def prepare(arguments: Arguments) -> Call:
    """Validate everything before any work, then append to the cache and rotate."""
    validate_arguments(arguments)
    position = NoPosition() if arguments.position is None else arguments.position
    q, k, v, cache = arguments.q, arguments.k, arguments.v, arguments.cache
    below = exact_positions(position)
    if isinstance(cache, KVCache):
        k, v, steps, layout = cache.extend(arguments, learnable=position.trainable, below=below)
    else:
        needs_positions = bool(position.effects) or arguments.mask_fn is not None
        layout = resolve_layout(arguments, needs_positions=needs_positions, below=below)
        steps = arguments.clock
    pair_mask = resolve_pair_mask(arguments, k.shape[2])
    if pair_mask is not None:
        layout = replace(layout, pair_mask=pair_mask)
    scale = float(q.shape[3] ** -0.5) if arguments.scale is None else arguments.scale
    keep_projected = "rotate" in position.effects and bool(position.effects & {"content_bias", "value_bias"})
    projected_q, projected_k = (q, k) if keep_projected else (None, None)
    for part in position.parts:
        if "rotate" in part.effects:
            name, positions = type(part).__name__, (layout.q_positions, layout.k_positions)
            rotated = hook_outputs.call_on_tensors(f"{name}.rotate", part.rotate, q, k, *positions)
            q, k = hook_outputs.require_rotated(name, rotated, q, k, widens=part.widens)
    return Call(
        q, k, v, projected_q, projected_k, position, layout, scale, arguments.temperature, arguments.dropout, arguments.skip_blocks,
        arguments.return_weights, None if steps is None else run_clock(steps, layout, q.dtype),
        find_pair_function(position, layout), arguments.q_input,
    )  # fmt: skip


def build_rows(call: Call, q: Tensor, k: Tensor, scores: Tensor, visible: Tensor, rows: slice | None = None) -> Rows:
    """The argument of content hooks for some query rows: q and scores of these rows, k with repeated heads."""

    def convert(x: Tensor | None, rows: slice | None) -> Tensor | None:
        return None if x is None else (x if rows is None else x[:, :, rows]).to(scores.dtype)

    layout = call.layout
    q_positions = layout.q_positions if rows is None else layout.q_positions[:, rows]
    projected_q, projected_k = convert(call.projected_q, rows), convert(call.projected_k, None)
    q_input = call.q_input
    if q_input is not None:
        q_input = (q_input if rows is None else q_input[:, rows]).to(scores.dtype)
    return Rows(
        q, k, scores, q_positions, layout.k_positions, visible, call.scale, projected_q, projected_k,
        convert(call.v, None), q_input,
    )  # fmt: skip


def describe(call: Call) -> Request:
    """The facts of a call."""
    q, k, position, layout = call.q, call.k, call.position, call.layout
    mask = layout.pair_mask
    pairs = layout.mask_rows * q.shape[2] * k.shape[2]
    others = () if call.clock is None else (call.clock.q, call.clock.k)
    others = others if call.q_input is None else (*others, call.q_input)
    records = torch.is_grad_enabled()
    learnable, learnable_mask = records and position.trainable, records and mask is not None and mask.learnable
    return Request(
        effects=position.effects - {"embed", "rotate"},
        return_weights=call.return_weights,
        learnable=learnable or learnable_mask,
        learnable_scores=learnable_mask or (learnable and learns_in_scores(position)),
        device=q.device,
        dtype=q.dtype,
        head_dim=q.shape[3],
        value_dim=call.v.shape[3],
        offset=layout.offset,
        bias_numbers=(pairs if call.clock is None else q.shape[0] * q.shape[2] * k.shape[2]) * q.shape[1],
        mask_numbers=0 if layout.is_plain_causal else pairs if mask is None else pairs * q.shape[1],
        pair_mask=None if mask is None else "additive" if mask.is_additive else "boolean",
        dropout=call.dropout > 0,
        grouped_heads=bool(q.shape[1] != k.shape[1]),  # under torch.jit.trace, shapes are tensors
        no_table=why_no_table(position, layout),
        no_content_table=why_no_content_tables(position, call.scale, call.dropout, max(q.shape[3], call.v.shape[3]))
        or why_no_table(position, layout, content=False),
        pair_form=None if call.pair_function is None else call.pair_function.form,
        compiling=torch.compiler.is_compiling(),
        exporting=torch_modes.is_exporting(),
        transforming=torch_modes.is_transforming(),
        input_gradient=records and any(x.requires_grad for x in (q, k, call.v, *others)),
        no_score_mod=None if call.pair_function is not None else why_no_score_mod(position, layout),
        clock_gradient=records and call.clock is not None and call.clock.k.requires_grad,
        network_width=network_width(position),
    )


def learns_in_scores(position: Position) -> bool:
    """Whether parts of a learnable position learn that change scores or values, and not only sinks and rotations."""
    if position.effects <= ON_SCORES:
        return True
    return any(part.trainable for part in position.parts if part.effects & ON_SCORES)


def why_no_table(position: Position, layout: Layout, *, content: bool = True) -> str | None:
    """Why the effects on the scores are not one table over distances, as a clause; None when they are.

    ``content``: whether effects of content count.
    """
    not_by_distance = _why_not_by_distance(position, layout, content)
    if not_by_distance is not None:
        return not_by_distance
    lengths = (_why_lengths_differ(part, layout) for part in position.parts)
    return next((length for length in lengths if length is not None), None)


def find_pair_function(position: Position, layout: Layout) -> PairFunction | None:
    """The function of the only part that changes scores, if it has ``length="query"`` and a ``form``; None for all else."""
    active = [part for part in position.parts if part.effects & {"score_scale", "bias"}]
    if len(active) != 1 or active[0].length != "query" or _why_not_by_distance(position, layout) is not None:
        return None
    hooks = active[0].effects & {"score_scale", "bias"}
    pair = active[0].pair_function(next(iter(hooks))) if len(hooks) == 1 else None
    if pair is None or pair.form is None or hooks != PAIR_FORM_HOOKS.get(pair.form):
        return None
    return pair


def _why_not_by_distance(position: Position, layout: Layout, content: bool = True) -> str | None:
    """Why the effects on the scores differ between pairs of the same distance and query, as a clause; None if they do not."""
    if torch_modes.is_transforming():
        return "torch.func and forward-mode AD need plain operations"
    if layout.pair_mask is not None:
        return "attn_mask and mask_fn act on single pairs of a query and a key"
    if layout.offset is None:
        return "the positions are not one consecutive run"
    for part in position.parts if content else ():
        if part.effects & {"content_bias", "value_bias"}:
            return f"{type(part).__name__} depends on the content of queries or keys"
    return None


def why_no_score_mod(position: Position, layout: Layout) -> str | None:
    """Why the effects are not a function of one score, its head and its two positions, as a clause; None when they are."""
    by_distance = False
    for part in position.parts:
        is_function = isinstance(part, ScoreMod) and type(part).content_bias is ScoreMod.content_bias
        if part.effects & {"content_bias", "value_bias"} and not is_function:
            return f"{type(part).__name__} depends on the content of queries or keys"
        length = _why_lengths_differ(part, layout)
        if length is not None and not (part.length == "query" and has_pair_functions(part)):
            return length
        by_distance = by_distance or bool(part.effects & {"score_scale", "bias"})
    if not by_distance or layout.offset is not None:
        return None
    q, k = layout.q_positions, layout.k_positions
    if q.is_floating_point() or k.is_floating_point() or not torch_modes.can_read_values(q, k):
        return "the distances are not whole numbers that can be counted"
    distances = int(q.max() - k.min()) - int(q.min() - k.max()) + 1
    if distances > MAX_DISTANCES:
        return f"the positions span {distances} distances, and a table has at most {MAX_DISTANCES}"
    return None


def has_pair_functions(part: Position) -> bool:
    """Whether a part states all its effects of distance as functions of one pair."""
    return all(part.pair_function(hook) is not None for hook in part.effects & {"score_scale", "bias"})


def _why_lengths_differ(part: Position, layout: Layout) -> str | None:
    if not part.effects & {"score_scale", "bias"}:
        return None
    if part.length == "query":
        return f"{type(part).__name__} has length='query', so the effect of a distance differs between queries"
    if part.length == "sequence" and not layout.plain:
        return f"{type(part).__name__} has length='sequence', which differs between padded or packed sequences"
    return None


def exact_positions(position: Position) -> int:
    """The bound of positions that are passed. A mechanism that computes with a position itself does so in float32; the
    others take differences, which are exact far beyond."""
    absolute = position.effects & {"embed", "rotate", "content_bias", "value_bias", "sink"}
    if absolute or any(part.length is not None for part in position.parts):
        return shapes.EXACT_IN_FLOAT32
    return shapes.EXACT_IN_FLOAT64

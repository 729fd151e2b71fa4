"""Eager calls with little host time: what a call needs is worked out once per signature and kept with the position.

The first call of a signature is validated as every other call. If the ``triton`` backend is chosen and a plan covers it, the
plan runs it and is kept in the position, or in the backend where there is none. Later calls of the same signature find the plan by its key and launch the same
kernels. The key holds every fact that validation and the choice of a backend read, except values of tensors, so a plan never skips
a check that could fail.

Plans cover no position and mechanisms that scale or bias scores by distance, alone or beside rotary, without masks over pairs
and explicit positions: a whole sequence, short ones also with padding or segments, or the next tokens of a preallocated cache. EPAR, ALiBi,
the power prior and T5's buckets have kernels for their tables. The hooks of any other mechanism, or of a sum, are evaluated in
each call. The values of padding and segments are read in each call, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from whence import torch_modes
from whence.attention import backends
from whence.attention.arguments import Arguments
from whence.attention.cache import KVCache
from whence.attention.fused import backend as fused_backend
from whence.attention.fused import linear_bias
from whence.attention.fused.closed_forms import ClosedForm, closed_form
from whence.attention.fused.packing import MAX_DECODE_QUERIES, is_aligned
from whence.position.alibi import Alibi
from whence.position.base import Position
from whence.position.no_position import NoPosition
from whence.position.rotary import Rotary
from whence.position.t5 import T5Bias

if TYPE_CHECKING:
    from whence.attention.fused.eager_plan import Plan

#: whether plans are used
ENABLED = True
MAX_PLANS = 256  # of one position; with more, lengths vary so much that plans are seldom found again
#: pairs of query and key up to which a mechanism without a closed form has a plan. Above, the GPU is busier than the host, and
#: its derivative tables or its slope save more
MAX_PAIRS = 2**26
#: of a mechanism whose blocks may be skipped. A call without a plan takes 2 to 3 ms more of the host, forward alone; the blocks
#: take an H200 0.7 ms at 2**31 pairs
MAX_PAIRS_WITHOUT_SKIPPING = 2**32
MAX_MASKED_TOKENS = (
    1024  # of a sequence with padding or segments; above, leaving out hidden blocks saves more than a plan
)
ON_SCORES = frozenset({"score_scale", "bias"})
ATTRIBUTE = "_eager_plans"  # of a position, where it is not part of the state, or of the backend


class EagerCall(NamedTuple):
    """A call that a plan may cover. Without ``form`` and ``buckets``, the hooks of ``parts`` are evaluated."""

    key: tuple[Any, ...]
    form: ClosedForm | None
    buckets: tuple[Tensor, Tensor] | None  # of T5: its table and the boundaries
    parts: tuple[Position, ...]  # of the position, without rotary
    rotary: Rotary | None
    arguments: Arguments
    needs_gradient: bool
    mask: tuple[str, Tensor] | None  # lengths, key_mask or segment_ids

    @property
    def owner(self) -> Position | fused_backend.Triton:
        """What keeps the plan of this call."""
        position = self.arguments.position
        return fused_backend.TRITON if position is None else position

    def find_plan(self) -> Plan | None:
        store: dict[Any, Plan] | None = self.owner.__dict__.get(ATTRIBUTE)
        return None if store is None else store.get(self.key)

    def keep_plan(self) -> Plan | None:
        """Build and keep the plan of this call; None if kernels cannot read its tensors in place."""
        from whence.attention.fused.eager_plan import Plan

        a = self.arguments
        stored = a.cache.storage() if isinstance(a.cache, KVCache) else None
        if not all(is_aligned(x) for x in (a.q, a.k, a.v, *(() if stored is None else (stored.k, stored.v)))):
            return None
        store = self.owner.__dict__.setdefault(ATTRIBUTE, {})
        if len(store) >= MAX_PLANS:
            store.clear()
        plan = store[self.key] = Plan(self)
        return plan

    def run(self, plan: Plan) -> Tensor | None:
        """The output of a call that was not validated, because another one of its signature was.

        None if the plan does not cover the values of its padding or segments; such a call has no cache.
        """
        a = self.arguments
        if not isinstance(a.cache, KVCache):
            return plan.run(self, a.k, a.v, 0)
        state, offset = a.cache.state(), len(a.cache)
        k, v = a.cache.append_plain(a.k, a.v)
        try:
            return plan.run(self, k, v, offset)
        except Exception:
            a.cache.undo(state)  # a call that raises leaves no tokens behind
            raise

    def run_prepared(self, plan: Plan) -> Tensor | None:
        """The output of a call whose tokens are in the cache already: the first of its signature."""
        a = self.arguments
        if not isinstance(a.cache, KVCache):
            return plan.run(self, a.k, a.v, 0)
        k, v = a.cache.plain_tokens()
        return plan.run(self, k, v, len(a.cache) - a.k.shape[2])


def describe_call(a: Arguments) -> EagerCall | None:
    """The call with its key; None if no plan covers it. Reads attributes alone, never values."""
    q, k, v, position = a.q, a.k, a.v, a.position
    if not (type(q) is type(k) is type(v) is Tensor) or not _takes_plain(a):
        return None
    if position is not None and (not isinstance(position, Position) or "_parameters" not in position.__dict__):
        return None
    device, dtype = q.device, q.dtype
    if device.type != "cuda" and not (device.type == "cpu" and fused_backend.is_interpreted()):
        return None
    if torch_modes.is_tracing() or torch_modes.is_transforming() or torch._C._len_torch_dispatch_stack():
        return None  # a mode, such as selective checkpointing, sees operators and no launches
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if wrapped(q) or wrapped(k) or wrapped(v):  # kept beyond the end of a transform; it has no memory of its own
        return None
    if not (q.layout is k.layout is v.layout is torch.strided) or q.is_nested or k.is_nested or v.is_nested:
        return None
    if (q.data_ptr() | k.data_ptr() | v.data_ptr()) % 16 or q.is_neg() or k.is_neg() or v.is_neg():
        return None
    half_precision = dtype is torch.bfloat16 or dtype is torch.float16
    parts, rotary = () if position is None else position.parts, None
    if len(parts) > 1 or (parts and type(parts[0]) is Rotary):
        parts, rotary = _without_rotary(parts)
    if len(parts) == 1 and type(parts[0]) is NoPosition:
        parts = ()
    if rotary is not None and (rotary.length == "sequence" or q.shape[3] % 16):
        return None
    kv_len, cache_key = k.shape[2], None
    if a.cache is not None:
        cache_key = _cache_key(a)
        if cache_key is None or not isinstance(a.cache, KVCache):
            return None
        kv_len += len(a.cache)
    mask, mask_key = _find_mask(a), None
    if mask is not None:
        mask_key = _mask_key(*mask) if q.shape[2] == kv_len <= MAX_MASKED_TOKENS else None
        if mask_key is None:
            return None
    if not parts and a.backend == "auto" and a.window is None and mask is None:
        return None  # torch's kernel computes it
    learns = torch.is_grad_enabled()
    form = buckets = None
    if len(parts) == 1:
        form = closed_form(parts[0], slope=type(parts[0]) is Alibi and _takes_slope(a, mask is not None))
        buckets = _t5_buckets(parts[0]) if form is None else None
    tensors = buckets or () if form is None else form.tensors
    needs_gradient = learns and (q.requires_grad or k.requires_grad or v.requires_grad)
    for x in tensors:
        if x.data_ptr() % 16 or (x.dtype is not torch.float32 and buckets is None):
            return None
        needs_gradient = needs_gradient or (learns and x.requires_grad)
    mechanism: tuple[Any, ...] = ()
    if form is None and parts:
        if q.shape[0] * q.shape[1] * q.shape[2] * kv_len > MAX_PAIRS:
            return None
        if learns and torch.are_deterministic_algorithms_enabled():  # dense gradients have a kernel of their own then
            return None
        facts = _function_key(parts)
        if facts is None:
            return None
        mechanism = (None if buckets is None else parts[0].form, *facts)
    elif form is not None:
        part = parts[0]
        mechanism = (form.signature, type(part), part.heads, part.causal_only, part.length, part.context)
    long = q.shape[2] > MAX_DECODE_QUERIES and kv_len > fused_backend.MIN_KEYS_TO_SKIP
    if long and a.skip_blocks and any(part.decays for part in parts):
        pairs = q.shape[0] * q.shape[1] * q.shape[2] * kv_len
        if pairs > MAX_PAIRS_WITHOUT_SKIPPING or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            return None  # skipping blocks saves more than a plan
    key = (
        q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), dtype, k.dtype, v.dtype, device, k.device, v.device,
        q.requires_grad, k.requires_grad, v.requires_grad, cache_key, mask_key, learns, needs_gradient, a.causal, a.window, a.scale,
        a.temperature, a.dropout, a.skip_blocks, a.backend, mechanism, rotary_key(rotary),
        None if half_precision else torch.backends.cuda.matmul.fp32_precision, tuple(backends.BACKENDS.values()),
    )  # fmt: skip
    return EagerCall(key, form, buckets, parts, rotary, a, needs_gradient, mask)


def _takes_slope(a: Arguments, has_mask: bool) -> bool:
    """Whether the kernels take ALiBi as a slope per head and not as a table of distances; see ``linear_bias``."""
    if a.q.dtype is torch.float32 or not a.causal:
        return False
    if has_mask or a.cache is not None:
        return True
    scale = 1.0 if a.scale is None else a.scale
    return not linear_bias.is_faster_as_table(
        a.q, a.k, a.v, causal=a.causal, window=a.window, dropout=a.dropout, scale=scale
    )


def _find_mask(a: Arguments) -> tuple[str, Tensor] | None:
    """The name and the tensor of padding or segments; ``_takes_plain`` allows one of them."""
    if a.lengths is not None:
        return "lengths", a.lengths
    if a.key_mask is not None:
        return "key_mask", a.key_mask
    return None if a.segment_ids is None else ("segment_ids", a.segment_ids)  # type: ignore[return-value]


def _mask_key(name: str, mask: object) -> tuple[Any, ...] | None:
    """The facts of padding or segments; None if a kernel cannot read them in place, or the host cannot read the result."""
    if type(mask) is not Tensor or not torch_modes.can_read_values(mask):
        return None
    if mask.layout is not torch.strided or mask.is_neg() or mask.data_ptr() % 16:
        return None
    return name, mask.shape, mask.stride(), mask.dtype, mask.device


def _without_rotary(parts: tuple[Position, ...]) -> tuple[tuple[Position, ...], Rotary | None]:
    """The parts but for one ``Rotary``; with several, all parts, which then have no plan."""
    others = tuple(part for part in parts if type(part) is not Rotary)
    if len(others) != len(parts) - 1:
        return parts, None
    return others, next(part for part in parts if type(part) is Rotary)


def _t5_buckets(part: Position) -> tuple[Tensor, Tensor] | None:
    """The table of T5's biases and the boundaries of its buckets; None for a subclass and for everything else."""
    if type(part) is not T5Bias:
        return None
    table, boundaries = part.__dict__["_parameters"].get("table"), part.__dict__["_buffers"].get("boundaries")
    if table is None or boundaries is None:  # parametrized
        return None
    plain = table.dtype is torch.float32 and table.is_contiguous() and boundaries.is_contiguous()
    return (table, boundaries) if plain and boundaries.dtype is torch.int64 else None


def _function_key(parts: tuple[Position, ...]) -> tuple[Any, ...] | None:
    """What validation reads of mechanisms that scale or bias scores by distance; None if a part does anything else."""
    facts: list[Any] = []
    for part in parts:
        effects = part.effects
        if not effects or not effects <= ON_SCORES or part.length == "query":
            return None
        facts += (type(part), effects, part.heads, part.causal_only, part.length, part.context, part.decays)
        head_dim = getattr(part, "head_dim", None)
        if head_dim is not None and type(head_dim) is not int:
            return None
        facts.append(head_dim)
        _add_tensor_facts(part, facts)
    return tuple(facts)


def _add_tensor_facts(module: torch.nn.Module, facts: list[Any]) -> None:
    """Append the facts of all parameters and buffers; torch's own iterators would cost as much as several launches."""
    state = module.__dict__
    for tensors in (state["_parameters"], state["_buffers"]):
        for x in tensors.values():
            if x is not None:
                facts += (x.shape, x.dtype, x.device, x.requires_grad)
    for child in state["_modules"].values():
        if child is not None:
            _add_tensor_facts(child, facts)


def rotary_key(rotary: Rotary | None) -> tuple[Any, ...] | None:
    if rotary is None:
        return None
    return rotary.base, rotary.layout, rotary.rotary_dim, rotary.scaling, rotary.length, rotary.context, rotary.heads


def _takes_plain(a: Arguments) -> bool:
    """Whether nothing but the mechanism, causality, a window, scales, dropout and one of padding and segments acts on the scores,
    each of the exact type.

    1 == True == 1.0 for a key, but validation tells them apart.
    """
    masks = (a.lengths is not None) + (a.key_mask is not None) + (a.segment_ids is not None)
    return (
        a.clock is None and a.q_input is None and a.q_positions is None and a.k_positions is None and masks <= (a.cache is None)
        and a.attn_mask is None and a.mask_fn is None and a.return_weights is False
        and a.check_finite is False and type(a.dropout) is float
        and type(a.causal) is bool and type(a.skip_blocks) is bool and type(a.temperature) is float
        and (a.scale is None or type(a.scale) is float) and (a.window is None or type(a.window) is int)
        and (a.backend == "auto" or a.backend == "triton")
    )  # fmt: skip


def _cache_key(a: Arguments) -> tuple[Any, ...] | None:
    """The facts of a cache that takes plain tokens; None for every other one."""
    cache = a.cache
    if type(cache) is not KVCache or not cache.takes_plain(a) or a.q.shape[2] != a.k.shape[2]:
        return None
    entries, used = cache.storage(), len(cache) + a.k.shape[2]
    if entries is None or cache.capacity is None or used > cache.capacity:
        return None
    k, v = entries.k, entries.v
    if (k.data_ptr() | v.data_ptr()) % 16:
        return None
    return k.shape, k.stride(), v.shape, v.stride(), k.dtype, v.dtype, k.device, v.device

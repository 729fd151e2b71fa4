"""The ``triton`` backend: distance tables from the mechanism, then one fused operator."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys

import torch
from torch import Tensor

from whence import hook_outputs
from whence.attention.backends import Backend, register_backend
from whence.attention.call import Call, Request
from whence.attention.fused import ops
from whence.attention.fused.packing import FEW_QUERIES, LOG2E, pack
from whence.attention.layout import Layout
from whence.position.base import HookGradients, ParameterGradient, Position
from whence.position.evaluate import evaluate, evaluate_table, one_length

WIDEST = 256
FARTHEST = 2**29  # kernels count distances in 32 bits
SKIPS_BEYOND = 1024  # keys: to find out how far to look costs fewer more than it saves
MOST_HEADS = 256  # one program orders them all by how far they look
MOST_NUMBERS = 4  # derivative tables that are contracted in registers; more make dense gradients the faster way


class Triton(Backend):
    """Fused GPU kernels that read score_scale and bias from tables over distances."""

    name = "triton"
    effects = frozenset({"score_scale", "bias", "sink"})
    memory = "linear"
    devices = "NVIDIA GPU"
    dtypes = "fp32, fp16, bf16"
    gradients = "q, k, v and every parameter"
    tracing = "compile"
    purpose = "training, long inputs and decoding on a GPU"

    def supports(self, request: Request) -> str | None:
        unsupported = super().supports(request) or why_unavailable(request) or request.no_table
        return "its kernels do not export" if unsupported is None and request.exporting else unsupported

    def priority(self, request: Request) -> int:
        return 30

    def reason(self, request: Request) -> str:
        if not request.effects:
            return f"torch's kernel would need a dense mask of {request.mask_numbers} numbers"
        return f"{' and '.join(sorted(request.effects))} of distance alone: one fused kernel reads a table"

    def run(self, call: Call) -> tuple[Tensor, Tensor | None]:
        return attend(call), None


def why_unavailable(request: Request) -> str | None:
    """Why the kernels cannot run on tensors of this device, dtype and size, as a clause; None when they can."""
    if request.offset is not None and abs(request.offset) >= FARTHEST:
        return f"queries and keys lie {abs(request.offset)} apart, and its distances end at {FARTHEST}"
    device, head_dim = request.device, max(request.head_dim, request.value_dim)
    if device.type != "cuda" and not (device.type == "cpu" and interpreted()):
        return f"it needs a CUDA device, and q is on {device.type}"
    if not torch.compiler.is_compiling() and "triton" not in sys.modules and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device.type == "cuda" and not torch.compiler.is_compiling():
        if torch.version.hip is not None:
            return "its kernels are for NVIDIA's GPUs"
        if torch.cuda.get_device_capability(device) < (9, 0):
            return "it needs a GPU of compute capability 9.0 or newer, whose copy engine its kernels use"
    if request.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it has no {str(request.dtype).removeprefix('torch.')}"
    if head_dim > WIDEST:
        return f"it takes head dimensions up to {WIDEST}, not {head_dim}"
    return None


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on the CPU: how they are tested without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def attend(call: Call) -> Tensor:
    """The output ``[B, H, T, E]`` in the dtype of q."""
    q, k, v, position, layout = call.q, call.k, call.v, call.position, call.layout
    scale, temperature, dropout = call.scale, call.temperature, call.dropout
    assert layout.offset is not None
    batch, heads, rows, keys = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    first, last = distances(layout, rows, keys)
    distance = torch.arange(first, last, device=q.device, dtype=torch.float32)
    slope = slope_of(position, layout, heads) if q.dtype != torch.float32 else None  # see slope_of
    score_scale = bias = numbers = None
    found: tuple[ParameterGradient, ...] = ()
    if slope is None:
        few = few_numbers(position, distance, heads, keys)
        if few is None:
            score_scale, bias = (
                evaluate_table(position, hook, distance, heads, keys) for hook in ("score_scale", "bias")
            )
        else:
            score_scale, bias, numbers, found = few
    narrow = q.dtype != torch.float32 and score_scale is not None and not score_scale.requires_grad
    decay = decay_of(position, layout, heads, keys) if narrow else None
    unit = LOG2E / temperature
    columns = [(t.expand(heads, -1), u) for t, u in ((score_scale, scale * unit), (bias, unit)) if t is not None]
    sink = evaluate(position, "sink", layout.q_positions.float()[..., None], heads, layout.length_of)
    if sink is not None:
        sink = sink[..., 0].transpose(0, 1).expand(batch, heads, rows)
    seed = torch.randint(2**31 - 1, (), dtype=torch.int64) if dropout > 0 else None
    parameter_gradients = [(rate.hook, rate.table) for rate in found if rate.table is not None]
    return ops.fused(
        q, k, v, pack([t for t, _ in columns], [u for _, u in columns]), slope, sink, numbers,
        pack([t for _, t in parameter_gradients], [1.0] * len(parameter_gradients)), layout.real, layout.q_segment_ids, layout.k_segment_ids, decay, seed,
        [t is not None for t in (score_scale, bias)], [t is not None and t.requires_grad for t in (score_scale, bias)],
        [sum(hook == wanted for hook, _ in parameter_gradients) for wanted in ("score_scale", "bias")], len(parameter_gradients) < len(found),
        first, layout.offset, layout.causal, window_of(layout, rows, keys), scale, temperature, dropout,
        call.skip_blocks and decays(position) and heads <= MOST_HEADS and can_skip(layout, rows, keys),
    )  # fmt: skip


def distances(layout: Layout, rows: int, keys: int) -> tuple[int, int]:
    """The first distance any query sees and one past the last; at least one."""
    assert layout.offset is not None
    first, last = layout.offset - keys + 1, layout.offset + rows
    if layout.causal:
        first = max(first, 0)
    if layout.window is not None:
        first, last = max(first, 1 - layout.window), min(last, layout.window)
    if last <= first:  # nobody sees anybody
        return (0, 1) if layout.causal or layout.window is not None else (first, first + 1)
    return first, last


def window_of(layout: Layout, rows: int, keys: int) -> int | None:
    """The window, unless it hides nothing; a number that kernels can add to."""
    assert layout.offset is not None
    farthest = max(abs(layout.offset - keys + 1), abs(layout.offset + rows - 1))
    return None if layout.window is None or layout.window > farthest else layout.window


def decays(position: Position) -> bool:
    """Whether any part says that its bias falls without end, so that far blocks may be left out."""
    return any(part.decays for part in position.parts)


def can_skip(layout: Layout, rows: int, keys: int) -> bool:
    """Whether every query surely sees its own key, from which the bound is reckoned; and there is enough to skip."""
    assert layout.offset is not None
    own = layout.causal and layout.offset >= 0 and layout.offset + rows <= keys
    same_texts = layout.q_segment_ids is layout.k_segment_ids  # a pair of numberings may hide a query's own key
    return own and layout.real is None and same_texts and rows > FEW_QUERIES and keys > SKIPS_BEYOND


def slope_of(position: Position, layout: Layout, heads: int) -> Tensor | None:
    """``[H]``, where the whole effect on the scores is one number times the distance, and no distance is negative.

    The kernel then adds the slope along a tile's keys and rows apart, which costs float32 its last two digits.
    """
    acting = [part for part in position.parts if part.effects & {"score_scale", "bias"}]
    if len(acting) != 1 or "score_scale" in acting[0].effects or not layout.causal:
        return None
    slope = acting[0].bias_slope()
    return None if slope is None else slope.float().reshape(-1).expand(heads)


def decay_of(position: Position, layout: Layout, heads: int, sequence: int) -> Tensor | None:
    """``[H, 3]``: floor, span and fall, where the whole effect on the scores is a factor that decays to a floor.

    It repeats what the table says, within float32's rounding; a kernel may read either.
    """
    acting = [part for part in position.parts if part.effects & {"score_scale", "bias"}]
    if len(acting) != 1 or "bias" in acting[0].effects or not layout.causal:
        return None
    with torch.no_grad():
        decay = acting[0].score_scale_decay(one_length(acting[0], sequence))
        return None if decay is None else torch.stack([x.float().reshape(-1).expand(heads) for x in decay], -1)


def few_numbers(
    position: Position, distance: Tensor, heads: int, sequence: int
) -> tuple[Tensor | None, Tensor | None, Tensor, tuple[ParameterGradient, ...]] | None:
    """Factor and bias ``[H or 1, n]`` without gradients, the numbers ``[H, N]`` that shape them, and each one's rate.

    None where nothing learns, a part gives no derivatives, or there are too many. Rates of the factor come first, then
    those of the bias, then the number that scales the whole factor.
    """
    acting = [part for part in position.parts if part.effects & {"score_scale", "bias"}]
    if not torch.is_grad_enabled() or not any(part.trainable for part in acting):
        return None
    factors: list[Tensor] = []
    biases: list[Tensor] = []
    parameter_gradients: list[
        tuple[ParameterGradient, Position, int]
    ] = []  # with the part, and the place of its own factor
    for part in acting:
        if part.trainable:
            own = part.parameter_gradients(distance, one_length(part, sequence))
            if own is None or not covers_parameters(part, own):
                return None
            name, n = type(part).__name__, distance.shape[0]
            own_tables = tuple(
                None if answer is None else hook_outputs.per_head(name, hook, answer, heads, n)
                for hook, answer in (("score_scale", own.score_scale), ("bias", own.bias))
            )
            each = own.each
        else:
            own_tables = (
                evaluate_table(part, "score_scale", distance, heads, sequence),
                evaluate_table(part, "bias", distance, heads, sequence),
            )
            each = ()
            if any(answer is not None and answer.requires_grad for answer in own_tables):
                return None  # its gradient goes elsewhere than into parameters of its own
        parameter_gradients += [(rate, part, len(factors)) for rate in each]
        for known, answer in zip((factors, biases), own_tables, strict=True):
            if answer is not None:
                known.append(answer.detach().float())
    if not parameter_gradients:
        return None
    scaling = [rate for rate, _, _ in parameter_gradients if rate.table is None]
    if (
        len(parameter_gradients) - len(scaling) > MOST_NUMBERS
        or len(scaling) > 1
        or any(r.hook != "score_scale" for r in scaling)
    ):
        return None
    ordered = sorted(
        (
            _rate_of_all(rate, part, place, factors, heads, distance.shape[0])
            for rate, part, place in parameter_gradients
            if rate.table is not None
        ),
        key=lambda rate: rate.hook != "score_scale",
    )
    ordered += scaling
    numbers = torch.stack([rate.number.float().reshape(-1).expand(heads) for rate in ordered], -1)
    score_scale = functools.reduce(torch.mul, factors) if factors else None
    bias = functools.reduce(torch.add, biases) if biases else None
    return score_scale, bias, numbers, tuple(ordered)


def covers_parameters(part: Position, own: HookGradients) -> bool:
    """Whether each parameter that learns has a number of its own among the rates. A subclass may have added some."""
    learning = sum(parameter.requires_grad for parameter in part.parameters())
    return learning == sum(rate.number.requires_grad for rate in own.each)


def _rate_of_all(
    rate: ParameterGradient, part: Position, place: int, factors: list[Tensor], heads: int, entries: int
) -> ParameterGradient:
    """A part's rate as one of the whole effect: factors multiply, so the other parts' factors scale it."""
    assert rate.table is not None
    whole = hook_outputs.per_head(
        type(part).__name__, "parameter_gradients", rate.table.detach().float(), heads, entries
    )
    if rate.hook == "score_scale":
        for other, score_scale in enumerate(factors):
            whole = whole if other == place else whole * score_scale
    return ParameterGradient(rate.number, rate.hook, whole.expand(heads, -1))


register_backend(Triton())

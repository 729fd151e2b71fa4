"""Where a launch plan has its tables from: nothing, a closed form, the buckets of T5, or the hooks of any function of distance.

Each class writes the packed table of a call in one launch and turns what the backward kernels summed into the gradients of its
tensors in another. The tensors of a closed form and of the buckets are parameters. Those of a function are the outputs of its
hooks, so that autograd continues into the function. Hooks are evaluated in every call: their values may depend on anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from whence import hook_outputs, torch_modes
from whence.attention.fused.closed_forms import SLOPE, ClosedForm
from whence.attention.fused.direct_launch import DirectLaunch, wait_for_gpu
from whence.attention.fused.packing import ceil_div, next_power_of_two
from whence.attention.fused.table_kernels import (
    GRADIENT_BLOCK,
    GRADIENT_ROWS,
    SUM_ROWS,
    TABLE_BLOCK,
    bucket_gradient_kernel,
    bucket_table_kernel,
    pack_kernel,
    parameter_gradient_kernel,
    table_gradient_kernel,
    table_kernel,
)
from whence.errors import usage_error
from whence.position.base import Position
from whence.position.evaluate import fixed_length
from whence.position.sum import combine_outputs
from whence.position.t5 import T5Bias

if TYPE_CHECKING:
    from whence.attention.fused.eager import EagerCall

NO_DENSE = (False, False)
NO_DISTANCES = (torch.empty(0), 0, 0)  # distances, the first one, and their version when they were made
LARGEST = 0.999 * torch.finfo(torch.float32).max  # as in packing.limit_finite


class Extent(NamedTuple):
    """The numbers of a call that its number of keys decides. ``stride``: entries of the table with padding, per head."""

    kv_len: int
    offset: int  # the position of the first query minus that of the first key
    first_distance: int
    entries: int
    stride: int
    window: int | None


class Scales(NamedTuple):
    """Factors that turn score scale and bias into base-2 logits, and the sums of the kernels into their gradients."""

    score_scale: float
    bias: float
    score_scale_gradient: float
    bias_gradient: float


class PlannedTables(ABC):
    """The tables of one signature. ``num_derivatives``: derivative tables; ``learns``: kernels sum for each parameter."""

    has_score_scale = has_bias = has_slope = learns = False
    num_derivatives = 0

    def __init__(self, heads: int, scales: Scales, device: torch.device) -> None:
        self.heads, self.scales, self.device = heads, scales, device
        with torch.inference_mode(False):
            self.like = torch.empty(
                0, dtype=torch.float32, device=device
            )  # its new_empty takes half the time of torch.empty

    @property
    def has_table(self) -> bool:
        return self.has_score_scale or self.has_bias

    @abstractmethod
    def tensors(self, call: EagerCall, extent: Extent) -> tuple[Tensor, ...]:
        """The tensors from which the table comes; gradients go to those that require one."""

    def dense(self, tensors: tuple[Tensor, ...]) -> tuple[bool, bool]:
        """Whether the backward kernels sum over each distance, for the score scale and for the bias."""
        return NO_DENSE

    @abstractmethod
    def write(self, tensors: tuple[Tensor, ...], extent: Extent) -> tuple[Tensor, Tensor, Tensor]:
        """The packed table, derivative tables and values per head."""

    @abstractmethod
    def gradients(
        self, tensors: tuple[Tensor, ...], sums: Tensor, table_sums: Tensor, extent: Extent
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the tensors from sums ``[B, H, blocks, NUM_SLOTS]`` or table sums ``[1 or 2, B, H, stride]``."""

    def _empty(self, *shape: int) -> Tensor:
        return self.like.new_empty(shape)

    def _launch(self, kernel: Any, constants: dict[str, Any]) -> DirectLaunch:
        return DirectLaunch(kernel, constants, {}, self.device)


class NoTables(PlannedTables):
    """No position, or rotary alone."""

    def __init__(self, heads: int, scales: Scales, device: torch.device) -> None:
        super().__init__(heads, scales, device)
        with torch.inference_mode(False):
            self._unread = self._empty(1)  # for arguments that kernels do not read

    def tensors(self, call: EagerCall, extent: Extent) -> tuple[Tensor, ...]:
        return ()

    def write(self, tensors: tuple[Tensor, ...], extent: Extent) -> tuple[Tensor, Tensor, Tensor]:
        return self._unread, self._unread, self._unread

    def gradients(
        self, tensors: tuple[Tensor, ...], sums: Tensor, table_sums: Tensor, extent: Extent
    ) -> tuple[Tensor | None, ...]:
        return ()


class ClosedFormTables(PlannedTables):
    """EPAR, ALiBi and the power prior."""

    def __init__(self, form: ClosedForm, learns: bool, heads: int, scales: Scales, device: torch.device) -> None:
        super().__init__(heads, scales, device)
        self.has_score_scale, self.has_bias, self.has_slope = form.has_score_scale, form.has_bias, form.family == SLOPE
        self.learns, self.num_derivatives = learns, form.num_derivatives if learns else 0
        self.constant, self.shared = form.constant, form.shared
        self.scale = scales.score_scale if form.has_score_scale else scales.bias
        self.gradient = scales.score_scale_gradient if form.has_score_scale else scales.bias_gradient
        family = {"FAMILY": form.family, "SHARED": form.shared, "BOUNDED": form.bounded}
        self._table = self._launch(table_kernel, {**family, "HAS_DERIVATIVES": learns, "BLOCK": TABLE_BLOCK})
        self._gradients = self._launch(parameter_gradient_kernel, {**family, "ROWS": SUM_ROWS})

    def tensors(self, call: EagerCall, extent: Extent) -> tuple[Tensor, ...]:
        assert call.form is not None
        return call.form.tensors

    def write(self, tensors: tuple[Tensor, ...], extent: Extent) -> tuple[Tensor, Tensor, Tensor]:
        stride, heads = extent.stride, self.heads
        head_values = self._empty(heads, 1 if self.has_slope else 3)
        table = derivatives = head_values
        if not self.has_slope:
            table = self._empty(heads, stride)
            if self.learns:
                derivatives = self._empty(heads, stride, self.num_derivatives)
        a, b, c = (*tensors, tensors[0], tensors[0])[:3]
        self._table(
            heads * ceil_div(stride or 1, TABLE_BLOCK), a, b, c, table, derivatives, head_values, extent.entries,
            extent.first_distance, self.constant, self.scale,
        )  # fmt: skip
        return table, derivatives, head_values

    def gradients(
        self, tensors: tuple[Tensor, ...], sums: Tensor, table_sums: Tensor, extent: Extent
    ) -> tuple[Tensor | None, ...]:
        if not self.learns:
            return (None,) * len(tensors)
        gradients = [torch.empty_like(x) for x in tensors]
        a, b, c = (*tensors, tensors[0], tensors[0])[:3]
        d_a, d_b, d_c = (*gradients, gradients[0], gradients[0])[:3]
        batch, heads, blocks, _ = sums.shape
        self._gradients(
            1 if self.shared else heads, sums, a, b, c, d_a, d_b, d_c, batch * blocks, heads, blocks, self.constant, self.gradient
        )  # fmt: skip
        return tuple(gradients)


class BucketTables(PlannedTables):
    """The buckets of ``T5Bias``: the table ``[buckets, heads]`` and the boundaries of the buckets."""

    has_bias = True

    def __init__(self, part: T5Bias, heads: int, scales: Scales, device: torch.device) -> None:
        super().__init__(heads, scales, device)
        two_sides = {"BIDIRECTIONAL": part.form == "bidirectional"}
        self._table = self._launch(bucket_table_kernel, {**two_sides, "BLOCK": TABLE_BLOCK})
        self._gradients = self._launch(
            bucket_gradient_kernel, {**two_sides, "ROWS": GRADIENT_ROWS, "BLOCK": GRADIENT_BLOCK}
        )

    def tensors(self, call: EagerCall, extent: Extent) -> tuple[Tensor, ...]:
        assert call.buckets is not None
        return call.buckets

    def dense(self, tensors: tuple[Tensor, ...]) -> tuple[bool, bool]:
        return False, tensors[0].requires_grad

    def write(self, tensors: tuple[Tensor, ...], extent: Extent) -> tuple[Tensor, Tensor, Tensor]:
        values, boundaries = tensors
        table = self._empty(self.heads, extent.stride)
        self._table(
            self.heads * ceil_div(extent.stride, TABLE_BLOCK), values, boundaries, table, self.heads, boundaries.shape[0],
            extent.entries, extent.first_distance, self.scales.bias,
        )  # fmt: skip
        return table, table, table

    def gradients(
        self, tensors: tuple[Tensor, ...], sums: Tensor, table_sums: Tensor, extent: Extent
    ) -> tuple[Tensor | None, ...]:
        values, boundaries = tensors
        if not values.requires_grad:
            return None, None
        gradient = torch.empty_like(values)
        self._gradients(
            values.shape[0] * self.heads, table_sums, boundaries, gradient, table_sums.shape[1], self.heads,
            boundaries.shape[0], extent.entries, extent.first_distance, self.scales.bias_gradient,
        )  # fmt: skip
        return gradient, None


class FunctionTables(PlannedTables):
    """Any score scale and bias of distance, alone or in a sum, evaluated by their hooks."""

    def __init__(self, effects: frozenset[str], heads: int, scales: Scales, device: torch.device) -> None:
        super().__init__(heads, scales, device)
        self.has_score_scale, self.has_bias = "score_scale" in effects, "bias" in effects
        self.hooks = [hook for hook in ("score_scale", "bias") if hook in effects]
        self.limit = LARGEST / scales.bias if scales.bias > 1 else torch.inf
        has = {"HAS_SCORE_SCALE": self.has_score_scale, "HAS_BIAS": self.has_bias}
        self._pack = self._launch(pack_kernel, {**has, "BLOCK": TABLE_BLOCK})
        self._gradients: dict[Any, DirectLaunch] = {}
        self._kept = NO_DISTANCES

    def tensors(self, call: EagerCall, extent: Extent) -> tuple[Tensor, ...]:
        with torch_modes.without_autocast(call.arguments.q):
            distance = self._distances(extent.first_distance, extent.entries)
            tables = [self._evaluate(call.parts, hook, distance, extent.kv_len) for hook in self.hooks]
        base, _, version = self._kept
        if base._version != version:  # a hook has changed its argument in place
            self._kept = NO_DISTANCES
        return tuple(tables)

    def _distances(self, first: int, entries: int) -> Tensor:
        """The distances from the first on, kept for later calls, which may need more of them."""
        base, start, _ = self._kept
        if start != first or base.shape[0] < entries:
            with torch.inference_mode(False):
                count = next_power_of_two(entries)
                base = torch.arange(first, first + count, device=self.device, dtype=torch.float32)
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return base[:entries]  # computed when the graph is replayed, so not for other calls
            wait_for_gpu(self.device)
            self._kept = base, first, base._version
        return base if base.shape[0] == entries else base[:entries]

    def _evaluate(self, parts: tuple[Position, ...], hook: str, distance: Tensor, kv_len: int) -> Tensor:
        """One hook of all parts, ``[heads, n]`` or ``[n]``: ``evaluate_table`` with fewer views, which autograd would record."""
        total: Tensor | None = None
        for part in parts:
            if hook in part.effects:
                name = type(part).__name__
                out = hook_outputs.call_on_tensors(
                    f"{name}.{hook}", getattr(part, hook), distance, fixed_length(part, kv_len)
                )
                if type(out) is not Tensor or out.shape != distance.shape:
                    out = hook_outputs.require_per_head(name, hook, out, self.heads, distance.shape[0])
                if out.dtype is not torch.float32:
                    out = out.float()
                total = out if total is None else combine_outputs(hook, total, out)
        assert total is not None
        if total.device != self.device:
            raise usage_error(
                f"{type(parts[0]).__name__}.{hook}", f"an output on {total.device}", f"q is on {self.device}",
                "compute on distance.device",
            )  # fmt: skip
        return total if total.data_ptr() % 16 == 0 else total.clone()

    def dense(self, tensors: tuple[Tensor, ...]) -> tuple[bool, bool]:
        return self.has_score_scale and tensors[0].requires_grad, self.has_bias and tensors[-1].requires_grad

    def write(self, tensors: tuple[Tensor, ...], extent: Extent) -> tuple[Tensor, Tensor, Tensor]:
        table = self._empty(self.heads, extent.stride, len(tensors))
        score_scale, bias = tensors[0], tensors[-1]
        self._pack(
            self.heads * ceil_div(extent.stride, TABLE_BLOCK), score_scale, bias, table, extent.entries,
            *_strides(score_scale), *_strides(bias), self.scales.score_scale, self.scales.bias, self.limit,
        )  # fmt: skip
        return table, table, table

    def gradients(
        self, tensors: tuple[Tensor, ...], sums: Tensor, table_sums: Tensor, extent: Extent
    ) -> tuple[Tensor | None, ...]:
        dense = self.dense(tensors)
        if dense == NO_DENSE:
            return (None,) * len(tensors)
        wanted = [x for x in tensors if x.requires_grad]
        gradients = [self._empty(*x.shape) for x in wanted]
        shared = (tensors[0].ndim == 1 or tensors[0].shape[0] == 1, tensors[-1].ndim == 1 or tensors[-1].shape[0] == 1)
        launch = self._gradients.get((dense, shared))
        if launch is None:
            constants = {
                "SCORE_SCALE": dense[0], "BIAS": dense[1], "SHARED_SCORE_SCALE": shared[0], "SHARED_BIAS": shared[1],
                "ROWS": GRADIENT_ROWS, "BLOCK": GRADIENT_BLOCK,
            }  # fmt: skip
            launch = self._gradients[dense, shared] = self._launch(table_gradient_kernel, constants)
        launch(
            self.heads * ceil_div(extent.entries, GRADIENT_BLOCK), table_sums, gradients[0], gradients[-1], table_sums.shape[1],
            self.heads, extent.entries, self.scales.score_scale_gradient, self.scales.bias_gradient,
        )  # fmt: skip
        in_order = iter(gradients)
        return tuple(next(in_order) if x.requires_grad else None for x in tensors)


def _strides(table: Tensor) -> tuple[int, int]:
    """Steps to the next head, 0 for one row that all heads share, and to the next distance."""
    strides = table.stride()
    return (0 if len(strides) == 1 or table.shape[0] == 1 else strides[0]), strides[-1]


def make_tables(call: EagerCall, heads: int, scales: Scales, device: torch.device) -> PlannedTables:
    if not call.parts:
        return NoTables(heads, scales, device)
    if call.form is not None:
        learns = call.needs_gradient and any(x.requires_grad for x in call.form.tensors)
        return ClosedFormTables(call.form, learns, heads, scales, device)
    part = call.parts[0]
    if call.buckets is not None and isinstance(part, T5Bias):
        return BucketTables(part, heads, scales, device)
    effects = frozenset[str]().union(*(part.effects for part in call.parts))
    return FunctionTables(effects, heads, scales, device)

"""Recorders for ``capture``: attention rows, sums over all rows, hidden states, queries and keys.

Each holds, by layer, what the latest forward pass produced. There are three kinds:

- row recorders compute the attention of selected queries, so memory grows linearly with the length;
- profiles reduce the attention of all queries block by block, without ever storing the whole matrix;
- hook recorders copy states with forward hooks of their own.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error
from whence.hf.interface import AttentionCall
from whence.hf.layers import parent_layer

BLOCK_WEIGHTS = 1 << 22  # attention weights that profiles keep in memory at a time

QueriesKeys = tuple[Tensor, Tensor]


class Recorder:
    """The base class: results by layer. ``recorder[layer]`` reads one."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}

    def __getitem__(self, layer: int) -> Tensor:
        if layer not in self.layers:
            raise usage_error(
                f"{type(self).__name__}[{layer}]",
                f"results for the layers {sorted(self.layers)}",
                "a layer has a result once it is selected and the model has run",
                "run the model inside capture, and include the layer in layers=...",
            )
        return self.layers[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.layers))

    def __len__(self) -> int:
        return len(self.layers)

    def stack(self) -> Tensor:
        """All layers in order, ``[layers, ...]``."""
        return torch.stack([self[layer] for layer in self])


class RowRecorder(Recorder, ABC):
    """A recorder of the attention of selected queries."""

    rows_per_block: int | None = None  # rows of attention in memory at a time; None for all

    def __init__(self, rows: Sequence[int] | Tensor) -> None:
        super().__init__()
        self.rows = torch.as_tensor(rows, dtype=torch.long)

    @abstractmethod
    def reduce(self, weights: Tensor) -> Tensor:
        """The result for some rows of weights ``[B, H, n, S]``; rows remain the third axis."""

    def record(self, layer: int, call: AttentionCall) -> None:
        rows = resolve_rows(self.rows, call)
        blocks = rows.split(self.rows_per_block or max(1, rows.shape[-1]), -1)
        self.layers[layer] = torch.cat([self.reduce(call.weights(block)).cpu() for block in blocks], 2)


class AttentionRows(RowRecorder):
    """The full attention rows of selected queries: ``[B, H, n, S]``.

    Args:
        rows: indices of queries in the forward pass, negative from its end: a list, or a tensor ``[B, n]`` with separate
            queries for each sequence (for example the last real tokens of right-padded sequences).
    """

    def __init__(self, rows: Sequence[int] | Tensor = (-1,)) -> None:
        super().__init__(rows)

    def reduce(self, weights: Tensor) -> Tensor:
        return weights


class LastRow(AttentionRows):
    """The attention row of the last query: ``[B, H, S]``."""

    def __init__(self) -> None:
        super().__init__((-1,))

    def record(self, layer: int, call: AttentionCall) -> None:
        super().record(layer, call)
        self.layers[layer] = self.layers[layer][:, :, 0]


class SegmentMass(RowRecorder):
    """The attention weight of selected queries summed over each segment: ``[B, H, n, segments]``.

    All queries of a long sequence may be selected, because rows are computed in blocks.

    Args:
        segments: the segment index of each key, ``[S]`` or ``[B, S]``; negative for none.
        rows: indices of queries, as in ``AttentionRows``; the last by default.
    """

    rows_per_block = 128

    def __init__(self, segments: Sequence[int] | Tensor, rows: Sequence[int] | Tensor = (-1,)) -> None:
        super().__init__(rows)
        self.segments = torch.as_tensor(segments, dtype=torch.long)

    def reduce(self, weights: Tensor) -> Tensor:
        keys = weights.shape[-1]
        if self.segments.shape[-1] != keys:
            raise usage_error(
                "SegmentMass(segments=...)",
                f"{self.segments.shape[-1]} indices for {keys} keys",
                "every key needs a segment index",
                "pass one index per token, -1 for tokens outside all segments",
            )
        indices = self.segments.to(weights.device).reshape(-1, keys)
        count = max(0, int(indices.max())) + 1
        member = torch.nn.functional.one_hot(indices.clamp(min=0), count) * (indices >= 0)[..., None]
        dtype = torch.promote_types(weights.dtype, torch.float32)
        return weights.to(dtype) @ member.to(dtype)[:, None]


def resolve_rows(rows: Tensor, call: AttentionCall) -> Tensor:
    """Indices of queries counted from the first; an index out of range is an error."""
    count = call.q.shape[2]
    if bool(((rows < -count) | (rows >= count)).any()):
        raise usage_error(
            "rows=...", str(rows.tolist()), f"this forward pass has {count} queries", f"pass indices below {count}"
        )
    if rows.ndim == 2 and rows.shape[0] != call.q.shape[0]:
        raise usage_error(
            "rows=...",
            f"rows for {rows.shape[0]} sequences",
            f"the batch has {call.q.shape[0]}",
            "pass a tensor [batch, n]",
        )
    return (rows % count).to(call.q.device)


@dataclass(frozen=True)
class WeightBlock:
    """The attention of some queries to the keys up to the last of them."""

    weights: Tensor  # [B, H, n, S'], zero for queries that are padding
    visible: Tensor  # [B or 1, 1, n, S'], 1 where a real query sees a key
    distance: Tensor  # [n, S'], in slots; at least 0 where a key is visible


class ProfileRecorder(Recorder, ABC):
    """A recorder that averages the weights of all queries.

    The result is the mean. ``totals`` and ``counts`` hold, by layer, the sum of the weights and the number of queries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.totals: dict[int, Tensor] = {}
        self.counts: dict[int, Tensor] = {}

    @abstractmethod
    def add(self, sums: Tensor, block: WeightBlock, values: Tensor) -> None:
        """Add ``values`` ``[B or 1, H or 1, n, S']`` of a block to ``sums`` ``[B or 1, H or 1, S]``."""


class KeyProfile(ProfileRecorder):
    """The mean weight of each key over the queries that see it: ``[B, H, S]``; 0 if no query does."""

    def add(self, sums: Tensor, block: WeightBlock, values: Tensor) -> None:
        sums[:, :, : values.shape[3]] += values.sum(2)


class DistanceProfile(ProfileRecorder):
    """The mean weight at each distance over the queries that have a key there: ``[B, H, distances]``.

    The share of all attention at a distance is its total divided by the number of queries.
    """

    def add(self, sums: Tensor, block: WeightBlock, values: Tensor) -> None:
        sums.index_add_(2, block.distance.clamp(min=0).flatten(), values.flatten(2))


def record_profiles(recorders: Sequence[ProfileRecorder], layer: int, call: AttentionCall) -> None:
    """Compute the weights of one layer block by block and add each block to all recorders."""
    batch, heads, count, _ = call.q.shape
    info, keys = call.mask_info, call.k.shape[2]
    sequences = batch if info.key_mask is not None or info.segment_ids is not None else 1
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    totals = [call.q.new_zeros(batch, heads, keys, dtype=dtype) for _ in recorders]
    counts = [call.q.new_zeros(sequences, 1, keys, dtype=dtype) for _ in recorders]
    for rows in torch.arange(count, device=call.q.device).split(max(1, BLOCK_WEIGHTS // (batch * heads * keys))):
        block = _weight_block(call, rows, dtype)
        for recorder, total, number in zip(recorders, totals, counts, strict=True):
            recorder.add(total, block, block.weights)
            recorder.add(number, block, block.visible)
    for recorder, total, number in zip(recorders, totals, counts, strict=True):
        recorder.totals[layer], recorder.counts[layer] = total.cpu(), number.cpu()
        recorder.layers[layer] = recorder.totals[layer] / recorder.counts[layer].clamp(min=1)


def _weight_block(call: AttentionCall, rows: Tensor, dtype: torch.dtype) -> WeightBlock:
    info = call.mask_info
    keys = info.count_reachable_keys(rows)
    weights = call.weights(rows, keys).to(dtype)
    visible = info.visible_keys(rows)[:, None, :, :keys].to(dtype)
    query_mask = info.query_mask()
    if query_mask is not None:
        is_real = query_mask[:, rows][:, None, :, None].to(dtype)
        weights, visible = weights * is_real, visible * is_real
    return WeightBlock(weights, visible, info.q_slots[rows][:, None] - info.k_slots[:keys])


class HookRecorder(Recorder, ABC):
    """A recorder that installs hooks of its own in a model."""

    @abstractmethod
    def install(
        self, model: nn.Module, modules: dict[int, nn.Module], all_modules: dict[int, nn.Module], undo: ExitStack
    ) -> None:
        """Install the hooks, and register their removal with ``undo``.

        Args:
            model: the model.
            modules: the attention modules of the selected layers.
            all_modules: those of all layers.
            undo: closed at the end of the capture.
        """


class HiddenStates(HookRecorder):
    """The hidden states ``[B, T, embed_dim]`` at the input of each layer; the output of the last layer has the next index.

    So ``hidden[0]`` is the embedding, and ``hidden[n]`` of a model with n layers is the input of the final norm.
    """

    def install(
        self, model: nn.Module, modules: dict[int, nn.Module], all_modules: dict[int, nn.Module], undo: ExitStack
    ) -> None:
        for layer, module in modules.items():
            block = parent_layer(model, module)
            undo.callback(block.register_forward_pre_hook(self._input_hook(layer), with_kwargs=True).remove)
        last = max(all_modules)
        if last in modules:
            undo.callback(parent_layer(model, modules[last]).register_forward_hook(self._output_hook(last + 1)).remove)

    def _input_hook(self, layer: int) -> Callable[..., None]:
        def copy(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.layers[layer] = (args[0] if args else kwargs["hidden_states"]).detach().cpu()

        return copy

    def _output_hook(self, layer: int) -> Callable[..., None]:
        def copy(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            self.layers[layer] = (out[0] if isinstance(out, tuple) else out).detach().cpu()

        return copy


class RotatedQK(HookRecorder):
    """Queries ``[B, H, T, D]`` and keys ``[B, G, T, D]`` of a forward pass, before and after rotary embedding.

    ``before`` and ``after`` hold a pair (queries, keys) by layer; ``rotated[layer]`` is the rotated queries. Only
    ``before`` is stored. Reading ``after`` applies the model's own function again, which gives the same numbers in half
    the memory. A model without rotary positions is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, QueriesKeys] = {}
        self.after = LazyRotation(self.before)

    def __getitem__(self, layer: int) -> Tensor:
        super().__getitem__(layer)  # raises for a layer without a result
        return self.after[layer][0]

    def install(
        self, model: nn.Module, modules: dict[int, nn.Module], all_modules: dict[int, nn.Module], undo: ExitStack
    ) -> None:
        running: list[int] = []  # the layer whose attention is running
        for layer, module in modules.items():
            source: Any = sys.modules[type(module).__module__]
            if not hasattr(source, "apply_rotary_pos_emb"):
                raise usage_error(
                    "RotatedQK()",
                    type(model).__name__,
                    "the model's family must rotate queries and keys with apply_rotary_pos_emb",
                    "omit RotatedQK()",
                )
            undo.callback(module.register_forward_pre_hook(self._start_hook(running, layer)).remove)
            undo.callback(module.register_forward_hook(lambda *unused: running.clear(), always_call=True).remove)
        for source in {sys.modules[type(module).__module__] for module in modules.values()}:
            original = source.apply_rotary_pos_emb
            source.apply_rotary_pos_emb = self._recording(original, running)
            undo.callback(setattr, source, "apply_rotary_pos_emb", original)

    def _start_hook(self, running: list[int], layer: int) -> Callable[..., None]:
        def start(module: nn.Module, args: tuple[Any, ...]) -> None:
            running[:] = [layer]

        return start

    def _recording(self, original: Callable[..., Any], running: list[int]) -> Callable[..., Any]:
        def rotate(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> Any:
            for layer in running:
                self.before[layer] = (q.detach().cpu(), k.detach().cpu())
                self.layers[layer] = self.before[layer][0]
                self.after.set_rotation(layer, original, args, kwargs)
            return original(q, k, *args, **kwargs)

        return rotate


class LazyRotation(Mapping[int, QueriesKeys]):
    """Rotated queries and keys by layer, computed when read, with the function and the angles of the forward pass."""

    def __init__(self, before: dict[int, QueriesKeys]) -> None:
        self.before = before
        self.rotations: dict[int, Callable[[Tensor, Tensor], Any]] = {}

    def set_rotation(self, layer: int, rotate: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        cpu_args = [_to_cpu(value) for value in args]
        cpu_kwargs = {name: _to_cpu(value) for name, value in kwargs.items()}
        self.rotations[layer] = lambda q, k: rotate(q, k, *cpu_args, **cpu_kwargs)

    @torch.no_grad()
    def __getitem__(self, layer: int) -> QueriesKeys:
        q, k = self.rotations[layer](*self.before[layer])
        return q, k

    def __iter__(self) -> Iterator[int]:
        return iter(self.rotations)

    def __len__(self) -> int:
        return len(self.rotations)


def _to_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value

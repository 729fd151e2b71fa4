"""``expand_rows``: run every sequence as several rows of a batch, and mix their logits into one distribution.

An ensemble of variants of one model needs a row and a cache for each variant, while the caller sees one sequence. Inside the
block the model's forward repeats its inputs, runs the rows in one batch, and mixes the logits. ``generate`` works as before:
its tokens are appended to all rows, and a cache moves the rows of a sequence together when beams are reordered.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from whence import torch_modes
from whence.errors import usage_error
from whence.hf.integrations import unwrap_peft
from whence.hf.masks import repeat_mask

COPIES = "_whence_copies"  # the attribute of a model and of a cache with the number of rows of each sequence
REPEATED = ("input_ids", "inputs_embeds", "position_ids", "token_type_ids")  # arguments with a row for each sequence


@contextmanager
def expand_rows(model: Any, copies: int, mix: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Run every sequence of a causal language model as ``copies`` rows inside the block.

    Row ``b * copies + j`` of the batch is copy j of sequence b. Hidden states and attention weights in the output have a row
    for each copy.

    Args:
        model: a causal language model of transformers.
        copies: the number of rows for each sequence.
        mix: makes logits ``[B, T, V]`` from the logits ``[B, copies, T, V]`` of all rows.
    """
    model = unwrap_peft(model)
    if COPIES in model.__dict__:
        raise usage_error(
            "expand_rows(...)",
            "a model whose rows are expanded already",
            "one intervention decides what the rows of a sequence are",
            "apply one of them",
        )
    before, original = model.__dict__.get("forward"), model.forward  # accelerate sets one
    model.__dict__[COPIES] = copies
    model.forward = _expanded_forward(model, original, copies, mix)
    try:
        yield
    finally:
        del model.__dict__[COPIES]
        if before is None:
            del model.forward
        else:
            model.forward = before


def _expanded_forward(
    model: Any, original: Callable[..., Any], copies: int, mix: Callable[[Tensor], Tensor]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch_modes.is_tracing():
            raise usage_error(
                "a model with expanded rows",
                "a call inside torch.compile",
                "its cache is replaced while it runs",
                "run it without compile; pass disable_compile=True to generate",
            )
        bound = inspect.signature(original).bind(*args, **kwargs)
        arguments: dict[str, Any] = {**bound.arguments, **bound.arguments.pop("kwargs", {})}
        arguments.pop("kwargs", None)
        labels, as_dict = arguments.pop("labels", None), arguments.pop("return_dict", None)
        given = next(arguments[name] for name in ("input_ids", "inputs_embeds") if arguments.get(name) is not None)
        cache = arguments.get("past_key_values")
        if cache is not None:
            _prepare_cache(cache, len(given), copies)
        out = original(**_repeat(arguments, len(given), copies), return_dict=True)
        if cache is None and out.get("past_key_values") is not None:
            _move_rows_together(out.past_key_values, copies)
        values = {**out, "logits": mix(out.logits.unflatten(0, (len(given), copies))).contiguous()}
        if labels is not None:
            size = model.config.get_text_config().vocab_size
            values["loss"] = model.loss_function(logits=values["logits"], labels=labels, vocab_size=size)
        mixed = type(out)(**values)
        return mixed.to_tuple() if as_dict is False else mixed

    return forward


def _repeat(arguments: dict[str, Any], batch: int, copies: int) -> dict[str, Any]:
    repeated = dict(arguments)
    for name in REPEATED:
        value = arguments.get(name)
        if isinstance(value, Tensor) and value.shape[0] == batch:  # position_ids may have one row for all
            repeated[name] = value.repeat_interleave(copies, 0)
    mask = arguments.get("attention_mask")  # one, or one for each type of layer
    if isinstance(mask, dict):
        repeated["attention_mask"] = {name: repeat_mask(one, batch, copies) for name, one in mask.items()}
    else:
        repeated["attention_mask"] = repeat_mask(mask, batch, copies)
    return repeated


def _prepare_cache(cache: Any, batch: int, copies: int) -> None:
    """Make a cache from outside ready for the rows of all copies."""
    is_empty = not bool(cache.get_seq_length() > 0)
    if not is_empty and cache.__dict__.get(COPIES) != copies:
        raise usage_error(
            "a model with expanded rows",
            f"a cache filled with {cache.__dict__.get(COPIES, 1)} rows for each sequence",
            f"every sequence has {copies} rows",
            "start with an empty cache",
        )
    if is_empty and cache.is_initialized and cache.batch_size not in (-1, batch * copies):
        for layer in cache.layers:  # allocated for other rows, and empty: the first forward pass allocates it again
            layer.is_initialized = False
    _move_rows_together(cache, copies)


def _move_rows_together(cache: Any, copies: int) -> None:
    """Let a cache understand indices of sequences, as beam search passes them, also after a deep copy.

    Its class changes. Methods bound to the cache would keep it, and the memory of its keys, until the garbage collector runs.
    """
    cache.__dict__[COPIES] = copies
    kind = type(cache)
    if not issubclass(kind, _RowsTogether):
        cache.__class__ = type(kind.__name__, (_RowsTogether, kind), {"__module__": kind.__module__})


class _RowsTogether:
    """The methods of a cache that select rows, for rows that belong together."""

    layers: list[Any]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(_row_indices(self, beam_idx))  # type: ignore[misc]  # of the cache's own class

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(_row_indices(self, indices))  # type: ignore[misc]

    def batch_repeat_interleave(self, repeats: int) -> None:
        keys = self.layers[0].keys
        sequences = torch.arange(keys.shape[0] // self.__dict__[COPIES], device=keys.device)
        self.batch_select_indices(sequences.repeat_interleave(repeats))


def _row_indices(cache: Any, sequences: Tensor) -> Tensor:
    copies: int = cache.__dict__[COPIES]
    return (sequences[:, None] * copies + torch.arange(copies, device=sequences.device)).flatten()

"""``check_extra_arguments``: arguments that programs of transformers pass to every model, and that ``WhenceForCausalLM`` does not need.

Models of transformers ignore arguments that they do not know. Here one is ignored only where the result is the same with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from whence import shapes, torch_modes
from whence.errors import UnknownArgument, usage_error
from whence.plugins import did_you_mean

#: a decoder has no token types, and the lengths follow from the bounds of the sequences
IGNORED = ("token_type_ids", "max_length_q", "max_length_k")
BOUNDS = ("cu_seq_lens_q", "cu_seq_lens_k")
SEGMENTS = "seq_idx"
SAME_WHILE_TRACING = "WhenceForCausalLM(cu_seq_lens_q=... or seq_idx=...) got other packed sequences than those of position_ids; pass them as segment_ids."
FOLLOW_WHILE_TRACING = (
    "WhenceForCausalLM(cache_position=...) got other places than those after the cache; omit it, or pass position_ids."
)


def check_extra_arguments(
    given: Mapping[str, Any], known: Iterable[str], tokens: Tensor, segment_ids: Tensor | None, seen: int
) -> None:
    """Raise for an argument that would change the result, or that no model has.

    Args:
        given: further arguments of a call. None stands for no argument.
        known: the names of the arguments that the call takes.
        tokens: ``[B, T]``.
        segment_ids: those of the call or of its position_ids; None for one sequence.
        seen: number of tokens in the cache.
    """
    for name, value in given.items():
        if value is None or name in IGNORED:
            continue
        if name in (*BOUNDS, SEGMENTS):
            _require_same_sequences(name, value, tokens, segment_ids)
        elif name == "cache_position":
            _require_after_cache(value, tokens, seen)
        elif name == "inputs_embeds":
            raise _extra_error(name, "a value", "the decoder embeds tokens itself", "pass input_ids")
        else:
            remedy = did_you_mean(name, known, "leave it out")
            subject, rule = "WhenceForCausalLM(...)", "it has no argument of this name"
            raise usage_error(subject, f"{name}=...", rule, remedy, kind=UnknownArgument)


def _require_same_sequences(name: str, value: Any, tokens: Tensor, segment_ids: Tensor | None) -> None:
    """Packed sequences are those of ``segment_ids``, which come from position_ids unless the call has them."""
    batch, length = tokens.shape
    bounds, places = name in BOUNDS, torch.arange(length, device=tokens.device)
    remedy = "pass position_ids that start again with each sequence, or segment_ids"
    if not shapes.is_integer(value) or not (value.ndim == 1 if bounds else shapes.has_shape(value, (batch, length))):
        rule = (
            "it holds the bounds of packed sequences [number + 1]"
            if bounds
            else f"it holds sequences [{batch}, {length}]"
        )
        raise _extra_error(name, shapes.describe_tensor(value), f"{rule}, as integers", "leave it out")
    value = value.to(tokens.device)
    if segment_ids is None:
        segment_ids = torch.zeros_like(tokens[0])
    ours = _find_starts(shapes.validate_segment_ids(segment_ids, batch, length, tokens.device))
    same = (ours == (torch.isin(places, value)[None] if bounds else _find_starts(value))).all()
    if not torch_modes.can_read_values(same):
        if torch_modes.is_tracing() and not torch_modes.is_exporting():
            torch._assert_async(same, SAME_WHILE_TRACING)
    elif not bool(same):
        raise _extra_error(name, "other packed sequences than those of the call", "position_ids decide them", remedy)


def _find_starts(segments: Tensor) -> Tensor:
    """Whether a token is the first of its segment."""
    return torch.nn.functional.pad(segments.diff(dim=-1) != 0, (1, 0), value=True)


def _require_after_cache(value: Any, tokens: Tensor, seen: int) -> None:
    length = tokens.shape[1]
    remedy = "leave it out, or pass position_ids for other positions"
    rule = f"new tokens follow the {seen} of the cache"
    if not shapes.is_integer(value) or not shapes.has_shape(value, (length,)):
        raise _extra_error("cache_position", shapes.describe_tensor(value), f"{rule}, as integers [{length}]", remedy)
    follow = (value == torch.arange(seen, seen + length, device=value.device)).all()
    if not torch_modes.can_read_values(follow):
        if torch_modes.is_tracing() and not torch_modes.is_exporting():
            torch._assert_async(follow, FOLLOW_WHILE_TRACING)
    elif not bool(follow):
        raise _extra_error("cache_position", "other places", rule, remedy)


def _extra_error(name: str, got: str, rule: str, remedy: str) -> UnknownArgument:
    error = usage_error(f"WhenceForCausalLM({name}=...)", got, rule, remedy, kind=UnknownArgument)
    assert isinstance(error, UnknownArgument)
    return error

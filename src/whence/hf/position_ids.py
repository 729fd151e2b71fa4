"""``resolve_position_ids``: the ``position_ids`` of a call to ``WhenceForCausalLM``, as positions and segments of its decoder."""

from __future__ import annotations

import torch
from torch import Tensor

from whence import shapes, torch_modes
from whence.errors import WhenceError, usage_error
from whence.models import Caches
from whence.models.body import Body


def resolve_position_ids(
    body: Body,
    ids: Tensor,
    tokens: Tensor,
    key_mask: Tensor | None,
    segment_ids: Tensor | None,
    cache: Caches | None,
) -> tuple[Tensor | None, Tensor | None]:
    """Positions ``[B, T]`` and segment ids; positions are None where the decoder counts the same ones itself.

    As in transformers, ids that start again are packed sequences where no mask and no cache are passed. The ids of padding
    are ignored. In a segment the ids must increase, because a query sees keys at lower positions.
    """
    _require_ids(ids, tokens)
    wide = ids.long().expand(tokens.shape)
    if key_mask is None and segment_ids is None and cache is None:
        segment_ids = _find_packed_sequences(wide)
    counted = body.count_positions(tokens, key_mask, segment_ids, cache)
    real = torch.ones_like(wide, dtype=torch.bool) if key_mask is None else key_mask
    agree, increase = ((wide == counted) | ~real).all(), _increase(wide, real, segment_ids)
    # the smallest id that a token can have is the one that it gets by counting
    follow = ((wide >= counted) | ~real).all()
    if not torch_modes.can_read_values(wide, real):
        if torch_modes.is_tracing() and not torch_modes.is_exporting():
            torch._assert_async(increase, INCREASE_WHILE_TRACING)
            torch._assert_async(follow, FOLLOW_WHILE_TRACING)
    elif bool(agree):
        return None, segment_ids
    elif not bool(increase):
        rule = "a token attends to tokens of its segment and of the cache at lower positions"
        packed = "segment_ids" if cache is None else "use_cache=False or segment_ids"
        raise _ids_error("ids that do not increase", rule, f"omit position_ids, or pass {packed} for packed sequences")
    elif not bool(follow) and bool(((wide < 0) & real).any()):
        remedy = "add the same number to all ids of a sequence, or omit position_ids"
        raise _ids_error("ids below 0", "positions start at 0", remedy)
    elif not bool(follow):  # they increase, so it is the first id of a segment that the cache holds
        rule = "a token attends to tokens of the cache at lower positions"
        remedy = "pass ids above the last one of the cache, or omit position_ids"
        raise _ids_error("ids that do not increase after those of the cache", rule, remedy)
    return torch.where(real, wide, 0), segment_ids


INCREASE_WHILE_TRACING = (
    "WhenceForCausalLM(position_ids=...) got ids that do not increase; omit them, or pass segment_ids, or use_cache=False where a cache is "
    "made, for packed sequences."
)
FOLLOW_WHILE_TRACING = (
    "WhenceForCausalLM(position_ids=...) got ids below 0, or not above the last one of the cache; add the same number to all ids of a "
    "sequence, or omit them."
)
GAPS_WHILE_TRACING = "WhenceForCausalLM(position_ids=...) got ids with gaps and no attention_mask; pass attention_mask=torch.ones_like(input_ids)."


def _require_ids(ids: Tensor, tokens: Tensor) -> None:
    batch, length = tokens.shape
    if not shapes.is_integer(ids) or not shapes.has_shape(ids, (length,), (1, length), (batch, length)):
        rule = f"they are integers [{batch}, {length}] or [1, {length}], one for each of these tokens"
        raise _ids_error(shapes.describe_tensor(ids), rule, "with a cache, pass the ids of the new tokens only")
    if ids.device != tokens.device:
        rule = f"they must be on the device {tokens.device} of input_ids"
        raise _ids_error(f"ids on {ids.device}", rule, "move them with .to(input_ids.device)")


def _find_packed_sequences(ids: Tensor) -> Tensor | None:
    """Segment ids ``[B, T]``: an id that is not above the one before starts another sequence. None for one sequence."""
    steps = ids[:, 1:] - ids[:, :-1]
    starts = torch.nn.functional.pad(steps < 1, (1, 0))
    if not torch_modes.can_read_values(ids):
        if torch_modes.is_tracing() and not torch_modes.is_exporting():
            torch._assert_async((steps <= 1).all(), GAPS_WHILE_TRACING)
        return starts.long().cumsum(-1)
    if bool((steps > 1).any()):
        rule = "transformers then treats every gap as the start of another packed sequence"
        remedy = "pass attention_mask=torch.ones_like(input_ids) for one sequence, segment_ids for packed ones"
        raise _ids_error("ids with gaps and no attention_mask", rule, remedy)
    return starts.long().cumsum(-1) if bool(starts.any()) else None


def _increase(ids: Tensor, real: Tensor, segment_ids: Tensor | None) -> Tensor:
    """Whether the ids of real tokens increase in each segment: a bool scalar."""
    ordered = ids
    if segment_ids is not None:  # ids of later segments are moved above those of earlier ones
        changes = torch.zeros_like(ids)
        changes[:, 1:] = segment_ids.expand(ids.shape).diff(dim=-1) != 0
        ordered = ids + changes.cumsum(-1) * (ids.amax() - ids.amin() + 1)
    highest = ordered.masked_fill(~real, torch.iinfo(ordered.dtype).min).cummax(-1).values
    rising = (ordered[:, 1:] > highest[:, :-1]) | ~real[:, 1:]
    return rising.all()


def _ids_error(got: str, rule: str, remedy: str) -> WhenceError:
    return usage_error("WhenceForCausalLM(position_ids=...)", got, rule, remedy)

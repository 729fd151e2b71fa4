"""What a model's mask says, kept as what it means: where queries and keys stand, and which keys may be seen.

transformers asks for a mask by handing over a function of (sequence, head, query, key), and the truth about the cache: the
slot at which the queries and the keys begin. A dense mask of all pairs would close every fast path of ``attend`` and grow
with the square of the length, so ``mask_structure`` recognises the function as causality, window, chunks and packed
documents; padding is handed over beside it. What is recognised travels with the tensor that transformers carries to the
layers. Any other mask is refused.

Positions follow one rule, in one pass and from a cache. A mechanism for which only differences of positions count is
handed slots of the cache, padding included. Any other is handed the number of tokens since its text's first real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence import shapes
from whence.attention.attend import Arguments
from whence.attention.layout import count_tokens
from whence.errors import usage_error
from whence.hf.mask_structure import Asked, MaskFunction, Structure, recognise, recognise_while_tracing
from whence.position.base import Position

COMPILED_IDS = (
    "a compiled model with a position attached takes position_ids that count the tokens; run it without compile"
)


@dataclass
class Sight:
    """B sequences, T queries, S keys. A slot is a place in the cache, counted from the first token, padding included."""

    q_slots: Tensor  # [T]
    k_slots: Tensor  # [S]
    structure: Structure  # window, chunks and packed texts
    real: Tensor | None  # [B, S], False on padding and on slots that are still empty; None when every token is real
    first: Tensor | None  # [B, 1], the slot of the first real token
    whole: bool  # the queries are all the tokens there are
    _judged: tuple[Tensor | None, Tensor | None] | None = field(default=None, repr=False)

    @property
    def segment_ids(self) -> Tensor | None:
        return self.structure.segment_ids

    def arguments(self, position: Position, ids: Tensor | None) -> Arguments:
        """How ``attend`` is told where everything stands."""
        common: Arguments = {"causal": True, "window": self.structure.window, "key_mask": self.real}
        segments = self.structure.segments()
        unusual = self.unusual(position, ids)
        counted_alike = self.first is None or not position.relative or shapes.tracing()  # by attend as by ``places``
        if self.whole and unusual is None and self.structure.chunks is None and counted_alike:
            # attend counts the tokens of each text itself, which leaves its fast paths open while a compiler traces
            return common if segments is None else {**common, "segment_ids": segments[0]}
        q_places, k_places = self.places(position, ids)
        if segments is not None:
            common["segment_ids"] = (_shared(segments[0]), _shared(segments[1]))
        return {**common, "q_positions": q_places, "k_positions": k_places}

    def of_rows(self, position: Position, ids: Tensor | None, rows: Tensor, keys: int) -> Arguments:
        """The same for some of the queries and the first of the keys: ``rows`` is ``[n]``, or ``[B, n]``."""
        q_places, k_places = self.places(position, ids)
        told: Arguments = {"causal": True, "window": self.structure.window}
        told["key_mask"] = None if self.real is None else self.real[:, :keys]
        told |= {"q_positions": _taken(q_places, rows), "k_positions": k_places[..., :keys]}
        segments = self.structure.segments()
        if segments is not None:
            told["segment_ids"] = (_shared(_taken(segments[0], rows)), _shared(segments[1][:, :keys]))
        return told

    def reach(self, rows: Tensor) -> int:
        """How many of the keys stand at or before the last of some queries; no query sees more."""
        return int((self.k_slots <= self.q_slots[rows].max()).sum())

    def places(self, position: Position, ids: Tensor | None) -> tuple[Tensor, Tensor]:
        """Positions of queries and keys, ``[T]`` and ``[S]``, or ``[B, T]`` and ``[B, S]``.

        Where only differences count, slots do. Otherwise tokens are counted from each text's first one; padding, which
        nothing sees, stands at 0.
        """
        unusual = self.unusual(position, ids)
        if unusual is not None:
            return unusual, unusual
        if position.relative or (self.first is None and self.segment_ids is None):
            return self.q_slots, self.k_slots
        if self.segment_ids is not None:
            counted = count_tokens(self.real, self.segment_ids, len(self.q_slots), self.q_slots.device).clamp(min=0)
            return counted, counted
        assert self.first is not None
        return (self.q_slots - self.first).clamp(min=0), (self.k_slots - self.first).clamp(min=0)

    def visible(self, rows: Tensor) -> Tensor:
        """Which keys some queries see, padding among the keys left out: ``[B or 1, n, S]``."""
        seen = self.structure.visible(self.q_slots, self.k_slots, rows)
        return seen if self.real is None else seen & self.real[:, None, :]

    def real_queries(self) -> Tensor | None:
        """Which queries are no padding, ``[B, T]``; None when all are."""
        return None if self.real is None else self.real[:, self.q_slots - self.k_slots[0]]

    def unusual(self, position: Position, ids: Tensor | None) -> Tensor | None:
        """Position ids ``[T]`` or ``[B, T]`` that skip, which only the caller can have meant; None for the usual ones."""
        if ids is None or not position.effects:
            return None
        if self._judged is None or self._judged[0] is not ids:  # every layer of a forward gets the same ids
            self._judged = (ids, self._judge(ids))
        return self._judged[1]

    def _judge(self, ids: Tensor) -> Tensor | None:
        if ids.ndim != 2:
            raise usage_error(
                "an attached model(position_ids=...)",
                f"ids of shape {list(ids.shape)}",
                "a token of a text has one position",
                "attach to a model of text alone",
            )
        real = self.real_queries()
        doubtful = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        usual = [self.q_slots[None], self.q_slots[None] if self.first is None else self.q_slots - self.first]
        if self.segment_ids is not None:  # packed texts are those whose ids begin anew
            usual = [count_tokens(self.real, self.segment_ids, len(self.q_slots), ids.device)]
        agree = [((ids == expected) | ~doubtful).all() for expected in usual]
        if shapes.tracing():  # no number may be read, so the compiled program looks at them when it runs
            torch._assert_async(torch.stack(agree).any(), COMPILED_IDS)
            return None
        if any(bool(one) for one in agree):
            return None
        if not self.whole:
            raise usage_error(
                "an attached model(position_ids=...)",
                "ids that skip, together with a cache",
                "a cache keeps keys and not their ids, so distances are counted in its slots",
                "leave position_ids out, or call the model without a cache",
            )
        if self.segment_ids is not None:
            raise usage_error(
                "an attached model(position_ids=...)",
                "ids that skip, and no attention_mask",
                "transformers then takes every gap for the beginning of another packed text, which counts from 0",
                "pass attention_mask=torch.ones_like(input_ids) for one text, or ids that begin at 0 in every text",
            )
        if not self.structure.plain:
            raise usage_error(
                "an attached model(position_ids=...)",
                "ids that skip, in a model with a window or chunks",
                "its mask counts tokens and not ids",
                "leave position_ids out",
            )
        highest = ids.masked_fill(~doubtful, -1).cummax(-1).values
        if not bool(((ids[:, 1:] > highest[:, :-1]) | ~doubtful[:, 1:]).all()):
            raise usage_error(
                "an attached model(position_ids=...)",
                "ids that do not rise",
                "a query sees keys of lower ids",
                "give ids that rise along the text",
            )
        return ids[0] if ids.shape[0] == 1 else ids


def sight_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **others: Any,
) -> Tensor:
    """The mask function of transformers' interface: a small tensor that carries the ``Sight`` of this forward."""
    # a static cache moves its offset in place, so the sum must be a tensor of its own
    q_slots = torch.arange(q_length, device=device) + q_offset
    k_slots = torch.arange(kv_length, device=device) + kv_offset
    whole = isinstance(q_offset, int) and q_offset == 0 and kv_offset == 0 and q_length == kv_length
    real, first = _real(attention_mask, k_slots, kv_offset)
    asked = Asked(
        mask_function, batch_size, q_slots, k_slots, whole, attention_mask is not None, local_size, first, config
    )
    structure = (recognise_while_tracing if shapes.tracing() else recognise)(asked, use_vmap)
    carrier = torch.ones(batch_size, 1, 1, kv_length, dtype=torch.bool, device=device) if real is None else real
    carrier = carrier.reshape(
        batch_size, 1, 1, kv_length
    ).contiguous()  # generate asks for that, and gets this very tensor
    carrier.sight = Sight(q_slots, k_slots, structure, real, first, whole)  # type: ignore[attr-defined]
    return carrier


def sight_of(mask: Tensor | None, queries: int, keys: int) -> Sight:
    """What a mask carries; a mask made by anyone else is refused."""
    sight = getattr(mask, "sight", None)
    if not isinstance(sight, Sight):
        got = "no mask" if mask is None else f"a mask of shape {list(mask.shape)} made elsewhere"
        raise usage_error(
            "an attached model(attention_mask=...)",
            got,
            "causality, window and padding are read from masks that transformers makes for it",
            "give a mask [batch, length] that says which tokens are real, or none",
        )
    if (len(sight.q_slots), len(sight.k_slots)) != (queries, keys):
        raise usage_error(
            "an attached model",
            f"{queries} queries and {keys} keys with a mask for {len(sight.q_slots)} and {len(sight.k_slots)}",
            "layers that share a mask hold the same tokens",
            "use a cache whose layers do",
        )
    return sight


def _real(given: Tensor | None, k_slots: Tensor, offset: int) -> tuple[Tensor | None, Tensor | None]:
    """Which keys are real, and the first real slot of each sequence; nothing when all are."""
    if given is None or (not shapes.tracing() and bool(given.all())):
        return None, None  # slots beyond the given ones are still empty, and causality hides them
    given = given.bool()
    first = given.long().argmax(-1, keepdim=True)
    missing = int(k_slots.shape[0]) + offset - given.shape[1]
    if missing > 0:
        given = torch.nn.functional.pad(given, (0, missing))
    return given[:, offset : offset + k_slots.shape[0]], first


def _shared(numbers: Tensor) -> Tensor:
    """Numbers ``[1, n]`` of all sequences as ``[n]``, which is how ``attend`` takes them; others as they are."""
    return numbers[0] if numbers.shape[0] == 1 else numbers


def _taken(x: Tensor, rows: Tensor) -> Tensor:
    """Some entries of ``[T]`` or ``[B or 1, T]``: the same for all sequences (``[n]``) or for each its own (``[B, n]``)."""
    if rows.ndim == 1:
        return x[..., rows]
    return x.expand(rows.shape[0], -1).gather(1, rows)

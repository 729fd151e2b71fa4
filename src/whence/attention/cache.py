"""``KVCache``: the keys and values of earlier tokens, with the position of each.

Keys are stored as projected, before any rotation, because a mechanism may place the same key differently for every query.
The steps of a clock are stored beside them, and summed again for every call: appending, cropping, sliding and reordering
then need no running sum.
There are three kinds of storage: growing (the default; differentiable), preallocated (written in place into memory
allocated once), and sliding (drops what lies outside a window).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence import shapes, torch_modes
from whence.attention.arguments import Arguments
from whence.attention.cache_entries import CacheEntries, heads_first
from whence.attention.cache_validation import require_fit, require_order, require_rows, single_positions
from whence.attention.layout import Layout, resolve_key_mask
from whence.attention.token_positions import (
    common_offset,
    count_tokens,
    leaves_gaps,
    require_contiguous_segments,
)
from whence.errors import usage_error
from whence.validation import require_integer

#: the attributes that appending, cropping and resetting change
STATE_ATTRIBUTES = (
    "_entries", "_used", "seq_length", "_consecutive", "_has_padding", "_has_segments", "_plain", "_layer",
)  # fmt: skip


class KVCache:
    """The keys and values of one attention layer.

    ``KVCache()`` grows with every token. ``KVCache(capacity=n)`` writes into memory allocated once and refuses token n + 1.
    ``KVCache(window=w)`` keeps what a window of w needs, plus ``rollback`` tokens so that ``crop`` can undo that many.

    Positions that are not passed continue from each row's last real token. Padding, in any chunk, takes no position.

    >>> cache = KVCache()
    >>> x = torch.ones(1, 2, 3, 4)
    >>> from whence.attention.attend import attend
    >>> attend(x, x, x, causal=True, cache=cache).shape, len(cache)
    (torch.Size([1, 2, 3, 4]), 3)
    """

    def __init__(self, *, capacity: int | None = None, window: int | None = None, rollback: int = 0) -> None:
        if capacity is not None and window is not None:
            raise usage_error(
                "KVCache(...)", "capacity and window", "a cache is preallocated or sliding", "drop one of them"
            )
        for name, value in (("capacity", capacity), ("window", window)):
            if value is not None:
                require_integer("KVCache", name, value, remedy="give a number of tokens")
        require_integer("KVCache", "rollback", rollback, low=0, remedy="give a number of tokens")
        self.capacity, self.window, self.rollback = capacity, window, rollback
        self._entries: CacheEntries | None = None
        self._used = 0  # tokens in the store
        self.seq_length = 0  # tokens ever appended and not rolled back
        self._consecutive = True  # the positions of every row are consecutive
        self._has_padding = False  # some token is padding
        self._has_segments = False  # segment ids were passed
        self._plain = True  # no token came with positions, padding or segment ids: each position is an index
        self._prefilled = False  # every slot of a preallocated store has the position and the masks of a plain token
        self._rollbacks: list[tuple[int, int]] = []  # (number of the rollback, tokens left), both increasing
        self._num_rollbacks = 0  # rollbacks so far
        self._owner = object()  # by which a mark knows its cache; a copy has another
        self._layer: int | None = (
            None  # the id of the layer whose tokens it holds; None in a copy, which may go with a copied layer
        )

    def __len__(self) -> int:
        """The number of tokens that a query can attend to."""
        return self._used

    def __repr__(self) -> str:
        kind = f"capacity={self.capacity}" if self.capacity else f"window={self.window}" if self.window else "growing"
        return f"KVCache({kind}, {self._used} of {self.seq_length} tokens stored)"

    def claim(self, layer: object) -> None:
        """Refuse tokens of a layer where those of another one are. An empty cache or a copy is free. Compiled layers do not ask."""
        if self._used and self._layer not in (None, id(layer)):
            raise usage_error(
                f"{type(layer).__name__}(cache=...)",
                "a cache with tokens of another layer",
                "each layer has keys and values of its own",
                "build a cache for each layer, or empty this one with cache.reset()",
            )
        self._layer = id(layer)

    @property
    def batch_size(self) -> int | None:
        """The number of rows; None if the cache never had a token."""
        return None if self._entries is None else self._entries.k.shape[0]

    def entries(self) -> CacheEntries | None:
        """The tokens that a query can attend to, without copies; None in an empty cache."""
        return None if self._entries is None or not self._used else self._entries.tokens(0, self._used)

    def storage(self) -> CacheEntries | None:
        """The whole store, with the slots of a preallocated cache that hold no token yet; None before the first token."""
        return self._entries

    def extend(
        self, arguments: Arguments, *, learnable: bool, below: int
    ) -> tuple[Tensor, Tensor, Tensor | None, Layout]:
        """Append the tokens of k and v, and return all keys, values and steps of the clock that their queries attend over,
        with the layout.

        ``learnable``: the position has parameters that require a gradient. Positions that are passed must be under
        ``below``.
        """
        k, v, segment_ids = arguments.k, arguments.v, arguments.segment_ids
        require_fit(
            arguments, window=self.window, capacity=self.capacity, used=self._used,
            stored=None if self._entries is None else (self._entries.k, self._entries.v, self._entries.clock),
            learnable=learnable,
        )  # fmt: skip
        if self.takes_plain(arguments):
            all_k, all_v = self.append_plain(k, v)
            return all_k, all_v, None, self._plain_layout(arguments, k.shape[2])
        batch, new, device = k.shape[0], k.shape[2], k.device
        name, explicit = single_positions(arguments.q_positions, arguments.k_positions)
        real = resolve_key_mask(arguments.lengths, arguments.key_mask, batch, new, device)
        segments = None if segment_ids is None else shapes.validate_segment_ids(segment_ids, batch, new, device)  # type: ignore[arg-type]
        last = self._last()
        if explicit is not None:
            positions = shapes.validate_positions(name, explicit, batch, new, device, below=below).expand(batch, new)
        else:
            positions = self.next_positions(real, segments, batch, new, device)
        if segments is None and self._has_segments and last is not None:
            segments = last.segment_ids.expand(batch, new)  # the last segment continues
        if self.window is not None:
            before = None if last is None else (last.real, last.positions, last.segment_ids)
            require_order(before, real, positions, segments, explicit=explicit is not None)
        if self._consecutive:
            self._consecutive = self._stays_consecutive(last, explicit is not None, real, segments, positions)
        self._has_padding = self._has_padding or real is not None
        self._has_segments = self._has_segments or segments is not None
        self._plain = self._plain and explicit is None and real is None and segments is None
        self._append(
            CacheEntries(
                k.transpose(1, 2),
                v.transpose(1, 2),
                positions,
                torch.ones(batch, new, dtype=torch.bool, device=device) if real is None else real,
                torch.zeros(batch, new, dtype=torch.long, device=device)
                if segments is None
                else segments.expand(batch, new).long(),
                None if arguments.clock is None else arguments.clock.transpose(1, 2),
            )
        )
        all_k, all_v, all_positions, all_real, all_segments, *steps = self._view()
        layout = Layout(
            q_positions=positions,
            k_positions=all_positions,
            offset=self._used - new if self._consecutive else None,
            causal=arguments.causal,
            window=arguments.window,
            real=all_real if self._has_padding else None,
            q_segment_ids=all_segments[:, -new:] if self._has_segments else None,
            k_segment_ids=all_segments if self._has_segments else None,
        )
        self._drop_old_tokens()
        return all_k.transpose(1, 2), all_v.transpose(1, 2), steps[0].transpose(1, 2) if steps else None, layout

    def crop(self, length: int) -> None:
        """Roll back to the first ``length`` tokens, as after rejected drafts."""
        dropped = self.seq_length - self._used  # tokens that a sliding cache has forgotten
        remedy = f"give a whole number from 0 to {self.seq_length}, its tokens"
        require_integer("KVCache.crop", "length", length, low=0, high=self.seq_length, remedy=remedy)
        need = max(0, length - self._behind()) if self.window is not None else 0
        if need < dropped:
            raise usage_error(
                "KVCache.crop",
                f"{length} of {self.seq_length} tokens",
                f"a sliding cache with rollback={self.rollback} has forgotten the tokens before {dropped}",
                f"build it with rollback={self.seq_length - length} or more",
            )
        self._used, self.seq_length = length - dropped, length
        self._note_rollback()
        if self._entries is not None and self.capacity is None:
            self._entries = self._entries.tokens(0, self._used)

    def reorder(self, index: Tensor) -> None:
        """Row b becomes the former row ``index[b]``, as in beam search. The number of rows may change."""
        if self._entries is None:
            return
        index = require_rows(index, self._entries.k)
        self._entries = CacheEntries(*(t.index_select(0, index) for t in self._entries.tensors()))

    def reset(self) -> None:
        """Forget everything; a preallocated cache keeps its memory."""
        self._used = self.seq_length = 0
        self._consecutive, self._has_padding, self._has_segments, self._plain = True, False, False, True
        self._note_rollback()
        if self.capacity is None:
            self._entries = None

    def mark(self) -> dict[str, Any]:
        """The state that ``restore`` returns to. Nothing is copied."""
        return {**self.state(), "_num_rollbacks": self._num_rollbacks, "_owner": self._owner}

    def restore(self, mark: dict[str, Any]) -> None:
        """Undo everything since the mark of this cache.

        Raises for the mark of another cache, a copy included. Raises if a preallocated cache was rolled back to fewer tokens than at the mark, because later tokens may have
        overwritten those of the mark.
        """
        if mark["_owner"] is not self._owner:
            raise usage_error(
                "KVCache.restore(mark)",
                "a mark of another cache",
                "a mark points to the tokens of its own cache, and a copy has tokens of its own",
                "call mark() on this cache",
            )
        least = min(
            (left for number, left in self._rollbacks if number > mark["_num_rollbacks"]), default=mark["_used"]
        )
        if self.capacity is not None and least < mark["_used"]:
            raise usage_error(
                "KVCache.restore(mark)",
                f"a mark at {shapes.format_count(mark['_used'], 'token')} after a rollback to {least}",
                "a preallocated cache overwrites what it rolled back",
                "restore before rolling back further, or use KVCache()",
            )
        self.undo({name: mark[name] for name in STATE_ATTRIBUTES})
        self._note_rollback()

    def state(self) -> dict[str, Any]:
        """What one call of ``attend`` can change, for ``undo``."""
        return {name: getattr(self, name) for name in STATE_ATTRIBUTES}

    def undo(self, state: dict[str, Any]) -> None:
        """Go back to a ``state`` after which tokens were only appended."""
        vars(self).update(state)

    def __copy__(self) -> KVCache:
        """An independent cache: tokens that are appended to one do not appear in the other."""
        other = object.__new__(type(self))
        vars(other).update(self.__getstate__(), _rollbacks=list(self._rollbacks))
        if self._entries is not None:
            other._entries = self._entries.clone()
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_layer": None, "_owner": object()}

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        return self.__copy__()  # torch's own deep copy refuses tensors that have a gradient function

    # --- plain tokens of a preallocated cache: only keys and values are written ----------------------------------------
    def takes_plain(self, arguments: Arguments) -> bool:
        """Whether the new tokens need nothing but their keys and values, because all else is in the store already."""
        entries = self._entries
        return (
            self._plain
            and self._prefilled
            and entries is not None
            and entries.clock is None
            and arguments.clock is None
            and arguments.q_positions is None
            and arguments.k_positions is None
            and arguments.lengths is None
            and arguments.key_mask is None
            and arguments.segment_ids is None
            and not torch_modes.is_tracing()
            and not torch_modes.is_transforming()
            and (torch.is_inference_mode_enabled() or not entries.k.is_inference())
        )

    def append_plain(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v after the last token. All keys and values, ``[B, G, S, D]`` and ``[B, G, S, E]``."""
        assert self._entries is not None
        start, new = self._used, k.shape[2]
        self._used, self.seq_length = start + new, self.seq_length + new
        for stored, added in ((self._entries.k, k), (self._entries.v, v)):
            heads_first(stored, start, new).copy_(added)
        return self.plain_tokens()

    def plain_tokens(self) -> tuple[Tensor, Tensor]:
        """All keys and values, ``[B, G, S, D]`` and ``[B, G, S, E]``, without copies."""
        assert self._entries is not None
        return heads_first(self._entries.k, 0, self._used), heads_first(self._entries.v, 0, self._used)

    def _plain_layout(self, arguments: Arguments, new: int) -> Layout:
        assert self._entries is not None
        positions = self._entries.positions[:, : self._used]
        before = self._used - new
        return Layout(positions[:, before:], positions, before, arguments.causal, arguments.window, None, None, None)

    # --- storage ---------------------------------------------------------------------------------------------------
    def _append(self, new: CacheEntries) -> None:
        count = new.k.shape[1]
        if self.capacity is not None:
            if self._entries is None:
                self._entries = CacheEntries(
                    *(t.new_zeros(t.shape[0], self.capacity, *t.shape[2:]) for t in new.tensors())
                )
                if self._plain and not torch_modes.is_tracing() and not torch_modes.is_transforming():
                    self._entries.positions += torch.arange(self.capacity, device=new.k.device)
                    self._entries.real.fill_(True)
                    self._prefilled = True
            self._prefilled = self._prefilled and self._plain
            kind = torch.promote_types(self._entries.positions.dtype, new.positions.dtype)
            # whole positions may be followed by fractional ones
            self._entries = replace(self._entries, positions=self._entries.positions.to(kind))
            if (
                not torch_modes.is_tracing()
                and self._entries.k.is_inference()
                and not torch.is_inference_mode_enabled()
            ):
                # inference tensors cannot be written to outside inference mode, but their copies can
                self._entries = self._entries.clone()
            for store, t in zip(self._entries.tensors(), new.tensors(), strict=True):
                store[:, self._used : self._used + count] = t
        elif self._entries is None:
            self._entries = new
        else:
            self._entries = CacheEntries(
                *(torch.cat([a, b], 1) for a, b in zip(self._entries.tensors(), new.tensors(), strict=True))
            )
        self._used += count
        self.seq_length += count

    def _note_rollback(self) -> None:
        self._num_rollbacks += 1
        while self._rollbacks and self._rollbacks[-1][1] >= self._used:
            self._rollbacks.pop()
        self._rollbacks.append((self._num_rollbacks, self._used))

    def _view(self) -> tuple[Tensor, ...]:
        assert self._entries is not None
        return tuple(t[:, : self._used] for t in self._entries.tensors())

    def _behind(self) -> int:
        """How many tokens a sliding cache keeps before the next one: those in its window, and always the last one,
        from which positions continue."""
        assert self.window is not None
        return max(self.window - 1, 1)

    def _drop_old_tokens(self) -> None:
        """Drop tokens that no later query attends to, not even after a rollback."""
        if self.window is None or self._entries is None:
            return
        surplus = self._used - (self._behind() + self.rollback)
        if surplus > 0:
            # a slice would keep the whole tensor in memory, so copy it
            self._entries = self._entries.tokens(surplus, self._used).clone()
            self._used -= surplus

    def next_positions(
        self, real: Tensor | None, segments: Tensor | None, batch: int, new: int, device: torch.device
    ) -> Tensor:
        """Positions that continue from the last real token of each row, or from 0 in a new segment: ``[B, new]``."""
        last = self._last()
        if last is None:
            require_contiguous_segments(segments)
            return count_tokens(real, segments, new, device).expand(batch, new)
        assert self._entries is not None
        if self._entries.k.shape[0] != batch:
            raise usage_error(
                "attend(cache=...)",
                f"batch {batch} with {self._entries.k.shape[0]} in the cache",
                "each row continues its own tokens",
                "use one cache for each batch, or reorder it",
            )
        before = last.positions
        if self._has_padding:
            before = self._entries.tokens(0, self._used).last_real_position(self._has_segments)
        if segments is not None:
            segments = segments.expand(batch, new)
            require_contiguous_segments(torch.cat([self._entries.segment_ids[:, : self._used], segments], 1))
            before = torch.where(segments[:, :1] == last.segment_ids, before, -1)
        return count_tokens(real, segments, new, device, before).expand(batch, new)

    def _last(self) -> CacheEntries | None:
        """The last token of each row, which may be padding; None in an empty cache."""
        if self._entries is None or not self._used:
            return None
        return self._entries.tokens(self._used - 1, self._used)

    def _stays_consecutive(
        self, last: CacheEntries | None, explicit: bool, real: Tensor | None, segments: Tensor | None, positions: Tensor
    ) -> bool:
        """Whether distances between real tokens of one segment still equal differences of their indices in the cache."""
        if explicit:
            joined = positions if last is None else torch.cat([last.positions, positions], 1)
            if segments is not None and (stored := self.entries()) and stored.resumes_segment(segments):
                return False
            return common_offset(joined, joined) is not None
        if real is None and not self._has_padding:
            return True
        before = None if last is None or not self._has_padding else (last.real, last.segment_ids)
        key_mask = torch.ones_like(positions, dtype=torch.bool) if real is None else real
        return not leaves_gaps(key_mask, segments, positions, before)

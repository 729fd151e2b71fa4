"""``KVCache``: the keys and values of earlier tokens, with the position of each.

Keys are kept as projected, before any rotation, because a mechanism may place the same key differently for every query.
Three ways to keep them: growing (the default; differentiable), preallocated (written in place into memory taken once),
and sliding (forgets what lies behind a window).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence import shapes
from whence.attention.cache_rules import one_of, require_fit, require_order, require_rows
from whence.attention.layout import Layout, count_tokens, key_mask, require_whole_documents, run_offset
from whence.errors import refusal
from whence.validation import require_integer


@dataclass
class Held:
    """What a cache holds for its tokens, all with the tokens on axis 1."""

    k: Tensor  # [B, S, G, D]
    v: Tensor  # [B, S, G, E]
    positions: Tensor  # [B, S]
    real: Tensor  # [B, S]
    documents: Tensor  # [B, S]

    def tensors(self) -> tuple[Tensor, ...]:
        return self.k, self.v, self.positions, self.real, self.documents


class KVCache:
    """The keys and values of one attention layer.

    ``KVCache()`` grows with every token. ``KVCache(capacity=n)`` writes into memory taken once and refuses token n + 1.
    ``KVCache(window=w)`` keeps what a window of w needs, plus ``rollback`` tokens so that ``crop`` can undo that many.

    >>> cache = KVCache()
    >>> x = torch.ones(1, 2, 3, 4)
    >>> from whence.attention.attend import attend
    >>> attend(x, x, x, causal=True, cache=cache).shape, len(cache)
    (torch.Size([1, 2, 3, 4]), 3)
    """

    def __init__(self, *, capacity: int | None = None, window: int | None = None, rollback: int = 0) -> None:
        if capacity is not None and window is not None:
            raise refusal(
                "KVCache(...)", "capacity and window", "a cache is preallocated or sliding", "drop one of them"
            )
        for name, value in (("capacity", capacity), ("window", window)):
            if value is not None:
                require_integer("KVCache", name, value, remedy="give a number of tokens")
        require_integer("KVCache", "rollback", rollback, low=0, remedy="give a number of tokens")
        self.capacity, self.window, self.rollback = capacity, window, rollback
        self._held: Held | None = None
        self._used = 0  # tokens in the store
        self.seen = 0  # tokens ever appended and not rolled back
        self._consecutive = True  # every row's positions are one run
        self._masked = False  # some token is padding
        self._packed = False  # documents were given

    def __len__(self) -> int:
        """How many tokens a query can look at now."""
        return self._used

    def __repr__(self) -> str:
        kind = f"capacity={self.capacity}" if self.capacity else f"window={self.window}" if self.window else "growing"
        return f"KVCache({kind}, {self._used} tokens held of {self.seen} seen)"

    def extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool,
        window: int | None,
        q_positions: Tensor | None,
        k_positions: Tensor | None,
        lengths: Tensor | None,
        padding: Tensor | None,
        documents: Tensor | tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor, Layout]:
        """Append the tokens of k and v, and give back everything the queries of the same tokens look at."""
        require_fit(
            q, k, v, causal=causal, window=window, documents=documents, kept=self.window, capacity=self.capacity,
            used=self._used, held=None if self._held is None else (self._held.k, self._held.v),
        )  # fmt: skip
        batch, new, device = k.shape[0], k.shape[2], k.device
        name, given = one_of(q_positions, k_positions)
        real = key_mask(lengths, padding, batch, new, device)
        docs = None if documents is None else shapes.documents(documents, batch, new, device)  # type: ignore[arg-type]
        if given is not None:
            positions = shapes.positions(name, given, batch, new, device).expand(batch, new)
        else:
            positions = self.count(real, docs, batch, new, device)
        if self.window is not None:
            end = slice(self._used - 1, self._used)
            last = (
                (self._held.real[:, end], self._held.positions[:, end])
                if self._held is not None and self._used
                else None
            )
            require_order(last, real, positions, packed=self._packed or docs is not None)
        if docs is None and self._packed and self._held is not None and self._used:
            docs = self._held.documents[:, self._used - 1 : self._used]  # the last document goes on
        if given is not None and self._consecutive:
            before = (
                self._held.positions[:, self._used - 1 : self._used] if self._held is not None and self._used else None
            )
            joined = positions if before is None else torch.cat([before, positions], 1)
            self._consecutive = run_offset(joined, joined) is not None
        self._masked = self._masked or real is not None
        self._packed = self._packed or docs is not None
        self._append(
            Held(
                k.transpose(1, 2),
                v.transpose(1, 2),
                positions,
                torch.ones(batch, new, dtype=torch.bool, device=device) if real is None else real,
                torch.zeros(batch, new, dtype=torch.long, device=device)
                if docs is None
                else docs.expand(batch, new).long(),
            )
        )
        all_k, all_v, all_positions, all_real, all_docs = self._view()
        layout = Layout(
            q_positions=positions,
            k_positions=all_positions,
            offset=self._used - new if self._consecutive else None,
            causal=causal,
            window=window,
            real=all_real if self._masked else None,
            q_documents=all_docs[:, -new:] if self._packed else None,
            k_documents=all_docs if self._packed else None,
        )
        self._forget()
        return all_k.transpose(1, 2), all_v.transpose(1, 2), layout

    def crop(self, length: int) -> None:
        """Roll back to the first ``length`` tokens seen, as after rejected drafts."""
        lost = self.seen - self._used  # tokens that a sliding cache has forgotten
        remedy = f"give a whole number from 0 to {self.seen}, the tokens seen"
        require_integer("KVCache.crop", "length", length, low=0, high=self.seen, remedy=remedy)
        need = max(0, length - (self.window - 1)) if self.window is not None else 0
        if need < lost:
            raise refusal(
                "KVCache.crop",
                f"{length} of {self.seen} tokens seen",
                f"a sliding cache with rollback={self.rollback} has forgotten the tokens before {lost}",
                f"build it with rollback={self.seen - length} or more",
            )
        self._used, self.seen = length - lost, length
        if self._held is not None and self.capacity is None:
            self._held = Held(*(t[:, : self._used] for t in self._held.tensors()))

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row ``index[b]`` was, as in beam search. The number of rows may change."""
        if self._held is None:
            return
        index = require_rows(index, self._held.k)
        self._held = Held(*(t.index_select(0, index) for t in self._held.tensors()))

    def reset(self) -> None:
        """Forget everything; a preallocated cache keeps its memory."""
        self._used = self.seen = 0
        self._consecutive, self._masked, self._packed = True, False, False
        if self.capacity is None:
            self._held = None

    def mark(self) -> dict[str, Any]:
        """What ``restore`` needs to undo everything from here on; nothing is copied."""
        return dict(vars(self))

    def restore(self, mark: dict[str, Any]) -> None:
        """Be again what the cache was at the mark. Memory behind the tokens in use may have been written to."""
        vars(self).update(mark)

    # --- storage ---------------------------------------------------------------------------------------------------
    def _append(self, new: Held) -> None:
        count = new.k.shape[1]
        if self.capacity is not None:
            if self._held is None:
                self._held = Held(*(t.new_zeros(t.shape[0], self.capacity, *t.shape[2:]) for t in new.tensors()))
            kind = torch.promote_types(self._held.positions.dtype, new.positions.dtype)
            self._held = replace(self._held, positions=self._held.positions.to(kind))  # whole, then fractional ones
            for store, t in zip(self._held.tensors(), new.tensors(), strict=True):
                store[:, self._used : self._used + count] = t
        elif self._held is None:
            self._held = new
        else:
            self._held = Held(*(torch.cat([a, b], 1) for a, b in zip(self._held.tensors(), new.tensors(), strict=True)))
        self._used += count
        self.seen += count

    def _view(self) -> tuple[Tensor, ...]:
        assert self._held is not None
        return tuple(t[:, : self._used] for t in self._held.tensors())

    def _forget(self) -> None:
        """Drop what no later query, nor one after a rollback, can see."""
        if self.window is None or self._held is None:
            return
        surplus = self._used - (self.window - 1 + self.rollback)
        if surplus > 0:
            # a slice of much more than it shows would keep all of it alive
            self._held = Held(*(t[:, surplus:].clone() for t in self._held.tensors()))
            self._used -= surplus

    def count(self, real: Tensor | None, docs: Tensor | None, batch: int, new: int, device: torch.device) -> Tensor:
        """Positions that go on from the last token of each row, or from 0 in a new document."""
        if self.seen == 0 or self._held is None:
            require_whole_documents(docs)
            return count_tokens(real, docs, new, device).expand(batch, new)
        if self._held.k.shape[0] != batch:
            raise refusal(
                "attend(cache=...)",
                f"batch {batch} with {self._held.k.shape[0]} in the cache",
                "each row goes on from its own tokens",
                "use one cache for each batch, or reorder it",
            )
        last = slice(self._used - 1, self._used)
        before = self._last_positions(last)
        plain = torch.arange(new, device=device)[None]
        if docs is None:
            # a row of which only left padding was seen counts from its first token
            return torch.where(before < 0, count_tokens(real, None, new, device), plain + before + 1)
        docs = docs.expand(batch, new)
        require_whole_documents(torch.cat([self._held.documents[:, : self._used], docs], 1))
        goes_on = (docs == self._held.documents[:, last]).cumprod(-1).bool()
        return torch.where(goes_on & (before >= 0), plain + before + 1, count_tokens(real, docs, new, device))

    def _last_positions(self, last: slice) -> Tensor:
        """The position of each row's last real token, below 0 where it has none yet: ``[B, 1]``."""
        assert self._held is not None
        ends = self._held.positions[:, last]
        if not self._masked:
            return ends
        counts = self._held.real[:, : self._used]
        if self._packed:
            counts = counts & (self._held.documents[:, : self._used] == self._held.documents[:, last])
        nothing = torch.full_like(ends, -1)
        found = torch.where(counts, self._held.positions[:, : self._used], -1).amax(1, keepdim=True)
        found = torch.where(found < 0, torch.minimum(ends, nothing), found)
        if not shapes.tracing() and bool((found != ends).any()):
            self._consecutive = False  # right padding lies between a row's tokens
        return found

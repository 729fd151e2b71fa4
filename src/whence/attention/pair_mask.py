"""``PairMask``: a mask over single pairs of a query and a key, from ``attn_mask`` and ``mask_fn``.

Causality, window, padding and segments are functions of positions and tokens and belong to ``Layout``. ``attn_mask``
and ``mask_fn`` can depend on each single pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence import hook_outputs, shapes, torch_modes
from whence.attention.arguments import Arguments, MaskFunction
from whence.errors import usage_error
from whence.validation import format_value, require_parameters


@dataclass(frozen=True)
class PairMask:
    """``attn_mask`` has four axes, each of its full size or 1. ``mask_fn`` is evaluated for one block of rows at a time."""

    attn_mask: Tensor | None  # [B or 1, H or 1, T or 1, S or 1], bool or float
    mask_fn: MaskFunction | None
    batch: int
    heads: int

    @property
    def is_additive(self) -> bool:
        return self.attn_mask is not None and self.attn_mask.dtype != torch.bool

    @property
    def learnable(self) -> bool:
        return self.attn_mask is not None and self.attn_mask.requires_grad

    @property
    def batch_size(self) -> int:
        """How many sequences of the batch have a mask of their own."""
        own = 1 if self.attn_mask is None else self.attn_mask.shape[0]
        return self.batch if self.mask_fn is not None else own

    def additive(self, dtype: torch.dtype, rows: slice | None = None) -> Tensor | None:
        """What a float ``attn_mask`` adds to the logits of some query rows, ``[B or 1, H or 1, T or 1, S or 1]``."""
        return self._rows_of_mask(rows).to(dtype) if self.is_additive else None

    def visible(self, q_positions: Tensor, k_positions: Tensor, rows: slice | None = None) -> Tensor:
        """The pairs that both masks allow, a bool that broadcasts to ``[B, H, T, S]``. Positions are ``[B or 1, n]``."""
        allowed: Tensor | None = None
        if self.attn_mask is not None:
            mask = self._rows_of_mask(rows)
            allowed = ~torch.isneginf(mask) if self.is_additive else mask
        if self.mask_fn is not None:
            answer = self._evaluate(self.mask_fn, q_positions, k_positions)
            allowed = answer if allowed is None else allowed & answer
        assert allowed is not None
        return allowed

    def _rows_of_mask(self, rows: slice | None) -> Tensor:
        assert self.attn_mask is not None
        return self.attn_mask if rows is None or self.attn_mask.shape[2] == 1 else self.attn_mask[:, :, rows]

    def _evaluate(self, mask_fn: MaskFunction, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        device = q_positions.device
        batch = torch.arange(self.batch, device=device)[:, None, None, None]
        head = torch.arange(self.heads, device=device)[None, :, None, None]
        answer = hook_outputs.call_on_tensors(
            "attend(mask_fn=...)", mask_fn, batch, head, q_positions[:, None, :, None], k_positions[:, None, None, :]
        )
        full = (self.batch, self.heads, q_positions.shape[1], k_positions.shape[1])
        dense = isinstance(answer, Tensor) and answer.layout == torch.strided and not answer.is_nested
        if not dense or answer.dtype != torch.bool or not broadcasts(answer, full):
            raise usage_error(
                "attend(mask_fn=...)",
                f"a result of {shapes.describe_tensor(answer)}",
                f"it returns a bool tensor that broadcasts to [batch, heads, queries, keys], here {list(full)}",
                "return a comparison of its arguments, such as k_position <= q_position",
            )
        return answer if answer.ndim == 4 else answer.reshape(*[1] * (4 - answer.ndim), *answer.shape)


def is_function(x: object) -> bool:
    """Whether an object can be called for a result: a function, or a module with a ``forward``, and not a class."""
    without_forward = isinstance(x, torch.nn.Module) and type(x).forward is torch.nn.Module.forward
    return callable(x) and not isinstance(x, type) and not without_forward


def broadcasts(x: Tensor, full: tuple[int, ...]) -> bool:
    """Whether a tensor has at most these axes, counted from the last, each of full size or 1."""
    return x.ndim <= len(full) and all(n == 1 or n == m for n, m in zip(x.shape[::-1], full[::-1], strict=False))


def resolve_pair_mask(arguments: Arguments, keys: int) -> PairMask | None:
    """The mask of a call over so many keys, those of the cache included; None when there is neither argument."""
    attn_mask, mask_fn, q = arguments.attn_mask, arguments.mask_fn, arguments.q
    if attn_mask is None and mask_fn is None:
        return None
    batch, heads, rows = q.shape[:3]
    if mask_fn is not None and not is_function(mask_fn):
        raise usage_error(
            "attend(mask_fn=...)",
            format_value(mask_fn),
            "mask_fn is a function of (batch, head, q_position, k_position)",
            "pass a function, or a tensor as attn_mask",
        )
    if mask_fn is not None and not torch_modes.is_tracing():  # a compiler does not follow inspect
        names = ("batch", "head", "q_position", "k_position")
        require_parameters("attend(mask_fn=...)", mask_fn, names, f"write def mask_fn({', '.join(names)})")
    if attn_mask is not None:
        attn_mask = _require_attn_mask(attn_mask, (batch, heads, rows, keys), q)
    return PairMask(attn_mask, mask_fn, batch, heads)


def _require_attn_mask(mask: Tensor, full: tuple[int, int, int, int], q: Tensor) -> Tensor:
    batch, heads, rows, keys = full
    shapes.require_dense("attend(attn_mask=...)", "attn_mask", mask)
    if mask.dtype != torch.bool and mask.dtype not in shapes.FLOATS:
        raise usage_error(
            "attend(attn_mask=...)",
            f"dtype {mask.dtype}",
            "attn_mask is bool (True = attend) or float (added to the logits)",
            "convert a 0/1 mask with attn_mask.bool()",
        )
    if mask.ndim not in (2, 4) or not broadcasts(mask, full):
        remedy = (
            "add the missing axis with attn_mask[None] or attn_mask[:, None]" if mask.ndim == 3 else "give these axes"
        )
        if mask.ndim in (2, 4) and mask.shape[-1] != keys:
            remedy = "let its last axis cover every key, those of the cache included"
            if mask.shape[-2:] == (heads, heads):
                remedy = shapes.transpose_remedy("q", "k", "v")
        raise usage_error(
            "attend(attn_mask=...)",
            f"shape {shapes.format_shape(mask)}",
            f"attn_mask is [{rows}, {keys}] or [{batch}, {heads}, {rows}, {keys}], where an axis may be 1",
            remedy,
        )
    shapes.require_device("attn_mask", mask, q.device)
    return mask if mask.ndim == 4 else mask[None, None]

"""Parameters with one number, or one per head, and how ``repr`` shows them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.validation import LARGEST_NUMBER, require_numbers


class BoundedParameter(nn.Module):
    """A number of at least 0, or one per head: fixed (a buffer) or learnable (a parameter).

    A learnable one is the softplus of an unbounded parameter, so it stays above 0 after every optimizer step. Calling
    it returns a scalar tensor or ``[heads, 1]``, which broadcasts with distances ``[n]``. ``name``: the argument, for errors, such
    as ``"Epar.alpha"``.
    """

    fixed: Tensor

    def __init__(
        self,
        name: str,
        value: float | Sequence[float] | Tensor,
        *,
        heads: int | None,
        learnable: bool,
        zero_allowed: bool = True,
        largest: float = LARGEST_NUMBER,
    ) -> None:
        super().__init__()
        if zero_allowed and not learnable:
            values = require_numbers(name, value, heads, low=0, largest=largest)
        else:
            remedy = "pass a number inside that range" + (", or learnable=False" if zero_allowed else "")
            values = require_numbers(name, value, heads, above=0, largest=largest, remedy=remedy)
        initial = _tensor_per_head(values, heads)
        if learnable:
            self.raw: Tensor | None = nn.Parameter(
                initial + torch.log(-torch.expm1(-initial))
            )  # the inverse of softplus
        else:
            self.register_buffer("fixed", initial)
            self.raw = None

    def forward(self) -> Tensor:
        if self.raw is None:
            return self.fixed
        # softplus rounds to 0 for very negative numbers; the bound is strict
        return F.softplus(self.raw).clamp(min=torch.finfo(self.raw.dtype).tiny)


def make_unbounded(
    name: str, value: float | Sequence[float], heads: int | None, *, largest: float = LARGEST_NUMBER
) -> Tensor:
    """Finite numbers of any sign as a scalar tensor, or ``[heads, 1]``.

    >>> make_unbounded("value", -1.0, None), make_unbounded("value", 2.0, 2)
    (tensor(-1.), tensor([[2.],
            [2.]]))
    """
    return _tensor_per_head(require_numbers(name, value, heads, largest=largest), heads)


def _tensor_per_head(values: list[float], heads: int | None) -> Tensor:
    if heads is None:
        return torch.tensor(values[0])
    return torch.tensor(values * heads if len(values) == 1 else values).reshape(-1, 1)


def format_setting(value: object) -> str:
    """A value in ``repr``: small tensors in full, large ones by their shape.

    >>> format_setting(0.5), format_setting(torch.tensor([[0.5], [0.25]]))
    ('0.5', '[0.5, 0.25]')
    >>> format_setting(torch.ones(8)), format_setting(torch.randn(3, 64))
    ('[1] * 8', '<3 x 64>')
    """
    if not isinstance(value, Tensor):
        return f"{value:.6g}" if isinstance(value, float) else repr(value)
    if value.numel() == 1:
        return f"{value.item():.6g}"
    first = value.flatten()[0]
    if bool((value == first).all()):
        return f"[{first.item():.6g}] * {value.numel()}"
    if value.numel() <= 16:
        return "[" + ", ".join(f"{v:.6g}" for v in value.detach().flatten().tolist()) + "]"
    return "<" + " x ".join(str(n) for n in value.shape) + ">"

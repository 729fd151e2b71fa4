"""``HeadNetwork``: a network over the scores of all heads at one pair (``Position.head_network``).

    content_bias_ij = b_ij + last @ f(first @ [z_ij; b_ij] + first_bias) + last_bias        f: leaky ReLU

z are the scores of all heads and b a bias of distance. The part of the first layer that reads b is then a function of distance
too, so kernels read two tables of distances and apply the rest of the network to the scores alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.hook_outputs import require_per_head

if TYPE_CHECKING:
    from whence.position.base import Position


@dataclass(frozen=True)
class HeadNetwork:
    """The network of the formula. A part that is None is left out."""

    first: Tensor  # [hidden, H]; [hidden, 2 H] with a bias, the columns of the scores first
    last: Tensor  # [H, hidden]
    first_bias: Tensor | None = None  # [hidden]
    last_bias: Tensor | None = None  # [H]
    negative_slope: float = 0.0  # of the leaky ReLU
    bias: Position | None = None  # whose hook ``bias`` is b; without a length

    def tables(self, distance: Tensor) -> tuple[Tensor, Tensor]:
        """What distance adds to the hidden units ``[n, hidden]`` and to the logits ``[n, H]``, in the dtype of n distances.

        >>> import torch
        >>> from whence.position.alibi import Alibi
        >>> network = HeadNetwork(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(2, 1), bias=Alibi(2))
        >>> hidden, logits = network.tables(torch.tensor([0.0, 16.0]))
        >>> hidden.tolist(), logits[1].tolist()
        ([[0.0], [-1.0625]], [-1.0, -0.0625])
        """
        heads, dtype, n = self.last.shape[0], distance.dtype, distance.shape[0]
        hidden = torch.zeros(n, self.first.shape[0], dtype=dtype, device=distance.device)
        logits = torch.zeros(n, heads, dtype=dtype, device=distance.device)
        if self.bias is not None:
            values = require_per_head(type(self.bias).__name__, "bias", self.bias.bias(distance, None), heads, n)
            b = values.to(dtype).expand(heads, -1).T
            hidden, logits = b @ self.first[:, heads:].to(dtype).T, b
        hidden = hidden if self.first_bias is None else hidden + self.first_bias.to(dtype)
        return hidden, logits if self.last_bias is None else logits + self.last_bias.to(dtype)


def require_head_network(mechanism: str, network: object, heads: int | None = None) -> HeadNetwork:
    """The output of ``head_network`` for a number of query heads; None: for those that it has."""
    subject = f"{mechanism}.head_network"
    if not isinstance(network, HeadNetwork):
        rule, remedy = "it must return HeadNetwork", "return HeadNetwork(first, last), or None where it has none"
        raise usage_error(subject, f"an output of type {type(network).__name__}", rule, remedy)
    for name in ("first", "last", "first_bias", "last_bias"):
        x, optional = getattr(network, name), name.endswith("bias")
        if not (x is None and optional) and not (isinstance(x, Tensor) and x.is_floating_point()):
            got = f"{name} of type {type(x).__name__ if not isinstance(x, Tensor) else x.dtype}"
            rule = "it is a tensor of floating point numbers" + (", or None" if optional else "")
            raise usage_error(subject, got, rule, f"pass {name}=torch.tensor([...]) or a parameter")
    if not isinstance(network.negative_slope, int | float) or not math.isfinite(network.negative_slope):
        rule = "kernels read it as one finite number, which does not learn"
        remedy = "pass a Python float; where it learns, leave head_network out"
        raise usage_error(subject, f"negative_slope={network.negative_slope!r}", rule, remedy)
    if not hasattr(network.bias, "effects") and network.bias is not None:
        got = f"a bias of type {type(network.bias).__name__}"
        raise usage_error(subject, got, "it is a function of distance", "pass a Position whose only hook is bias")
    if network.first.ndim != 2 or network.last.ndim != 2:
        got = f"first of shape {list(network.first.shape)} and last of shape {list(network.last.shape)}"
        raise usage_error(subject, got, "they are [hidden, H] and [H, hidden]", "pass matrices, as torch.nn.Linear has")
    heads = network.last.shape[0] if heads is None else heads
    hidden = network.first.shape[0]
    inputs = heads if network.bias is None else 2 * heads
    shapes = {"first": (hidden, inputs), "last": (heads, hidden), "first_bias": (hidden,), "last_bias": (heads,)}
    for name, shape in shapes.items():
        got = getattr(network, name)
        if got is not None and got.shape != shape:
            rule = f"it has shape {list(shape)} for {heads} query heads and {hidden} hidden units"
            raise usage_error(subject, f"{name} of shape {list(got.shape)}", rule, f"build {mechanism} for these heads")
    if network.bias is not None and network.bias.effects != {"bias"}:
        got = f"a bias with {' and '.join(sorted(network.bias.effects)) or 'no effect'}"
        raise usage_error(subject, got, "it is a function of distance", "pass a Position whose only hook is bias")
    return network

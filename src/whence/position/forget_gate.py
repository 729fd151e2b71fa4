"""The forget gate of the Forgetting Transformer (Lin et al. 2025, arXiv 2503.02130), and data-dependent ALiBi.

    f_t = sigmoid(w . x_t + b)                     one gate for each token t and query head, from the layer input
    bias_ij = log f_{j+1} + ... + log f_i          the gates of the tokens after key j up to query i; 0 on the diagonal

In the terms of ``Position.clock``, the step of a token is ``log f_t``. Gates that are all ``exp(-m)`` give ALiBi with slope m.
The paper uses no rotation beside the gate.

Formula, initial values and the three forms are those of the authors' public code: weights of standard deviation 0.02 and
``b = 0`` for gates made from the input, ``b = -ln(expm1(1 / T))`` for gates that only have a bias, so that ``log f = -1 / T``,
with decay times T in geometric progression over the heads. The authors' other changes of the layer (norms of q and k, an
output gate, shifted keys and values) are not positional and are left out.

``DataDependentAlibi`` is the same formula as the public package ``x-transformers`` has it: b starts at 5 (``log f = -0.0067``),
and the logarithm may be multiplied by a constant. That code builds the bias from the tokens of the current call, so a
decoding step of one token has none there; here the steps are cached. Its second gate for keys after the query, and its gates
for each pair of query and token, are not here.

Use it in decoders where the text itself says when earlier tokens no longer matter, instead of a rotation. It needs the
layer input: ``whence.Attention`` and models pass it, and a call of ``attend`` passes ``clock=position.clock(x)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import usage_error
from whence.position.base import Position
from whence.shapes import describe_tensor
from whence.validation import require_choice, require_dim, require_number, require_table

FORMS = ("data", "bias", "fixed")
DECAY_TIMES = (2.0, 128.0)


class ForgetGate(Position):
    """A gate per token and head: a key's score falls by the log of every gate after it.

    Args:
        embed_dim: dimension of the layer input.
        heads: number of query heads.
        form: ``"data"`` for gates made from the layer input, ``"bias"`` for one learnable gate per head, ``"fixed"`` for one
            constant gate per head.
        decay_times: for ``"bias"`` and ``"fixed"``, the smallest and the largest decay time in tokens, 2 and 128 by default;
            the heads lie between them in geometric progression.

    >>> gate = ForgetGate(8, 2, form="fixed", decay_times=(2.0, 128.0))
    >>> gate.clock(torch.zeros(1, 1, 8))[0]  # -1 / T
    tensor([[-0.5000],
            [-0.0078]])
    """

    causal_only = True
    needs_heads = True

    def __init__(
        self, embed_dim: int, heads: int, *, form: str = "data", decay_times: tuple[float, float] | None = None
    ) -> None:
        super().__init__(heads=heads)
        name = type(self).__name__
        self.embed_dim = require_dim(name, "embed_dim", embed_dim)
        self.form = require_choice(name, "form", form, FORMS)
        self.weight: Tensor | None = None
        if form == "data":
            if decay_times is not None:
                raise usage_error(
                    f"{name}(decay_times=...)",
                    repr(decay_times),
                    'with form="data" gates come from the layer input',
                    'leave it out, or pass form="bias" or form="fixed"',
                )
            self.weight = nn.Parameter(torch.empty(require_table(name, heads, embed_dim)))
            nn.init.normal_(self.weight, std=0.02)
            self.b = nn.Parameter(torch.zeros(heads))
            return
        self.decay_times = DECAY_TIMES if decay_times is None else decay_times
        initial = -torch.log(torch.expm1(1 / _decay_times(name, self.decay_times, heads)))
        if form == "bias":
            self.b = nn.Parameter(initial)
        else:
            self.register_buffer("b", initial)

    def clock(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.embed_dim:
            raise usage_error(
                f"{type(self).__name__}.clock(x)",
                describe_tensor(x),
                f"x is the layer input [batch, length, {self.embed_dim}]",
                f"build it with embed_dim={x.shape[-1]}",
            )
        return F.logsigmoid(self.gate_logits(x)).transpose(1, 2)

    def gate_logits(self, x: Tensor) -> Tensor:
        """``w . x + b`` of every token and head ``[B, T, heads]``, in at least float32."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        b = self.b.to(dtype)
        if self.weight is None:
            return b.expand(x.shape[0], x.shape[1], -1)
        return F.linear(x.to(dtype), self.weight.to(dtype), b)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "embed_dim", self.embed_dim
        yield "form", self.form
        if self.weight is None:
            yield "b", self.b[:, None]


class DataDependentAlibi(ForgetGate):
    """``ForgetGate`` with the initial values of x-transformers: gates near 1, so that training starts near no decay.

    Args:
        embed_dim: dimension of the layer input.
        heads: number of query heads.
        b: initial bias of the gates.
        log_scale: a constant that multiplies ``log f``.

    >>> steps = DataDependentAlibi(8, 1).clock(torch.zeros(1, 1, 8))
    >>> round(steps.item(), 5)
    -0.00672
    """

    def __init__(self, embed_dim: int, heads: int, *, b: float = 5.0, log_scale: float = 1.0) -> None:
        super().__init__(embed_dim, heads)
        name = type(self).__name__
        initial = require_number(name, "b", b)
        self.log_scale = require_number(name, "log_scale", log_scale, low=0)
        assert self.weight is not None
        bound = embed_dim**-0.5  # as torch initializes a linear layer
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.constant_(self.b, initial)

    def clock(self, x: Tensor) -> Tensor:
        return self.log_scale * super().clock(x)

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "embed_dim", self.embed_dim
        yield "log_scale", self.log_scale


def _decay_times(name: str, ends: tuple[float, float], heads: int) -> Tensor:
    """Decay times in geometric progression over the heads, ``[heads]``."""
    if not isinstance(ends, tuple | list) or len(ends) != 2:
        rule = "decay_times are the smallest and the largest decay time"
        raise usage_error(f"{name}(decay_times=...)", repr(ends), rule, "pass (2.0, 128.0), for example")
    for end in ends:
        require_number(name, "decay_times", end, above=0, remedy="pass numbers of tokens, such as (2.0, 128.0)")
    return torch.linspace(math.log(ends[0]), math.log(ends[1]), heads).exp()

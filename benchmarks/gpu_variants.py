"""The variants that ``gpu.py`` compares.

Each is a function of q, k and v, with its learnable parameters and the Position whose float64 reference it must match.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import whence
from gpu_timing import DEVICE

KERNEL = "triton" if DEVICE == "cuda" else "reference"  # a dry run has no GPU


class Slope(whence.Position):
    """ALiBi with the slope itself as the parameter, as in the dense torch and FlexAttention variants."""

    decays = True

    def __init__(self, slope: Tensor) -> None:
        super().__init__(heads=slope.shape[0])
        self.slope = torch.nn.Parameter(slope)

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        return -self.slope[:, None] * distance


class Bump(whence.Position):
    """A user-defined score scale without supplied derivatives: a learnable bump around a learnable distance."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads=heads)
        self.centre = torch.nn.Parameter(torch.linspace(16, 512, heads)[:, None])
        self.height = torch.nn.Parameter(torch.full((heads, 1), 0.5))

    def score_scale(self, distance: Tensor, length: Any) -> Tensor:
        return 1 + self.height * torch.exp(-(((distance - self.centre) / 128) ** 2))


class BumpAndSlope(Bump):
    """Score scale and bias, both learnable and without supplied derivatives."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.depth = torch.nn.Parameter(torch.linspace(0.1, 1.0, heads)[:, None])

    def bias(self, distance: Tensor, length: Any) -> Tensor:
        return -self.depth * torch.log1p(distance.abs())


class TokenGates(whence.Position):
    """A forget gate whose logit at each token is a parameter, so that the time of making gates from an input is left out."""

    def __init__(self, heads: int, length: int) -> None:
        super().__init__(heads=heads)
        self.logits = torch.nn.Parameter(4 + torch.randn(heads, length))

    def clock(self, x: Tensor) -> Tensor:
        return F.logsigmoid(self.logits[:, : x.shape[1]]).expand(x.shape[0], -1, -1)


def make_epar(heads: int, length: int, by: str = "context") -> whence.Position:
    context = length if by == "context" else None
    return whence.Epar(heads, learnable=True, length=by, context=context, beta=4.0)


def make_fire(heads: int) -> whence.Position:
    return whence.Fire(heads, threshold=64.0)  # below the number of tokens that are compared with float64


def freeze(position: whence.Position) -> whence.Position:
    return position.requires_grad_(False)


POSITIONS: dict[str, Callable[[int, int, int], whence.Position | None]] = {
    "none": lambda heads, length, head_dim: None,
    "alibi": lambda heads, length, head_dim: whence.Alibi(heads, learnable=True),
    "alibi, skipping": lambda heads, length, head_dim: whence.Alibi(heads, learnable=True),
    "epar": lambda heads, length, head_dim: make_epar(heads, length),
    "power prior": lambda heads, length, head_dim: whence.PowerPrior(heads, alpha=0.01, beta=0.6),
    "function": lambda heads, length, head_dim: Bump(heads),
    "t5": lambda heads, length, head_dim: whence.T5Bias(heads, std=0.5),
    "clock": lambda heads, length, head_dim: TokenGates(heads, length),
    "rotary + alibi": lambda heads, length, head_dim: whence.Rotary() + whence.Alibi(heads, learnable=True),
    "rotary + epar": lambda heads, length, head_dim: whence.Rotary() + make_epar(heads, length),
    "rotary + power prior": lambda heads, length, head_dim: (
        whence.Rotary() + whence.PowerPrior(heads, alpha=0.01, beta=0.6)
    ),
    "scale and bias": lambda heads, length, head_dim: BumpAndSlope(heads),
    "fire": lambda heads, length, head_dim: make_fire(heads),
    "fire, frozen": lambda heads, length, head_dim: freeze(make_fire(heads)),
    "epar, query": lambda heads, length, head_dim: make_epar(heads, length, by="query"),
    "epar, query, frozen": lambda heads, length, head_dim: freeze(make_epar(heads, length, by="query")),
    "shaw": lambda heads, length, head_dim: whence.Shaw(head_dim),
    "shaw, keys": lambda heads, length, head_dim: whence.Shaw(head_dim, acts_on="keys"),
    "query table": lambda heads, length, head_dim: whence.QueryTable(heads, head_dim),
    "swin": lambda heads, length, head_dim: whence.SwinBias(heads, (max(1, length // 64), 64)),
    "cope": lambda heads, length, head_dim: whence.Cope(head_dim),
    "transformer-xl": lambda heads, length, head_dim: whence.TransformerXL(heads, head_dim),
    "grape": lambda heads, length, head_dim: whence.GrapeA(heads, head_dim),
    "dape": lambda heads, length, head_dim: whence.Dape(heads),
}
#: ending of variants with the warp-specialised forward kernel (``gluon_launch``)
GLUON = ", gluon"
#: variants of mechanisms that the fused kernels may refuse: ``auto`` chooses their backend
AUTO = (
    "fire",
    "fire, frozen",
    "epar, query",
    "epar, query, frozen",
    "shaw",
    "shaw, keys",
    "query table",
    "swin",
    "cope",
    "transformer-xl",
    "grape",
    "dape",
)
#: the variants of the table in the documentation
LABELS = {
    "flash": "SDPA flash, no position",
    "cudnn": "SDPA cuDNN, no position",
    "none": "whence, no position",
    "alibi": "ALiBi, learnable slopes",
    "alibi, skipping": "ALiBi, learnable slopes, provable skipping",
    "epar": "EPAR, three learnable parameters per head",
    "power prior": "power prior, two learnable parameters per head",
    "function": "a user's own function, dense table gradients",
    "t5": "T5 buckets",
    "flex, fixed": "FlexAttention compiled, ALiBi fixed",
    "flex, learnable": "FlexAttention compiled, ALiBi learnable slopes",
    "eager": "plain torch, dense, ALiBi learnable slopes",
}
#: of the rows of ``gpu_rows.py``
ROW_LABELS = {
    **LABELS,
    "rotary + alibi": "rotary + ALiBi, learnable slopes",
    "rotary + epar": "rotary + EPAR, learnable",
    "rotary + power prior": "rotary + power prior, learnable",
    "clock": "clock: a learnable gate of each token and head",
    "scale and bias": "scale and bias of a user, dense table gradients",
    "fire": "FIRE, learnable",
    "fire, frozen": "FIRE, frozen",
    "epar, query": 'EPAR, length="query", learnable',
    "epar, query, frozen": 'EPAR, length="query", frozen',
    "shaw": "Shaw's relative keys and values",
    "shaw, keys": "Shaw's relative keys",
    "query table": "A table of 1024 distances per query",
    "swin": "Swin's table on a grid of 64 columns",
    "cope": "CoPE",
    "transformer-xl": "Transformer-XL",
    "grape": "GRAPE-A",
    "dape": "DAPE with KERPLE",
}
ROW_LABELS |= {
    name + GLUON: f"{ROW_LABELS[name]}, Gluon" for name in ("none", "epar", "power prior", "function", "scale and bias")
}


def random_inputs(shape: tuple[int, ...], length: int) -> tuple[list[Tensor], Tensor]:
    batch, heads, kv_heads, _, head_dim = shape
    inputs = [
        torch.randn(batch, h, length, head_dim, device=DEVICE).bfloat16().requires_grad_(True)
        for h in (heads, kv_heads, kv_heads)
    ]
    return inputs, torch.randn(batch, heads, length, head_dim, device=DEVICE).bfloat16()


def dense_attention(q: Tensor, k: Tensor, v: Tensor, slope: Tensor) -> Tensor:
    """Dense attention in plain torch."""
    group_size = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group_size, 1) for x in (k, v))
    index = torch.arange(q.shape[2], device=q.device)
    distance = index[:, None] - index[None, :]
    scores = (q @ k.mT) * q.shape[3] ** -0.5 - (slope[:, None, None] * distance).to(q.dtype)
    return torch.softmax(scores.masked_fill(distance < 0, -torch.inf), -1) @ v


def flex_variant(slope: Tensor, length: int) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()  # a fresh compiler per variant: it stops recompiling after a few
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=DEVICE)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return s - slope[h] * (i - j)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled(q, k, v, score_mod=score, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

    return run


def attend(position: whence.Position | None, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Causal attention, with the steps of a clock where the position has one."""
    if position is not None and "clock" in position.effects:
        options["clock"] = position.clock(k[:, 0])  # its number of tokens is what counts
    return whence.attend(q, k, v, position=position, causal=True, **options)


def with_gluon(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function with the warp-specialised forward kernel on; other variants keep the default."""
    if DEVICE == "cpu":  # a dry run may lack Triton
        return run
    from whence.attention.fused import gluon_launch

    def run_switched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before, gluon_launch.ENABLED = gluon_launch.ENABLED, True
        try:
            return run(q, k, v)
        finally:
            gluon_launch.ENABLED = before

    return run_switched


def learnable_parameters(position: whence.Position) -> list[Tensor]:
    return [parameter for parameter in position.parameters() if parameter.requires_grad]


def choose_backend(name: str, shape: tuple[int, ...], position: whence.Position | None) -> str:
    """The kernels; for a mechanism that they may refuse, what ``auto`` takes at this shape, gradients included."""
    if name not in AUTO or DEVICE == "cpu":
        return KERNEL
    batch, heads, kv_heads, length, head_dim = shape
    q, k = (
        torch.empty(batch, h, length, head_dim, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        for h in (heads, kv_heads)
    )
    return whence.explain(q, k, k, position=position, causal=True).backend


def make_variant(name: str, shape: tuple[int, ...], tokens: int) -> tuple[Callable[..., Tensor], list[Tensor], Any]:
    """A function of q, k and v, its learnable parameters, and the Position whose float64 reference it must match."""
    heads, kv_heads, length = shape[1], shape[2], shape[3]
    if name in ("flash", "cudnn"):
        kernel = SDPBackend.FLASH_ATTENTION if name == "flash" else SDPBackend.CUDNN_ATTENTION

        def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(kernel):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)

        return sdpa, [], None
    if name in ("flex, fixed", "flex, learnable", "eager"):
        slope = whence.Alibi(heads).to(DEVICE).slope()[:, 0].clone().requires_grad_(name != "flex, fixed")
        parameters = [slope] if name != "flex, fixed" else []
        return (
            (lambda q, k, v: dense_attention(q, k, v, slope)) if name == "eager" else flex_variant(slope, tokens), parameters,
            Slope(slope.detach().clone()),
        )  # fmt: skip
    gluon, name = name.endswith(GLUON), name.removesuffix(GLUON)
    mechanism = POSITIONS[name](heads, length, shape[4])
    if gluon and mechanism is None:
        mechanism = whence.NoPosition()  # with plans of its own: those of calls without a position know no switch
    position = None if mechanism is None else mechanism.to(DEVICE)
    parameters = [] if position is None else learnable_parameters(position)
    skip, backend = name.endswith("skipping"), choose_backend(name, shape, position)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(position, q, k, v, backend=backend, skip_blocks=skip)

    return with_gluon(run) if gluon else run, parameters, position

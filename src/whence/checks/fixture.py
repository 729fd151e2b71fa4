"""What checks share: a layer with a copy of the mechanism, fixed inputs, and comparisons with a tolerance."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor

from whence.attention import Attention, KVCache
from whence.errors import WhenceError
from whence.hook_outputs import call_on_tensors
from whence.position.base import Position
from whence.position.hook_types import Rows

TOKENS = 9
TOLERANCE = 1e-9
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class SkipCheck(Exception):
    """The check does not apply; the message is the reason."""


class Failure(AssertionError):
    """A check failed. ``hook`` and ``remedy`` replace the check's own where they are more precise.

    ``stop``: the mechanism does not run at all, so further checks would only repeat the error.
    """

    def __init__(self, message: str, *, hook: str | None = None, remedy: str | None = None, stop: bool = False) -> None:
        super().__init__(message)
        self.hook, self.remedy, self.stop = hook, remedy, stop


class Fixture:
    """A float64 layer with a copy of the mechanism, and fixed inputs."""

    def __init__(self, position: Position) -> None:
        self.position = copy.deepcopy(position).double().requires_grad_(True)
        for p, original in zip(self.position.parameters(), position.parameters(), strict=True):
            p.requires_grad_(original.requires_grad)
            if p.requires_grad and not bool(p.any()):  # a parameter of 0 hides what it multiplies
                torch.nn.init.normal_(p, std=0.1)
        self.heads = _infer_heads(self.position)
        self.head_dim = next((w for part in position.parts if (w := getattr(part, "head_dim", None)) is not None), 8)
        self.value_dim = next(
            (w for part in position.parts if (w := getattr(part, "value_dim", None)) is not None), self.head_dim
        )
        on_input = [part for part in position.parts if part.reads_input or part.effects & {"embed", "clock"}]
        self.embed_dim = next((int(w) for part in on_input if (w := getattr(part, "embed_dim", None)) is not None), 12)
        self.layer = self.new_layer()
        self.x = torch.randn(2, TOKENS, self.embed_dim, dtype=torch.float64)

    def new_layer(self, num_kv_heads: int | None = None) -> Attention:
        return Attention(
            self.embed_dim,
            self.heads,
            self.position,
            num_kv_heads=num_kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            causal=True,
            backend="reference",
        ).double()

    @property
    def hooks(self) -> str:
        """The names of the overridden hooks, for error texts."""
        names = [f"{type(part).__name__}.{hook}" for part in self.position.parts for hook in sorted(part.effects)]
        return " and ".join(names) or type(self.position).__name__

    def run(self, x: Tensor, **arguments: object) -> Tensor:
        out = self.layer(x, **arguments)
        assert isinstance(out, Tensor)
        return out

    def decode(self, x: Tensor, cache: KVCache, chunks: list[int]) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.run(part, cache=cache) for part in x.split(chunks, 1)], 1)

    def require_cache_support(self) -> None:
        if any(part.length == "sequence" for part in self.position.parts):
            raise SkipCheck("length='sequence' cannot be used with a cache, because it changes with every token")

    @property
    def single_sequence_only(self) -> bool:
        return any(part.length == "sequence" and "rotate" in part.effects for part in self.position.parts)

    def require_padding_support(self) -> None:
        if self.single_sequence_only:
            raise SkipCheck("a rotation by the length of the sequence supports neither padding nor packing")

    def arguments(
        self, hook: str, positions: Tensor, dtype: torch.dtype, num_kv_heads: int | None = None
    ) -> dict[str, Any]:
        """Fixed arguments of embed, rotate, content_bias, value_bias or clock at positions ``[B or 1, T]``."""
        generator = torch.Generator().manual_seed(0)
        batch, rows = 2, positions.shape[1]

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        if hook == "embed":
            return {"x": normal(batch, rows, self.embed_dim), "positions": positions.clone()}
        if hook == "clock":
            return {"x": normal(batch, rows, self.embed_dim)}
        q = normal(batch, self.heads, rows, self.head_dim)
        k = normal(batch, num_kv_heads or self.heads, rows, self.head_dim)
        if hook == "rotate":
            return {"q": q, "k": k, "q_positions": positions.clone(), "k_positions": positions.clone()}
        scale = self.head_dim**-0.5
        scores = scale * (q @ k.mT)
        visible = (positions[:, :, None] >= positions[:, None, :])[:, None]
        values = normal(batch, self.heads, rows, self.value_dim)
        q_input = normal(batch, rows, self.embed_dim) if self.position.reads_input else None
        rows_argument = Rows(q, k, scores, positions.clone(), positions.clone(), visible, scale, q, k, values, q_input)
        if hook == "content_bias":
            return {"rows": rows_argument}
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
        return {"weights": weights, "rows": rows_argument}


def hook_length(part: Position, places: Tensor) -> Any:
    """The length that hooks of a part receive at these distances or positions."""
    by_name = {None: None, "context": part.context, "query": places.clamp(min=0) + 1, "sequence": len(places)}
    return by_name[part.length]


def call_hook(part: Position, hook: str, **arguments: Any) -> Any:
    """Call a hook with positional arguments, as ``attend`` does. An exception becomes a Failure that names the hook."""
    name = hook_name(part, hook)
    try:
        return call_on_tensors(name, getattr(part, hook), *arguments.values())
    except WhenceError:  # it names the hook and a remedy
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise Failure(
            f"it raised {type(error).__name__}: {text}",
            hook=name,
            remedy=_missing_size(part) or f"make {hook}({', '.join(arguments)}) run",
            stop=True,
        ) from error


def _missing_size(part: Position) -> str | None:
    """A remedy, if the constructor takes a size that the instance does not store: tensors are built without knowing it."""
    taken = inspect.signature(type(part).__init__).parameters
    missing = [name for name in ("head_dim", "value_dim", "embed_dim") if name in taken and not hasattr(part, name)]
    return (
        f"write self.{missing[0]} = {missing[0]} in __init__: whence.check builds tensors of this size"
        if missing
        else None
    )


def hook_name(part: Position, hook: str) -> str:
    return f"{type(part).__name__}.{hook}"


def _infer_heads(position: Position) -> int:
    """The number of heads: declared, or inferred from the outputs of hooks."""
    if position.heads is not None:
        return position.heads
    kv_heads = [n for part in position.parts if (n := getattr(part, "num_kv_heads", None)) is not None]
    if kv_heads:
        return 2 * max(kv_heads)  # so that half as many key heads suit it too
    probe = torch.arange(3, dtype=torch.float64)
    for part in position.parts:
        for hook in ("score_scale", "bias", "sink"):
            out = call_hook(part, hook, distance=probe, length=hook_length(part, probe))
            if isinstance(out, Tensor) and out.ndim == 2:
                return out.shape[0]
        if "clock" in part.effects:
            x = torch.zeros(1, 3, getattr(part, "embed_dim", 12), dtype=torch.float64)
            out = call_hook(part, "clock", x=x)
            if isinstance(out, Tensor) and out.ndim == 3:
                return out.shape[1]
    return 2


def assert_close(what: str, a: Tensor, b: Tensor, tolerance: float = TOLERANCE, hook: str | None = None) -> None:
    """Raise Failure unless a and b agree within the tolerance, relative to the largest entry of b."""
    if a.shape != b.shape:
        raise Failure(f"{what}: shapes {tuple(a.shape)} and {tuple(b.shape)}", hook=hook)
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise Failure(f"{what}: a result is not finite", hook=hook)
    difference = float((a.double() - b.double()).detach().abs().max())
    limit = tolerance * (1 + float(b.detach().abs().max()))
    if difference > limit:
        raise Failure(f"{what} differ by {difference:.2g}, allowed {limit:.2g}", hook=hook)

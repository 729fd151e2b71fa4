"""What every check stands on: a layer around a copy of the mechanism, fixed inputs, and what counts as close."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from whence.attention import Attention, KVCache
from whence.position.base import Position, Rows

TOKENS = 9
TOLERANCE = 1e-9
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Skip(Exception):
    """A check that does not apply, and why."""


class Wrong(AssertionError):
    """What a check found; the hook and the remedy, where they are known better than the check's own.

    ``unusable``: the mechanism does not run at all, so further checks would only repeat it.
    """

    def __init__(
        self, found: str, *, hook: str | None = None, remedy: str | None = None, unusable: bool = False
    ) -> None:
        super().__init__(found)
        self.hook, self.remedy, self.unusable = hook, remedy, unusable


class Bench:
    """A float64 layer around a copy of the mechanism, and fixed inputs."""

    def __init__(self, position: Position) -> None:
        self.position = copy.deepcopy(position).double().requires_grad_(True)
        for p, original in zip(self.position.parameters(), position.parameters(), strict=True):
            p.requires_grad_(original.requires_grad)
            if p.requires_grad and not bool(p.any()):  # at zero a parameter hides what it multiplies
                torch.nn.init.normal_(p, std=0.1)
        self.heads = _heads(self.position)
        self.head_dim = next((w for part in position.parts if (w := getattr(part, "head_dim", None)) is not None), 8)
        self.value_dim = next(
            (w for part in position.parts if (w := getattr(part, "value_dim", None)) is not None), self.head_dim
        )
        self.embed_dim = next(
            (int(w) for part in position.at_input() if (w := getattr(part, "embed_dim", None)) is not None), 12
        )
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
            backend="reference",
        ).double()

    @property
    def hooks(self) -> str:
        """The hooks that the mechanism overrides, by name."""
        names = [f"{type(part).__name__}.{hook}" for part in self.position.parts for hook in sorted(part.effects)]
        return " and ".join(names) or type(self.position).__name__

    def run(self, x: Tensor, **arguments: object) -> Tensor:
        out = self.layer(x, **arguments)
        assert isinstance(out, Tensor)
        return out

    def decode(self, x: Tensor, cache: KVCache, chunks: list[int]) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.run(part, cache=cache) for part in x.split(chunks, 1)], 1)

    def require_cache(self) -> None:
        if any(part.length == "sequence" for part in self.position.parts):
            raise Skip("length='sequence' changes with every token, so it is refused with a cache")

    @property
    def one_text_only(self) -> bool:
        return any(part.length == "sequence" and "rotate" in part.effects for part in self.position.parts)

    def require_one_text(self) -> None:
        if self.one_text_only:
            raise Skip("a rotation by the length of the sequence is refused with padding or several texts in a row")

    def arguments(
        self, hook: str, positions: Tensor, dtype: torch.dtype, num_kv_heads: int | None = None
    ) -> dict[str, Any]:
        """Fixed arguments for embed, rotate, content or values of tokens at positions ``[B or 1, T]``."""
        generator = torch.Generator().manual_seed(0)
        batch, rows = 2, positions.shape[1]

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        if hook == "embed":
            return {"x": normal(batch, rows, self.embed_dim), "positions": positions.clone()}
        q = normal(batch, self.heads, rows, self.head_dim)
        k = normal(batch, num_kv_heads or self.heads, rows, self.head_dim)
        if hook == "rotate":
            return {"q": q, "k": k, "q_positions": positions.clone(), "k_positions": positions.clone()}
        scale = self.head_dim**-0.5
        scores = scale * (q @ k.mT)
        visible = (positions[:, :, None] >= positions[:, None, :])[:, None]
        about = Rows(q, k, scores, positions.clone(), positions.clone(), visible, scale)
        if hook == "content_bias":
            return {"rows": about}
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
        return {"weights": weights, "rows": about}


def length_for(part: Position, places: Tensor) -> Any:
    """What a part's distance hooks receive as length at such places."""
    by_name = {None: None, "context": part.context, "query": places.clamp(min=0) + 1, "sequence": len(places)}
    return by_name[part.length]


def call(part: Position, hook: str, **arguments: Any) -> Any:
    """The answer of a hook to arguments in the order of the interface, as ``attend`` passes them; whatever it raises
    names the hook."""
    try:
        return getattr(part, hook)(*arguments.values())
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise Wrong(
            f"it raised {type(error).__name__}: {text}",
            hook=named(part, hook),
            remedy=f"make {hook}({', '.join(arguments)}) run",
            unusable=True,
        ) from error


def named(part: Position, hook: str) -> str:
    return f"{type(part).__name__}.{hook}"


def _heads(position: Position) -> int:
    """The number of heads a mechanism answers for: declared, or seen in its answers."""
    if position.heads is not None:
        return position.heads
    probe = torch.arange(3, dtype=torch.float64)
    for part in position.parts:
        for hook in ("score_scale", "bias", "sink"):
            out = call(part, hook, distance=probe, length=length_for(part, probe))
            if isinstance(out, Tensor) and out.ndim == 2:
                return out.shape[0]
    return 2


def close(what: str, a: Tensor, b: Tensor, tolerance: float = TOLERANCE, hook: str | None = None) -> None:
    """Fail with the size of the difference unless a and b agree to the tolerance, relative to the larger."""
    if a.shape != b.shape:
        raise Wrong(f"{what}: shapes {tuple(a.shape)} and {tuple(b.shape)}", hook=hook)
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise Wrong(f"{what}: a result is not finite", hook=hook)
    difference = float((a.double() - b.double()).detach().abs().max())
    limit = tolerance * (1 + float(b.detach().abs().max()))
    if difference > limit:
        raise Wrong(f"{what} differ by {difference:.2g}, allowed {limit:.2g}", hook=hook)

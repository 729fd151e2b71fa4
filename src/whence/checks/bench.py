"""What every check stands on: a layer around a copy of the mechanism, fixed inputs, and what counts as close."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from whence.attention import Attention, KVCache
from whence.position.base import Position

TOKENS = 9
TOLERANCE = 1e-9


class Skip(Exception):
    """A check that does not apply, and why."""


class Bench:
    """A float64 layer around a copy of the mechanism, and fixed inputs."""

    def __init__(self, position: Position) -> None:
        self.position = copy.deepcopy(position).double().requires_grad_(True)
        for p, original in zip(self.position.parameters(), position.parameters(), strict=True):
            p.requires_grad_(original.requires_grad)
        self.heads = _heads(self.position)
        head_width = next((w for part in position.parts if (w := getattr(part, "head_width", None)) is not None), 8)
        value_width = next(
            (w for part in position.parts if (w := getattr(part, "value_width", None)) is not None), head_width
        )
        self.width = next(
            (int(w) for part in position.at_input() if (w := getattr(part, "width", None)) is not None), 12
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layer = Attention(
                self.width,
                self.heads,
                self.position,
                head_width=head_width,
                value_width=value_width,
                backend="reference",
            ).double()
            self.x = torch.randn(2, TOKENS, self.width, dtype=torch.float64)

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

    def require_one_text(self) -> None:
        if any(part.length == "sequence" and "rotate" in part.effects for part in self.position.parts):
            raise Skip("a rotation by the length of the sequence is refused with padding or several texts in a row")


def _heads(position: Position) -> int:
    """The number of heads a mechanism answers for: declared, or seen in its answers."""
    if position.heads is not None:
        return position.heads
    probe = torch.arange(3, dtype=torch.float64)
    for part in position.parts:
        length = {None: None, "context": part.context, "query": probe + 1, "sequence": 3}[part.length]
        for hook in ("factor", "bias", "sink"):
            out = getattr(part, hook)(probe, length)
            if isinstance(out, Tensor) and out.ndim == 2:
                return out.shape[0]
    return 2


def close(what: str, a: Tensor, b: Tensor, tolerance: float = TOLERANCE) -> None:
    """Fail with the size of the difference unless a and b agree to the tolerance, relative to the larger."""
    if a.shape != b.shape:
        raise AssertionError(f"{what}: shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        raise AssertionError(f"{what}: a result is not finite")
    difference = float((a - b).detach().abs().max())
    limit = tolerance * (1 + float(b.detach().abs().max()))
    if difference > limit:
        raise AssertionError(f"{what}: they differ by {difference:.2g}, allowed {limit:.2g}")

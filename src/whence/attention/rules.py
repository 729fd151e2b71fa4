"""What a mechanism and the numbers of a call must satisfy before any work is done."""

from __future__ import annotations

import sys

from torch import Tensor

from whence import shapes
from whence.attention.cache import KVCache
from whence.attention.support import SUPPORT
from whence.errors import usage_error
from whence.position.base import Position, require_built
from whence.validation import require_choice, require_flag, require_integer, require_number


def require_position(position: Position, q: Tensor, *, causal: bool, cached: bool, several_texts: bool) -> None:
    """Refuse a mechanism that was built for something else than this call."""
    if not isinstance(position, Position):
        raise usage_error(
            "attend(position=...)", type(position).__name__, "position is a whence.Position", "subclass whence.Position"
        )
    require_built(position)
    for part in position.parts:
        name = type(part).__name__
        if part.heads is not None and part.heads != q.shape[1]:
            raise usage_error(
                f"attend(position={name})",
                f"{part.heads} heads with {q.shape[1]} in q",
                "a mechanism has the heads of the queries",
                f"build it with heads={q.shape[1]}",
            )
        width = getattr(part, "head_dim", None)
        if width is not None and width != q.shape[3]:
            raise usage_error(
                f"attend(position={name})",
                f"head_dim {width} with {q.shape[3]} in q",
                "a mechanism has the width of the queries",
                f"build it with head_dim={q.shape[3]}",
            )
        if part.causal_only and not causal:
            raise usage_error(
                f"attend(position={name})",
                "causal=False, which brings negative distances",
                f"{name} is defined for keys at or before the query",
                "pass causal=True, or use its symmetric form if it has one",
            )
        if "embed" in part.effects:
            raise usage_error(
                f"attend(position={name})",
                "a mechanism that acts on embeddings",
                "attend sees queries and keys only",
                "call position.embed(x, positions) on the input, or let whence.Attention do it",
            )
        if part.length == "sequence" and cached:
            raise usage_error(
                f"attend(position={name}, cache=...)",
                "length='sequence'",
                "a length that grows with each token changes every earlier weight, so a cached model is not the trained one",
                "use length='context', or length='query' where there is one",
            )
        if part.length == "sequence" and several_texts and "rotate" in part.effects:
            raise usage_error(
                f"attend(position={name})",
                "length='sequence' with padding or documents",
                "one rotation serves the whole row, and its texts differ in length",
                "use length='context', or attend to one text at a time",
            )
        for tensor in (*part.parameters(), *part.buffers()):
            if tensor.device != q.device:
                raise usage_error(
                    f"attend(position={name})",
                    f"parameters on {tensor.device} with q on {q.device}",
                    "all tensors share one device",
                    "move it with position.to(q.device)",
                )


def positions_below(position: Position) -> int:
    """The bound of positions that are given: mechanisms that compute with a position itself do so in float32, the
    others take differences, which are exact far beyond."""
    absolute = position.effects & {"embed", "rotate", "content_bias", "value_bias", "sink"}
    if absolute or any(part.length is not None for part in position.parts):
        return shapes.EXACT_IN_FLOAT32
    return shapes.EXACT_IN_FLOAT64


def require_cache(owner: str, cache: KVCache | None) -> None:
    if cache is not None and not isinstance(cache, KVCache):
        raise usage_error(
            f"{owner}(cache=...)", type(cache).__name__, "cache is a whence.KVCache", "build one for each layer"
        )


def require_settings(
    owner: str,
    *,
    causal: bool,
    window: int | None,
    scale: float | None,
    temperature: float,
    dropout: float,
    backend: str,
    skip_blocks: bool,
) -> None:
    """Refuse flags, numbers and names that no call could run with; ``owner`` is ``attend`` or a module's name."""
    require_choice(owner, "backend", backend, ("auto", *SUPPORT))
    require_flag(owner, "causal", causal)
    require_flag(owner, "skip_blocks", skip_blocks)
    if window is not None:
        require_integer(owner, "window", window, high=sys.maxsize, remedy="leave it out to see every key")
    if scale is not None:
        require_number(owner, "scale", scale, remedy="leave it out for width ** -0.5")
    require_number(owner, "temperature", temperature, above=0, remedy="leave it out for 1")
    require_number(owner, "dropout", dropout, low=0, below=1, remedy="leave it out for no dropout")

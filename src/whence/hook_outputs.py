"""What the hooks of a mechanism answer, held to the shape that is asked of them."""

from __future__ import annotations

import torch
from torch import Tensor

from whence import shapes
from whence.errors import usage_error


def per_head(mechanism: str, hook: str, out: Tensor | None, heads: int, n: int) -> Tensor:
    """What a factor, bias or sink hook answered, as ``[heads or 1, n]``."""
    if isinstance(out, Tensor) and shapes.has_shape(out, (n,), (heads, n)):
        return out if out.ndim == 2 else out[None]
    place = "position" if hook == "sink" else "distance"
    mend = f"return one number for each {place}, or a row of them for each head"
    if isinstance(out, Tensor) and out.ndim == 2 and out.shape[1] == n:
        mend = f"build it with heads={heads}, or give a parameter the shape [heads, 1]"
    raise usage_error(
        f"{mechanism}.{hook}",
        answer(out),
        f"for {shapes.many(n, place)} and {shapes.many(heads, 'query head')} it is [{n}] or [{heads}, {n}]",
        mend,
    )


def like(mechanism: str, hook: str, out: Tensor | None, wanted: tuple[int, ...]) -> Tensor:
    """What a content, values, embed or rotate hook answered, of exactly the wanted shape."""
    if isinstance(out, Tensor) and tuple(out.shape) == wanted:
        return out
    rule = f"it has the shape {list(wanted)}"
    raise usage_error(f"{mechanism}.{hook}", answer(out), rule, "return one number for each place")


def changed(mechanism: str, hook: str, out: Tensor | None, given: Tensor, name: str) -> Tensor:
    """What an embed or rotate hook answered, with the shape and dtype of the tensor it was given.

    Under autocast a hook may answer in autocast's dtype; that is converted back.
    """
    out = like(mechanism, hook, out, tuple(given.shape))
    if out.dtype == given.dtype:
        return out
    if torch.is_autocast_enabled(given.device.type):
        return out.to(given.dtype)
    raise usage_error(
        f"{mechanism}.{hook}",
        f"an answer of dtype {out.dtype}",
        f"it has the dtype of {name}, {given.dtype}",
        f"return the answer with .to({name}.dtype)",
    )


def answer(out: object) -> str:
    return (
        f"an answer of shape {shapes.shape(out)}"
        if isinstance(out, Tensor)
        else f"an answer of type {type(out).__name__}"
    )


def turned(mechanism: str, out: object, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """What a rotate hook answered: a pair like q and k."""
    if not isinstance(out, tuple) or len(out) != 2:
        raise usage_error(f"{mechanism}.rotate", answer(out), "it is a pair, q and k", "return both, turned or not")
    return changed(mechanism, "rotate", out[0], q, "q"), changed(mechanism, "rotate", out[1], k, "k")

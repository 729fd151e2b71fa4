"""Refuse arguments of ``attend`` that no call could run with, before any work."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

from whence import shapes
from whence.attention.arguments import Arguments
from whence.attention.cache import KVCache
from whence.errors import CausalOnly, usage_error
from whence.position.base import Position, require_position
from whence.validation import require_flag, require_integer, require_number


def validate_arguments(arguments: Arguments) -> None:
    """Refuse flags, numbers, tensors and mechanisms that no call could run with."""
    require_settings("attend", arguments)
    require_flag("attend", "return_weights", arguments.return_weights)
    require_flag("attend", "check_finite", arguments.check_finite)
    shapes.require_qkv(arguments.q, arguments.k, arguments.v)
    if arguments.check_finite:
        shapes.require_finite(arguments.q, arguments.k, arguments.v)
    require_cache("attend", arguments.cache)
    if arguments.position is not None:
        require_applicable(arguments.position, arguments)
    if arguments.clock is not None or (arguments.position is not None and "clock" in arguments.position.effects):
        require_clock(arguments)
    if arguments.q_input is not None or (arguments.position is not None and arguments.position.reads_input):
        require_q_input(arguments)


def require_settings(owner: str, settings: Any) -> None:
    """Refuse flags and numbers outside their range. ``settings`` is an ``Arguments`` or an ``Attention`` layer."""
    require_flag(owner, "causal", settings.causal)
    require_flag(owner, "skip_blocks", settings.skip_blocks)
    if settings.window is not None:
        require_integer(owner, "window", settings.window, high=sys.maxsize, remedy="leave it out to see every key")
    if settings.scale is not None:
        require_number(owner, "scale", settings.scale, remedy="leave it out for head_dim ** -0.5")
    require_number(owner, "temperature", settings.temperature, above=0, remedy="leave it out for 1")
    require_number(owner, "dropout", settings.dropout, low=0, below=1, remedy="leave it out for no dropout")


def require_cache(owner: str, cache: object) -> None:
    if cache is not None and not isinstance(cache, KVCache):
        raise usage_error(
            f"{owner}(cache=...)", type(cache).__name__, "cache is a whence.KVCache", "build one for each layer"
        )


def _heads_remedy(part: Position, heads: int) -> str:
    if "heads" in inspect.signature(type(part)).parameters:
        return f"build it with heads={heads}"
    name = type(part).__name__  # as in the files that whence discover writes
    return f"{name} has no argument heads: use {part.heads} query heads (whence compare --heads {part.heads})"


def require_applicable(position: Position, arguments: Arguments) -> None:
    """Refuse a mechanism that was built for something else than this call."""
    q = arguments.q
    require_position("attend(position=...)", position)
    masks = (arguments.lengths, arguments.key_mask, arguments.segment_ids)
    several_sequences = any(x is not None for x in masks)
    for part in position.parts:
        name = type(part).__name__
        if part.heads is not None and part.heads != q.shape[1]:
            raise usage_error(
                f"attend(position={name})",
                f"{part.heads} heads with {q.shape[1]} in q",
                "a mechanism has one set of parameters for each query head",
                shapes.transpose_remedy("q", "k", "v") if part.heads == q.shape[2] else _heads_remedy(part, q.shape[1]),
            )
        head_dim = getattr(part, "head_dim", None)
        if head_dim is not None and head_dim != q.shape[3]:
            raise usage_error(
                f"attend(position={name})",
                f"head_dim {head_dim} with {q.shape[3]} in q",
                "a mechanism has the head dimension of the queries",
                f"build it with head_dim={q.shape[3]}",
            )
        if part.causal_only and not arguments.causal:
            raise usage_error(
                f"attend(position={name})",
                "causal=False, which has negative distances",
                f"{name} is defined for keys at or before the query",
                "pass causal=True, or use its symmetric form if it has one",
                kind=CausalOnly,
            )
        if "embed" in part.effects:
            raise usage_error(
                f"attend(position={name})",
                "a mechanism that acts on embeddings",
                "attend receives queries and keys only",
                "call position.embed(x, positions) on the input, or use whence.Attention, which calls it",
            )
        if part.length == "sequence" and arguments.cache is not None:
            raise usage_error(
                f"attend(position={name}, cache=...)",
                "length='sequence'",
                "a length that grows with each token changes every earlier weight, so cached decoding would differ from training",
                "use length='context', or length='query' where there is one",
            )
        if part.length == "sequence" and several_sequences and "rotate" in part.effects:
            raise usage_error(
                f"attend(position={name})",
                "length='sequence' with padding or segments",
                "one rotation serves the whole row, and its sequences differ in length",
                "use length='context', or attend to one sequence at a time",
            )
        if torch.compiler.is_compiling():
            continue  # a compiled call would check every tensor again each time; while tracing, operators check theirs
        for tensor in (*part.parameters(), *part.buffers()):
            if tensor.device != q.device:
                raise usage_error(
                    f"attend(position={name})",
                    f"parameters on {tensor.device} with q on {q.device}",
                    "all tensors share one device",
                    "move it with position.to(q.device)",
                )


def require_clock(arguments: Arguments) -> None:
    """Refuse a clock that the mechanism does not have, or that does not fit the keys."""
    clock, position, q, k = arguments.clock, arguments.position, arguments.q, arguments.k
    name = "None" if position is None else type(position).__name__
    if position is None or "clock" not in position.effects:
        raise usage_error(
            f"attend(position={name}, clock=...)",
            shapes.describe_tensor(clock),
            "only a mechanism with the hook clock has steps",
            "leave clock out, or pass a position such as whence.ForgetGate(embed_dim, heads)",
        )
    if clock is None:
        raise usage_error(
            f"attend(position={name})",
            "no clock",
            "its steps come from the layer input, and attend receives queries and keys only",
            "pass clock=position.clock(x), or use whence.Attention, which calls it",
        )
    shapes.require_dense("attend(clock=...)", "clock", clock)
    wanted = (q.shape[0], q.shape[1], k.shape[2])
    if not shapes.has_shape(clock, wanted) or clock.dtype not in (torch.float32, torch.float64):
        remedy = "pass position.clock(x) of the layer input x of the keys"
        if shapes.has_shape(clock, (wanted[0], wanted[2], wanted[1])):
            remedy = "transpose it with clock.transpose(1, 2)"
        raise usage_error(
            "attend(clock=...)",
            shapes.describe_tensor(clock),
            f"clock has one float32 or float64 step for each query head and key, [batch, heads, keys], here {list(wanted)}",
            remedy,
        )
    shapes.require_device("clock", clock, q.device)


def require_q_input(arguments: Arguments) -> None:
    """Refuse a layer input that no mechanism reads, or that does not fit the queries and the mechanism."""
    x, position, q = arguments.q_input, arguments.position, arguments.q
    name = "None" if position is None else type(position).__name__
    if position is None or not position.reads_input:
        raise usage_error(
            f"attend(position={name}, q_input=...)",
            shapes.describe_tensor(x),
            "only a mechanism with reads_input = True reads the layer input",
            "leave q_input out",
        )
    if x is None:
        raise usage_error(
            f"attend(position={name})",
            "no q_input",
            "it reads the layer input, and attend receives queries and keys only",
            "pass q_input=x, or use whence.Attention, which does",
        )
    shapes.require_dense("attend(q_input=...)", "q_input", x)
    rows = (q.shape[0], q.shape[2])
    embed_dims = [part.embed_dim for part in position.parts if part.reads_input and hasattr(part, "embed_dim")]
    wanted = (*rows, *(embed_dims[:1] or x.shape[2:3]))
    if not shapes.has_shape(x, wanted) or not x.is_floating_point():
        remedy = "pass the layer input of the queries"
        if x.ndim == 3 and (x.shape[0], x.shape[1]) == rows and x.is_floating_point():
            remedy = f"build the mechanism with embed_dim={x.shape[2]}"
        rule = f"q_input is the layer input of the queries, [batch, queries, embed_dim], here {list(wanted)}"
        raise usage_error("attend(q_input=...)", shapes.describe_tensor(x), rule, remedy)
    shapes.require_device("q_input", x, q.device)

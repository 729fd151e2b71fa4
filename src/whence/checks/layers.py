"""Checks of a layer around the mechanism: gradients, masks, rows of a batch, grouped queries, and every backend."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jvp

from whence.attention import KVCache
from whence.checks.bench import TOKENS, Bench, Skip, Wrong, call, close, named
from whence.errors import WhenceError
from whence.position.base import Position, Rows

BACKENDS = ("reference", "blockwise", "sdpa")


def gradients(bench: Bench) -> None:
    named_parameters = {name: p for name, p in bench.position.named_parameters() if p.requires_grad}
    learnt = list(named_parameters.values())
    x = bench.x[:1, :4].clone().requires_grad_(True)

    def run(x: Tensor, *_: Tensor) -> Tensor:
        return bench.run(x)

    try:
        large = sum(p.numel() for p in learnt) > 256  # then along random directions instead of one number at a time
        torch.autograd.gradcheck(run, (x, *learnt), atol=1e-6, rtol=1e-4, fast_mode=large)
    except RuntimeError as error:
        mismatch = re.search(r"Jacobian mismatch .* with respect to input (\d+)", str(error))
        if mismatch is None:
            raise Wrong(" ".join(str(error).split())[:300]) from None
        name = ["the input x", *(f"parameter {name}" for name in named_parameters)][int(mismatch[1])]
        raise Wrong(f"the gradient of {name} is not what finite differences give") from None


def forward_mode(bench: Bench) -> None:
    """Forward-mode derivatives against reverse mode, and of each backend against the reference; one that refuses is
    right as well."""
    generator = torch.Generator().manual_seed(0)

    def random_like(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)

    weights = {name: p.detach() for name, p in bench.layer.named_parameters() if p.requires_grad}
    inputs = (bench.x, weights)
    tangents = (random_like(bench.x), {name: random_like(p) for name, p in weights.items()})

    def run(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return functional_call(bench.layer, weights, (x,))

    direction, wanted = random_like(bench.x), None
    for backend in BACKENDS:
        bench.layer.backend = backend
        try:
            found = jvp(run, inputs, tangents)[1]
        except WhenceError:
            if backend == "reference":
                raise
            continue
        except NotImplementedError as error:
            if backend == "reference":
                raise Skip(f"an operation has no forward-mode derivative ({str(error).split('.')[0]})") from None
            raise
        if wanted is None:
            leaves = [bench.x.clone().requires_grad_(True), *(p.clone().requires_grad_(True) for p in weights.values())]
            out = run(leaves[0], dict(zip(weights, leaves[1:], strict=True)))
            parameter_gradients = torch.autograd.grad((out * direction).sum(), leaves, materialize_grads=True)
            along = [tangents[0], *tangents[1].values()]
            backwards = sum(
                ((rate * t).sum() for rate, t in zip(parameter_gradients, along, strict=True)), torch.zeros(())
            )
            close("forward-mode and reverse-mode derivatives", (found * direction).sum(), backwards)
            wanted = found
        close(f"forward-mode derivatives of {backend} and reference", found, wanted)


def causality(bench: Bench) -> None:
    changed = bench.x.clone()
    changed[:, 5:] += 1
    close("rows before a token and the same after it was changed", bench.run(changed)[:, :5], bench.run(bench.x)[:, :5])


def shift(bench: Bench) -> None:
    if not bench.position.relative:
        raise Skip("the mechanism does not claim it (relative = False)")
    here = torch.arange(TOKENS)
    close("positions from 0 and from 7", bench.run(bench.x, positions=here + 7), bench.run(bench.x, positions=here))


def left_padding(bench: Bench) -> None:
    bench.require_one_text()
    padded = torch.cat([torch.ones(2, 3, bench.embed_dim, dtype=torch.float64), bench.x], 1)
    real = torch.arange(TOKENS + 3) >= 3
    out = bench.run(padded, key_mask=real.expand(2, -1))[:, 3:]
    close("left-padded and unpadded", out, bench.run(bench.x))


def right_padding(bench: Bench) -> None:
    bench.require_one_text()
    padded = torch.cat([bench.x, torch.ones(2, 2, bench.embed_dim, dtype=torch.float64)], 1)
    out = bench.run(padded, lengths=torch.tensor([TOKENS, TOKENS]))[:, :TOKENS]
    close("right-padded and unpadded", out, bench.run(bench.x))


def packing(bench: Bench) -> None:
    bench.require_one_text()
    segment_ids = torch.tensor([0] * 4 + [1] * 5)
    separate = torch.cat([bench.run(bench.x[:, :4]), bench.run(bench.x[:, 4:])], 1)
    close("packed and separate", bench.run(bench.x, segment_ids=segment_ids), separate)


def rows_of_a_batch(bench: Bench) -> None:
    """Each row of a batch is what it is alone, where rows stand at positions of their own."""
    at = torch.stack([torch.arange(TOKENS), torch.arange(TOKENS) + 5])
    for part in bench.position.parts:
        for hook in sorted(part.effects & {"embed", "rotate", "content_bias", "value_bias"}):
            _hook_by_rows(bench, part, hook, at)
    for backend in ("reference", "blockwise"):
        bench.layer.backend = backend
        for what, together, alone in _ragged(bench, at):
            close(f"{what} in a batch and alone, with {backend},", together, alone)


def _hook_by_rows(bench: Bench, part: Position, hook: str, at: Tensor) -> None:
    whole = bench.arguments(hook, at, torch.float64)
    together = call(part, hook, **whole)
    for row in range(2):
        one = {name: _row(value, row) for name, value in whole.items()}
        alone = call(part, hook, **one)
        pairs = zip(together, alone, strict=True) if hook == "rotate" else ((together, alone),)
        for mine, own in pairs:
            if mine is not None:
                close(f"row {row} in a batch and alone", mine[row : row + 1], own, hook=named(part, hook))


def _row(value: Tensor | Rows, row: int) -> Tensor | Rows:
    """One row of a tensor, or of the tensors in Rows."""
    if isinstance(value, Tensor):
        return value[row : row + 1]
    changed: dict[str, Any] = {name: x[row : row + 1] for name, x in vars(value).items() if isinstance(x, Tensor)}
    return replace(value, **changed)


def _ragged(bench: Bench, at: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What ragged batches give at some tokens of a row, and what the row gives alone."""
    x = bench.x
    together = bench.run(x, positions=at)
    for row in range(2):
        yield f"row {row} at its own positions", together[row], bench.run(x[row : row + 1], positions=at[row])[0]
    if bench.one_text_only:
        return
    whole = [bench.run(x[row : row + 1])[0] for row in range(2)]
    pads = 0, 3
    padded = torch.ones(2, TOKENS + 3, bench.embed_dim, dtype=torch.float64)
    for row, pad in enumerate(pads):
        padded[row, pad : pad + TOKENS] = x[row]
    index = torch.arange(TOKENS + 3)
    real = torch.stack([(index >= pad) & (index < pad + TOKENS) for pad in pads])
    together = bench.run(padded, key_mask=real)
    for row, pad in enumerate(pads):
        yield f"row {row} of a batch padded unevenly", together[row, pad : pad + TOKENS], whole[row]
    lengths = TOKENS, 5
    together = bench.run(x, lengths=torch.tensor(lengths))
    for row, n in enumerate(lengths):
        yield f"row {row} of lengths {lengths}", together[row, :n], bench.run(x[row : row + 1, :n])[0]
    cuts = 4, 7
    segment_ids = torch.stack([(torch.arange(TOKENS) >= cut).long() for cut in cuts])
    together = bench.run(x, segment_ids=segment_ids)
    for row, cut in enumerate(cuts):
        texts = [bench.run(text)[0] for text in (x[row : row + 1, :cut], x[row : row + 1, cut:])]
        yield f"row {row} of rows packed differently", together[row], torch.cat(texts)
    if any(part.length == "sequence" for part in bench.position.parts):
        return
    lengths, cache = (5, 3), KVCache()
    with torch.no_grad():
        bench.run(x[:, :5], lengths=torch.tensor(lengths), cache=cache)
        together = bench.run(x[:, 5:], cache=cache)
        for row, n in enumerate(lengths):
            own = torch.cat([x[row : row + 1, :n], x[row : row + 1, 5:]], 1)
            yield f"row {row} after a prompt of lengths {lengths}", together[row], bench.run(own)[0, n:]


def grouped_queries(bench: Bench) -> None:
    """Query heads that share a key head, against the same key head repeated."""
    if bench.heads == 1:
        raise Skip("a mechanism for one head has no groups")
    groups = next(n for n in range(bench.heads // 2, 0, -1) if bench.heads % n == 0)
    share = bench.heads // groups
    at = torch.arange(TOKENS).expand(2, -1)
    for part in bench.position.parts:
        if "rotate" in part.effects:
            few = bench.arguments("rotate", at, torch.float64, groups)
            many = few | {"k": few["k"].repeat_interleave(share, 1)}
            q, k = call(part, "rotate", **few)
            all_q, all_k = call(part, "rotate", **many)
            where = named(part, "rotate")
            close("queries with grouped and with repeated keys", q, all_q, hook=where)
            close("grouped and repeated keys", k.repeat_interleave(share, 1), all_k, hook=where)
    few_layer = bench.new_layer(groups)
    state = bench.layer.state_dict()
    for name, embed_dim in (("keys.weight", bench.head_dim), ("values.weight", bench.value_dim)):
        one = state[name].unflatten(0, (bench.heads, embed_dim))[::share]
        state[name] = one.flatten(0, 1)
        full = one.repeat_interleave(share, 0).flatten(0, 1)
        bench.layer.get_parameter(name).data.copy_(full)
    few_layer.load_state_dict(state)
    wanted = bench.run(bench.x)
    for backend in ("reference", "blockwise"):
        few_layer.backend = backend
        close(f"{groups} key heads and the same repeated, with {backend},", few_layer(bench.x), wanted)


def both_sides(bench: Bench) -> None:
    if bench.position.causal_only:
        raise Skip("the mechanism is for keys at or before the query (causal_only = True)")
    bench.layer.causal = False
    backends(bench)


def backends(bench: Bench) -> None:
    named_parameters = {name: p for name, p in bench.position.named_parameters() if p.requires_grad}
    learnt = list(named_parameters.values())
    x = bench.x.clone().requires_grad_(True)
    results = {}
    for backend in BACKENDS:
        bench.layer.backend = backend
        try:
            out = bench.run(x)
        except WhenceError:
            if backend != "sdpa":
                raise
            continue
        finally:
            bench.layer.backend = "reference"
        grads = torch.autograd.grad(out.square().sum(), [x, *learnt], allow_unused=True)
        results[backend] = [
            out,
            *(torch.zeros_like(p) if g is None else g for p, g in zip([x, *learnt], grads, strict=True)),
        ]
    names = ["outputs", "gradients of x", *(f"gradients of parameter {name}" for name in named_parameters)]
    for backend, values in results.items():
        for name, expected, found in zip(names, results["reference"], values, strict=True):
            close(f"{name} of {backend} and reference", found, expected)


def state(bench: Bench) -> None:
    text = repr(bench.position)
    if not all(type(part).__name__ in text for part in bench.position.parts):
        raise Wrong(f"repr does not name the mechanism: {text}")
    other = copy.deepcopy(bench.position)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.add_(1)
    other.load_state_dict(bench.position.state_dict())
    before = bench.run(bench.x)
    bench.layer.position = other
    close("results before and after a state_dict round trip", bench.run(bench.x), before, 0.0)
    if repr(other) != text:
        raise Wrong("repr changed in a state_dict round trip")

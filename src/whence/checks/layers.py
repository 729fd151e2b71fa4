"""Checks of a layer with the mechanism: gradients, decoding with caches, masks, batches, grouped-query attention, and
every backend."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jvp

from whence.attention import KVCache, attend
from whence.checks.fixture import TOKENS, Failure, Fixture, SkipCheck, assert_close, call_hook, hook_name
from whence.errors import WhenceError
from whence.position.base import Position
from whence.position.evaluate import evaluate_clock
from whence.position.hook_types import Rows

BACKENDS = ("reference", "blockwise", "sdpa")


def gradients(fixture: Fixture) -> None:
    """The input's gradient along random directions, the parameters' element by element unless there are many."""
    named_parameters = {name: p for name, p in fixture.position.named_parameters() if p.requires_grad}
    x = fixture.x[:1, :4].clone()
    _check_gradients({"the input x": x.clone().requires_grad_(True)}, fixture.run, fast=True)
    if named_parameters:
        _require_use(fixture, named_parameters)
        large = sum(p.numel() for p in named_parameters.values()) > 256
        named: dict[str, Tensor] = {f"parameter {name}": p for name, p in named_parameters.items()}
        _check_gradients(named, lambda *_: fixture.run(x), fast=large)


def _require_use(fixture: Fixture, named_parameters: Mapping[str, Tensor]) -> None:
    """Refuse a parameter on which the output does not depend, such as one of a hook whose name is misspelled."""
    out = fixture.run(fixture.x)
    gradients = torch.autograd.grad(out.sum(), list(named_parameters.values()), allow_unused=True)
    unused = [name for name, gradient in zip(named_parameters, gradients, strict=True) if gradient is None]
    if unused:
        raise Failure(f"the output does not depend on parameter {unused[0]}", remedy="use it in a hook, or remove it")


def _check_gradients(inputs: dict[str, Tensor], run: Callable[..., Tensor], *, fast: bool) -> None:
    try:
        torch.autograd.gradcheck(run, tuple(inputs.values()), atol=1e-6, rtol=1e-4, fast_mode=fast)
    except RuntimeError as error:
        mismatch = re.search(r"Jacobian mismatch .* with respect to input (\d+)", str(error))
        if mismatch is None:
            raise Failure(" ".join(str(error).split())[:300]) from None
        raise Failure(f"the gradient of {list(inputs)[int(mismatch[1])]} differs from finite differences") from None


def forward_mode(fixture: Fixture) -> None:
    """Forward-mode derivatives against reverse mode, and of each backend against the reference. A backend may also raise
    a usage error."""
    generator = torch.Generator().manual_seed(0)

    def random_like(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)

    weights = {name: p.detach() for name, p in fixture.layer.named_parameters() if p.requires_grad}
    inputs = (fixture.x, weights)
    tangents = (random_like(fixture.x), {name: random_like(p) for name, p in weights.items()})

    def run(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        return functional_call(fixture.layer, weights, (x,))

    direction, expected = random_like(fixture.x), None
    for backend in BACKENDS:
        fixture.layer.backend = backend
        try:
            derivative = jvp(run, inputs, tangents)[1]
        except WhenceError:
            if backend == "reference":
                raise
            continue
        except NotImplementedError as error:
            if backend == "reference":
                raise SkipCheck(f"an operation has no forward-mode derivative ({str(error).split('.')[0]})") from None
            raise
        if expected is None:
            leaves = [
                fixture.x.clone().requires_grad_(True),
                *(p.clone().requires_grad_(True) for p in weights.values()),
            ]
            out = run(leaves[0], dict(zip(weights, leaves[1:], strict=True)))
            parameter_gradients = torch.autograd.grad((out * direction).sum(), leaves, materialize_grads=True)
            along = [tangents[0], *tangents[1].values()]
            backwards = sum(
                ((rate * t).sum() for rate, t in zip(parameter_gradients, along, strict=True)), torch.zeros(())
            )
            assert_close("forward-mode and reverse-mode derivatives", (derivative * direction).sum(), backwards)
            expected = derivative
        assert_close(f"forward-mode derivatives of {backend} and reference", derivative, expected)


def causality(fixture: Fixture) -> None:
    changed = fixture.x.clone()
    changed[:, 5:] += 1
    assert_close("rows before a changed token", fixture.run(changed)[:, :5], fixture.run(fixture.x)[:, :5])


def shift(fixture: Fixture) -> None:
    if not fixture.position.relative:
        raise SkipCheck("relative = False")
    here = torch.arange(TOKENS)
    assert_close(
        "positions from 0 and from 7",
        fixture.run(fixture.x, positions=here + 7),
        fixture.run(fixture.x, positions=here),
    )


def left_padding(fixture: Fixture) -> None:
    fixture.require_padding_support()
    padded = torch.cat([torch.ones(2, 3, fixture.embed_dim, dtype=torch.float64), fixture.x], 1)
    real = torch.arange(TOKENS + 3) >= 3
    out = fixture.run(padded, key_mask=real.expand(2, -1))[:, 3:]
    assert_close("left-padded and unpadded", out, fixture.run(fixture.x))


def right_padding(fixture: Fixture) -> None:
    fixture.require_padding_support()
    padded = torch.cat([fixture.x, torch.ones(2, 2, fixture.embed_dim, dtype=torch.float64)], 1)
    out = fixture.run(padded, lengths=torch.tensor([TOKENS, TOKENS]))[:, :TOKENS]
    assert_close("right-padded and unpadded", out, fixture.run(fixture.x))


def packing(fixture: Fixture) -> None:
    fixture.require_padding_support()
    segment_ids = torch.tensor([0] * 4 + [1] * 5)
    separate = torch.cat([fixture.run(fixture.x[:, :4]), fixture.run(fixture.x[:, 4:])], 1)
    assert_close("packed and separate", fixture.run(fixture.x, segment_ids=segment_ids), separate)


def rows_of_a_batch(fixture: Fixture) -> None:
    """Each row of a batch equals the row alone, for rows with different positions."""
    at = torch.stack([torch.arange(TOKENS), torch.arange(TOKENS) + 5])
    for part in fixture.position.parts:
        for hook in sorted(part.effects & {"embed", "rotate", "content_bias", "value_bias", "clock"}):
            _check_hook_by_rows(fixture, part, hook, at)
    for backend in ("reference", "blockwise"):
        fixture.layer.backend = backend
        for what, together, alone in _ragged_batches(fixture, at):
            assert_close(f"{what} in a batch and alone, with {backend},", together, alone)


def _check_hook_by_rows(fixture: Fixture, part: Position, hook: str, at: Tensor) -> None:
    whole = fixture.arguments(hook, at, torch.float64)
    together = call_hook(part, hook, **whole)
    for row in range(2):
        one = {name: _row(value, row) for name, value in whole.items()}
        alone = call_hook(part, hook, **one)
        pairs = zip(together, alone, strict=True) if hook == "rotate" else ((together, alone),)
        for mine, own in pairs:
            if mine is not None:
                mine = mine[row : row + 1]
                if hook == "content_bias":  # -inf hides a key
                    mine, own = (x.masked_fill(torch.isneginf(x), -1e3) for x in (mine, own))
                assert_close(f"row {row} in a batch and alone", mine, own, hook=hook_name(part, hook))


def _row(value: Tensor | Rows, row: int) -> Tensor | Rows:
    """One row of a tensor, or of the tensors in Rows."""
    if isinstance(value, Tensor):
        return value[row : row + 1]
    changed: dict[str, Any] = {name: x[row : row + 1] for name, x in vars(value).items() if isinstance(x, Tensor)}
    return replace(value, **changed)


def _ragged_batches(fixture: Fixture, at: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Results of rows in ragged batches, and of the same rows alone."""
    x = fixture.x
    together = fixture.run(x, positions=at)
    for row in range(2):
        yield f"row {row} at its own positions", together[row], fixture.run(x[row : row + 1], positions=at[row])[0]
    if fixture.single_sequence_only:
        return
    whole = [fixture.run(x[row : row + 1])[0] for row in range(2)]
    pads = 0, 3
    padded = torch.ones(2, TOKENS + 3, fixture.embed_dim, dtype=torch.float64)
    for row, pad in enumerate(pads):
        padded[row, pad : pad + TOKENS] = x[row]
    index = torch.arange(TOKENS + 3)
    real = torch.stack([(index >= pad) & (index < pad + TOKENS) for pad in pads])
    together = fixture.run(padded, key_mask=real)
    for row, pad in enumerate(pads):
        yield f"row {row} of a batch padded unevenly", together[row, pad : pad + TOKENS], whole[row]
    lengths = TOKENS, 5
    together = fixture.run(x, lengths=torch.tensor(lengths))
    for row, n in enumerate(lengths):
        yield f"row {row} of lengths {lengths}", together[row, :n], fixture.run(x[row : row + 1, :n])[0]
    cuts = 4, 7
    segment_ids = torch.stack([(torch.arange(TOKENS) >= cut).long() for cut in cuts])
    together = fixture.run(x, segment_ids=segment_ids)
    for row, cut in enumerate(cuts):
        texts = [fixture.run(text)[0] for text in (x[row : row + 1, :cut], x[row : row + 1, cut:])]
        yield f"row {row} of rows packed differently", together[row], torch.cat(texts)
    if any(part.length == "sequence" for part in fixture.position.parts):
        return
    lengths, cache = (5, 3), KVCache()
    with torch.no_grad():
        fixture.run(x[:, :5], lengths=torch.tensor(lengths), cache=cache)
        together = fixture.run(x[:, 5:], cache=cache)
        for row, n in enumerate(lengths):
            own = torch.cat([x[row : row + 1, :n], x[row : row + 1, 5:]], 1)
            yield f"row {row} after a prompt of lengths {lengths}", together[row], fixture.run(own)[0, n:]


def grouped_queries(fixture: Fixture) -> None:
    """Query heads that share a key head, against repeated key heads."""
    if fixture.heads == 1:
        raise SkipCheck("a single head has no groups")
    groups = next(n for n in range(fixture.heads // 2, 0, -1) if fixture.heads % n == 0)
    share = fixture.heads // groups
    at = torch.arange(TOKENS).expand(2, -1)
    for part in fixture.position.parts:
        if "rotate" in part.effects:
            few = fixture.arguments("rotate", at, torch.float64, groups)
            many = few | {"k": few["k"].repeat_interleave(share, 1)}
            q, k = call_hook(part, "rotate", **few)
            all_q, all_k = call_hook(part, "rotate", **many)
            where = hook_name(part, "rotate")
            assert_close("queries with grouped and with repeated keys", q, all_q, hook=where)
            assert_close("grouped and repeated keys", k.repeat_interleave(share, 1), all_k, hook=where)
    few_layer = fixture.new_layer(groups)
    state = fixture.layer.state_dict()
    for name, embed_dim in (("keys.weight", fixture.head_dim), ("values.weight", fixture.value_dim)):
        one = state[name].unflatten(0, (fixture.heads, embed_dim))[::share]
        state[name] = one.flatten(0, 1)
        full = one.repeat_interleave(share, 0).flatten(0, 1)
        fixture.layer.get_parameter(name).data.copy_(full)
    few_layer.load_state_dict(state)
    expected = fixture.run(fixture.x)
    for backend in ("reference", "blockwise"):
        few_layer.backend = backend
        assert_close(f"{groups} key heads and the same repeated, with {backend},", few_layer(fixture.x), expected)


def head_slices(fixture: Fixture) -> None:
    """Two slices of the heads give the output of the whole, and the sum of their gradients is its gradient."""
    position, heads, x = fixture.position, fixture.heads, fixture.x
    if heads == 1:
        raise SkipCheck("a single head cannot be cut")
    on_content = {"rotate", "content_bias", "value_bias"}
    if any(part.heads is None and part.effects & on_content and [*part.parameters()] for part in position.parts):
        raise SkipCheck("heads is None, so the parameters of its content hooks are taken to serve all heads")
    if "embed" in position.effects:
        raise SkipCheck("it changes the input of a layer, before there are heads")
    cuts = (0, heads // 2, heads)
    try:
        slices = [position.select_heads(first, last) for first, last in pairwise(cuts)]
    except WhenceError as error:
        raise SkipCheck(str(error)) from None
    q, k = (torch.randn(2, heads, TOKENS, fixture.head_dim, dtype=torch.float64) for _ in range(2))
    v = torch.randn(2, heads, TOKENS, fixture.value_dim, dtype=torch.float64)
    named_parameters = {name: p for name, p in position.named_parameters() if p.requires_grad}
    results = []
    for parts, edges in (((position,), (0, heads)), (slices, cuts)):
        outs = []
        for part, (first, last) in zip(parts, pairwise(edges), strict=True):
            tensors = [t[:, first:last].clone() for t in (q, k, v)]  # a hook that writes into them has its own check
            clock = evaluate_clock(part, x, last - first)
            q_input = x if part.reads_input else None
            outs.append(attend(*tensors, position=part, clock=clock, q_input=q_input, causal=True, backend="reference"))
        out = torch.cat(outs, 1)
        leaves = list(named_parameters.values())
        if leaves and out.requires_grad:
            gradients = torch.autograd.grad(out.square().sum(), leaves, materialize_grads=True)
        else:  # hooks that do not use the parameters
            gradients = tuple(torch.zeros_like(p) for p in leaves)
        results.append([out, *gradients])
    names = ["outputs", *(f"gradients of parameter {name}" for name in named_parameters)]
    for name, whole, sliced in zip(names, *results, strict=True):
        assert_close(f"{name} of slices and of all heads", sliced, whole)


def noncausal(fixture: Fixture) -> None:
    if fixture.position.causal_only:
        raise SkipCheck("causal_only = True")
    fixture.layer.causal = False
    backends(fixture)


def backends(fixture: Fixture) -> None:
    named_parameters = {name: p for name, p in fixture.position.named_parameters() if p.requires_grad}
    parameters = list(named_parameters.values())
    x = fixture.x.clone().requires_grad_(True)
    results = {}
    for backend in BACKENDS:
        fixture.layer.backend = backend
        try:
            out = fixture.run(x)
        except WhenceError:
            if backend != "sdpa":
                raise
            continue
        finally:
            fixture.layer.backend = "reference"
        grads = torch.autograd.grad(out.square().sum(), [x, *parameters], allow_unused=True)
        results[backend] = [
            out,
            *(torch.zeros_like(p) if g is None else g for p, g in zip([x, *parameters], grads, strict=True)),
        ]
    names = ["outputs", "gradients of x", *(f"gradients of parameter {name}" for name in named_parameters)]
    for backend, values in results.items():
        for name, expected, value in zip(names, results["reference"], values, strict=True):
            assert_close(f"{name} of {backend} and reference", value, expected)


def state(fixture: Fixture) -> None:
    text = repr(fixture.position)
    if not all(type(part).__name__ in text for part in fixture.position.parts):
        raise Failure(f"repr does not name the mechanism: {text}")
    other = copy.deepcopy(fixture.position)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.add_(1)
    other.load_state_dict(fixture.position.state_dict())
    before = fixture.run(fixture.x)
    fixture.layer.position = other
    assert_close("results before and after a state_dict round trip", fixture.run(fixture.x), before, 0.0)
    if repr(other) != text:
        raise Failure("repr changed in a state_dict round trip")


# --- decoding: a cache gives the same results as one pass -----------------------------------------------------------------
def token_by_token(fixture: Fixture) -> None:
    fixture.require_cache_support()
    assert_close(
        "one pass and token by token", fixture.decode(fixture.x, KVCache(), [1] * TOKENS), fixture.run(fixture.x)
    )


def chunks(fixture: Fixture) -> None:
    fixture.require_cache_support()
    whole = fixture.run(fixture.x)
    assert_close("one pass and chunks of a growing cache", fixture.decode(fixture.x, KVCache(), [3, 1, 5]), whole)
    assert_close(
        "one pass and chunks of a preallocated cache",
        fixture.decode(fixture.x, KVCache(capacity=TOKENS), [4, 5]),
        whole,
    )
    fixture.layer.window = 4
    try:
        sliding = fixture.decode(fixture.x, KVCache(window=4), [2, 4, 1, 2])
        assert_close("one pass with a window and a sliding cache", sliding, fixture.run(fixture.x))
    finally:
        fixture.layer.window = None


def rollback(fixture: Fixture) -> None:
    fixture.require_cache_support()
    cache = KVCache()
    fixture.decode(fixture.x[:, :3] + 1, cache, [3])
    cache.crop(0)
    fixture.decode(torch.cat([fixture.x[:, :4], fixture.x[:, 4:7] + 1], 1), cache, [4, 3])
    cache.crop(4)
    assert_close(
        "after a rollback, results",
        fixture.decode(fixture.x[:, 4:], cache, [TOKENS - 4]),
        fixture.run(fixture.x)[:, 4:],
    )


def compiled_step(fixture: Fixture) -> None:
    """A compiled decoding step after a right-padded prompt, so that rows have different positions."""
    fixture.require_cache_support()
    fixture.layer.backend = "auto"
    layer, lengths = fixture.layer, torch.tensor([4, 3])
    caches = KVCache(), KVCache()

    def step(x: Tensor) -> Tensor:
        return layer(x, cache=caches[1])

    compiled = torch.compile(step, backend="eager", dynamic=False)
    # torch.compile counts recompilations of one function over all checked mechanisms, and stops at a limit
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=2**20, accumulated_recompile_limit=2**20):
        for cache in caches:
            layer(fixture.x[:, :4], lengths=lengths, cache=cache)
        for what, run, token in (
            ("a compiled", compiled, fixture.x[:, 4:5]),
            ("the following", step, fixture.x[:, 5:6]),
        ):
            assert_close(f"{what} step and an eager step from a cache", run(token), layer(token, cache=caches[0]))

"""Checks of decoding: what a cache gives is what one pass gives, in chunks, after a rollback, and compiled."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.attention import KVCache
from whence.checks.bench import TOKENS, Bench, close


def token_by_token(bench: Bench) -> None:
    bench.require_cache()
    close("one pass and token by token", bench.decode(bench.x, KVCache(), [1] * TOKENS), bench.run(bench.x))


def chunks(bench: Bench) -> None:
    bench.require_cache()
    whole = bench.run(bench.x)
    close("one pass and chunks of a growing cache", bench.decode(bench.x, KVCache(), [3, 1, 5]), whole)
    close("one pass and chunks of a preallocated cache", bench.decode(bench.x, KVCache(capacity=TOKENS), [4, 5]), whole)
    bench.layer.window = 4
    try:
        sliding = bench.decode(bench.x, KVCache(window=4), [2, 4, 1, 2])
        close("one pass with a window and a sliding cache", sliding, bench.run(bench.x))
    finally:
        bench.layer.window = None


def rollback(bench: Bench) -> None:
    bench.require_cache()
    cache = KVCache()
    bench.decode(bench.x[:, :3] + 1, cache, [3])
    cache.crop(0)
    bench.decode(torch.cat([bench.x[:, :4], bench.x[:, 4:7] + 1], 1), cache, [4, 3])
    cache.crop(4)
    close("after a rollback, results", bench.decode(bench.x[:, 4:], cache, [TOKENS - 4]), bench.run(bench.x)[:, 4:])


def compiled_step(bench: Bench) -> None:
    """A step from a cache under torch.compile, after a prompt with right padding, which moves rows apart."""
    bench.require_cache()
    bench.layer.backend = "auto"
    layer, lengths = bench.layer, torch.tensor([4, 3])
    caches = KVCache(), KVCache()

    def step(x: Tensor) -> Tensor:
        return layer(x, cache=caches[1])

    compiled = torch.compile(step, backend="eager", dynamic=False)
    # torch.compile counts recompilations of one function over all mechanisms that are checked, and then gives up
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=2**20, accumulated_recompile_limit=2**20):
        for cache in caches:
            layer(bench.x[:, :4], lengths=lengths, cache=cache)
        for what, run, token in (("a compiled", compiled, bench.x[:, 4:5]), ("the following", step, bench.x[:, 5:6])):
            close(f"{what} step and an eager step from a cache", run(token), layer(token, cache=caches[0]))

"""Checks of decoding: a cache gives the same results as one pass, in chunks, after a rollback, and compiled."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.attention import KVCache
from whence.checks.fixture import TOKENS, Fixture, assert_close


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

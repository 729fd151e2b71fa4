"""Marks and copies of a cache: what is restored or copied is never changed by later tokens."""

import copy

import pytest
import torch

from whence import Epar, KVCache, WhenceError, attend

KINDS = {"growing": {}, "preallocated": {"capacity": 12}, "sliding": {"window": 12}}
TOKENS = 10


def tensors():
    torch.manual_seed(0)
    return tuple(torch.randn(2, 2, TOKENS, 4, dtype=torch.float64) for _ in range(3))


def step(cache, first, last, other=0.0):
    part = (x[:, :, first:last] + other for x in tensors())
    return attend(
        *part, position=Epar(2, context=8).requires_grad_(False), causal=True, window=cache.window, cache=cache
    )


def continues(cache, first):
    """The steps from a token on are those of one pass."""
    whole = attend(*tensors(), position=Epar(2, context=8).requires_grad_(False), causal=True)
    torch.testing.assert_close(step(cache, first, TOKENS), whole[:, :, first:])


@pytest.mark.parametrize("kind", ["growing", "sliding"])
@pytest.mark.parametrize("tokens_left", [0, 3])
def test_a_mark_is_restored_after_a_rollback(kind, tokens_left):
    cache = KVCache(**KINDS[kind])
    step(cache, 0, 6)
    mark = cache.mark()
    cache.crop(tokens_left)
    step(cache, 0, 5, other=1.0)
    cache.restore(mark)
    continues(cache, 6)


@pytest.mark.parametrize("rollback", [lambda c: c.crop(3), lambda c: c.reset()], ids=["crop", "reset"])
def test_a_preallocated_cache_refuses_a_mark_that_was_overwritten(rollback):
    """It restored the overwritten keys without a word."""
    cache = KVCache(capacity=12)
    step(cache, 0, 6)
    mark = cache.mark()
    rollback(cache)
    step(cache, 0, 2, other=1.0)
    later = cache.mark()
    with pytest.raises(WhenceError, match=r"KVCache.restore\(mark\) got a mark at 6 tokens .* use KVCache\(\)"):
        cache.restore(mark)
    step(cache, 2, 4, other=1.0)
    cache.restore(later)  # a mark after the rollback is intact
    assert len(cache) == later["_used"]


def test_a_rollback_to_the_mark_or_behind_it_is_restored():
    cache = KVCache(capacity=12)
    step(cache, 0, 6)
    mark = cache.mark()
    for left in (8, 6):
        step(cache, len(cache), 9, other=1.0)
        cache.crop(left)
    step(cache, 0, 2, other=1.0)
    cache.restore(mark)
    cache.restore(mark)
    continues(cache, 6)


def test_a_restored_mark_is_a_rollback_for_later_marks():
    cache = KVCache(capacity=12)
    step(cache, 0, 4)
    early = cache.mark()
    step(cache, 4, 8)
    late = cache.mark()
    cache.restore(early)
    step(cache, 0, 4, other=1.0)
    with pytest.raises(WhenceError, match="after a rollback to 4"):
        cache.restore(late)
    cache.restore(early)
    continues(cache, 4)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_shares_no_memory(kind, copied):
    cache = KVCache(**KINDS[kind])
    step(cache, 0, 6)
    other = copied(cache)
    step(cache, 6, 8)
    step(other, 0, 3, other=1.0)
    continues(cache, 8)
    assert (len(cache), len(other)) == (TOKENS, 9)


def test_a_cache_that_carries_gradients_is_copied_with_them():
    q, k, v = (x.requires_grad_() for x in tensors())
    cache = KVCache()
    attend(*(x[:, :, :6] for x in (q, k, v)), causal=True, cache=cache)
    attend(*(x[:, :, 6:] for x in (q, k, v)), causal=True, cache=copy.deepcopy(cache)).sum().backward()
    assert k.grad is not None and bool((k.grad[:, :, :6] != 0).any())


def test_memory_taken_in_inference_mode_is_written_outside_of_it():
    cache = KVCache(capacity=12)
    with torch.inference_mode():
        step(cache, 0, 6)
    continues(cache, 6)


def test_a_cache_does_not_leave_a_transform():
    cache, (q, k, v) = KVCache(), tensors()
    torch.func.vmap(lambda *x: attend(*(t[None] for t in x), causal=True, cache=cache))(q, k, v)
    with pytest.raises(WhenceError, match="use it inside the function"):
        attend(q, k, v, causal=True, cache=cache)


def test_a_preallocated_cache_compiles_into_one_graph():
    cache = KVCache(capacity=12)
    compiled = torch.compile(lambda *x: attend(*x, causal=True, cache=cache), backend="eager", fullgraph=True)
    outs = [compiled(*(x[:, :, part] for x in tensors())) for part in (slice(0, 6), slice(6, 10))]
    torch.testing.assert_close(torch.cat(outs, 2), attend(*tensors(), causal=True))

"""Cached decoding is the trained model: every mechanism, in every way of filling a cache, equals one full pass.

The full pass is the dense float64 reference without a cache. Layers are ``whence.Attention``, so that embeddings, which
a cache must number rightly, are held to the same as score effects.
"""

import copy

import pytest
import torch
from cache_modes import MECHANISMS, MODES, build, every_mechanism, feed, tokens

from whence import Alibi, Attention, KVCache, Rotary, WhenceError, attend
from whence.position import DynamicNtk

MECHANISMS["Rotary, dynamic NTK"] = lambda h, d: Rotary(scaling=DynamicNtk(2.0, 8), length="context", context=32)


def modes_for(mechanism):
    """Every mode for each kind of mechanism; mechanisms of the same kind, which take the same path, take turns."""
    alike = [name for name in MECHANISMS if kind_of(name) == kind_of(mechanism)]
    turn, turns = alike.index(mechanism), min(len(alike), 3)
    return {mode: outputs for number, (mode, outputs) in enumerate(MODES.items()) if (number + turn) % turns == 0}


def kind_of(mechanism):
    position = MECHANISMS[mechanism](4, 4)
    return sorted(position.effects), [part.length for part in position.parts]


def test_every_mode_is_met_by_every_kind_of_mechanism():
    met = [(mode, kind_of(mechanism)) for mechanism in MECHANISMS for mode in modes_for(mechanism)]
    for kind in map(kind_of, MECHANISMS):
        assert {mode for mode, other in met if other == kind} == set(MODES), kind


@every_mechanism
def test_a_cache_gives_what_one_full_pass_gives(mechanism):
    for mode, outputs in modes_for(mechanism).items():
        actual, expected = outputs(mechanism)
        assert actual.shape == expected.shape, mode
        about = f"{mechanism}, {mode}: "
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10, msg=about.__add__)


@every_mechanism
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_gradients_flow_through_a_growing_cache(mechanism, backend):
    # as in Transformer-XL with a memory that is not cut off: earlier chunks learn from later ones
    layer, x = build(mechanism, backend=backend), tokens().requires_grad_()
    wanted = [x, *layer.parameters()]

    def gradients(out):
        loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()
        actual = torch.autograd.grad(loss, wanted, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, actual, strict=True)]

    cache = KVCache()
    grown = torch.cat([layer(part, cache=cache) for part in x.split([5, 1, 6], 1)], 1)
    actual = gradients(grown)
    layer.backend = "reference"
    for a, b in zip(actual, gradients(layer(x)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert actual[0][:, :5].abs().max() > 0


@every_mechanism
def test_keys_are_stored_as_projected(mechanism):
    # un-rotated, since a mechanism may place the same key differently for every query (dynamic scaling, rollback)
    layer, x = build(mechanism), tokens()
    inputs = []
    layer.keys.register_forward_hook(lambda module, args, out: inputs.append(out.detach()))
    cache = KVCache()
    feed(layer, x, cache, [5, 7])
    stored = cache._entries.k.flatten(2)
    torch.testing.assert_close(stored, torch.cat(inputs, 1), rtol=0, atol=0)


# --- what a cache promises about itself --------------------------------------------------------------------------------


def run(cache, count, batch=1, window=None, **arguments):
    x = torch.randn(batch, 2, count, 4)
    return attend(x, x, x, causal=True, window=window, cache=cache, **arguments)


def test_a_sliding_cache_keeps_no_more_than_it_needs():
    cache = KVCache(window=4, rollback=2)
    for count in (1, 9, 3, 1, 20):
        run(cache, count, window=4)
        assert len(cache) <= 4 - 1 + 2
    assert cache.seq_length == 34 and repr(cache) == "KVCache(window=4, 5 of 34 tokens stored)"


def test_a_preallocated_cache_keeps_its_memory():
    # static addresses are what captured graphs need
    cache = KVCache(capacity=8)
    run(cache, 2)
    places = [t.data_ptr() for t in cache._entries.tensors()]
    run(cache, 5)
    cache.crop(3)
    run(cache, 1)
    cache.reset()
    run(cache, 8)
    assert [t.data_ptr() for t in cache._entries.tensors()] == places
    assert repr(cache) == "KVCache(capacity=8, 8 of 8 tokens stored)"


def test_what_a_growing_cache_says_of_itself():
    cache = KVCache()
    assert (len(cache), repr(cache)) == (0, "KVCache(growing, 0 of 0 tokens stored)")
    cache.reorder(torch.tensor([5]))  # nothing is held, so any order is the same
    run(cache, 3)
    cache.crop(2)
    assert (len(cache), cache.seq_length) == (2, 2)
    cache.reset()
    run(cache, 3, batch=4)  # another batch is welcome after a reset
    assert len(cache) == 3


def test_a_mark_undoes_any_number_of_calls():
    for cache in (KVCache(), KVCache(capacity=9), KVCache(window=3)):
        torch.manual_seed(0)
        run(cache, 4, window=cache.window)
        mark, held = cache.mark(), [t[:, : len(cache)].clone() for t in cache._view()]
        run(cache, 2, window=cache.window)
        run(cache, 3, window=cache.window)
        cache.restore(mark)
        assert cache.seq_length == 4
        assert all(torch.equal(a, b) for a, b in zip(held, cache._view(), strict=True))


def test_plain_tokens_of_a_preallocated_cache_write_keys_and_values_only():
    from torch.utils._python_dispatch import TorchDispatchMode

    written = []

    class Writes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.copy_.default:
                written.append(args[0].shape)
            return function(*args, **(kwargs or {}))

    x = torch.randn(2, 1, 9, 4)
    first, later = x.split([4, 5], 2)
    cache = KVCache(capacity=12)
    attend(first, first, first, causal=True, cache=cache)
    with Writes():
        out = attend(later, later, later, causal=True, cache=cache)
    assert written == [(2, 1, 5, 4)] * 2
    torch.testing.assert_close(out, attend(x, x, x, causal=True)[:, :, 4:])
    assert cache.entries().positions.tolist() == [list(range(9))] * 2
    assert cache.entries().real.all()
    # after other tokens the slots hold more than plain tokens need
    cache.crop(4)
    attend(later, later, later, causal=True, cache=cache, lengths=torch.tensor([5, 2]))
    cache.reset()
    for part in (first, later):
        again = attend(part, part, part, causal=True, cache=cache)
    torch.testing.assert_close(again, out)
    assert cache.entries().positions.tolist() == [list(range(9))] * 2
    assert cache.entries().real.all()


def test_a_cache_belongs_to_one_layer():
    torch.manual_seed(0)
    first, second = (Attention(8, 2, Alibi(2), causal=True).eval() for _ in range(2))
    x, cache = torch.randn(1, 3, 8), KVCache()
    first(x, cache=cache)
    with pytest.raises(
        WhenceError, match=r"Attention\(cache=...\) got a cache with tokens of another layer.*cache.reset\(\)"
    ):
        second(x, cache=cache)
    assert len(cache) == 3
    kept = copy.deepcopy(cache)
    torch.testing.assert_close(first(x, cache=kept), first(x, cache=cache))
    cache.reset()
    torch.testing.assert_close(second(x, cache=cache), second(x))


def test_a_copied_cache_goes_with_a_copied_layer():
    torch.manual_seed(0)
    layer, cache = Attention(8, 2, Alibi(2), causal=True).eval(), KVCache()
    x = torch.randn(1, 3, 8)
    with torch.no_grad():
        layer(x, cache=cache)
    own, kept = copy.deepcopy((layer, cache))
    torch.testing.assert_close(own(x, cache=kept), layer(x, cache=copy.copy(cache)))


def test_going_back_to_a_mark_gives_the_cache_back_to_its_layer():
    first, second = (Attention(8, 2, Alibi(2), causal=True).eval() for _ in range(2))
    x, cache = torch.randn(1, 3, 8), KVCache()
    first(x, cache=cache)
    mark = cache.mark()
    cache.reset()
    second(x, cache=cache)
    cache.restore(mark)
    with pytest.raises(WhenceError, match="another layer"):
        second(x, cache=cache)
    first(x, cache=cache)
    assert len(cache) == 6


@pytest.mark.parametrize("capacity", [None, 8])
def test_a_mark_belongs_to_its_cache(capacity):
    torch.manual_seed(0)
    layer = Attention(8, 2, Alibi(2), causal=True).requires_grad_(False)
    x, y = torch.randn(2, 1, 6, 8)
    cache = KVCache(capacity=capacity)
    layer(x[:, :3], cache=cache)
    mark = cache.mark()
    other = copy.deepcopy(cache)
    with pytest.raises(WhenceError, match=r"a mark of another cache.*call mark\(\) on this cache"):
        other.restore(mark)
    mark = other.mark()
    layer(y[:, :1], cache=other)
    other.restore(mark)
    layer(x[:, 3:5], cache=cache)
    layer(y[:, :2], cache=other)
    torch.testing.assert_close(layer(x[:, 5:], cache=cache), layer(x)[:, 5:])

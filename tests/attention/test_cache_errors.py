"""Errors of caches and layers. A refused call leaves its cache unchanged."""

import pytest
import torch
from error_cases import (
    B,
    D,
    G,
    H,
    assert_error,
    cache_with_tokens,
    cached_with_another_batch,
    layer,
    packed_cache,
    parametrize_errors,
    position_with_hooks,
    step,
    tensor,
    x,
)

import whence
from whence import Attention, Epar, KVCache, Learned, Rotary, Sinusoidal

CACHES = [
    ("preallocated and sliding", lambda: KVCache(capacity=4, window=2), ("KVCache(...)", "capacity and window")),
    ("capacity of zero", lambda: KVCache(capacity=0), ("KVCache(capacity=...)", "0")),
    ("window of a fraction in a cache", lambda: KVCache(window=1.5), ("KVCache(window=...)", "1.5")),
    ("rollback below zero", lambda: KVCache(window=2, rollback=-1), ("KVCache(rollback=...)", "-1")),
    ("capacity of True", lambda: KVCache(capacity=True), ("KVCache(capacity=...)", "True")),
    ("more queries than new keys", lambda: step(KVCache(), q=tensor(B, H, 2, D)), ("attend(cache=...)", "2", "1")),
    (
        "a cache without causality",
        lambda: step(KVCache(), causal=False),
        ("attend(cache=...)", "causal=False", "causal=True"),
    ),
    (
        "a pair of documents with a cache",
        lambda: step(KVCache(), segment_ids=(torch.tensor([0]), torch.tensor([0]))),
        ("attend(cache=..., segment_ids=...)", "a pair"),
    ),
    (
        "a sliding cache and no window",
        lambda: step(KVCache(window=2)),
        ("attend(cache=..., window=...)", "window=None", "2", "window=2"),
    ),
    (
        "a sliding cache and a wider window",
        lambda: step(KVCache(window=2), window=3),
        ("attend(cache=..., window=...)", "window=3", "2", "window=2"),
    ),
    (
        "one token too many",
        lambda: step(cache_with_tokens(capacity=4), tokens=2),
        ("attend(cache=...)", "2", "3", "4", "KVCache()"),
    ),
    (
        "a gradient into a preallocated cache",
        lambda: step(KVCache(capacity=4), k=tensor(B, G, 1, D).requires_grad_()),
        ("attend(cache=...)", "torch.no_grad()", "KVCache()"),
    ),
    (
        "another batch",
        lambda: step(cache_with_tokens(), batch=1),
        ("attend(k, cache=...)", "[batch, heads, head_dim]", "[1, 2, 8]", "torch.float32", "cpu"),
    ),
    (
        "other heads",
        lambda: step(cache_with_tokens(), k=tensor(B, 4, 1, D), v=tensor(B, 4, 1, D)),
        ("attend(k, cache=...)", "[batch, heads, head_dim]", "[2, 4, 8]", "torch.float32", "cpu"),
    ),
    (
        "values of another width in a cache",
        lambda: step(cache_with_tokens(), v=tensor(B, G, 1, 4)),
        ("attend(v, cache=...)", "[batch, heads, head_dim]", "[2, 2, 4]", "torch.float32", "cpu"),
    ),
    (
        "another dtype",
        lambda: step(
            cache_with_tokens(),
            **{n: tensor(B, h, 1, D, dtype=torch.float64) for n, h in (("q", H), ("k", G), ("v", G))},
        ),
        ("attend(k, cache=...)", "[batch, heads, head_dim]", "[2, 2, 8]", "torch.float64", "cpu"),
    ),
    (
        "another device",
        lambda: step(
            cache_with_tokens(), **{n: tensor(B, h, 1, D, device="meta") for n, h in (("q", H), ("k", G), ("v", G))}
        ),
        ("attend(q)", "meta"),
    ),
    (
        "positions for more than the new tokens",
        lambda: step(cache_with_tokens(), q_positions=torch.arange(4)),
        ("attend(q_positions=...)", "[4]"),
    ),
    (
        "two positions of new tokens that differ",
        lambda: step(cache_with_tokens(), q_positions=torch.tensor([3]), k_positions=torch.tensor([4])),
        ("attend(cache=..., q_positions=..., k_positions=...)", "two that differ"),
    ),
    (
        "padding of all tokens rather than the new ones",
        lambda: step(cache_with_tokens(), key_mask=torch.ones(B, 4, dtype=torch.bool)),
        ("attend(key_mask=...)", "torch.bool", "[2, 4]"),
    ),
    (
        "an earlier document again",
        lambda: step(packed_cache(), segment_ids=torch.tensor([0])),
        ("attend(segment_ids=...)",),
    ),
    ("cropped to more than was seen", lambda: cache_with_tokens().crop(4), ("KVCache.crop(length=...)", "4")),
    ("cropped below zero", lambda: cache_with_tokens().crop(-1), ("KVCache.crop(length=...)", "-1")),
    ("cropped to a fraction", lambda: cache_with_tokens().crop(1.0), ("KVCache.crop(length=...)", "1.0")),
    (
        "a sliding cache rolled back further than it can",
        lambda: cache_with_tokens(window=2, rollback=1).crop(1),
        ("KVCache.crop", "1", "3", "rollback=2"),
    ),
    (
        "reordered by rows there are not",
        lambda: cache_with_tokens().reorder(torch.tensor([0, 2])),
        ("KVCache.reorder(index)", "[0, 2]"),
    ),
    (
        "reordered by negative rows",
        lambda: cache_with_tokens().reorder(torch.tensor([-1, 0])),
        ("KVCache.reorder(index)", "[-1, 0]"),
    ),
    (
        "reordered by floats",
        lambda: cache_with_tokens().reorder(torch.tensor([0.0, 1.0])),
        ("KVCache.reorder(index)", "[0.0, 1.0]"),
    ),
    (
        "reordered by a mask",
        lambda: cache_with_tokens().reorder(torch.tensor([True, False])),
        ("KVCache.reorder(index)", "[True, False]"),
    ),
    ("reordered by a list", lambda: cache_with_tokens().reorder([0, 1]), ("KVCache.reorder(index)", "list")),
    (
        "reordered by a matrix",
        lambda: cache_with_tokens().reorder(torch.tensor([[0, 1]])),
        ("KVCache.reorder(index)", "[[0, 1]"),
    ),
]

LAYERS = [
    (
        "heads that do not divide the width",
        lambda: Attention(16, 3),
        ("Attention(embed_dim, heads)", "16", "3", "head_dim"),
    ),
    (
        "key heads that do not divide the heads",
        lambda: Attention(16, 4, num_kv_heads=3),
        ("Attention(num_kv_heads=...)", "3", "4"),
    ),
    ("no heads", lambda: Attention(16, 0), ("Attention(heads=...)", "0")),
    ("no key heads", lambda: Attention(16, 4, num_kv_heads=0), ("Attention(num_kv_heads=...)", "0")),
    ("width as a float", lambda: Attention(16.0, 4), ("Attention(embed_dim=...)", "16.0")),
    ("head width of zero", lambda: Attention(16, 4, head_dim=0), ("Attention(head_dim=...)", "0")),
    ("an unknown norm", lambda: Attention(16, 4, norm="layer"), ("Attention(norm=...)", "'layer'")),
    (
        "a position of the layer that is none",
        lambda: Attention(16, 4, "rotary"),
        ("Attention(position=...)", "'rotary'", "whence.Position"),
    ),
    ("x of two axes", lambda: layer()(tensor(3, 16)), ("Attention(x)", "[3, 16]")),
    ("x of another width", lambda: layer()(x(width=8)), ("Attention(x)", "[1, 3, 8]")),
    ("x without tokens", lambda: layer()(x(length=0)), ("Attention(x)", "[1, 0, 16]")),
    ("x that is no tensor", lambda: layer()([1.0]), ("Attention(x)", "list")),
    ("x that is None", lambda: layer()(None), ("Attention(x)", "NoneType")),
    ("memory of another width", lambda: layer(causal=False)(x(), x(width=8)), ("Attention(memory)", "[1, 3, 8]")),
    ("memory of another batch", lambda: layer(causal=False)(x(batch=2), x()), ("attend(k)", "1", "2", "k.expand")),
    (
        "memory of another length with causality",
        lambda: layer()(x(length=1), x()),
        ("Attention(x, memory)", "causal=True", "causal=False", "memory_positions"),
    ),
    (
        "an embedding with a memory",
        lambda: layer(Sinusoidal(16), causal=False)(x(), x()),
        ("Attention(x, memory)", "without_embedding(position)"),
    ),
    ("an embedding of another width", lambda: layer(Sinusoidal(8))(x()), ("Sinusoidal(8)", "16")),
    ("an embedding past its table", lambda: layer(Learned(16, 2))(x()), ("Learned(max_length=2)", "2")),
    (
        "an embedding with wrong positions",
        lambda: layer(Sinusoidal(16))(x(), positions=torch.arange(4)),
        ("attend(positions=...)", "[4]"),
    ),
    (
        "an embedding and a cache of another batch",
        lambda: cached_with_another_batch(layer(Sinusoidal(16))),
        ("attend(cache=...)", "2", "1"),
    ),
    (
        "weights of a blockwise layer",
        lambda: layer(Epar(2), backend="blockwise")(x(), return_weights=True),
        ("attend(backend='blockwise')", "backend='reference'"),
    ),
    ("a mechanism for other heads", lambda: layer(Epar(4))(x()), ("attend(position=Epar)", "4", "2", "heads=2")),
    ("rotary on an odd width", lambda: Attention(9, 3, Rotary())(x(width=9)), ("Rotary", "3", "rotary_dim")),
]


@parametrize_errors(CACHES)
def test_caches(make, fragments):
    assert_error(make, fragments)


@parametrize_errors(LAYERS)
def test_layers(make, fragments):
    assert_error(make, fragments)


def contents(cache):
    """All that a cache answers with, as plain values."""
    tensors = [] if cache._entries is None else [t[:, : len(cache)].clone() for t in cache._entries.tensors()]
    return repr(cache), tensors


@pytest.mark.parametrize(
    "about", [{}, {"capacity": 8}, {"window": 3, "rollback": 1}], ids=["growing", "preallocated", "sliding"]
)
@pytest.mark.parametrize(
    "wrong",
    [
        {"backend": "sdpa", "position": Epar(H)},
        {"backend": "blockwise", "return_weights": True},
        {"position": position_with_hooks("score_scale", answer=torch.ones(99))},
        {"position": position_with_hooks("rotate", answer=None)},
        {"q_positions": torch.tensor([-1])},
    ],
    ids=["backend", "weights", "a hook's answer", "rotate", "positions"],
)
def test_a_refused_call_leaves_its_cache_as_it_was(about, wrong):
    # otherwise the tokens of the refused call would be there twice when the mended call is made
    cache = cache_with_tokens(**about)
    text, tensors = contents(cache)
    with pytest.raises(whence.WhenceError):
        step(cache, window=about.get("window"), **wrong)
    text_after, tensors_after = contents(cache)
    assert text_after == text
    assert all(torch.equal(a, b) for a, b in zip(tensors, tensors_after, strict=True))
    step(cache, window=about.get("window"))
    assert cache.seq_length == 4


def test_a_refused_first_call_leaves_an_empty_cache():
    cache = KVCache(capacity=4)
    with pytest.raises(whence.WhenceError):
        step(cache, position=position_with_hooks("bias", answer=None))
    assert (len(cache), cache.seq_length) == (0, 0)
    step(cache, batch=1)  # nor does it remember the shapes of what was refused

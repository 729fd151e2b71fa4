"""Every error of the core: the call and argument, the value received, and the argument or command of the remedy.

The sentences around them may change. Every error is one sentence with a rule and a remedy.
"""

import pytest
import torch

import whence
from whence import Alibi, Attention, Cope, Epar, KVCache, Learned, Position, Rotary, Shaw, Sink, Sinusoidal, StableMask
from whence.position import DynamicNtk, Sum

B, H, G, T, D = 2, 4, 2, 3, 8


def tensor(*shape, dtype=torch.float32, device=None):
    return torch.zeros(shape, dtype=dtype, device=device)


def call(q=None, k=None, v=None, run=whence.attend, **arguments):
    """A call that is right in everything but what is given."""
    q = tensor(B, H, T, D) if q is None else q
    k = tensor(B, G, T, D) if k is None else k
    v = tensor(B, G, T, D) if v is None else v
    return run(q, k, v, **arguments)


def user(*names, answer, **about):
    """A user's mechanism whose hooks of these names all give one answer."""
    kind = type("Mine", (Position,), {name: lambda self, *_: answer for name in names})
    return kind(**about)


def layer(position=None, **about):
    return Attention(16, 2, position, **{"causal": True} | about)


def x(batch=1, length=3, width=16, **about):
    return tensor(batch, length, width, **about)


def holding(tokens=3, batch=B, **about):
    """A cache that has seen some tokens of two key heads of width 8."""
    cache = KVCache(**about)
    q, k = tensor(batch, H, tokens, D), tensor(batch, G, tokens, D)
    whence.attend(q, k, k, causal=True, window=about.get("window"), cache=cache)
    return cache


def step(cache, tokens=1, batch=B, causal=True, **arguments):
    """The next tokens against a cache, right in everything but what is given."""
    q, k = tensor(batch, H, tokens, D), tensor(batch, G, tokens, D)
    given = {"q": q, "k": k, "v": k, "causal": causal} | arguments
    return whence.attend(given.pop("q"), given.pop("k"), given.pop("v"), cache=cache, **given)


INPUTS = [
    ("q that is no tensor", lambda: call(q=[[1.0]]), ("attend(q)", "list", "torch.as_tensor")),
    ("v that is no tensor", lambda: call(v="v"), ("attend(v)", "str", "torch.as_tensor")),
    ("q of three axes", lambda: call(q=tensor(B, T, D)), ("attend(q)", "[2, 3, 8]")),
    ("k of five axes", lambda: call(k=tensor(1, B, G, T, D)), ("attend(k)", "[1, 2, 2, 3, 8]")),
    ("v of two axes", lambda: call(v=tensor(T, D)), ("attend(v)", "[3, 8]")),
    (
        "q of whole numbers",
        lambda: call(q=tensor(B, H, T, D, dtype=torch.long)),
        ("attend(q)", "torch.int64", "q.float()"),
    ),
    (
        "k of complex numbers",
        lambda: call(k=tensor(B, G, T, D, dtype=torch.complex64)),
        ("attend(k)", "torch.complex64", "k.float()"),
    ),
    ("no batch", lambda: call(q=tensor(0, H, T, D)), ("attend(q)", "[0, 4, 3, 8]")),
    ("no keys", lambda: call(k=tensor(B, G, 0, D)), ("attend(k)", "[2, 2, 0, 8]")),
    (
        "k of another dtype",
        lambda: call(k=tensor(B, G, T, D, dtype=torch.float64)),
        ("attend(k)", "torch.float64", "torch.float32", "k.to(q.dtype)"),
    ),
    (
        "v of another dtype",
        lambda: call(v=tensor(B, G, T, D, dtype=torch.bfloat16)),
        ("attend(v)", "torch.bfloat16", "torch.float32", "v.to(q.dtype)"),
    ),
    (
        "k on another device",
        lambda: call(k=tensor(B, G, T, D, device="meta")),
        ("attend(k)", "meta", "cpu", "k.to(q.device)"),
    ),
    (
        "v on another device",
        lambda: call(v=tensor(B, G, T, D, device="meta")),
        ("attend(v)", "meta", "cpu", "v.to(q.device)"),
    ),
    (
        "a batch of 1 is not stretched to 2",
        lambda: call(k=tensor(1, G, T, D), v=tensor(1, G, T, D)),
        ("attend(k)", "1", "2", "k.expand"),
    ),
    ("v with a batch of its own", lambda: call(v=tensor(1, G, T, D)), ("attend(v)", "1", "2", "v.expand")),
    ("keys of another width", lambda: call(k=tensor(B, G, T, D + 1)), ("attend(k)", "9", "8")),
    ("one head of values is not shared", lambda: call(v=tensor(B, 1, T, D)), ("attend(v)", "1", "2")),
    ("a value too many", lambda: call(v=tensor(B, G, T + 1, D)), ("attend(v)", "4", "3")),
    ("heads that do not divide", lambda: call(k=tensor(B, 3, T, D), v=tensor(B, 3, T, D)), ("attend(q)", "4", "3")),
    ("more key heads than query heads", lambda: call(q=tensor(B, 1, T, D)), ("attend(q)", "1", "2")),
    (
        "NaN",
        lambda: call(q=torch.full((B, H, T, D), torch.nan), check_finite=True),
        ("attend(q, check_finite=True)", "192"),
    ),
    (
        "infinity in v",
        lambda: call(v=torch.full((B, G, T, D), torch.inf), check_finite=True),
        ("attend(v, check_finite=True)", "96"),
    ),
    (
        "finite asked of what is no tensor",
        lambda: call(q=1, check_finite=True),
        ("attend(q)", "int", "torch.as_tensor"),
    ),
]

PLACES = [
    (
        "queries and keys of two lengths and no positions",
        lambda: call(q=tensor(B, H, 1, D), causal=True),
        ("attend(q, k)", "1", "3", "q_positions=torch.arange(2", "k_positions=torch.arange(3)"),
    ),
    (
        "two lengths and a mechanism, without positions",
        lambda: call(q=tensor(B, H, 1, D), position=Epar(H)),
        ("attend(q, k)", "1", "3", "q_positions=torch.arange(2", "k_positions=torch.arange(3)"),
    ),
    (
        "two lengths and a window, without positions",
        lambda: call(q=tensor(B, H, 1, D), window=2),
        ("attend(q, k)", "1", "3", "q_positions=torch.arange(2", "k_positions=torch.arange(3)"),
    ),
    (
        "more queries than keys and no positions",
        lambda: call(q=tensor(B, H, T + 1, D), causal=True),
        ("attend(q, k)", "4", "3", "q_positions", "k_positions"),
    ),
    (
        "one of two positions",
        lambda: call(q=tensor(B, H, 1, D), q_positions=torch.tensor([2])),
        ("attend(q_positions=..., k_positions=...)",),
    ),
    ("positions as a list", lambda: call(q_positions=[0, 1, 2]), ("attend(q_positions=...)", "list", "torch.arange")),
    (
        "positions of bool",
        lambda: call(q_positions=torch.ones(T, dtype=torch.bool)),
        ("attend(q_positions=...)", "torch.bool", "torch.arange"),
    ),
    ("a position too few", lambda: call(q_positions=torch.arange(T - 1)), ("attend(q_positions=...)", "[2]")),
    (
        "a batch of 1 of positions is not stretched",
        lambda: call(k_positions=torch.arange(T)[None]),
        ("attend(k_positions=...)", "[1, 3]"),
    ),
    (
        "positions on another device",
        lambda: call(q_positions=torch.arange(T, device="meta")),
        ("attend(q_positions=...)", "meta", "cpu", ".to(q.device)"),
    ),
    (
        "a negative position",
        lambda: call(q_positions=torch.tensor([-1, 0, 1])),
        ("attend(q_positions=...)", "-1", "key_mask"),
    ),
    (
        "a position that is NaN",
        lambda: call(k_positions=torch.tensor([0.0, torch.nan, 2.0])),
        ("attend(k_positions=...)", "nan", "key_mask"),
    ),
    (
        "a mask of whole numbers",
        lambda: call(key_mask=torch.ones(B, T, dtype=torch.long)),
        ("attend(key_mask=...)", "torch.int64", "[2, 3]", "mask.bool()"),
    ),
    (
        "a mask of another length",
        lambda: call(key_mask=torch.ones(B, T + 1, dtype=torch.bool)),
        ("attend(key_mask=...)", "torch.bool", "[2, 4]"),
    ),
    (
        "a mask without a batch",
        lambda: call(key_mask=torch.ones(T, dtype=torch.bool)),
        ("attend(key_mask=...)", "torch.bool", "[3]"),
    ),
    ("a mask that is a list", lambda: call(key_mask=[True] * T), ("attend(key_mask=...)", "list")),
    (
        "a mask on another device",
        lambda: call(key_mask=torch.ones(B, T, dtype=torch.bool, device="meta")),
        ("attend(key_mask=...)", "meta", "cpu", ".to(q.device)"),
    ),
    ("lengths of floats", lambda: call(lengths=torch.ones(B)), ("attend(lengths=...)", "torch.float32", "[2]")),
    (
        "lengths of bool",
        lambda: call(lengths=torch.ones(B, dtype=torch.bool)),
        ("attend(lengths=...)", "torch.bool", "[2]"),
    ),
    (
        "lengths for another batch",
        lambda: call(lengths=torch.tensor([3])),
        ("attend(lengths=...)", "torch.int64", "[1]"),
    ),
    ("lengths as a list", lambda: call(lengths=[3, 3]), ("attend(lengths=...)", "list")),
    ("a length beyond the keys", lambda: call(lengths=torch.tensor([3, 4])), ("attend(lengths=...)", "[3, 4]")),
    ("a negative length", lambda: call(lengths=torch.tensor([-1, 3])), ("attend(lengths=...)", "[-1, 3]")),
    (
        "lengths on another device",
        lambda: call(lengths=torch.ones(B, dtype=torch.long, device="meta")),
        ("attend(lengths=...)", "meta", "cpu", ".to(q.device)"),
    ),
    (
        "lengths and padding",
        lambda: call(lengths=torch.tensor([3, 3]), key_mask=torch.ones(B, T, dtype=torch.bool)),
        ("attend(lengths=..., key_mask=...)", "both"),
    ),
    (
        "documents of floats",
        lambda: call(segment_ids=torch.zeros(T)),
        ("attend(segment_ids=...)", "torch.float32", "[3]"),
    ),
    (
        "documents of bool",
        lambda: call(segment_ids=torch.zeros(T, dtype=torch.bool)),
        ("attend(segment_ids=...)", "torch.bool", "[3]"),
    ),
    ("documents as a list", lambda: call(segment_ids=[0, 0, 1]), ("attend(segment_ids=...)", "list")),
    (
        "a document number too many",
        lambda: call(segment_ids=torch.tensor([0, 0, 1, 1])),
        ("attend(segment_ids=...)", "torch.int64", "[4]"),
    ),
    (
        "documents on another device",
        lambda: call(segment_ids=torch.zeros(T, dtype=torch.long, device="meta")),
        ("attend(segment_ids=...)", "meta", "cpu", ".to(q.device)"),
    ),
    (
        "one tensor of documents for two lengths",
        lambda: call(q=tensor(B, H, 1, D), segment_ids=torch.zeros(T, dtype=torch.long)),
        ("attend(segment_ids=...)", "1", "3"),
    ),
    (
        "three tensors of documents",
        lambda: call(segment_ids=(torch.zeros(T, dtype=torch.long),) * 3),
        ("attend(segment_ids=...)", "3"),
    ),
    (
        "a document that is taken up again",
        lambda: call(segment_ids=torch.tensor([0, 1, 0])),
        ("attend(segment_ids=...)",),
    ),
]

SETTINGS = [
    ("an unknown backend", lambda: call(backend="flash"), ("attend(backend=...)", "'flash'")),
    ("window of zero", lambda: call(window=0), ("attend(window=...)", "0")),
    ("window of a fraction", lambda: call(window=2.5), ("attend(window=...)", "2.5")),
    ("window of True", lambda: call(window=True), ("attend(window=...)", "True")),
    ("scale of infinity", lambda: call(scale=torch.inf), ("attend(scale=...)", "inf")),
    ("scale as a text", lambda: call(scale="auto"), ("attend(scale=...)", "'auto'")),
    ("temperature of zero", lambda: call(temperature=0), ("attend(temperature=...)", "0")),
    ("temperature of infinity", lambda: call(temperature=torch.inf), ("attend(temperature=...)", "inf")),
    ("temperature of True", lambda: call(temperature=True), ("attend(temperature=...)", "True")),
    ("dropout of one", lambda: call(dropout=1.0), ("attend(dropout=...)", "1.0")),
    ("dropout below zero", lambda: call(dropout=-0.1), ("attend(dropout=...)", "-0.1")),
    ("a cache that is none", lambda: call(cache={}, causal=True), ("attend(cache=...)", "dict")),
    (
        "sdpa with a factor",
        lambda: call(position=Epar(H), backend="sdpa"),
        ("attend(backend='sdpa')", "backend='blockwise'"),
    ),
    (
        "sdpa with content, a sink and values",
        lambda: call(position=Shaw(D) + Sink(H), backend="sdpa"),
        ("attend(backend='sdpa')", "backend='blockwise'"),
    ),
    (
        "sdpa with weights",
        lambda: call(backend="sdpa", return_weights=True),
        ("attend(backend='sdpa')", "backend='reference'"),
    ),
    (
        "blockwise with weights",
        lambda: call(position=Epar(H), backend="blockwise", return_weights=True),
        ("attend(backend='blockwise')", "backend='reference'"),
    ),
    (
        "explain refuses as attend does",
        lambda: call(run=whence.explain, position=Epar(H), backend="sdpa"),
        ("attend(backend='sdpa')", "backend='blockwise'"),
    ),
]

MECHANISMS = [
    (
        "a position that is none",
        lambda: call(position="alibi"),
        ("attend(position=...)", "'alibi'", "whence.Position", "such as whence.Rotary()"),
    ),
    (
        "a class for an object",
        lambda: call(position=Alibi),
        ("attend(position=...)", "Alibi", "whence.Position", "such as whence.Rotary()"),
    ),
    ("heads of another number", lambda: call(position=Epar(2)), ("attend(position=Epar)", "2", "4", "heads=4")),
    (
        "key heads for query heads in a sum",
        lambda: call(position=Rotary() + Sink(G)),
        ("attend(position=Sink)", "2", "4", "heads=4"),
    ),
    ("another head width", lambda: call(position=Shaw(16)), ("attend(position=Shaw)", "16", "8", "head_dim=8")),
    (
        "causal ALiBi looking ahead",
        lambda: call(position=Alibi(H)),
        ("attend(position=Alibi)", "causal=False", "causal=True"),
    ),
    (
        "a sum with a causal part looking ahead",
        lambda: call(position=Rotary() + StableMask(H, context=8)),
        ("attend(position=StableMask)", "causal=False", "causal=True"),
    ),
    ("Cope looking ahead", lambda: call(position=Cope(D)), ("attend(position=Cope)", "causal=False", "causal=True")),
    (
        "an embedding in attend",
        lambda: call(position=Sinusoidal(32)),
        ("attend(position=Sinusoidal)", "position.embed(x, positions)", "whence.Attention"),
    ),
    (
        "an embedding in a sum in attend",
        lambda: call(position=Alibi(H) + Learned(32, 8), causal=True),
        ("attend(position=Learned)", "position.embed(x, positions)", "whence.Attention"),
    ),
    (
        "a length of the sequence with a cache",
        lambda: call(position=Epar(H, length="sequence"), causal=True, cache=KVCache()),
        ("attend(position=Epar, cache=...)", "length='sequence'", "length='context'", "length='query'"),
    ),
    (
        "dynamic rotary by sequence with a cache",
        lambda: call(position=Rotary(scaling=DynamicNtk(2.0, 8), length="sequence"), causal=True, cache=KVCache()),
        ("attend(position=Rotary, cache=...)", "length='sequence'", "length='context'", "length='query'"),
    ),
    (
        "parameters on another device",
        lambda: call(position=Epar(H, learnable=True).to("meta")),
        ("attend(position=Epar)", "meta", "cpu", "position.to(q.device)"),
    ),
    (
        "buffers on another device",
        lambda: call(position=Alibi(H).to("meta"), causal=True),
        ("attend(position=Alibi)", "meta", "cpu", "position.to(q.device)"),
    ),
    ("negative heads", lambda: Epar(-1), ("Epar(heads=...)", "-1")),
    ("heads of a fraction", lambda: Epar(2.0), ("Epar(heads=...)", "2.0")),
    ("an unknown length", lambda: Epar(length="max"), ("Epar(length=...)", "'max'")),
    (
        "a fixed length without a context",
        lambda: Epar(length="context", context=None),
        ("Epar(context=...)", "None", "context=4096", "length='query'"),
    ),
    ("a context of zero", lambda: Epar(context=0), ("Epar(context=...)", "0", "context=4096", "length='query'")),
    ("a mechanism that needs heads without them", lambda: Alibi(None), ("Alibi(heads=...)", "None")),
]

ANSWERS = [
    (
        "a factor of n + 1",
        lambda: call(position=user("score_scale", answer=torch.ones(6))),
        ("Mine.score_scale", "[6]"),
    ),
    (
        "a bias for two of four heads",
        lambda: call(position=user("bias", answer=torch.ones(2, 9)), backend="reference"),
        ("Mine.bias", "[2, 9]", "heads=4", "[heads, 1]"),
    ),
    (
        "a bias of one head is not stretched",
        lambda: call(position=user("bias", answer=torch.ones(1, 9)), backend="reference"),
        ("Mine.bias", "[1, 9]", "heads=4", "[heads, 1]"),
    ),
    (
        "a bias by distance table of another length",
        lambda: call(position=user("bias", answer=torch.ones(9)), backend="blockwise"),
        ("Mine.bias", "[9]"),
    ),
    (
        "a single number for a factor",
        lambda: call(position=user("score_scale", answer=torch.tensor(1.0))),
        ("Mine.score_scale", "[]"),
    ),
    ("a factor of None", lambda: call(position=user("score_scale", answer=None)), ("Mine.score_scale", "NoneType")),
    ("a bias that is a float", lambda: call(position=user("bias", answer=1.0)), ("Mine.bias", "float")),
    ("a sink of n + 1", lambda: call(position=user("sink", answer=torch.ones(T + 1))), ("Mine.sink", "[4]")),
    (
        "a sink of None in reference",
        lambda: call(position=user("sink", answer=None), backend="reference"),
        ("Mine.sink", "NoneType"),
    ),
    (
        "content without a batch",
        lambda: call(position=user("content_bias", answer=tensor(H, T, T))),
        ("Mine.content_bias", "[4, 3, 3]"),
    ),
    (
        "content of one head is not stretched",
        lambda: call(position=user("content_bias", answer=tensor(B, 1, T, T)), backend="reference"),
        ("Mine.content_bias", "[2, 1, 3, 3]"),
    ),
    (
        "content of None",
        lambda: call(position=user("content_bias", answer=None), backend="blockwise"),
        ("Mine.content_bias", "NoneType"),
    ),
    (
        "content of one head hidden in a sum",
        lambda: call(position=Shaw(D, acts_on="keys") + user("content_bias", answer=tensor(B, 1, T, T))),
        ("Mine.content_bias", "[2, 1, 3, 3]"),
    ),
    (
        "values of another width",
        lambda: call(position=user("value_bias", answer=tensor(B, H, T, D + 1))),
        ("Mine.value_bias", "[2, 4, 3, 9]"),
    ),
    (
        "values of None in reference",
        lambda: call(position=user("value_bias", answer=None), backend="reference"),
        ("Mine.value_bias", "NoneType"),
    ),
    (
        "values of one head hidden in a sum",
        lambda: call(position=Shaw(D) + user("value_bias", answer=tensor(B, 1, T, D))),
        ("Mine.value_bias", "[2, 1, 3, 8]"),
    ),
    (
        "rotate that gives one tensor",
        lambda: call(position=user("rotate", answer=tensor(B, H, T, D))),
        ("Mine.rotate", "[2, 4, 3, 8]"),
    ),
    ("rotate that gives None", lambda: call(position=user("rotate", answer=None)), ("Mine.rotate", "NoneType")),
    (
        "rotate that widens q",
        lambda: call(position=user("rotate", answer=(tensor(B, H, T, D + 2), tensor(B, G, T, D + 2)))),
        ("Mine.rotate", "[2, 4, 3, 10]"),
    ),
    (
        "rotate that repeats the key heads",
        lambda: call(position=user("rotate", answer=(tensor(B, H, T, D), tensor(B, H, T, D)))),
        ("Mine.rotate", "[2, 4, 3, 8]"),
    ),
    (
        "rotate that forgets k in a sum",
        lambda: call(position=Rotary() + user("rotate", answer=(tensor(B, H, T, D), None))),
        ("Mine.rotate", "NoneType"),
    ),
    ("embed that narrows x", lambda: layer(user("embed", answer=tensor(1, 3, 8)))(x()), ("Mine.embed", "[1, 3, 8]")),
    ("embed of None", lambda: layer(user("embed", answer=None))(x()), ("Mine.embed", "NoneType")),
]

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
        lambda: step(holding(capacity=4), tokens=2),
        ("attend(cache=...)", "2", "3", "4", "KVCache()"),
    ),
    (
        "a gradient into a preallocated cache",
        lambda: step(KVCache(capacity=4), k=tensor(B, G, 1, D).requires_grad_()),
        ("attend(cache=...)", "torch.no_grad()", "KVCache()"),
    ),
    (
        "another batch",
        lambda: step(holding(), batch=1),
        ("attend(k, cache=...)", "[batch, heads, width]", "[1, 2, 8]", "torch.float32", "cpu"),
    ),
    (
        "other heads",
        lambda: step(holding(), k=tensor(B, 4, 1, D), v=tensor(B, 4, 1, D)),
        ("attend(k, cache=...)", "[batch, heads, width]", "[2, 4, 8]", "torch.float32", "cpu"),
    ),
    (
        "values of another width in a cache",
        lambda: step(holding(), v=tensor(B, G, 1, 4)),
        ("attend(v, cache=...)", "[batch, heads, width]", "[2, 2, 4]", "torch.float32", "cpu"),
    ),
    (
        "another dtype",
        lambda: step(
            holding(), **{n: tensor(B, h, 1, D, dtype=torch.float64) for n, h in (("q", H), ("k", G), ("v", G))}
        ),
        ("attend(k, cache=...)", "[batch, heads, width]", "[2, 2, 8]", "torch.float64", "cpu"),
    ),
    (
        "another device",
        lambda: step(holding(), **{n: tensor(B, h, 1, D, device="meta") for n, h in (("q", H), ("k", G), ("v", G))}),
        ("attend(q)", "meta"),
    ),
    (
        "positions for more than the new tokens",
        lambda: step(holding(), q_positions=torch.arange(4)),
        ("attend(q_positions=...)", "[4]"),
    ),
    (
        "two positions of new tokens that differ",
        lambda: step(holding(), q_positions=torch.tensor([3]), k_positions=torch.tensor([4])),
        ("attend(cache=..., q_positions=..., k_positions=...)", "two that differ"),
    ),
    (
        "padding of all tokens rather than the new ones",
        lambda: step(holding(), key_mask=torch.ones(B, 4, dtype=torch.bool)),
        ("attend(key_mask=...)", "torch.bool", "[2, 4]"),
    ),
    ("an earlier document again", lambda: step(packed(), segment_ids=torch.tensor([0])), ("attend(segment_ids=...)",)),
    ("cropped to more than was seen", lambda: holding().crop(4), ("KVCache.crop(length=...)", "4")),
    ("cropped below zero", lambda: holding().crop(-1), ("KVCache.crop(length=...)", "-1")),
    ("cropped to a fraction", lambda: holding().crop(1.0), ("KVCache.crop(length=...)", "1.0")),
    (
        "a sliding cache rolled back further than it can",
        lambda: holding(window=2, rollback=1).crop(1),
        ("KVCache.crop", "1", "3", "rollback=2"),
    ),
    (
        "reordered by rows there are not",
        lambda: holding().reorder(torch.tensor([0, 2])),
        ("KVCache.reorder(index)", "[0, 2]"),
    ),
    (
        "reordered by negative rows",
        lambda: holding().reorder(torch.tensor([-1, 0])),
        ("KVCache.reorder(index)", "[-1, 0]"),
    ),
    (
        "reordered by floats",
        lambda: holding().reorder(torch.tensor([0.0, 1.0])),
        ("KVCache.reorder(index)", "[0.0, 1.0]"),
    ),
    (
        "reordered by a mask",
        lambda: holding().reorder(torch.tensor([True, False])),
        ("KVCache.reorder(index)", "[True, False]"),
    ),
    ("reordered by a list", lambda: holding().reorder([0, 1]), ("KVCache.reorder(index)", "list")),
    ("reordered by a matrix", lambda: holding().reorder(torch.tensor([[0, 1]])), ("KVCache.reorder(index)", "[[0, 1]")),
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
        ("Attention(position=...)", "str", "whence.Position"),
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
        lambda: layer(Sinusoidal(16))(x(batch=2), cache=filled(layer(Sinusoidal(16)))),
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

SUMS = [
    ("a number added", lambda: Alibi(2) + 1, ("Alibi + ...", "int", "whence.Position")),
    ("a number in Sum", lambda: Sum(Alibi(2), 1), ("Sum(...)", "int", "whence.Position")),
    ("two numbers of heads", lambda: Alibi(2) + Epar(4), ("Alibi + Epar", "2", "4")),
    (
        "three parts and two numbers of heads",
        lambda: Rotary() + Alibi(2) + Sink(4),
        ("Rotary + Alibi + Sink", "2", "4"),
    ),
    ("the same object twice", lambda: same(), ("Alibi + Alibi",)),
    ("two sinks", lambda: Sink(2) + StableMask(2, context=8), ("Sink + StableMask", "2")),
    ("two head widths", lambda: Shaw(8) + Cope(4), ("Shaw + Cope", "8", "4", "head_dim")),
]


def packed():
    """A cache that holds two documents."""
    cache = KVCache()
    step(cache, tokens=4, segment_ids=torch.tensor([0, 0, 1, 1]))
    return cache


def filled(model):
    """A cache in which a layer put one row."""
    cache = KVCache()
    with torch.no_grad():
        model(x(), cache=cache)
    return cache


def same():
    alibi = Alibi(2)
    return alibi + alibi


def refused(cases):
    return pytest.mark.parametrize("make, fragments", [pytest.param(m, f, id=name) for name, m, f in cases])


def check(make, fragments):
    with pytest.raises(whence.WhenceError) as caught:
        make()
    text = str(caught.value)
    assert text.startswith(fragments[0])  # the call and the argument
    assert not [fragment for fragment in fragments if fragment not in text], text
    subject_and_value, rule_and_remedy = text.split(", but ", 1)
    assert " got " in subject_and_value and "; " in rule_and_remedy
    assert text.endswith(".") and ". " not in text.replace("...", "") and "\n" not in text


@refused(INPUTS)
def test_queries_keys_and_values(make, fragments):
    check(make, fragments)


@refused(PLACES)
def test_positions_padding_and_documents(make, fragments):
    check(make, fragments)


@refused(SETTINGS)
def test_numbers_and_backends(make, fragments):
    check(make, fragments)


@refused(MECHANISMS)
def test_mechanisms(make, fragments):
    check(make, fragments)


@refused(ANSWERS)
def test_answers_of_hooks(make, fragments):
    check(make, fragments)


@refused(CACHES)
def test_caches(make, fragments):
    check(make, fragments)


@refused(LAYERS)
def test_layers(make, fragments):
    check(make, fragments)


@refused(SUMS)
def test_sums(make, fragments):
    check(make, fragments)


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
        {"position": user("score_scale", answer=torch.ones(99))},
        {"position": user("rotate", answer=None)},
        {"q_positions": torch.tensor([-1])},
    ],
    ids=["backend", "weights", "a hook's answer", "rotate", "positions"],
)
def test_a_refused_call_leaves_its_cache_as_it_was(about, wrong):
    # otherwise the tokens of the refused call would be there twice when the mended call is made
    cache = holding(**about)
    text, tensors = contents(cache)
    with pytest.raises(whence.WhenceError):
        step(cache, window=about.get("window"), **wrong)
    text_after, tensors_after = contents(cache)
    assert text_after == text
    assert all(torch.equal(a, b) for a, b in zip(tensors, tensors_after, strict=True))
    step(cache, window=about.get("window"))
    assert cache.seen == 4


def test_a_refused_first_call_leaves_an_empty_cache():
    cache = KVCache(capacity=4)
    with pytest.raises(whence.WhenceError):
        step(cache, position=user("bias", answer=None))
    assert (len(cache), cache.seen) == (0, 0)
    step(cache, batch=1)  # nor does it remember the shapes of what was refused


def test_all_that_is_refused_is_a_value_error():
    # so that code which knows nothing of whence catches it
    with pytest.raises(ValueError):
        call(window=0)

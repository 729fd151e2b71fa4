"""Errors of mechanisms, of what their hooks return, and of sums."""

import torch
from error_cases import (
    B,
    D,
    G,
    H,
    T,
    add_to_itself,
    assert_error,
    call,
    layer,
    parametrize_errors,
    position_with_hooks,
    tensor,
    x,
)

from whence import Alibi, Cope, Epar, KVCache, Learned, Rotary, Shaw, Sink, Sinusoidal, StableMask
from whence.position import DynamicNtk, Sum

MECHANISMS = [
    (
        "a position that is none",
        lambda: call(position="alibi"),
        ("attend(position=...)", "'alibi'", "whence.Position", "such as whence.Rotary()"),
    ),
    (
        "a class for an object",
        lambda: call(position=Alibi),
        ("attend(position=...)", "the class Alibi", "whence.Position", "Alibi(heads=...)"),
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
        lambda: call(position=position_with_hooks("score_scale", answer=torch.ones(6))),
        ("Mine.score_scale", "[6]"),
    ),
    (
        "a bias for two of four heads",
        lambda: call(position=position_with_hooks("bias", answer=torch.ones(2, 9)), backend="reference"),
        ("Mine.bias", "[2, 9]", "heads=4", "[heads, 1]"),
    ),
    (
        "a bias of one head is not stretched",
        lambda: call(position=position_with_hooks("bias", answer=torch.ones(1, 9)), backend="reference"),
        ("Mine.bias", "[1, 9]", "heads=4", "[heads, 1]"),
    ),
    (
        "a bias by distance table of another length",
        lambda: call(position=position_with_hooks("bias", answer=torch.ones(9)), backend="blockwise"),
        ("Mine.bias", "[9]"),
    ),
    (
        "a single number for a factor",
        lambda: call(position=position_with_hooks("score_scale", answer=torch.tensor(1.0))),
        ("Mine.score_scale", "[]"),
    ),
    (
        "a factor of None",
        lambda: call(position=position_with_hooks("score_scale", answer=None)),
        ("Mine.score_scale", "NoneType"),
    ),
    ("a bias that is a float", lambda: call(position=position_with_hooks("bias", answer=1.0)), ("Mine.bias", "float")),
    (
        "a sink of n + 1",
        lambda: call(position=position_with_hooks("sink", answer=torch.ones(T + 1))),
        ("Mine.sink", "[4]"),
    ),
    (
        "a sink of None in reference",
        lambda: call(position=position_with_hooks("sink", answer=None), backend="reference"),
        ("Mine.sink", "NoneType"),
    ),
    (
        "content without a batch",
        lambda: call(position=position_with_hooks("content_bias", answer=tensor(H, T, T))),
        ("Mine.content_bias", "[4, 3, 3]"),
    ),
    (
        "content of one head is not stretched",
        lambda: call(position=position_with_hooks("content_bias", answer=tensor(B, 1, T, T)), backend="reference"),
        ("Mine.content_bias", "[2, 1, 3, 3]"),
    ),
    (
        "content of None",
        lambda: call(position=position_with_hooks("content_bias", answer=None), backend="blockwise"),
        ("Mine.content_bias", "NoneType"),
    ),
    (
        "content of one head hidden in a sum",
        lambda: call(position=Shaw(D, acts_on="keys") + position_with_hooks("content_bias", answer=tensor(B, 1, T, T))),
        ("Mine.content_bias", "[2, 1, 3, 3]"),
    ),
    (
        "values of another width",
        lambda: call(position=position_with_hooks("value_bias", answer=tensor(B, H, T, D + 1))),
        ("Mine.value_bias", "[2, 4, 3, 9]"),
    ),
    (
        "values of None in reference",
        lambda: call(position=position_with_hooks("value_bias", answer=None), backend="reference"),
        ("Mine.value_bias", "NoneType"),
    ),
    (
        "values of one head hidden in a sum",
        lambda: call(position=Shaw(D) + position_with_hooks("value_bias", answer=tensor(B, 1, T, D))),
        ("Mine.value_bias", "[2, 1, 3, 8]"),
    ),
    (
        "rotate that gives one tensor",
        lambda: call(position=position_with_hooks("rotate", answer=tensor(B, H, T, D))),
        ("Mine.rotate", "[2, 4, 3, 8]"),
    ),
    (
        "rotate that gives None",
        lambda: call(position=position_with_hooks("rotate", answer=None)),
        ("Mine.rotate", "NoneType"),
    ),
    (
        "rotate that widens q",
        lambda: call(position=position_with_hooks("rotate", answer=(tensor(B, H, T, D + 2), tensor(B, G, T, D + 2)))),
        ("Mine.rotate", "[2, 4, 3, 10]"),
    ),
    (
        "rotate that repeats the key heads",
        lambda: call(position=position_with_hooks("rotate", answer=(tensor(B, H, T, D), tensor(B, H, T, D)))),
        ("Mine.rotate", "[2, 4, 3, 8]"),
    ),
    (
        "rotate that forgets k in a sum",
        lambda: call(position=Rotary() + position_with_hooks("rotate", answer=(tensor(B, H, T, D), None))),
        ("Mine.rotate", "NoneType"),
    ),
    (
        "embed that narrows x",
        lambda: layer(position_with_hooks("embed", answer=tensor(1, 3, 8)))(x()),
        ("Mine.embed", "[1, 3, 8]"),
    ),
    ("embed of None", lambda: layer(position_with_hooks("embed", answer=None))(x()), ("Mine.embed", "NoneType")),
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
    ("the same object twice", lambda: add_to_itself(), ("Alibi + Alibi",)),
    ("two head widths", lambda: Shaw(8) + Cope(4), ("Shaw + Cope", "8", "4", "head_dim")),
]


@parametrize_errors(MECHANISMS)
def test_mechanisms(make, fragments):
    assert_error(make, fragments)


@parametrize_errors(ANSWERS)
def test_answers_of_hooks(make, fragments):
    assert_error(make, fragments)


@parametrize_errors(SUMS)
def test_sums(make, fragments):
    assert_error(make, fragments)

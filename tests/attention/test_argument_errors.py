"""Errors of the arguments of ``attend``: the argument, the received value and the remedy.

The sentences around them may change. Every error is one sentence with a rule and a remedy.
"""

import pytest
import torch
from error_cases import B, D, G, H, T, assert_error, call, parametrize_errors, tensor

import whence
from whence import Epar, Shaw, Sink

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


@parametrize_errors(INPUTS)
def test_queries_keys_and_values(make, fragments):
    assert_error(make, fragments)


@parametrize_errors(PLACES)
def test_positions_padding_and_documents(make, fragments):
    assert_error(make, fragments)


@parametrize_errors(SETTINGS)
def test_numbers_and_backends(make, fragments):
    assert_error(make, fragments)


def test_every_error_is_a_value_error():
    # so that code which knows nothing of whence catches it
    with pytest.raises(ValueError):
        call(window=0)

"""Calls with one invalid argument, and the form that every error has."""

import pytest
import torch

import whence
from whence import Alibi, Attention, KVCache, Position

B, H, G, T, D = 2, 4, 2, 3, 8


def tensor(*shape, dtype=torch.float32, device=None):
    return torch.zeros(shape, dtype=dtype, device=device)


def call(q=None, k=None, v=None, run=whence.attend, **arguments):
    """A call that is right in everything but what is given."""
    q = tensor(B, H, T, D) if q is None else q
    k = tensor(B, G, T, D) if k is None else k
    v = tensor(B, G, T, D) if v is None else v
    return run(q, k, v, **arguments)


def position_with_hooks(*names, answer, **about):
    """A user's mechanism whose hooks of these names all give one answer."""
    kind = type("Mine", (Position,), {name: lambda self, *_: answer for name in names})
    return kind(**about)


def layer(position=None, **about):
    return Attention(16, 2, position, **{"causal": True} | about)


def x(batch=1, length=3, width=16, **about):
    return tensor(batch, length, width, **about)


def cache_with_tokens(tokens=3, batch=B, **about):
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


def packed_cache():
    """A cache that holds two documents."""
    cache = KVCache()
    step(cache, tokens=4, segment_ids=torch.tensor([0, 0, 1, 1]))
    return cache


def cache_filled_by(model):
    """A cache in which a layer put one row."""
    cache = KVCache()
    with torch.no_grad():
        model(x(), cache=cache)
    return cache


def cached_with_another_batch(model):
    """A layer called with two rows and a cache in which it put one."""
    return model(x(batch=2), cache=cache_filled_by(model))


def add_to_itself():
    alibi = Alibi(2)
    return alibi + alibi


def parametrize_errors(cases):
    return pytest.mark.parametrize("make, fragments", [pytest.param(m, f, id=name) for name, m, f in cases])


def assert_error(make, fragments):
    with pytest.raises(whence.WhenceError) as caught:
        make()
    text = str(caught.value)
    assert text.startswith(fragments[0])  # the call and the argument
    assert not [fragment for fragment in fragments if fragment not in text], text
    subject_and_value, rule_and_remedy = text.split(", but ", 1)
    assert " got " in subject_and_value and "; " in rule_and_remedy
    assert text.endswith(".") and ". " not in text.replace("...", "") and "\n" not in text

"""Random shapes: the tiled backend is the reference, and whatever does not fit is refused with a WhenceError."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import whence
from whence import Alibi, Attention, Epar, KVCache, Learned, Position, Rotary, Sink, WhenceError, attend

# the same examples each time: a red run can be repeated, and no run is slower than another
few = settings(max_examples=40, deadline=None, derandomize=True)
many = settings(max_examples=200, deadline=None, derandomize=True)

MECHANISMS = {
    "Alibi": lambda h: Alibi(h, form="symmetric", learnable=True),
    "Epar": lambda h: Epar(h, learnable=True, context=10, beta=[0.5 + i for i in range(h)]),
    "Epar by sequence": lambda h: Epar(h, learnable=True, length="sequence"),
    "Epar by query": lambda h: Epar(h, learnable=True, length="query"),
    "Rotary and Epar": lambda h: Rotary() + Epar(h, learnable=True, context=10),
    "Sink": lambda h: Sink(h, value=[0.3 * i - 0.5 for i in range(h)]),
    "Alibi, Epar and Sink": lambda h: (
        Alibi(h, form="symmetric", learnable=True) + Epar(h, learnable=True, context=7) + Sink(h)
    ),
}


@st.composite
def calls(draw, even_width):
    """A call of any legal shape: q, k, v and the arguments that say where tokens stand and what is hidden."""
    batch, groups, share = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    rows = draw(st.integers(1, 40))
    keys = draw(st.one_of(st.just(rows), st.integers(1, 40)))
    width = draw(st.integers(1, 4)) * 2 if even_width else draw(st.integers(1, 9))
    value_dim = draw(st.integers(1, 9))
    arguments = {"causal": draw(st.booleans()), "window": draw(st.none() | st.integers(1, 45))}
    kind = draw(st.sampled_from(["none", "run", "any"])) if rows == keys else draw(st.sampled_from(["run", "any"]))
    if kind == "run":  # one consecutive run, as after a cache; the queries may also stand before or behind all keys
        start = draw(st.integers(0, 50))
        arguments |= {"q_positions": torch.arange(start, start + rows), "k_positions": torch.arange(5, 5 + keys)}
    elif kind == "any":
        places = st.integers(0, 60)
        for name, count in (("q_positions", rows), ("k_positions", keys)):
            arguments[name] = torch.tensor(draw(st.lists(places, min_size=count, max_size=count)))
    hidden = draw(st.sampled_from(["nothing", "lengths", "left", "holes"]))
    if hidden == "lengths":
        arguments["lengths"] = torch.tensor(draw(st.lists(st.integers(0, keys), min_size=batch, max_size=batch)))
    elif hidden == "left":
        count = torch.tensor(draw(st.lists(st.integers(0, keys), min_size=batch, max_size=batch)))
        arguments["key_mask"] = torch.arange(keys) >= keys - count[:, None]
    elif hidden == "holes":
        bits = draw(st.lists(st.booleans(), min_size=batch * keys, max_size=batch * keys))
        arguments["key_mask"] = torch.tensor(bits).view(batch, keys)
    if draw(st.booleans()) and rows == keys:
        cut = draw(st.integers(0, keys))
        arguments["segment_ids"] = (torch.arange(keys) >= cut).long()
    arguments["temperature"] = draw(st.sampled_from([1.0, 0.5]))
    torch.manual_seed(draw(st.integers(0, 1000)))
    q = torch.randn(batch, groups * share, rows, width, dtype=torch.float64)
    k = torch.randn(batch, groups, keys, width, dtype=torch.float64)
    v = torch.randn(batch, groups, keys, value_dim, dtype=torch.float64)
    return q, k, v, arguments


@pytest.mark.parametrize("mechanism", MECHANISMS)
@few
@given(data=st.data())
def test_blockwise_is_the_reference_at_any_shape(mechanism, data):
    q, k, v, arguments = data.draw(calls(even_width="Rotary" in mechanism))
    position = MECHANISMS[mechanism](q.shape[1]).double()
    inputs = [t.requires_grad_() for t in (q, k, v)]
    wanted = [*inputs, *position.parameters()]
    results = {}
    for backend in ("reference", "blockwise"):
        out = attend(q, k, v, position=position, backend=backend, **arguments)
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        grads = torch.autograd.grad((out * weights).sum(), wanted, allow_unused=True)
        results[backend] = [out, *(torch.zeros_like(p) if g is None else g for p, g in zip(wanted, grads, strict=True))]
    for a, b in zip(results["blockwise"], results["reference"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


dims = st.integers(0, 3)
dtypes = st.sampled_from([torch.float32, torch.float32, torch.float32, torch.float64, torch.long, torch.bool])


def near(*shape):
    """A shape that is right, or off in one axis, or of another rank."""
    right = st.just(shape)
    off = st.tuples(st.integers(0, len(shape) - 1), dims).map(lambda t: (*shape[: t[0]], t[1], *shape[t[0] + 1 :]))
    return st.one_of(right, right, off, st.lists(dims, max_size=5).map(tuple))


def any_tensor(draw, *shape):
    dtype = draw(dtypes)
    return torch.zeros(draw(near(*shape)), dtype=dtype)


@many
@given(data=st.data())
def test_queries_keys_and_values_fit_or_are_refused(data):
    q, k, v = (any_tensor(data.draw, *shape) for shape in ((2, 2, 3, 2), (2, 1, 3, 2), (2, 1, 3, 3)))
    causal, backend = data.draw(st.booleans()), data.draw(st.sampled_from(["auto", "reference", "blockwise", "sdpa"]))
    try:
        out = attend(q, k, v, causal=causal, backend=backend)
    except WhenceError:
        out = None
    fits = (
        q.ndim == k.ndim == v.ndim == 4
        and 0 not in (*q.shape, *k.shape, *v.shape)
        and q.dtype == k.dtype == v.dtype
        and q.is_floating_point()
        and q.shape[0] == k.shape[0] == v.shape[0]
        and q.shape[3] == k.shape[3]
        and k.shape[1:3] == v.shape[1:3]
        and q.shape[1] % k.shape[1] == 0
        and (q.shape[2] == k.shape[2] or not causal)
    )
    assert (out is not None) == fits
    assert out is None or out.shape == (*q.shape[:3], v.shape[3])


PLACES = {
    "q_positions": ((2, 3), (3,)),
    "k_positions": ((2, 3), (3,)),
    "key_mask": ((2, 3),),
    "lengths": ((2,),),
    "segment_ids": ((2, 3), (3,)),
}


@pytest.mark.parametrize("name", PLACES)
@few
@given(data=st.data())
def test_positions_are_valid_or_raise(name, data):
    given_tensor = any_tensor(data.draw, *PLACES[name][0])
    cache = data.draw(st.sampled_from([None, KVCache, lambda: KVCache(capacity=3)]))
    q = torch.zeros(2, 2, 3, 4)
    try:
        attend(q, q, q, causal=True, position=Alibi(2), cache=cache() if cache else None, **{name: given_tensor})
        ran = True
    except WhenceError:
        ran = False
    kind = {
        "key_mask": given_tensor.dtype == torch.bool,
        "q_positions": given_tensor.dtype != torch.bool,
        "k_positions": given_tensor.dtype != torch.bool,
    }.get(name, given_tensor.dtype == torch.long)
    assert ran == (tuple(given_tensor.shape) in PLACES[name] and kind)


def user(hook, answer):
    return type("Mine", (Position,), {hook: lambda self, *_: answer})()


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize(
    "hook", ["score_scale", "bias", "sink", "content_bias", "value_bias", "rotate", "embed", "clock"]
)
@few
@given(data=st.data())
def test_answers_of_a_users_hooks_fit_or_are_refused(hook, backend, data):
    batch, heads, length, width = 2, 2, 3, 4
    n = {"score_scale": 9, "bias": 9, "sink": 3}.get(hook)
    if backend == "blockwise" and hook in ("score_scale", "bias"):
        n = 5  # a table of the distances from -2 to 2
    right = {
        "content_bias": [(batch, heads, length, length)],
        "value_bias": [(batch, heads, length, width)],
        "rotate": [(batch, heads, length, width)],
        "embed": [(batch, length, heads * width)],
        "clock": [(batch, heads, length)],
    }.get(hook, [(n,), (heads, n)])
    answer = data.draw(st.sampled_from([None, 1.0, "tensor", "tensor", "tensor"]))
    if answer == "tensor":
        answer = torch.zeros(data.draw(near(*right[-1])))
    fits = isinstance(answer, torch.Tensor) and tuple(answer.shape) in right
    position = user(hook, (answer, answer) if hook == "rotate" else answer)
    if data.draw(st.booleans()):
        position = position + Epar(heads)  # nor does a composition stretch an answer
    layer = Attention(heads * width, heads, position, causal=False, backend=backend)
    try:
        layer(torch.zeros(batch, length, heads * width))
        ran = True
    except WhenceError:
        ran = False
    assert ran == fits


@many
@given(data=st.data())
def test_layers_take_what_fits_and_refuse_the_rest(data):
    # the dtype stays: a layer of another one is torch's own error, which says as much
    shapes = [data.draw(near(2, 3, 8)) for _ in range(3)]
    position = data.draw(st.sampled_from([lambda: Rotary(), lambda: Learned(8, 6), lambda: Alibi(2)]))()
    layer, cache = (
        Attention(8, 2, position, causal=True),
        data.draw(st.sampled_from([KVCache, lambda: KVCache(capacity=7)]))(),
    )
    seen, batch = 0, None
    for shape in shapes:
        fits = len(shape) == 3 and 0 not in shape and shape[2] == 8 and batch in (None, shape[0])
        fits = fits and seen + shape[1] <= (cache.capacity or 100)
        fits = fits and not (isinstance(position, Learned) and seen + shape[1] > 6)
        with torch.no_grad():
            try:
                layer(torch.zeros(shape), cache=cache)
                ran = True
            except WhenceError:
                ran = False
        assert ran == fits
        if ran:
            seen, batch = seen + shape[1], shape[0]
        assert cache.seq_length == seen  # what is refused leaves nothing behind


@few
@given(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(), st.text(max_size=2)),
    st.sampled_from(
        ["window", "scale", "temperature", "dropout", "backend", "position", "cache", "lengths", "segment_ids"]
    ),
)
def test_settings_of_any_kind_run_or_are_refused(value, name):
    q = torch.zeros(1, 1, 2, 2)
    for function in (whence.attend, whence.explain):
        with contextlib.suppress(WhenceError):
            function(q, q, q, causal=True, **{name: value})

"""Queries and keys normalized over the head dimension (QK-norm) before rotation: every backend, cache, mask and export."""

import pytest
import torch

from whence import Attention, KVCache, PowerPrior, Rotary, WhenceError

WIDTH, HEADS, GROUPS, HEAD_WIDTH, LENGTH, EPS = 12, 4, 2, 6, 9, 0.1

POSITIONS = {
    "Rotary": Rotary,
    "Rotary + PowerPrior": lambda: Rotary() + PowerPrior(HEADS, alpha=0.3, beta=0.7, learnable=True),
}


def build(position="Rotary + PowerPrior", **about):
    """A layer whose norms have weights of their own."""
    torch.manual_seed(0)
    about = {"num_kv_heads": GROUPS, "head_dim": HEAD_WIDTH, "causal": True, "norm": "rms", "norm_eps": EPS} | about
    layer = Attention(WIDTH, HEADS, POSITIONS[position](), **about).double()
    with torch.no_grad():
        for norm in (layer.query_norm, layer.key_norm):
            norm.weight.normal_()
    return layer


def tokens(batch=2, length=LENGTH):
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def normalized(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def dense(layer, x, position, real=None):
    """Attention from the formulas, pair by pair, in float64: norm, rotation, scores, prior, softmax."""
    q = normalized((x @ layer.queries.weight.T).unflatten(2, (HEADS, -1)), layer.query_norm.weight)
    k = normalized((x @ layer.keys.weight.T).unflatten(2, (GROUPS, -1)), layer.key_norm.weight)
    v = (x @ layer.values.weight.T).unflatten(2, (GROUPS, -1))
    places = torch.arange(x.shape[1], dtype=torch.float64)
    half = HEAD_WIDTH // 2
    angles = places[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)

    def rotate(y):
        a, b, cos, sin = y[..., :half], y[..., half:], angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    group = torch.arange(HEADS) // (HEADS // GROUPS)
    q, k, v = rotate(q), rotate(k)[:, :, group], v[:, :, group]
    scores = torch.einsum("bthd,bshd->bhts", q, k) / HEAD_WIDTH**0.5
    distance = places[:, None] - places
    if "PowerPrior" in position:
        alpha, beta = (
            value.reshape(-1, 1, 1) for value in (layer.position.parts[1].alpha, layer.position.parts[1].beta())
        )
        scores = scores - (alpha * distance.abs().clamp(min=1e-300)) ** beta
    hidden = (distance < 0)[None, None]
    if real is not None:
        hidden = hidden | ~real[:, None, None, :]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, v).flatten(2) @ layer.out.weight.T


def assert_same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("backend", "position"),
    [(backend, name) for name in POSITIONS for backend in ("auto", "reference", "blockwise")] + [("sdpa", "Rotary")],
)
def test_every_backend_agrees_with_the_formulas(backend, position):
    layer, x = build(position, backend=backend), tokens()
    assert_same(layer(x), dense(layer, x, position))
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]])
    out, wanted = layer(x, key_mask=real), dense(layer, x, position, real)
    assert_same(out[real], wanted[real])


def test_the_norms_and_the_layer_learn():
    layer, x = build(), tokens().requires_grad_()
    wanted = [x, *layer.parameters()]
    ours = torch.autograd.grad(layer(x).square().sum(), wanted)
    theirs = torch.autograd.grad(build(backend="reference")(x).square().sum(), x)
    assert_same(ours[0], theirs[0])
    assert all(bool(gradient.any()) for gradient in ours)
    assert_same(
        torch.autograd.grad(layer(x).square().sum(), layer.key_norm.weight),
        torch.autograd.grad(dense(layer, x, "Rotary + PowerPrior").square().sum(), layer.key_norm.weight),
    )


@pytest.mark.parametrize("window", [None, 4])
def test_cached_decoding_matches_one_pass(window):
    layer, x = build(window=window), tokens()
    caches = [KVCache(), KVCache(capacity=LENGTH)] if window is None else [KVCache(window=window)]
    with torch.no_grad():
        whole = layer(x)
        for cache in caches:
            assert_same(torch.cat([layer(part, cache=cache) for part in x.split([4, 1, 1, 3], 1)], 1), whole)


def test_left_padding_in_a_cache():
    layer, x = build(), tokens()
    cache, filler = KVCache(), tokens(length=3)
    real = torch.arange(7).ge(3).expand(2, 7)
    with torch.no_grad():
        layer(torch.cat([filler, x[:, :4]], 1), key_mask=real, cache=cache)
        assert_same(layer(x[:, 4:], cache=cache), layer(x)[:, 4:])


def test_it_exports_with_a_dynamic_length():
    layer, x = build().requires_grad_(False), tokens()
    length = torch.export.Dim("length", min=2, max=64)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({1: length},))
    assert_same(exported.module()(tokens(length=5)), layer(tokens(length=5)))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed", "error:Mismatch dtype")  # such a norm has no fused kernel
def test_autocast_leaves_one_dtype():
    layer, x = build().float(), tokens().float()
    layer.query_norm.register_forward_hook(lambda module, given, out: out.float())  # as autocast does on a GPU
    with torch.autocast("cpu", torch.bfloat16):
        assert {part.dtype for part in layer.project(x)} == {torch.bfloat16}
        out = layer(x)
    torch.testing.assert_close(out.float(), layer(x), rtol=0.1, atol=0.03)


def test_eps_defaults_to_the_machine_epsilon():
    assert build(norm_eps=None).query_norm.eps is None and build().key_norm.eps == EPS
    assert not list(Attention(WIDTH, HEADS, norm_eps=EPS).query_norm.parameters())


@pytest.mark.parametrize("value", [0, -1e-6, "1e-6", float("nan")])
def test_invalid_eps_raises(value):
    with pytest.raises(WhenceError) as error:
        Attention(WIDTH, HEADS, norm="rms", norm_eps=value)
    text = str(error.value)
    assert text.startswith("Attention(norm_eps=...) got ") and str(value) in text and "pass 1e-6" in text

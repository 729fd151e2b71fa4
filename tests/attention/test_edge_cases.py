"""Cases that once went wrong, each held against a computation that cannot."""

import math

import pytest
import torch

import whence

H, D = 2, 8


def inputs(length, batch=1, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, H, length, D, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("position", [whence.Rotary(), whence.Alibi(H), whence.Epar(H, length="query")], ids=repr)
def test_decoding_continues_from_each_rows_last_real_token_after_right_padding(position):
    torch.manual_seed(0)
    layer = whence.Attention(16, H, position, causal=True).double()
    x, rest = torch.randn(2, 7, 16, dtype=torch.float64), torch.randn(2, 3, 16, dtype=torch.float64)
    lengths = torch.tensor([4, 7])
    with torch.no_grad():
        cache = whence.KVCache()
        layer(x, lengths=lengths, cache=cache)
        actual = torch.cat([layer(rest[:, i : i + 1], cache=cache) for i in range(3)], 1)
        for row, length in enumerate(lengths.tolist()):
            alone = layer(torch.cat([x[row : row + 1, :length], rest[row : row + 1]], 1))[:, length:]
            torch.testing.assert_close(actual[row : row + 1], alone, rtol=1e-10, atol=1e-10)


def test_a_sliding_cache_refuses_what_would_push_out_keys_that_count():
    q, k, v = inputs(6, batch=2)
    with pytest.raises(whence.WhenceError, match="padding after a real token"):
        whence.attend(q, k, v, causal=True, window=3, cache=whence.KVCache(window=3), lengths=torch.tensor([3, 6]))
    where = torch.tensor([0, 1, 2, 2, 3, 4])
    with pytest.raises(whence.WhenceError, match="q_positions or k_positions that do not increase"):
        whence.attend(q, k, v, causal=True, window=3, cache=whence.KVCache(window=3), q_positions=where)


def test_a_sliding_cache_gives_memory_back():
    q, k, v = inputs(500)
    cache = whence.KVCache(window=4)
    whence.attend(q, k, v, causal=True, window=4, cache=cache)
    assert len(cache) == 3
    assert cache._entries.k.untyped_storage().nbytes() == 3 * H * D * 8


def test_two_texts_of_one_length_need_positions():
    q, k, v = inputs(4)
    pair = (torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]))
    with pytest.raises(whence.WhenceError, match="a pair and no positions"):
        whence.attend(q, k, v, position=whence.Alibi(H, form="symmetric").double(), segment_ids=pair)
    assert whence.attend(q, k, v, segment_ids=pair).isfinite().all()  # without position there is nothing to say


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_a_large_bias_in_half_precision(dtype, backend):
    """Keys far away have biases that half precision cannot tell apart; only their differences matter."""
    position = whence.Alibi(H, slope=[0.5, 0.25])
    q, k, v = inputs(6, dtype=dtype)
    where = {"q_positions": torch.arange(3000, 3006), "k_positions": torch.arange(6), "causal": True}
    exact = whence.attend(*(x.double() for x in (q, k, v)), position=position.double(), backend="reference", **where)
    with torch.no_grad():
        actual = whence.attend(q, k, v, position=position.float(), backend=backend, **where)
    assert (actual.double() - exact).abs().max() < 8 * torch.finfo(dtype).eps
    if backend == "auto":
        assert whence.explain(q, k, v, position=position, **where).backend == "blockwise"


class Growing(whence.Position):
    """Endless for keys after the query, which a causal model never sees."""

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(0.125))

    def score_scale(self, distance, length):
        return torch.exp(-self.rate * distance)


class OnlyPast(whence.Position):
    causal_only = True

    def bias(self, distance, length):
        return -torch.log1p(distance)  # has no value below -1


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_hooks_never_receive_hidden_distances(backend):
    q, k, v = inputs(1024)
    position = Growing().double()
    out = whence.attend(q, k, v, position=position, causal=True, backend=backend)
    (slope,) = torch.autograd.grad(out.square().sum(), position.parameters())
    assert out.isfinite().all() and slope.isfinite()
    assert whence.attend(q, k, v, position=OnlyPast(), causal=True, backend=backend).isfinite().all()
    assert whence.check(OnlyPast()).passed


class NotItself(whence.Position):
    def bias(self, distance, length):
        return torch.where(distance == 0, -math.inf, 0.0).to(distance.dtype)


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa"])
@pytest.mark.parametrize("where", [torch.arange(5), torch.tensor([0, 2, 3, 7, 9])], ids=["run", "gaps"])
def test_a_row_whose_every_logit_is_minus_infinity_is_zero(backend, where):
    q, k, v = inputs(5)
    given = {"causal": True, "q_positions": where, "k_positions": where}
    out = whence.attend(q, k, v, position=NotItself(), backend=backend, **given)
    assert (out[:, :, 0] == 0).all() and out.isfinite().all()
    torch.testing.assert_close(out, whence.attend(q, k, v, position=NotItself(), backend="reference", **given))


@pytest.mark.parametrize("backend", ["reference", "blockwise"])
@pytest.mark.parametrize("position", [whence.Shaw(D), whence.Epar(H, context=64)], ids=lambda p: type(p).__name__)
def test_autocast_outside_does_not_reach_inside(backend, position):
    q, k, v = (4 * x for x in inputs(40, dtype=torch.float32))
    plain = whence.attend(q, k, v, position=position, causal=True, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = whence.attend(q, k, v, position=position, causal=True, backend=backend)
    assert torch.equal(inside, plain)


def test_a_dense_mask_is_avoided_when_it_is_large():
    q = torch.zeros(1, 1, 4096, 4)
    for given in ({"window": 128}, {"lengths": torch.tensor([4000])}, {"segment_ids": torch.arange(4096) // 512}):
        explained = whence.explain(q, q, q, causal=True, **given)
        assert explained.backend == "blockwise"
        assert "dense mask of 16777216 numbers" in explained.why
    assert whence.explain(q, q, q, causal=True).backend == "sdpa"
    assert whence.explain(q[:, :, :64], q[:, :, :64], q[:, :, :64], causal=True, window=8).backend == "sdpa"


def test_an_embedding_and_two_more_compile_in_one_graph():
    torch.manual_seed(0)
    layer = whence.Attention(
        16, H, whence.Learned(16, 32) + whence.Alibi(H) + whence.Epar(H, learnable=True), causal=True
    )
    assert len(list(layer.parameters())) == len({id(p) for p in layer.parameters()}) == 4 + 1 + 3
    assert not [name for name in layer.state_dict() if "inside" in name]
    x = torch.randn(1, 6, 16)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: whence.Sinusoidal(16) + whence.Learned(32, 8), r"embed_dim=16.*embed_dim=32"),
        (lambda: whence.Shaw(8, value_dim=4) + whence.Shaw(8, value_dim=6), r"value_dim=4.*value_dim=6"),
        (lambda: whence.Rotary(rotary_dim=16) + whence.Shaw(8), r"16.*8.*rotary_dim=8"),
        (lambda: whence.Sum(), "a sum has at least one part"),
        (lambda: whence.Alibi(2, scale=math.nan), r"Alibi\(scale=.*nan"),
    ],
)
def test_impossible_at_construction(build, named):
    with pytest.raises(whence.WhenceError, match=named):
        build()


def test_a_memory_of_other_tokens_needs_explicit_positions():
    x, memory = torch.randn(1, 3, 16), torch.randn(1, 3, 16)
    with pytest.raises(whence.WhenceError, match=r"causal=True.*memory"):
        whence.Attention(16, H, causal=True)(x, memory)
    assert whence.Attention(16, H, causal=False)(x, memory).shape == x.shape


def test_scale_and_temperature_reach_attend():
    torch.manual_seed(0)
    layer = whence.Attention(16, H, causal=True, scale=1.0, temperature=2.0)
    same = whence.Attention(16, H, causal=True, scale=0.5)
    same.load_state_dict(layer.state_dict())
    x = torch.randn(1, 5, 16)
    torch.testing.assert_close(layer(x), same(x))


def test_numbers_for_each_head_may_be_a_tensor():
    assert whence.Alibi(2, slope=torch.tensor([0.5, 0.25])).slope().flatten().tolist() == [0.5, 0.25]
    assert whence.Epar(2, alpha=torch.tensor([1.0, 2.0])).alpha().flatten().tolist() == [1.0, 2.0]

"""Networks over the scores of all heads in the fused kernels (DAPE, a user's own): interpreted, and on a GPU."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import EARLIER, LATER, ODD, ONE, OVER, PAIR, SHORT, masks
from reference_comparison import check_against_reference, perturb, random_inputs, run
from test_row_tables import move, on_gpu

from whence import (
    Alibi,
    Attention,
    Cope,
    Dape,
    Kerple,
    KVCache,
    Position,
    Rotary,
    Sink,
    T5Bias,
    WhenceError,
    attend,
    explain,
)
from whence.derivatives import find_wrong_derivative
from whence.position.head_network import HeadNetwork

interpreted = pytest.mark.usefixtures("interpreted", "poisoned")
SINGLE, HALF = torch.float32, torch.float16


class TalkingHeads(Position):
    """A user's own: heads mix their scores through a ReLU; no bias of distance, and no biases of the layers."""

    def __init__(self, heads, hidden=3):
        super().__init__(heads=heads)
        self.first = torch.nn.Parameter(torch.randn(hidden, heads))
        self.last = torch.nn.Parameter(torch.randn(heads, hidden))

    def content_bias(self, rows):
        hidden = torch.relu(rows.scores.movedim(1, -1) @ self.first.to(rows.scores.dtype).T)
        return (hidden @ self.last.to(rows.scores.dtype).T).movedim(-1, 1)

    def head_network(self):
        return HeadNetwork(self.first, self.last)


def frozen(position):
    return position.requires_grad_(False)


MECHANISMS = {
    "kerple": lambda h: Dape(h),
    "alibi": lambda h: Dape(h, base="alibi", hidden_dim=5),
    "none": lambda h: Dape(h, base="none", hidden_dim=17),
    "frozen": lambda h: frozen(Dape(h, hidden_dim=5)),
    "Rotary + kerple + T5": lambda h: Rotary() + Dape(h, hidden_dim=8) + T5Bias(h, std=1.0),
    "both sides": lambda h: Dape(h, hidden_dim=8) + Alibi(h, form="symmetric", learnable=True),
    "own": TalkingHeads,
}
CASES = [
    ("kerple", "causal", OVER, SINGLE),
    ("kerple", "causal", (1, 5, 1, 63, 63, 16, 20), HALF),
    ("alibi", "causal, scaled", PAIR, SINGLE),
    ("none", "causal", ODD, HALF),
    ("kerple", "causal", EARLIER, SINGLE),
    ("kerple", "both sides", LATER, SINGLE),
    ("kerple", "lengths", SHORT, HALF),
    ("alibi", "holes", PAIR, SINGLE),
    ("kerple", "segment_ids", EARLIER, SINGLE),
    ("Rotary + kerple + T5", "causal, window", (1, 2, 1, 70, 70, 16, 20), SINGLE),
    ("both sides", "both sides, window", (1, 17, 17, 20, 45, 16, 16), SINGLE),
    ("kerple", "key_mask, negative scale", (2, 2, 1, 3, 140, 20, 24), SINGLE),
    ("frozen", "causal", OVER, HALF),
    ("own", "both sides, window", OVER, SINGLE),
    ("none", "causal", (1, 33, 3, 21, 21, 16, 16), HALF),
    ("kerple", "causal", ONE, SINGLE),
]


def check(mechanism, mask, shape, dtype, device="cpu"):
    *tensors, grad_out = random_inputs(*shape, dtype=dtype, device=device)
    position = perturb(MECHANISMS[mechanism](shape[1])).to(device)
    options = {n: move(x, device) for n, x in masks(mask, shape[0], *shape[3:5]).items()}
    return check_against_reference(position, tensors, grad_out, options)


@interpreted
@pytest.mark.parametrize(
    "mechanism, mask, shape, dtype",
    CASES,
    ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else str(x),
)
def test_forward_and_gradients(mechanism, mask, shape, dtype):
    torch.manual_seed(0)
    check(mechanism, mask, shape, dtype)


@interpreted
@pytest.mark.parametrize("least", [1, 16])
def test_blocks_of_rows_of_single_sequences(least, monkeypatch):
    """One row at a time, and 16, with sums of gradients that go on from block to block and from sequence to sequence."""
    from whence.attention.fused import network_launch

    monkeypatch.setattr(network_launch, "MAX_SCORES", 1)
    monkeypatch.setattr(network_launch, "MIN_ROWS", least)
    shape = (2, 2, 1, 23, 23, 16, 16) if least == 1 else PAIR
    check("kerple", "causal, window", shape, SINGLE)
    check("alibi", "lengths", shape, HALF)


@interpreted
def test_a_backward_pass_inside_autocast():
    """Autocast would round the factors of the products in float32."""
    *tensors, grad_out = random_inputs(1, 2, 1, 20, 20, 16, 16)
    position, results = perturb(Dape(2)), []
    for inside in (False, True):
        leaves = [x.clone().requires_grad_() for x in tensors]
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            out = attend(*leaves, position=position, causal=True, backend="triton")
            results.append(torch.autograd.grad(out, [*leaves, *position.parameters()], grad_out))
    for plain, mixed in zip(*(x[:3] for x in results), strict=True):
        assert torch.equal(plain, mixed)
    for plain, mixed in zip(*(x[3:] for x in results), strict=True):  # those of tables come from torch's own products
        assert (plain - mixed).norm() <= 2e-2 * plain.norm() + 1e-3


@interpreted
def test_a_mixin_with_another_content_bias_leaves_the_network():
    class Doubling:
        def content_bias(self, rows):
            return 2 * super().content_bias(rows)

    class Twice(Doubling, Dape):
        pass

    assert Twice(2).head_network() is None
    assert explain(*(torch.zeros(1, 2, 6, 16),) * 3, position=Twice(2), causal=True).backend == "blockwise"


@pytest.mark.parametrize(
    "wrong, said",
    [({"negative_slope": torch.tensor(0.1, requires_grad=True)}, "Python float"), ({"negative_slope": float("nan")}, "finite"),
     ({"first": [[1.0]]}, "first of type list"), ({"first": torch.ones(3, 2, dtype=torch.complex64)}, "floating point"),
     ({"last": torch.tensor(1.0)}, r"\[H, hidden\]"), ({"bias": lambda d: d}, "function of distance")],
)  # fmt: skip
def test_a_wrong_network_is_refused(wrong, said):
    class Wrong(Position):
        def content_bias(self, rows):
            return rows.scores

        def head_network(self):
            return HeadNetwork(**({"first": torch.ones(3, 2), "last": torch.ones(2, 3)} | wrong))

    q = torch.zeros(1, 2, 6, 16)
    with pytest.raises(WhenceError, match=said):
        attend(q, q, q, position=Wrong(), backend="triton")


def test_a_network_alone_is_refused():
    with pytest.raises(WhenceError, match="write content_bias too"):

        class Alone(Position):
            def head_network(self):
                return None


@interpreted
@pytest.mark.parametrize("queries_from, queries, keys, window", [(0, 60, 37, 5), (60, 70, 70, 9)])
def test_rows_whose_window_holds_no_key(queries_from, queries, keys, window, monkeypatch):
    from whence.attention.fused import network_launch

    monkeypatch.setattr(network_launch, "MAX_ROWS", 16)
    *tensors, grad_out = random_inputs(1, 2, 1, queries, keys, 16, 16, dtype=HALF)
    q_positions = torch.arange(queries_from, queries_from + queries)
    options = {"causal": True, "window": window, "q_positions": q_positions, "k_positions": torch.arange(keys)}
    check_against_reference(perturb(Dape(2, hidden_dim=4)), tensors, grad_out, options)


@interpreted
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.sampled_from(["kerple", "alibi", "none", "own"]),
    st.sampled_from(["causal", "causal, window", "lengths", "segment_ids"]),
    st.integers(1, 2), st.sampled_from([(1, 1), (3, 1), (4, 2), (6, 3)]), st.integers(1, 40), st.integers(0, 60),
    st.sampled_from([1, 8, 16, 20]), st.sampled_from([1, 8, 16]), st.sampled_from([SINGLE, HALF]),
)  # fmt: skip
def test_random_sizes(mechanism, mask, batch, heads, queries, earlier, width, value_dim, dtype):
    torch.manual_seed(0)
    check(mechanism, mask, (batch, *heads, queries, queries + earlier, width, value_dim), dtype)


@interpreted
def test_cached_decoding_equals_one_pass():
    q, k, v, _ = random_inputs(1, 4, 2, 50, 50, 16, 16)
    options = {"position": perturb(Rotary() + Dape(4)), "causal": True, "backend": "triton"}
    with torch.no_grad():
        whole, cache = attend(q, k, v, **options), KVCache()
        pieces = zip(*(x.split([20, 1, 3, 26], 2) for x in (q, k, v)), strict=True)
        parts = [attend(*piece, cache=cache, **options) for piece in pieces]
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-5)


@interpreted
def test_a_bias_of_the_lowest_number_hides_nothing():
    class Lowest(Position):
        def bias(self, distance, length):
            return torch.full_like(distance, torch.finfo(distance.dtype).min)

    q, k, v, _ = random_inputs(1, 2, 2, 9, 9, 16, 16)
    out = attend(q, k, v, position=Dape(2) + Lowest(), causal=True, backend="triton")
    assert torch.isfinite(out).all() and (out[:, :, 0] - v[:, :, 0]).abs().max() < 1e-5


@interpreted
@pytest.mark.parametrize("learns", [True, False])
def test_opcheck(learns):
    *tensors, _ = random_inputs(1, 2, 1, 9, 9, 16, 20)
    network = (torch.randn(16, 16), torch.randn(16, 16), torch.randn(9, 16), torch.randn(9, 16))
    leaves = [x.requires_grad_() for x in tensors] + [x.requires_grad_(learns) for x in network]
    real = torch.arange(9)[None] > 1
    options = (*leaves, real, None, None, 0, True, None, 0.3, 1.0, 0, 0.01)
    parts = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_static")
    results = torch.library.opcheck(torch.ops.whence.network_attention.default, options, test_utils=parts)
    assert set(results.values()) == {"SUCCESS"}
    out = torch.ops.whence.network_attention(*options)[0]
    (first,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(first.square().sum(), leaves[0])


def check_compiled(backend, length, dtype, device, most):
    """A compiled layer, whose keys and queries have heads last in memory, against the same layer not compiled."""
    torch.manual_seed(0)
    layer = Attention(32, 2, Rotary() + Dape(2), causal=True, backend="triton").to(device, dtype)
    x, results = torch.randn(2, length, 32, device=device, dtype=dtype), []
    for compiles in (False, True):
        own = copy.deepcopy(layer)
        y = (torch.compile(own, fullgraph=True, backend=backend) if compiles else own)(x)
        y.float().square().sum().backward()
        # the last bias of the network moves all scores of a row, so its gradient is rounding alone
        grads = [p.grad for name, p in own.named_parameters() if not name.endswith("network.2.bias")]
        assert len(grads) == len([*own.parameters()]) - 1
        results.append([y.detach(), *grads])
    for a, b in zip(*results, strict=True):
        assert (a.float() - b.float()).norm() <= most * (a.float().norm() + 1e-3)


@interpreted
def test_compiled_layers(fresh_compiler):
    check_compiled("aot_eager", 13, SINGLE, "cpu", 1e-5)


@interpreted
def test_auto_takes_the_kernels_where_they_suffice_and_only_there():
    q = torch.zeros(1, 2, 6, 16)

    def explained(position, q=q, **options):
        return explain(q, q, q, position=position, causal=True, **options)

    def refusal(position, q=q, **options):
        said = explained(position, q, **options)
        assert said.backend == "blockwise"
        return dict(said.others)["triton"]

    for position in (Dape(2), Dape(2, base="none"), Rotary() + Dape(2) + Kerple(2), TalkingHeads(2)):
        assert explained(position).backend == "triton"
        assert "network over heads" in explained(position).why
    assert "FIRE" in refusal(Dape(2, base="fire")).upper() and "length='query'" in refusal(Dape(2, base="fire"))
    assert "do not combine that with sink" in refusal(Dape(2) + Sink(2))
    assert "2 parts" in refusal(Dape(2) + Cope(16))
    assert "dropout" in refusal(Dape(2), dropout=0.1)
    half = q.half()
    assert explained(Dape(2, hidden_dim=64), half).backend == "triton"
    assert "at most 64 heads and hidden units, not 65" in refusal(Dape(2, hidden_dim=65), half)
    assert "float32, its networks over heads have at most 32" in refusal(Dape(33), torch.zeros(1, 33, 6, 16))
    assert "attn_mask" in refusal(Dape(2), attn_mask=torch.zeros(6, 6))
    positions = torch.arange(6) * 2
    assert "consecutive" in refusal(Dape(2), q_positions=positions, k_positions=positions)


def test_a_subclass_with_another_term_has_no_network():
    class Other(Dape):
        def content_bias(self, rows):
            return 2 * rows.scores

    assert Dape(2).head_network() is not None and Other(2).head_network() is None


def test_check_compares_the_network_with_content_bias():
    class Wrong(Dape):
        def head_network(self):
            own = super().head_network()
            return HeadNetwork(own.first, own.last, own.first_bias, own.last_bias, 0.5, own.bias)

    class NoNetwork(Dape):
        def head_network(self):
            return self.network

    distance = torch.arange(-9.0, 10.0, dtype=torch.float64)
    for position in (Dape(3), Dape(3, base="alibi"), Dape(3, base="none"), Dape(3, base="fire"), TalkingHeads(3)):
        assert find_wrong_derivative(position.double(), distance) is None
    assert "head_network() and content_bias() differ" in find_wrong_derivative(perturb(Wrong(3)).double(), distance)
    with pytest.raises(WhenceError, match=r"NoNetwork.head_network.*Sequential.*return HeadNetwork"):
        find_wrong_derivative(NoNetwork(3), distance)


@interpreted
def test_a_wrong_network_is_refused_by_name():
    class Rotated(Dape):
        def head_network(self):
            own = super().head_network()
            return HeadNetwork(own.first, own.last, bias=Rotary())

    class Unbiased(Dape):
        def head_network(self):
            own = super().head_network()
            return HeadNetwork(own.first, own.last)

    x = torch.zeros(1, 4, 3, 16)
    with pytest.raises(WhenceError, match=r"first of shape \[32, 8\].*\[32, 4\] for 4 query heads"):
        attend(x, x, x, position=Unbiased(4), causal=True, backend="triton")
    with pytest.raises(WhenceError, match=r"Rotated.head_network.*rotate.*only hook is bias"):
        attend(x, x, x, position=Rotated(4), causal=True, backend="triton")


# --- on a GPU -------------------------------------------------------------------------------------------------------

GPU_CASES = [
    ("kerple", "causal", 333, torch.bfloat16, (4, 2), 64),
    ("kerple", "causal, scaled", 333, HALF, (16, 16), 128),
    ("alibi", "lengths", 333, torch.bfloat16, (12, 4), 64),
    ("none", "segment_ids", 150, torch.bfloat16, (8, 8), 80),
    ("Rotary + kerple + T5", "causal, window", 333, torch.bfloat16, (4, 2), 64),
    ("both sides", "both sides", 333, HALF, (20, 4), 64),
    ("own", "holes", 333, torch.bfloat16, (64, 8), 64),
    ("frozen", "causal", 333, torch.bfloat16, (4, 4), 64),
    ("kerple", "causal", 333, SINGLE, (16, 4), 64),
    ("kerple", "key_mask", 3, torch.bfloat16, (4, 2), 64),
]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("mechanism, mask, queries, dtype, heads, width", GPU_CASES)
def test_on_a_gpu(mechanism, mask, queries, dtype, heads, width):
    torch.manual_seed(0)
    check(mechanism, mask, (2, *heads, queries, 333, width, width), dtype, "cuda")


@pytest.mark.gpu
@on_gpu
def test_long_texts_on_a_gpu():
    torch.manual_seed(0)
    check("kerple", "causal", (1, 16, 16, 3001, 3001, 64, 64), torch.bfloat16, "cuda")


@pytest.mark.gpu
@on_gpu
def test_gradients_repeat_on_a_gpu():
    *tensors, grad_out = random_inputs(2, 8, 2, 1000, 1000, 64, 64, dtype=torch.bfloat16, device="cuda")
    position = Dape(8).cuda()
    first, again = (run(position, tensors, grad_out, {"causal": True}, backend="triton") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
@on_gpu
def test_memory_is_linear_on_a_gpu():
    """Beside tensors of the size of q in float32, a block of rows: 384 MiB for its scores, weights and gradients."""
    position, peaks = Dape(16).cuda(), []
    for length in (4096, 16384):
        tensors = random_inputs(1, 16, 16, length, length, 64, 64, dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(position, tensors[:3], tensors[3], {"causal": True}, backend="triton")
        peaks.append((torch.cuda.max_memory_allocated() - before) / 2**20)
    assert peaks[1] < 512 + 16 * 16384 * 64 * 4 * 12 / 2**20, peaks


@pytest.mark.gpu
@on_gpu
def test_a_cuda_graph_repeats_on_a_gpu():
    *tensors, grad_out = random_inputs(1, 8, 2, 700, 700, 64, 64, dtype=torch.bfloat16, device="cuda")
    position = perturb(Dape(8)).cuda()

    def step():
        return run(position, tensors, grad_out, {"causal": True}, backend="triton")

    eager = [x.clone() for x in step()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(captured, eager, strict=True):
        assert (a.float() - b.float()).norm() <= 1e-3 * b.float().norm()


@pytest.mark.gpu
@on_gpu
def test_compiled_layers_on_a_gpu(fresh_compiler):
    check_compiled("inductor", 130, torch.bfloat16, "cuda", 0.02)

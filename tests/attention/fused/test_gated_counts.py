"""Score terms by gated counts in the fused kernels (CoPE, a user's own): interpreted, and on a GPU."""

import pytest
import torch
from kernel_cases import EARLIER, LONG, ODD, ONE, OVER, SHORT, masks
from reference_comparison import check_against_reference, perturb, random_inputs, run
from test_row_tables import move, on_gpu

from whence import Alibi, Cope, KVCache, Position, Rotary, Shaw, Sink, WhenceError, attend, explain
from whence.position.head_slice import select_heads

interpreted = pytest.mark.usefixtures("interpreted", "poisoned")
SINGLE, HALF = torch.float32, torch.float16


class BySegmentCount(Position):
    """A user's own: a term for each count, the same for all queries, also for keys after the query."""

    def __init__(self, heads, counts):
        super().__init__(heads=heads)
        self.terms = torch.nn.Parameter(torch.randn(heads, counts))

    def gated_bias_table(self, q, unrotated_q, scale):
        return self.terms[:, None, :].to(q.dtype).expand(q.shape[0], -1, q.shape[2], -1)


MECHANISMS = {
    "2": lambda h, d: Cope(d, positions=2),
    "16": lambda h, d: Cope(d, positions=16, heads=h),
    "64": lambda h, d: Cope(d, positions=64),
    "Rotary + 16": lambda h, d: Rotary() + Cope(d, positions=16),
    "own": lambda h, d: BySegmentCount(h, 5),
}
CASES = [
    ("2", "causal", OVER, SINGLE, 1.0),
    ("16", "causal, scaled", LONG, SINGLE, 1.0),
    ("16", "causal", ODD, HALF, 4.0),  # gates near 0 and 1
    ("64", "causal", EARLIER, SINGLE, 4.0),
    ("64", "lengths", SHORT, HALF, 1.0),
    ("16", "holes", OVER, SINGLE, 1.0),
    ("16", "segment_ids", EARLIER, SINGLE, 1.0),
    ("Rotary + 16", "causal, window", (1, 2, 1, 70, 70, 16, 20), SINGLE, 1.0),
    ("16", "key_mask, negative scale", (2, 2, 1, 3, 140, 20, 24), SINGLE, 1.0),
    ("2", "causal", ONE, SINGLE, 1.0),
    ("own", "both sides", (1, 2, 1, 40, 40, 16, 16), SINGLE, 1.0),
]


def check(mechanism, mask, shape, dtype, size=1.0, device="cpu"):
    """``size`` multiplies the queries: with large ones, gates are near 0 and 1."""
    q, *tensors, grad_out = random_inputs(*shape, dtype=dtype, device=device)
    position = perturb(MECHANISMS[mechanism](shape[1], shape[5])).to(device)
    options = {n: move(x, device) for n, x in masks(mask, shape[0], *shape[3:5]).items()}
    # large scores lose digits of their base-2 exponent, and eager code takes its exponential in base e
    return check_against_reference(position, [q * size, *tensors], grad_out, options, slack=2 if size > 1 else 1)


@interpreted
@pytest.mark.parametrize(
    "mechanism, mask, shape, dtype, size",
    CASES,
    ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else str(x),
)
def test_forward_and_gradients(mechanism, mask, shape, dtype, size):
    torch.manual_seed(0)
    check(mechanism, mask, shape, dtype, size)


@interpreted
@pytest.mark.parametrize("queries_from, queries, keys, window", [(0, 140, 37, 5), (60, 70, 70, 9)])
def test_blocks_of_queries_whose_window_holds_no_key(queries_from, queries, keys, window):
    *tensors, grad_out = random_inputs(1, 2, 1, queries, keys, 16, 16, dtype=HALF)
    q_positions = torch.arange(queries_from, queries_from + queries)
    options = {"causal": True, "window": window, "q_positions": q_positions, "k_positions": torch.arange(keys)}
    check_against_reference(perturb(Cope(16, positions=4)), tensors, grad_out, options)


@interpreted
def test_rows_are_computed_in_parts_where_the_sums_at_edges_would_take_much_memory(monkeypatch):
    from whence.attention.fused import gated_launch

    monkeypatch.setattr(gated_launch, "EDGE_BYTES", 1)  # 128 rows at a time
    check("16", "causal", (1, 1, 1, 140, 140, 16, 16), HALF, 4.0)


@interpreted
def test_cached_decoding_equals_one_pass():
    q, k, v, _ = random_inputs(1, 2, 1, 50, 50, 16, 16)
    options = {"position": perturb(Cope(16, positions=9)), "causal": True, "backend": "triton"}
    with torch.no_grad():
        whole, cache = attend(q, k, v, **options), KVCache()
        pieces = zip(*(x.split([20, 1, 3, 26], 2) for x in (q, k, v)), strict=True)
        parts = [attend(*piece, cache=cache, **options) for piece in pieces]
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-5)


@interpreted
def test_opcheck():
    *tensors, _ = random_inputs(1, 2, 1, 9, 9, 16, 20)
    leaves = [x.requires_grad_() for x in (*tensors, torch.randn(1, 2, 9, 4))]
    real = torch.arange(9)[None] > 1
    options = (*leaves, real, None, None, 0, True, None, 0.3, 1.0)
    parts = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_static")
    results = torch.library.opcheck(torch.ops.whence.gated_attention.default, options, test_utils=parts)
    assert set(results.values()) == {"SUCCESS"}
    out = torch.ops.whence.gated_attention(*options)[0]
    (first,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(first.square().sum(), leaves[0])


@interpreted
def test_auto_takes_the_kernels_where_they_suffice_and_only_there():
    q = torch.zeros(1, 2, 6, 16)

    def explained(position, q=q, **options):
        return explain(q, q, q, position=position, causal=True, **options)

    def refusal(position, q=q, **options):
        said = explained(position, q, **options)
        assert said.backend == "blockwise"
        return dict(said.others)["triton"]

    for position in (Cope(16), Rotary() + Cope(16), select_heads(Cope(16, heads=4), 1, 3), BySegmentCount(2, 5)):
        assert explained(position).backend == "triton"
    assert explained(Cope(16), scale=0.0).backend == "triton"
    assert "do not combine that with bias" in refusal(Cope(16) + Alibi(2))
    assert "sink" in refusal(Cope(16) + Sink(2))
    assert "2 parts" in refusal(Cope(16) + Shaw(16, acts_on="keys"))
    assert "dropout" in refusal(Cope(16), dropout=0.1)
    assert "128, not 130" in refusal(Cope(130), torch.zeros(1, 2, 6, 130))
    positions = torch.arange(6) * 2
    assert "consecutive" in refusal(Cope(16), q_positions=positions, k_positions=positions)


@interpreted
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_wrong_table_is_refused_by_name(backend):
    class NoTable(Position):
        def gated_bias_table(self, q, unrotated_q, scale):
            return [q]

    class OneEntry(Position):
        def gated_bias_table(self, q, unrotated_q, scale):
            return q[..., :1]

    q = torch.zeros(1, 2, 6, 16)
    for position, words in ((NoTable(), "type list.*return a tensor"), (OneEntry(), r"\[1, 2, 6, 1\].*at least 2")):
        with pytest.raises(WhenceError, match=f"{type(position).__name__}.gated_bias_table.*{words}"):
            attend(q, q, q, position=position, causal=True, backend=backend)


# --- on a GPU -------------------------------------------------------------------------------------------------------

GPU_CASES = [
    ("2", "causal", 333, torch.bfloat16, 64, 1.0),
    ("16", "causal, scaled", 333, HALF, 128, 4.0),
    ("64", "causal", 333, torch.bfloat16, 80, 4.0),
    ("64", "lengths", 333, torch.bfloat16, 64, 1.0),
    ("16", "segment_ids", 150, torch.bfloat16, 128, 1.0),
    ("16", "causal, window", 333, torch.bfloat16, 64, 1.0),
    ("64", "causal", 333, SINGLE, 64, 1.0),
    ("16", "causal", 150, SINGLE, 128, 1.0),
    ("16", "key_mask", 3, torch.bfloat16, 64, 1.0),
]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("mechanism, mask, queries, dtype, width, size", GPU_CASES)
def test_on_a_gpu(mechanism, mask, queries, dtype, width, size):
    check(mechanism, mask, (2, 4, 2, queries, 333, width, width), dtype, size, "cuda")


@pytest.mark.gpu
@on_gpu
def test_long_texts_on_a_gpu(monkeypatch):
    from whence.attention.fused import gated_launch

    check("64", "causal", (1, 2, 1, 3001, 3001, 64, 64), torch.bfloat16, 1.0, "cuda")
    monkeypatch.setattr(gated_launch, "EDGE_BYTES", 1)
    check("64", "causal", (1, 2, 1, 1000, 1000, 64, 64), torch.bfloat16, 8.0, "cuda")


@pytest.mark.gpu
@on_gpu
def test_gradients_repeat_on_a_gpu():
    """The entries of a row are added by one thread, in a fixed order."""
    *tensors, grad_out = random_inputs(2, 8, 2, 1000, 1000, 64, 64, dtype=torch.bfloat16, device="cuda")
    position = Cope(64).cuda()
    first, again = (run(position, tensors, grad_out, {"causal": True}, backend="triton") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))

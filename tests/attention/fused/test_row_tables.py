"""Tables of content in the fused kernels (Shaw, QueryTable, SwinBias, a user's own): interpreted, and on a GPU."""

import pytest
import torch
from kernel_cases import EARLIER, ODD, OVER, PAIR, SHORT, masks
from reference_comparison import check_against_reference, perturb, random_inputs, run

from whence import (
    Alibi,
    Cope,
    DistanceTable,
    Epar,
    GrapeA,
    KVCache,
    Position,
    QueryTable,
    Rotary,
    Shaw,
    Sink,
    SwinBias,
    T5Bias,
    TransformerXL,
    WhenceError,
    attend,
    explain,
)  # fmt: skip
from whence.attention.arguments import Arguments
from whence.attention.call import prepare
from whence.attention.fused import decode, packing, row_blocks
from whence.position.head_slice import select_heads

interpreted = pytest.mark.usefixtures("interpreted", "poisoned")
SINGLE, HALF = torch.float32, torch.float16


class Distant(Position):
    """A user's own: terms at distances 3 to 30 and nowhere else; clipped, one entry for all distances."""

    def __init__(self, head_dim, entries=28, clipped=False):
        super().__init__()
        self.vectors, self.clipped = torch.nn.Parameter(torch.randn(entries, head_dim)), clipped

    def content_bias_table(self, q, unrotated_q, scale):
        return DistanceTable(q @ self.vectors.to(q.dtype).mT, 3, self.clipped)

    def value_bias_table(self):
        return DistanceTable(self.vectors[:, :1], 3, self.clipped)


def all_effects(h, d, e):
    distances = Epar(h, context=40, learnable=True) + T5Bias(h, form="bidirectional", std=1.0)
    return Shaw(d, clip=40, heads=h, acts_on="keys") + distances + Sink(h)


MECHANISMS = {
    "Shaw": lambda h, d, e: Shaw(d, clip=5, value_dim=e),
    "Shaw, wide": lambda h, d, e: Shaw(d, clip=70, value_dim=e, heads=h) + Rotary(),
    "Shaw + Alibi + Sink": lambda h, d, e: (
        Shaw(d, clip=3, value_dim=e) + Alibi(h, form="symmetric", learnable=True) + Sink(h)
    ),
    "Shaw, keys": lambda h, d, e: Shaw(d, clip=5, acts_on="keys"),
    "Shaw, keys + Epar": lambda h, d, e: (
        Shaw(d, clip=5, acts_on="keys") + Epar(None, form="basic", context=40, learnable=True)
    ),
    "Shaw, keys + all": all_effects,
    "QueryTable": lambda h, d, e: QueryTable(h, d, rank=3, extent=50),
    "Rotary + QueryTable": lambda h, d, e: Rotary() + QueryTable(h, d, rank=3, extent=20),
    "Swin": lambda h, d, e: SwinBias(h, (5, 7), std=1.0),  # more tokens than places: the edge of the table
    "Swin + Epar": lambda h, d, e: SwinBias(h, (3, 2, 9), std=1.0) + Epar(h, context=40, learnable=True),
    "TransformerXL": lambda h, d, e: TransformerXL(h, d),
    "Rotary + TransformerXL + Epar": lambda h, d, e: (
        Rotary() + TransformerXL(h, d, embed_dim=20) + Epar(h, context=40, learnable=True)
    ),
    "GrapeA": lambda h, d, e: GrapeA(h, d),
    "Rotary + GrapeA, key + Epar": lambda h, d, e: (
        Rotary() + GrapeA(h, d, gate="key") + Epar(h, context=40, learnable=True)
    ),
    "own": lambda h, d, e: Distant(d),
    "own, one entry": lambda h, d, e: Distant(d, 1, clipped=True),
}
FEW = (2, 4, 2, 3, 140, 20, 24)
CASES = [
    ("Shaw", "holes", OVER, SINGLE),
    ("Shaw", "both sides, scaled", PAIR, HALF),
    ("Shaw", "key_mask", FEW, HALF),
    ("Shaw, wide", "both sides", (1, 2, 2, 70, 140, 16, 16), SINGLE),
    ("Shaw + Alibi + Sink", "window, both sides", ODD, HALF),
    ("Shaw, keys", "causal", FEW, SINGLE),
    ("Shaw, keys + Epar", "lengths", SHORT, HALF),
    ("Shaw, keys + all", "causal, scaled", EARLIER, SINGLE),
    ("QueryTable", "negative scale", FEW, HALF),
    ("Rotary + QueryTable", "segment_ids", OVER, HALF),
    ("Swin", "both sides, scaled", PAIR, HALF),
    ("Swin", "lengths", FEW, SINGLE),
    ("Swin + Epar", "segment_ids", EARLIER, SINGLE),
    ("TransformerXL", "both sides", FEW, SINGLE),
    ("GrapeA", "key_mask", FEW, HALF),
    ("GrapeA", "causal, scaled", (2, 2, 1, 70, 70, 16, 16), SINGLE),
    ("Rotary + GrapeA, key + Epar", "segment_ids", (1, 2, 2, 40, 40, 16, 16), HALF),
    ("own", "causal", (1, 2, 1, 70, 70, 16, 1), SINGLE),
    ("own, one entry", "both sides", (1, 2, 1, 20, 20, 16, 1), SINGLE),
]


BLOCKS = [
    ("TransformerXL", "segment_ids", (1, 2, 2, 50, 50, 16, 20), HALF),
    ("Rotary + TransformerXL + Epar", "both sides", (1, 2, 1, 20, 30, 16, 16), SINGLE),
    ("Shaw + Alibi + Sink", "window, both sides", (1, 2, 1, 21, 21, 16, 16), SINGLE),
]


def check(mechanism, mask, shape, dtype, device="cpu"):
    *tensors, grad_out = random_inputs(*shape, dtype=dtype, device=device)
    position = perturb(MECHANISMS[mechanism](shape[1], *shape[5:])).to(device)
    options = {n: move(x, device) for n, x in masks(mask, shape[0], *shape[3:5]).items()}
    return check_against_reference(position, tensors, grad_out, options)


def move(x, device):
    if isinstance(x, tuple):
        return tuple(move(part, device) for part in x)
    return x.to(device) if isinstance(x, torch.Tensor) else x


@interpreted
@pytest.mark.parametrize(
    "mechanism, mask, shape, dtype", CASES, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else str(x)
)
def test_forward_and_gradients(mechanism, mask, shape, dtype):
    torch.manual_seed(0)
    check(mechanism, mask, shape, dtype)


@interpreted
@pytest.mark.parametrize(
    "mechanism, mask, shape, dtype", BLOCKS, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else str(x)
)
def test_long_tables_in_blocks_of_rows(mechanism, mask, shape, dtype, monkeypatch):
    """Three blocks, the last one smaller."""
    monkeypatch.setattr(row_blocks, "rows_per_block", lambda call, relative: -(-2 * shape[3] // 5))
    check(mechanism, mask, shape, dtype)


@pytest.mark.parametrize(
    "position, entries", [(TransformerXL(2, 16), 80), (QueryTable(2, 16, extent=40), 40), (Cope(16, positions=40), 40)]
)
def test_a_table_of_a_block_is_below_the_limit(position, entries, monkeypatch):
    monkeypatch.setattr(row_blocks, "MIN_ROWS", 1)
    q = torch.zeros(1, 2, 80, 16)
    call = prepare(Arguments(q, q, q, position=position, causal=True))
    relative = None if entries == 40 else object()
    for limit, rows in ((2 * 80 * entries, 80), (2 * 7 * entries + 1, 7), (1, 1)):
        monkeypatch.setattr(row_blocks, "MAX_NUMBERS", limit)
        assert row_blocks.rows_per_block(call, relative) == rows
    monkeypatch.setattr(row_blocks, "MIN_ROWS", 64)
    assert row_blocks.rows_per_block(call, relative) == 64


@interpreted
@pytest.mark.parametrize("keys_from, keys, queries_from, queries, mask", [
    (0, 40, 40, 80, {"causal": True, "window": 20}), (100, 40, 0, 98, {"causal": False, "window": 8}),
])  # fmt: skip
def test_a_block_of_queries_that_see_no_key(keys_from, keys, queries_from, queries, mask, monkeypatch):
    monkeypatch.setattr(row_blocks, "MAX_NUMBERS", 100)
    monkeypatch.setattr(row_blocks, "MIN_ROWS", 16)
    *tensors, grad_out = random_inputs(1, 2, 1, queries, keys, 16, 16)
    positions = {
        "q_positions": torch.arange(queries_from, queries_from + queries),
        "k_positions": torch.arange(keys_from, keys_from + keys),
    }
    check_against_reference(perturb(TransformerXL(2, 16)), tensors, grad_out, mask | positions)


@interpreted
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    "position", [Cope(16, positions=4), GrapeA(2, 16), TransformerXL(2, 16)], ids=lambda x: type(x).__name__
)
def test_blocks_of_rows_are_compiled(position, monkeypatch):
    """Also for any length, and with gradients."""
    monkeypatch.setattr(row_blocks, "MAX_NUMBERS", 1000)
    parameters = [p for p in position.parameters() if p.requires_grad]

    def call(q):
        return attend(q * 1.0, q, q, position=position, causal=True, backend="triton")

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (70, 90):
        q = torch.randn(1, 2, tokens, 16, requires_grad=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(q), call(q))
        results = [torch.autograd.grad(function(q).square().sum(), [q, *parameters]) for function in (call, compiled)]
        for eager, traced in zip(*results, strict=True):
            torch.testing.assert_close(traced, eager)


@interpreted
def test_many_rows_with_places_on_a_grid_are_no_decode_step(monkeypatch):
    """The tile of a decode step with 64 rows of places exceeds the shared memory of compute capability 8.6."""
    rows = []
    monkeypatch.setattr(
        decode, "decode", lambda call, out, lse, run=decode.decode: rows.append(call.q_len * 4) or run(call, out, lse)
    )
    for queries in (8, 9):
        q, k, v = (torch.randn(1, h, n, 16) for h, n in ((4, queries), (1, 30), (1, 30)))
        options = {"q_positions": torch.arange(30 - queries, 30), "k_positions": torch.arange(30), "causal": True}
        position = SwinBias(4, (5, 6), std=1.0).requires_grad_(False)
        with torch.no_grad():
            out = attend(q, k, v, position=position, backend="triton", **options)
            exact = attend(
                q.double(), k.double(), v.double(), position=position.double(), backend="reference", **options
            )
        assert (out - exact).norm() < 1e-5 * exact.norm()
    assert rows == [32]


@interpreted
@pytest.mark.usefixtures("deterministic")
def test_deterministic_gradients_of_a_table_beside_content():
    check("Shaw, keys + all", "causal", ODD, SINGLE)


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.usefixtures("interpreted", "deterministic")
def test_slopes_of_queries_and_keys_are_added_by_atomics(trainable):
    """Also those of a frozen mechanism, whose queries and keys get gradients."""
    q, position = torch.zeros(1, 2, 6, 16), GrapeA(2, 16).requires_grad_(trainable)
    explained = explain(q, q, q, position=position, causal=True)
    assert explained.backend == "blockwise" and "atomics" in dict(explained.others)["triton"]


@interpreted
def test_slopes_are_two():
    class NoSlopes(GrapeA):
        def distance_slopes(self, q, k):
            return None

    q = torch.zeros(1, 2, 6, 16)
    with pytest.raises(WhenceError, match=r"NoSlopes.distance_slopes.*NoneType.*return \(a, b\)"):
        attend(q, q, q, position=NoSlopes(2, 16), causal=True, backend="triton")


@interpreted
def test_pointer_loads(monkeypatch):
    monkeypatch.setattr(packing, "has_tma", lambda device: False)
    check("Shaw", "causal", ODD, HALF)


@interpreted
def test_cached_decoding_equals_one_pass():
    q, k, v, _ = random_inputs(1, 2, 1, 50, 50, 16, 16)
    for position in map(
        perturb, (Shaw(16, clip=5), QueryTable(2, 16, rank=3, extent=30), TransformerXL(2, 16), GrapeA(2, 16))
    ):
        options = {"position": position, "causal": True, "backend": "triton"}
        with torch.no_grad():
            whole, cache = attend(q, k, v, **options), KVCache()
            pieces = zip(*(x.split([20, 1, 3, 26], 2) for x in (q, k, v)), strict=True)
            parts = [attend(*piece, cache=cache, **options) for piece in pieces]
        torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-5)


@interpreted
def test_a_table_of_the_layer_input():
    q, k, v, x = random_inputs(1, 2, 1, 20, 20, 16, 16)
    position = perturb(QueryTable(2, 16, source="input", embed_dim=32, rank=3, extent=9))
    x = x.transpose(1, 2).flatten(2).requires_grad_()
    results = []
    for backend in ("reference", "triton"):
        out = attend(q, k, v, position=position, q_input=x, causal=True, backend=backend)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *position.parameters()])])
    for exact, result in zip(*results, strict=True):
        torch.testing.assert_close(result, exact, rtol=1e-4, atol=1e-5)


@interpreted
def test_auto_takes_the_kernels_where_content_is_a_table_and_only_there():
    q = torch.zeros(1, 2, 6, 16)

    def explained(position, **options):
        return explain(q, q, q, position=position, causal=True, **options)

    def refusal(position, **options):
        said = explained(position, **options)
        assert said.backend == "blockwise"
        return dict(said.others)["triton"]

    class Plain(Shaw):
        def content_bias(self, rows):
            return 2 * super().content_bias(rows)

    shaw, keys = Shaw(16), Shaw(16, acts_on="keys")
    for position in (
        shaw,
        SwinBias(2, (2, 3)),
        Rotary() + QueryTable(2, 16) + Sink(2),
        select_heads(QueryTable(4, 16), 1, 3),
        select_heads(TransformerXL(4, 16), 1, 3),
        select_heads(GrapeA(4, 16), 1, 3),
        Distant(16),
    ):
        assert explained(position).backend == "triton"
    assert explained(keys, dropout=0.1).backend == "triton"
    assert "Plain has no content_bias_table" in refusal(Plain(16))
    assert "2 parts" in refusal(keys + QueryTable(2, 16))
    assert "dropout" in refusal(shaw, dropout=0.1)
    assert "scale 0.0" in refusal(keys, scale=0.0)
    assert "consecutive" in refusal(keys, q_positions=torch.arange(6) * 2, k_positions=torch.arange(6) * 2)


@interpreted
@pytest.mark.usefixtures("deterministic")
def test_a_learnable_table_of_coordinates_is_left_to_blockwise_where_gradients_must_repeat():
    q, swin = torch.zeros(1, 2, 6, 16), SwinBias(2, (2, 3))
    said = explain(q, q, q, position=swin)
    assert said.backend == "blockwise" and "atomics" in dict(said.others)["triton"]
    assert explain(q, q, q, position=swin.requires_grad_(False)).backend == "triton"


@interpreted
def test_a_wrong_table_is_refused_by_name():
    class NoTable(Position):
        def content_bias_table(self, q, unrotated_q, scale):
            return q

    class Short(Position):
        def content_bias_table(self, q, unrotated_q, scale):
            return DistanceTable(q[:, :1], 0, clipped=True)

    q = torch.zeros(1, 2, 6, 16)
    for position, words in ((NoTable(), "DistanceTable"), (Short(), r"\[1, 1, 6, 16\].*B, H, T = 1, 2, 6")):
        with pytest.raises(Exception, match=words):
            attend(q, q, q, position=position, causal=True, backend="triton")


# --- on a GPU -------------------------------------------------------------------------------------------------------

LONG = 4160  # more than tile_configs.LONG_QUERIES; dense references of longer texts fill a GPU that 16 processes share
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
GPU_CASES = [
    (mechanism, mask, queries, dtype)
    for mechanism in MECHANISMS
    if "own" not in mechanism
    for mask, queries, dtype in (
        ("causal", 333, torch.bfloat16), ("window, both sides", 333, HALF), ("lengths", 333, torch.bfloat16),
        ("segment_ids", 150, torch.bfloat16), ("causal, scaled", 333, SINGLE), ("key_mask", 3, torch.bfloat16),
    )
    if not ("Grape" in mechanism and mask == "window, both sides")  # it is defined for causal attention
]  # fmt: skip


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("mechanism, mask, queries, dtype", GPU_CASES)
def test_on_a_gpu(mechanism, mask, queries, dtype):
    # head dimensions by turns, and grouped heads with the smaller one: each means kernels of its own to compile
    index = GPU_CASES.index((mechanism, mask, queries, dtype))
    width = (64, 128)[(index + index // len(MECHANISMS)) % 2]
    check(mechanism, mask, (2, 4, 2 if width == 64 else 4, queries, 333, width, width), dtype, "cuda")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("pointers", [False, True], ids=["TMA", "pointers"])
def test_long_texts_on_a_gpu(pointers, monkeypatch):
    if pointers:
        monkeypatch.setattr(packing, "has_tma", lambda device: False)
    for width in (64, 128):
        for mechanism in ("Shaw", "QueryTable", "TransformerXL"):
            check(mechanism, "causal", (1, 2, 2, LONG, LONG, width, width), torch.bfloat16, "cuda")
    monkeypatch.setattr(row_blocks, "MAX_NUMBERS", 1 << 24)
    for mechanism in ("QueryTable", "TransformerXL"):
        check(mechanism, "causal", (1, 2, 2, LONG, LONG, 64, 64), torch.bfloat16, "cuda")


@pytest.mark.gpu
@on_gpu
def test_gradients_repeat_on_a_gpu():
    """Entries are stored by one program, in a fixed order."""
    *tensors, grad_out = random_inputs(2, 8, 2, 1000, 1000, 64, 64, dtype=torch.bfloat16, device="cuda")
    for position in (Shaw(64).cuda(), QueryTable(8, 64, extent=300).cuda(), TransformerXL(8, 64).cuda()):
        first, again = (run(position, tensors, grad_out, {"causal": True}, backend="triton") for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
@on_gpu
def test_memory_of_a_table_of_all_distances_on_a_gpu():
    """The scores of these queries and keys would take 4 GiB."""
    q, k, v, grad_out = random_inputs(1, 4, 4, 16384, 16384, 64, 64, dtype=torch.bfloat16, device="cuda")
    position = TransformerXL(4, 64).cuda()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(position, [q, k, v], grad_out, {"causal": True}, backend="triton")
    assert torch.cuda.max_memory_allocated() - before < 1.5 * 2**30

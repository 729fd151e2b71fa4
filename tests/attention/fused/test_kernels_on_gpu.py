"""The compiled kernels on a GPU: every mechanism they take, in every mask and precision, against the float64 reference.

The error budget is the error of eager code in the same precision on the same inputs, plus a few roundings. Memory is
filled with NaN before each call, so that an element that no kernel writes is detected.
"""

import math

import pytest
import torch
from barriers import BARRED, NEAR_LIMIT, VALUES, Barrier, check_barrier
from reference_comparison import check_against_reference, perturb, random_inputs, run

import whence
from whence import Alibi, Epar, Kerple, PowerPrior, Recency, Rotary, Sink, StableMask, T5Bias, attend
from whence.attention.fused import eager, packing
from whence.attention.fused.tile_configs import LONG_QUERIES, max_head_dim
from whence.errors import WhenceError
from whence.position.catalogue import CATALOGUE

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device here; run on a machine with a GPU", allow_module_level=True)
DEVICE = "cuda"
HALVES = (torch.bfloat16, torch.float16)
TAKEN = {"score_scale", "bias", "sink", "rotate"}
HEADS, WIDTH = 4, 64

MECHANISMS = {entry.name: entry.make for entry in CATALOGUE if entry.make(2, 8).effects <= TAKEN} | {
    "Alibi, learnt": lambda h, d: Alibi(h, form="symmetric", learnable=True),
    "T5Bias, both sides": lambda h, d: T5Bias(h, form="bidirectional", std=1.0),
    "Epar + T5Bias": lambda h, d: Epar(h, context=64, learnable=True) + T5Bias(h, form="bidirectional", std=1.0),
    "Epar + PowerPrior": lambda h, d: Epar(h, context=64, learnable=True) + PowerPrior(h, alpha=0.1, beta=0.8),
    "Alibi + Sink": lambda h, d: Alibi(h, learnable=True) + Sink(h),
    "Rotary + Epar + Sink": lambda h, d: Rotary() + Epar(h, context=64, learnable=True) + Sink(h),
    "Kerple + Alibi": lambda h, d: Kerple(h) + Alibi(h, form="symmetric", learnable=True),
}
MASKS = ("causal", "both sides", "window", "lengths", "segment_ids", "left padding", "later queries")


def arguments(mask, batch, queries, keys):
    options = {"causal": mask != "both sides"}
    if queries != keys:
        options |= {"q_positions": torch.arange(keys - queries, keys), "k_positions": torch.arange(keys)}
    if mask == "window":
        options["window"] = 45
    if mask == "lengths":
        options["lengths"] = (keys - 90 * torch.arange(batch)).clamp(min=0)
    if mask == "left padding":
        options["key_mask"] = torch.arange(keys) >= torch.arange(batch)[:, None] * 77
    if mask == "segment_ids":
        options["segment_ids"] = torch.arange(keys) // 83
    return {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}


def poison():
    """Fill the memory that the allocator returns next with NaN: large blocks, and small blocks of its other pool."""
    if DEVICE == "cuda":
        held = [torch.full((1 << 28,), torch.nan, device=DEVICE)]
        held += [torch.full((1 << 17,), torch.nan, device=DEVICE) for _ in range(400)]
        held += [torch.full((1 << 22,), torch.nan, device=DEVICE) for _ in range(16)]
        del held


def build_position(name, heads=HEADS, width=WIDTH):
    torch.manual_seed(1)
    return perturb(MECHANISMS[name](heads, width)).to(DEVICE)


def check(name, shape, options, dtype, **about):
    *tensors, grad_out = random_inputs(*shape, dtype=dtype, device=DEVICE)
    position = build_position(name, shape[1], shape[5])
    poison()
    return check_against_reference(position, tensors, grad_out, options, **about)


CASES = [
    (name, mask)
    for name in MECHANISMS
    for mask in MASKS
    if not (mask == "both sides" and MECHANISMS[name](2, 8).causal_only)
]


@pytest.mark.parametrize("name, mask", CASES)
def test_every_mechanism_under_every_mask(name, mask):
    # all in bfloat16, and under two masks by turns in one of the others: each means kernels of its own to compile;
    # 333 rows and keys fill no block
    shape = (2, HEADS, 2, 150 if mask == "later queries" else 333, 333, WIDTH, WIDTH)
    options = arguments(mask, 2, *shape[3:5])
    other = (torch.float16, torch.float32)[(CASES.index((name, mask)) + MASKS.index(mask)) % 2]
    for dtype in (torch.bfloat16, other) if mask in ("causal", "window") else (torch.bfloat16,):
        check(name, shape, options, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["Epar + T5Bias", "Alibi + Sink", "Fire"])
@pytest.mark.parametrize(
    "width, value_dim", [(16, 16), (20, 72), (80, 80), (96, 160), (128, 128), (256, 256), (256, 64)]
)
def test_head_dims(width, value_dim, name, dtype):
    shape = (1, 2, 1, 200, 200, width, value_dim)
    where = torch.device(DEVICE)
    if max(width, value_dim) > max_head_dim(packing.has_tma(where), packing.shared_memory(where), dtype.itemsize):
        with pytest.raises(WhenceError, match="supports head dimensions up to"):
            check(name, shape, {"causal": True}, dtype)
    else:
        check(name, shape, {"causal": True}, dtype)


@pytest.mark.parametrize("length", [1, 17, 63, 64, 65, 111, 128, 129, 1000])
@pytest.mark.parametrize("name", ["Epar", "T5Bias, both sides"])
def test_lengths(length, name):
    for causal in (True, False):
        check(name, (1, 2, 2, length, length, WIDTH, WIDTH), {"causal": causal}, torch.bfloat16)


@pytest.mark.parametrize("name", ["Epar", "Alibi, learnt", "T5Bias", "Epar + PowerPrior"])
def test_tiles_of_long_sequences(name):
    check(name, (1, 2, 1, LONG_QUERIES + 70, LONG_QUERIES + 70, 128, 128), {"causal": True}, torch.bfloat16)


FACTORED = {
    "slopes from gentle to steep": lambda h: Alibi(h, slope=[0.003, 0.6, 2.0, 60.0], learnable=True),
    "decays from slow to sudden": lambda h: Epar(h, context=300, beta=[1e-4, 3.0, 900.0, 1e5], learnable=True),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("groups", [4, 1])
@pytest.mark.parametrize("name", FACTORED)
def test_slopes_and_decays_that_factor_into_query_and_key(name, groups, width, dtype):
    position = FACTORED[name](4).to(DEVICE)
    for mask in ("causal", "window"):
        *tensors, grad_out = random_inputs(1, 4, groups, 700, 700, width, width, dtype=dtype, device=DEVICE)
        poison()
        check_against_reference(position, tensors, grad_out, arguments(mask, 1, 700, 700))


DECODE_CASES = ["NoPosition", "Epar", "Alibi", "Epar + T5Bias", "Alibi + Sink", "StableMask"]


@pytest.mark.parametrize("queries", [1, 3, 16])
@pytest.mark.parametrize("name", DECODE_CASES)
def test_decode(name, queries):
    # 8 heads share 2 keys; 3000 keys are split over many programs
    shape = (2, 8, 2, queries, 3000, WIDTH, WIDTH)
    for mask, dtype in (("causal", torch.float32), ("causal", torch.bfloat16), ("lengths", torch.bfloat16)):
        check(name, shape, arguments(mask, 2, queries, 3000), dtype)
    check(name, shape, arguments("window", 2, queries, 3000), torch.float16)


def test_cached_decode_equals_one_pass():
    position = build_position("Alibi + Sink")
    q, k, v, _ = random_inputs(2, HEADS, 2, 300, 300, WIDTH, WIDTH, dtype=torch.bfloat16, device=DEVICE)
    options = {"position": position, "causal": True, "backend": "triton"}
    with torch.no_grad():
        whole = attend(q, k, v, **options)
        for cache in (whence.KVCache(), whence.KVCache(capacity=300)):
            pieces = zip(*(x.split([200, 1, 1, 16, 82], 2) for x in (q, k, v)), strict=True)
            steps = torch.cat([attend(*piece, cache=cache, **options) for piece in pieces], 2)
            torch.testing.assert_close(steps, whole, rtol=2**-6, atol=2**-7)


# --- memory layouts and size --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [64, 20])
def test_fused_qkv_projection(width):
    def split(qkv):
        return [x.transpose(1, 2) for x in qkv.unbind(2)]

    torch.manual_seed(0)
    qkv = torch.randn(2, 200, 3, HEADS, width, device=DEVICE).bfloat16()
    grad_out = torch.randn(2, HEADS, 200, width, device=DEVICE).bfloat16()
    poison()
    check_against_reference(build_position("Epar + T5Bias"), [qkv], grad_out, {"causal": True}, view=split)


def test_key_offsets_beyond_32_bits():
    # 8 heads of 4 million keys of width 64: more than 2 ** 31 numbers in k, and as many in v
    heads, keys, width = 8, 2**22 + 70, 64
    torch.manual_seed(0)
    k, v = (torch.randn(1, heads, keys, width, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(1, heads, 1, width, device=DEVICE, dtype=torch.bfloat16)
    assert k.numel() > 2**31
    position = Epar(heads, context=keys, alpha=2.0, beta=1.0).to(DEVICE)
    planted = keys - 3
    k[0, -1, planted] = q[0, -1, 0] * 1.5  # a key near the end that stands out among the others
    where = {"q_positions": torch.tensor([keys - 1], device=DEVICE), "k_positions": torch.arange(keys, device=DEVICE)}
    with torch.no_grad():
        out = attend(q, k, v, position=position, causal=True, backend="triton", **where)
        for head in (0, heads - 1):
            distance = torch.arange(keys - 1, -1, -1, device=DEVICE).double()
            scores = (k[0, head].float() @ q[0, head, 0].float()).double() * width**-0.5
            weights = torch.softmax(scores * position.double().score_scale(distance, keys)[head], -1)
            position.float()
            exact = sum(
                w.float() @ x.float() for w, x in zip(weights.split(1 << 20), v[0, head].split(1 << 20), strict=True)
            )
            torch.testing.assert_close(out[0, head, 0].float(), exact, rtol=2**-6, atol=2**-9)
            del scores, weights


def test_query_and_gradient_offsets_beyond_32_bits():
    heads, length, width, window, tail = 16, 2**21 + 200, 64, 128, 512
    torch.manual_seed(0)
    tensors = [torch.randn(1, heads, length, width, device=DEVICE, dtype=torch.bfloat16) for _ in range(4)]
    *leaves, grad_out = tensors
    assert grad_out.numel() > 2**31
    for x in leaves:
        x.requires_grad_()
    position = Alibi(heads).to(DEVICE)
    out = attend(*leaves, position=position, causal=True, window=window, backend="triton")
    grads = torch.autograd.grad(out, leaves, grad_out)
    # the last tokens of the last head depend on the last tokens alone
    last = [x.detach()[:, -1:, -tail:].clone() for x in (*leaves, grad_out)]
    slope = [float(position.slope().reshape(-1)[-1])]
    exact = run(
        Alibi(1, slope=slope).double().to(DEVICE), [x.double() for x in last[:3]], last[3].double(),
        {"causal": True, "window": window}, backend="reference",
    )  # fmt: skip
    for actual, expected in zip((out, *grads), exact, strict=True):
        ours = actual.detach()[:, -1:, -tail + window :].double()
        torch.testing.assert_close(ours, expected[:, :, window:], rtol=2**-5, atol=2**-5)


# --- compilation, determinism -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Rotary + Epar + Sink", "Epar + T5Bias", "Alibi, learnt"])
def test_compiled_layer_equals_eager(name):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = whence.Attention(256, HEADS, build_position(name), num_kv_heads=2, causal=True, backend="triton").to(
        DEVICE, torch.bfloat16
    )
    layer.position.float()
    x = torch.randn(2, 200, 256, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    wanted = [x, *layer.parameters()]
    results = []
    for call in (layer, torch.compile(layer, fullgraph=True)):
        poison()
        out = call(x)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), wanted)])
    for uncompiled, compiled in zip(*results, strict=True):
        assert torch.isfinite(compiled).all()
        size = uncompiled.float().square().mean().sqrt()
        assert (
            compiled.float() - uncompiled.float()
        ).square().mean().sqrt() <= 2**-6 * size  # it may fuse what is around
    torch._dynamo.reset()


DETERMINISTIC = [
    ("T5Bias", "causal", 64),
    ("T5Bias", "lengths", 80),
    ("T5Bias, both sides", "both sides", 64),
    ("Epar + T5Bias", "window", 128),
    ("Epar + T5Bias", "segment_ids", 64),
    ("Epar + PowerPrior", "causal", 64),
    ("Alibi + Sink", "left padding", 64),
    ("Recency", "later queries", 256),
]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name, mask, width", DETERMINISTIC)
def test_deterministic_runs_are_identical(name, mask, width, dtype):
    queries = 150 if mask == "later queries" else 333
    shape, options = (3, HEADS, 2, queries, 333, width, width), arguments(mask, 3, queries, 333)
    *tensors, grad_out = random_inputs(*shape, dtype=dtype, device=DEVICE)
    position = build_position(name, HEADS, width)
    results = []
    for _ in range(2):
        poison()
        results.append(run(position, tensors, grad_out, options, backend="triton"))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name, mask, width", DETERMINISTIC[:5])
def test_deterministic_gradients(name, mask, width, dtype, request):
    shape, options = (3, HEADS, 2, 333, 333, width, width), arguments(mask, 3, 333, 333)
    *tensors, grad_out = random_inputs(*shape, dtype=dtype, device=DEVICE)
    position = build_position(name, HEADS, width)
    plain = run(position, tensors, grad_out, options, backend="triton")
    check_against_reference(position, tensors, grad_out, options)
    request.getfixturevalue("deterministic")
    poison()
    ordered = run(position, tensors, grad_out, options, backend="triton")
    for a, b in zip(plain, ordered, strict=True):  # the same products, added in another order
        size = a.double().square().mean().sqrt().clamp(min=1e-3)
        assert (a.double() - b.double()).square().mean().sqrt() <= 64 * torch.finfo(torch.float32).eps * size


# --- dropout and far keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Epar", "Alibi", "T5Bias"])
def test_dropout_rate_and_same_mask_in_backward(name):
    # with the unit vectors as values the output is the weights; the gradient of the values is their transpose
    keys, share = 200, 0.3
    q, k, *_ = random_inputs(1, 2, 2, keys, keys, 64, 64, dtype=torch.float32, device=DEVICE)
    units = torch.eye(keys, device=DEVICE).expand(1, 2, -1, -1).contiguous().requires_grad_()
    position = build_position(name, 2)
    torch.manual_seed(3)
    out = attend(q, k, units, position=position, causal=True, backend="triton", dropout=share)
    (back,) = torch.autograd.grad(out, units, torch.eye(keys, device=DEVICE).expand_as(out))
    torch.testing.assert_close(back, out.mT.detach(), rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        whole = attend(q, k, units, position=position, causal=True, backend="triton")
    kept, seen = out != 0, whole > 1e-30
    torch.testing.assert_close(out[kept], (whole / (1 - share))[kept], rtol=1e-3, atol=1e-5)
    assert abs(kept[seen].float().mean() - (1 - share)) < 5 * math.sqrt(share * (1 - share) / int(seen.sum()))


STEEP = {
    "Alibi": lambda: Alibi(2, slope=[0.5, 0.1], learnable=True),
    "PowerPrior": lambda: PowerPrior(2, alpha=[0.5, -0.1], beta=[1.0, 1.1]),
    "Epar + Alibi + Sink": lambda: Epar(2, context=64, learnable=True) + Alibi(2, slope=[0.5, 0.1]) + Sink(2),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("mechanism", STEEP)
def test_skipping_does_not_change_the_result(mechanism, dtype, monkeypatch):
    monkeypatch.setattr(eager, "MAX_PAIRS_WITHOUT_SKIPPING", 0)  # a plan would not skip
    *tensors, grad_out = random_inputs(1, 2, 1, 2048, 2048, 64, 64, dtype=dtype, device=DEVICE)
    position = STEEP[mechanism]().to(DEVICE)
    poison()
    actual = check_against_reference(position, tensors, grad_out, {"causal": True, "skip_blocks": True})
    everything = run(position, tensors, grad_out, {"causal": True, "skip_blocks": False}, backend="triton")
    padded = {"causal": True, "lengths": torch.tensor([700], device=DEVICE)}  # padded queries see far keys only
    poison()
    actual += run(position, tensors, grad_out, padded, backend="triton")
    everything += run(position, tensors, grad_out, padded | {"skip_blocks": False}, backend="triton")
    for a, b in zip(actual, everything, strict=True):
        size, difference = b.double().square().mean().sqrt(), a.double() - b.double()
        eps = torch.finfo(dtype).eps
        # in half precision, roundings of float32 decide a few of the roundings to half precision otherwise
        assert difference.square().mean().sqrt() <= (16 if dtype == torch.float32 else 0.02) * eps * size
        assert (difference.abs() <= (256 if dtype == torch.float32 else 2) * eps * (b.double().abs() + size)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("mechanism", STEEP)
def test_important_distant_key_is_not_skipped(mechanism, dtype, monkeypatch):
    monkeypatch.setattr(eager, "MAX_PAIRS_WITHOUT_SKIPPING", 0)  # a plan would not skip
    *tensors, grad_out = random_inputs(1, 2, 1, 2048, 2048, 64, 64, dtype=dtype, device=DEVICE)
    aim = torch.nn.functional.normalize(torch.ones(64, device=DEVICE), dim=0).to(dtype)
    tensors[0][:, :, 2000:] = 16 * aim  # the last rows look for one key at the very beginning
    tensors[1][:, :, 2] = 1000 * aim
    position = STEEP[mechanism]().to(DEVICE)
    with torch.no_grad():
        _, weights = attend(*tensors, position=position, causal=True, backend="reference", return_weights=True)
    assert weights[:, :, 2000:, 2].min() > 0.9
    # logits of thousands leave few digits behind the point, and a parameter's share of them is as large
    check_against_reference(position, tensors, grad_out, {"causal": True}, slack=4)


def test_output_dtypes():
    q = torch.zeros(1, 1, 4, 16, device=DEVICE)
    for dtype in (*HALVES, torch.float32):
        assert attend(*[q.to(dtype)] * 3, position=Recency(8).to(DEVICE), causal=True, backend="triton").dtype == dtype
    position = StableMask(1, context=8).to(DEVICE)
    assert whence.explain(q, q, q, position=position, causal=True).backend == "triton"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", ["causal", "both sides", "segment_ids", "later queries"])
@pytest.mark.parametrize("barred", BARRED)
@pytest.mark.parametrize("value", VALUES | NEAR_LIMIT)
def test_huge_finite_biases(value, barred, mask, dtype):
    shape = (2, HEADS, 2, 150 if mask == "later queries" else 333, 333, WIDTH, WIDTH)
    for learnable in (True, False):
        position = Barrier(HEADS, value, barred, learnable).to(DEVICE)
        poison()
        check_barrier(position, shape, arguments(mask, 2, *shape[3:5]), dtype, "equal", DEVICE)


@pytest.mark.parametrize("value", VALUES)
def test_huge_finite_biases_with_a_sink_few_queries_and_without_atomics(value):
    position = (Barrier(HEADS, value, "everywhere") + Sink(HEADS)).to(DEVICE)
    poison()
    check_barrier(position, (1, HEADS, 2, 200, 200, WIDTH, WIDTH), {"causal": True}, torch.float32, "equal", DEVICE)
    shape = (2, HEADS, 2, 5, 700, WIDTH, WIDTH)
    for dtype in (torch.float32, torch.bfloat16):
        poison()
        check_barrier(
            Barrier(HEADS, value, "everywhere").to(DEVICE),
            shape,
            arguments("causal", 2, 5, 700),
            dtype,
            "equal",
            DEVICE,
        )
    torch.use_deterministic_algorithms(True)
    try:
        poison()
        check_barrier(
            Barrier(HEADS, value, "near").to(DEVICE), (2, HEADS, 2, 333, 333, WIDTH, WIDTH), {"causal": True},
            torch.float32, "equal", DEVICE,
        )  # fmt: skip
    finally:
        torch.use_deterministic_algorithms(False)

"""Clocks in the fused kernels, against the float64 reference, with the gradient of every step: interpreted, and on a GPU."""

import pytest
import torch
from kernel_cases import EARLIER, LONG, ODD, OVER, PAIR, masks
from reference_comparison import check_against_reference, perturb, random_inputs, run

from whence import Alibi, Epar, KVCache, Position, Sink, T5Bias, attend
from whence.attention.fused import clock_terms, diagonals, packing

interpreted = pytest.mark.usefixtures("interpreted", "poisoned")
SINGLE, HALF = torch.float32, torch.float16


class Steps(Position):
    """The steps are given with the call."""

    def clock(self, x):
        raise NotImplementedError


MECHANISMS = {
    "clock": lambda h: Steps(),
    "clock + Sink": lambda h: Steps() + Sink(h),
    "clock + Alibi + Sink": lambda h: Steps() + Alibi(h, learnable=True) + Sink(h),
    "clock + Epar": lambda h: Steps() + Epar(h, context=40, learnable=True),
    "clock + Epar, query": lambda h: Steps() + Epar(h, length="query", learnable=True) + Sink(h),
    "clock + T5Bias": lambda h: Steps() + T5Bias(h, form="bidirectional", std=1.0),
    "clock + all": lambda h: Steps() + Epar(h, context=40, learnable=True) + T5Bias(h, std=1.0) + Sink(h),
}
FEW = (2, 4, 2, 3, 140, 20, 24)  # decoded
CASES = [
    ("clock", "causal", LONG, SINGLE),
    ("clock", "causal, scaled", EARLIER, HALF),
    ("clock + Sink", "window, both sides", OVER, HALF),
    ("clock + Alibi + Sink", "causal", OVER, HALF),
    ("clock + Epar", "lengths", PAIR, HALF),
    ("clock + T5Bias", "segment_ids", OVER, SINGLE),
    ("clock + all", "holes", PAIR, SINGLE),
    ("clock + all", "window", ODD, HALF),
    ("clock + all", "key_mask, scaled", FEW, SINGLE),
    ("clock + Epar, query", "window", FEW, HALF),
]


def draw(shape, dtype, size=0.5, device="cpu"):
    """q, k, v, steps around -size with one large step before all others, and the gradient of the output."""
    *tensors, grad_out = random_inputs(*shape, dtype=dtype, device=device)
    steps = -2 * size * torch.rand(shape[0], shape[1], shape[4], generator=torch.Generator().manual_seed(5))
    steps[..., 0] -= 1e5 * size  # sums as after a long text; the bias of no pair has it
    return [*tensors, steps.to(device)], grad_out


def check(mechanism, mask, shape, dtype, size=0.5):
    tensors, grad_out = draw(shape, dtype, size)
    position = perturb(MECHANISMS[mechanism](shape[1]))
    return check_against_reference(position, tensors, grad_out, masks(mask, shape[0], shape[3], shape[4]))


@interpreted
@pytest.mark.parametrize(
    "mechanism, mask, shape, dtype", CASES, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else str(x)
)
def test_forward_and_gradients(mechanism, mask, shape, dtype):
    check(mechanism, mask, shape, dtype)


@interpreted
def test_steps_that_forget_nearly_all():
    check("clock + Sink", "causal", EARLIER, HALF, size=10.0)


@interpreted
@pytest.mark.usefixtures("deterministic")
def test_deterministic_gradients_of_a_table_beside_a_clock():
    check("clock + T5Bias", "causal", ODD, SINGLE)


@interpreted
def test_pointer_loads(monkeypatch):
    monkeypatch.setattr(packing, "has_tma", lambda device: False)
    check("clock + Sink", "causal", ODD, HALF)


@interpreted
@pytest.mark.parametrize("dtype", [SINGLE, HALF])
def test_pairs_of_sums_are_aligned(dtype, monkeypatch):
    """A misaligned pair is an error on a GPU. Windows leave empty ranges of tiles, some of which begin after the last key, and
    kernels load what the first tile would need."""
    seen = []

    def load(pointer):
        seen.append(bool((pointer.handle.data % 8 == 0).all()))
        return diagonals.load_f32x2(pointer)

    monkeypatch.setattr(clock_terms, "load_f32x2", load)
    tensors, grad_out = draw((1, 2, 1, 129, 129, 16, 16), dtype)
    run(Steps(), tensors, grad_out, masks("window", 1, 129, 129), backend="triton")
    assert seen and all(seen)


@interpreted
def test_a_step_has_no_effect_on_dropped_keys():
    """Both gradients of a step come from one mask: with values of 1 and no dropout they are 0, with dropout they are not."""
    (q, k, v, steps), grad_out = draw((1, 2, 1, 70, 70, 16, 16), SINGLE)
    tensors = [q, k, torch.ones_like(v), steps]
    grad_out = torch.ones_like(grad_out)
    for dropout in (0.0, 0.5):
        torch.manual_seed(7)
        out, dq, *_, d_steps = run(Steps(), tensors, grad_out, {"causal": True, "dropout": dropout}, backend="triton")
        assert (d_steps.abs().max() > 1e-2) == (dq.abs().max() > 1e-2) == (dropout > 0)
        # finite differences in one step, with the same mask
        torch.manual_seed(7)
        moved = steps.clone()
        moved[0, 1, 40] += 0.02
        again = attend(q, k, tensors[2], position=Steps(), clock=moved, causal=True, dropout=dropout, backend="triton")
        torch.testing.assert_close(((again - out).sum() / 0.02), d_steps[0, 1, 40], rtol=0.05, atol=2e-3)


@interpreted
def test_a_huge_step_leaves_the_digits_of_its_block():
    """A reset: no weight reaches beyond it, and the sums around it keep their differences."""
    tensors, grad_out = draw((1, 2, 2, 100, 100, 16, 16), HALF)
    tensors[3][..., 40] -= 1e6
    check_against_reference(Steps(), tensors, grad_out, {"causal": True})


@interpreted
def test_cached_decoding_equals_one_pass():
    (q, k, v, steps), _ = draw((1, 2, 1, 50, 50, 16, 16), SINGLE)
    options = {"position": Steps() + Sink(2), "causal": True, "backend": "triton"}
    with torch.no_grad():
        whole, cache = attend(q, k, v, clock=steps, **options), KVCache()
        pieces = zip(*(x.split([20, 1, 3, 26], 2) for x in (q, k, v, steps)), strict=True)
        parts = [attend(*piece[:3], clock=piece[3], cache=cache, **options) for piece in pieces]
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-5)


# --- on a GPU -------------------------------------------------------------------------------------------------------

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
GPU_CASES = [
    (mechanism, mask, queries, dtype)
    for mechanism in MECHANISMS
    for mask, queries, dtype in (
        ("causal", 333, torch.bfloat16), ("window", 333, HALF), ("lengths", 333, torch.bfloat16),
        ("segment_ids", 150, torch.bfloat16), ("causal, scaled", 333, SINGLE), ("key_mask", 3, torch.bfloat16),
    )
]  # fmt: skip


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("mechanism, mask, queries, dtype", GPU_CASES)
def test_on_a_gpu(mechanism, mask, queries, dtype):
    # head dimensions by turns, and grouped heads with the smaller one: each means kernels of its own to compile
    index = GPU_CASES.index((mechanism, mask, queries, dtype))
    width = (64, 128)[(index + index // len(MECHANISMS)) % 2]
    tensors, grad_out = draw((2, 4, 2 if width == 64 else 4, queries, 333, width, width), dtype, device="cuda")
    position = perturb(MECHANISMS[mechanism](4)).cuda()
    options = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in _masks(mask, queries).items()}
    check_against_reference(position, tensors, grad_out, options)


def _masks(mask, queries):
    options = masks(mask, 2, queries, 333)
    if "segment_ids" in options and isinstance(options["segment_ids"], tuple):
        options["segment_ids"] = tuple(x.cuda() for x in options["segment_ids"])
    return options


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("pointers", [False, True], ids=["TMA", "pointers"])
def test_long_texts_on_a_gpu(pointers, monkeypatch):
    """The largest tile, with sums of a long text."""
    if pointers:
        monkeypatch.setattr(packing, "has_tma", lambda device: False)
    for width in (64, 128):
        tensors, grad_out = draw((1, 2, 2, 5000, 5000, width, width), torch.bfloat16, size=0.01, device="cuda")
        check_against_reference(Steps(), tensors, grad_out, {"causal": True})


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("size", [0.3, -0.3])
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_split_weights_on_a_gpu(size, dtype):
    """Without grouped heads and with 64 columns: the weight of a key is multiplied into dk and dv once."""
    tensors, grad_out = draw((2, 2, 2, 700, 700, 64, 64), dtype, size=size, device="cuda")
    check_against_reference(Steps(), tensors, grad_out, {"causal": True})


@pytest.mark.gpu
@on_gpu
def test_a_window_after_the_last_key_on_a_gpu():
    """Every range of tiles is empty and begins inside a tile."""
    tensors, grad_out = draw((1, 2, 2, 40, 129, 64, 64), torch.bfloat16, device="cuda")
    options = {"causal": True, "window": 10, "q_positions": torch.arange(200, 240), "k_positions": torch.arange(129)}
    options = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    results = run(Steps(), tensors, grad_out, options, backend="triton")
    assert not any(x.any() for x in results)


@pytest.mark.gpu
@on_gpu
def test_a_clock_is_captured_by_a_cuda_graph():
    """Its sums by the kernel, too."""
    (q, k, v, steps), _ = draw((1, 2, 2, 100, 100, 64, 64), torch.bfloat16, device="cuda")

    def call():
        return attend(q, k, v, clock=steps, position=Steps(), causal=True, backend="triton")

    expected = call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, expected)


@pytest.mark.gpu
@on_gpu
def test_gradients_repeat_on_a_gpu():
    """Sums of one key are added by one program, in a fixed order."""
    tensors, grad_out = draw((2, 8, 2, 1000, 1000, 64, 64), torch.bfloat16, device="cuda")
    first, again = (run(Steps(), tensors, grad_out, {"causal": True}, backend="triton") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))

"""Mechanisms with ``length="query"`` in the fused kernels: a function of the distance scaled by the query's length."""

import pytest
import torch
from kernel_cases import masks
from reference_comparison import check_against_reference, perturb, random_inputs

from whence import Epar, Fire, KVCache, Rotary, Sink, T5Bias, attend, explain
from whence.attention.fused.scaled_distance import piecewise_linear

MECHANISMS = {
    "Epar": lambda h: Epar(None, form="basic", length="query", learnable=True) + Sink(h),
    "Fire": lambda h: Rotary() + Fire(h, hidden_dim=5, c=0.5, threshold=30.0),  # few knots: tiles with and without one
    "Fire, 20 units": lambda h: Fire(h, hidden_dim=20, threshold=20.0),
}
CASES = [
    ("Epar", "both sides, scaled", (1, 2, 1, 70, 70, 16, 20)),
    ("Fire", "causal", (1, 2, 1, 70, 110, 16, 16)),
    ("Fire", "segment_ids, window", (1, 2, 2, 40, 40, 16, 16)),
    ("Fire, 20 units", "key_mask, scaled", (2, 2, 1, 66, 66, 7, 5)),
]


@pytest.mark.usefixtures("interpreted", "poisoned")
@pytest.mark.parametrize("mechanism, mask, shape", CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_forward_and_gradients(mechanism, mask, shape):
    torch.manual_seed(0)
    *tensors, grad_out = random_inputs(*shape)
    position = perturb(MECHANISMS[mechanism](shape[1]))
    check_against_reference(position, tensors, grad_out, masks(mask, shape[0], shape[3], shape[4]))


@pytest.mark.usefixtures("interpreted", "poisoned")
@pytest.mark.parametrize("mechanism", ["Epar", "Fire, 20 units"])
def test_decoding_with_a_cache_equals_the_reference(mechanism):
    torch.manual_seed(0)
    position = perturb(MECHANISMS[mechanism](4))
    q, k, v, _ = random_inputs(1, 4, 2, 36, 36, 16, 16)
    exact = attend(*(x.double() for x in (q, k, v)), position=position.double(), causal=True, backend="reference")
    cache, position = KVCache(), position.float()
    with torch.no_grad():
        parts = [
            attend(*x, position=position, causal=True, cache=cache, backend="triton")
            for x in zip(*(x.split([33, 1, 2], 2) for x in (q, k, v)), strict=True)
        ]
    torch.testing.assert_close(torch.cat(parts, 2).double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("interpreted")
def test_auto_takes_the_kernels_where_they_evaluate_the_function_and_only_there():
    q = torch.zeros(1, 2, 6, 16)

    def chosen(position, **options):
        return explain(q, q, q, position=position, causal=True, **options).backend

    class OtherFire(Fire):
        def bias(self, distance, length):
            return 2 * super().bias(distance, length)

    for position in (Fire(2), Epar(2, length="query", learnable=True), Rotary() + Fire(2) + Sink(2)):
        assert chosen(position) == "triton"
    for position in (OtherFire(2), Fire(2) + T5Bias(2), Fire(2, hidden_dim=129)):
        assert chosen(position) == "blockwise"
    assert chosen(Fire(2), q_positions=torch.arange(6) * 2, k_positions=torch.arange(6) * 2) == "blockwise"


def test_a_relu_network_is_piecewise_linear():
    """Values and gradients at every piece, with units that are never, always or nowhere strictly active."""
    torch.manual_seed(0)
    weight = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.0, 0.0, 0.0, 2.0, -2.0, 1e-30], dtype=torch.float64)
    bias = torch.tensor([-0.3, 0.6, 0.2, -0.2, 0.4, -0.4, 0.0, 0.0, 0.0, -1.0], dtype=torch.float64)
    output = torch.randn(2, 11, dtype=torch.float64)
    network = torch.cat([weight.expand(2, -1), bias.expand(2, -1), output], 1).requires_grad_()
    numbers = piecewise_linear(network, 3.0)
    knots, slopes, intercepts = numbers.split([16, 17, 17], 1)
    assert knots[0, :4].tolist() == [0.0, 0.0, 0.3, 0.6] and torch.isinf(knots[:, 5:]).all()
    x = torch.tensor([0.0, 0.1, 0.3001, 0.59, 0.61, 5.0], dtype=torch.float64)
    piece = (knots[0, :, None] < x).sum(0)
    actual = slopes[:, piece] * x + intercepts[:, piece]
    hidden = torch.relu(network[0, :10, None] * x + network[0, 10:20, None])
    expected = 3.0 * (network[:, 20:30] @ hidden + network[:, 30:])
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(2, 6, dtype=torch.float64)
    pair = [torch.autograd.grad(y, network, upstream, retain_graph=True)[0] for y in (actual, expected)]
    torch.testing.assert_close(*pair, rtol=1e-12, atol=1e-12)


# --- on a GPU -------------------------------------------------------------------------------------------------------

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
GPU_CASES = [
    ("Epar", "causal", 64, torch.bfloat16), ("Epar", "both sides", 128, torch.float16), ("Epar", "causal", 128, torch.float32),
    ("Fire", "causal", 128, torch.bfloat16), ("Fire", "lengths", 64, torch.float16), ("Fire", "causal", 64, torch.float32),
    ("Fire, 20 units", "causal", 64, torch.bfloat16), ("Fire, 20 units", "window", 128, torch.bfloat16),
    ("Fire, 20 units", "segment_ids", 64, torch.bfloat16),
]  # fmt: skip


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("mechanism, mask, width, dtype", GPU_CASES)
def test_on_a_gpu(mechanism, mask, width, dtype):
    torch.manual_seed(0)
    queries = 150 if mask == "segment_ids" else 333
    *tensors, grad_out = random_inputs(
        2, 4, 2 if width == 64 else 4, queries, 333, width, width, dtype=dtype, device="cuda"
    )
    options = {
        name: tuple(part.cuda() for part in x)
        if isinstance(x, tuple)
        else x.cuda()
        if isinstance(x, torch.Tensor)
        else x
        for name, x in masks(mask, 2, queries, 333).items()
    }
    check_against_reference(perturb(MECHANISMS[mechanism](4)).cuda(), tensors, grad_out, options)

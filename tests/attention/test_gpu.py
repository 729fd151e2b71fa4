"""The backends on a CUDA device against the float64 reference on the CPU."""

import copy

import pytest
import torch

import whence
from whence.position.catalogue import CATALOGUE

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device here; run on a machine with a GPU", allow_module_level=True)
ENTRIES = [entry for entry in CATALOGUE if not entry.make(2, 8).effects & {"embed", "clock"}]
MASKS = {
    "causal": {},
    "window": {"window": 20},
    "lengths": {"lengths": torch.tensor([111, 60])},
    "segment_ids": {"segment_ids": torch.arange(111) // 40},
    "scattered positions": {"q_positions": torch.arange(111) * 2, "k_positions": torch.arange(111) * 2},
}


def results(position, inputs, options, backend):
    leaves = [x.clone().requires_grad_(True) for x in inputs]
    parameters = [p for p in position.parameters() if p.requires_grad]
    out = whence.attend(*leaves, position=position, causal=True, backend=backend, **options)
    grads = torch.autograd.grad(out.square().sum(), [*leaves, *parameters], allow_unused=True)
    pairs = zip([*leaves, *parameters], grads, strict=True)
    return [out, *(torch.zeros_like(x) if g is None else g for x, g in pairs)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_cuda_matches_reference(entry, mask):
    torch.manual_seed(0)
    position = entry.make(4, 16)
    inputs = [torch.randn(2, heads, 111, 16) for heads in (4, 2, 2)]
    double_position = copy.deepcopy(position).double()
    exact = results(double_position, [x.double() for x in inputs], MASKS[mask], "reference")
    plain = results(position, inputs, MASKS[mask], "reference")  # what float32 costs on the CPU
    cuda_position = copy.deepcopy(position).cuda()
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in MASKS[mask].items()}
    for backend in ("reference", "blockwise", "auto"):
        outputs = results(cuda_position, [y.cuda() for y in inputs], options, backend)
        for i, (result, b, x) in enumerate(zip(outputs, plain, exact, strict=True)):
            # a parameter sums terms of unit size over all queries, which may cancel: a constant added to all scores has none
            floor = 0.1 if i < 4 else (2 * 111) ** 0.5
            size = x.square().mean().sqrt().clamp(min=floor)
            lost, baseline = ((y.cpu().double() - x).square().mean().sqrt() / size for y in (result, b))
            assert lost <= 4 * (baseline + 16 * torch.finfo(torch.float32).eps), f"{backend}, result {i}"


def test_blocks_of_rows_draw_the_same_dropout_in_the_backward_pass(monkeypatch):
    """With one-hot values the output holds the weights. Their gradient is that of the values, summed over queries."""
    from whence.attention import blockwise

    monkeypatch.setattr(blockwise, "SCORES_ON_GPU", 1)
    q, k = (torch.randn(1, 2, 32, 32, device="cuda") for _ in range(2))
    v = torch.eye(32, device="cuda").expand(1, 2, 32, 32).clone().requires_grad_()
    position = whence.Shaw(32, acts_on="keys").cuda()
    weights = whence.attend(q, k, v, position=position, causal=True, dropout=0.5, backend="blockwise")
    (grad,) = torch.autograd.grad(weights.sum(), v)
    assert (weights == 0).float().mean() > 0.6
    torch.testing.assert_close(grad, weights.detach().sum(2)[..., None].expand_as(grad))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_a_cache(dtype):
    torch.manual_seed(0)
    position = (whence.Rotary() + whence.Epar(4, learnable=True, context=64)).cuda()
    layer = whence.Attention(64, 4, position, num_kv_heads=2, causal=True).cuda().to(dtype)
    x = torch.randn(2, 40, 64, device="cuda", dtype=dtype)
    whole = layer(x)
    for cache in (whence.KVCache(), whence.KVCache(capacity=40)):
        with torch.no_grad():
            steps = torch.cat([layer(part, cache=cache) for part in x.split([20, 1, 19], 1)], 1)
        assert (whole - steps).abs().max() < 8 * torch.finfo(dtype).eps

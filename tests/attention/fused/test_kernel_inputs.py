"""The fused kernels under Triton's interpreter: strides, partial gradients, dropout, and the guards of the interpreter."""

import copy

import pytest
import torch
from kernel_cases import MECHANISMS, SHORT, masks
from reference_comparison import (
    assert_within_budget,
    check_against_reference,
    perturb,
    random_inputs,
    random_tensors,
    reference_and_eager,
    run,
)

from whence import Epar, PowerPrior, Sink, T5Bias, attend
from whence.attention.fused import backend, packing
from whence.attention.fused.packing import pack_tables
from whence.errors import WhenceError

pytestmark = pytest.mark.usefixtures("interpreted", "poisoned")


def test_head_dimensions_beyond_the_shared_memory(monkeypatch):
    """The backend refuses them; a compiled call gets an error before the launch."""
    monkeypatch.setattr(packing, "shared_memory", lambda device: 99 * 1024)
    q = torch.zeros(1, 1, 1, 80)
    with pytest.raises(WhenceError, match="head dimensions up to 64, not 80"):
        attend(q, q, q, position=Epar(1), causal=True, backend="triton")
    monkeypatch.setattr(backend, "max_head_dim", lambda *about: 256)
    with pytest.raises(WhenceError, match=r"head dimension 80 in .* up to 64; pass backend='blockwise'"):
        attend(q, q, q, position=Epar(1), causal=True, backend="triton")


# --- memory layouts -----------------------------------------------------------------------------------------------------


def heads_of_one_projection(qkv):
    return [x.transpose(1, 2) for x in qkv.unbind(2)]  # [B, n, 3, H, D]


def transposed(q, k, v):
    return q.mT, k.mT, v.mT


def expanded(q, k, v):
    return q.expand(2, -1, -1, -1), k.expand(2, 2, -1, -1), v.expand(2, 2, -1, -1)


def sliced(q, k, v):
    return q[..., 1:-3], k[..., 3:-1], v[..., 2:-2]  # begins between the places that the copy engine can read


def heads_last(q, k, v):
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


LAYOUTS = {
    "one projection": (heads_of_one_projection, [(2, 70, 3, 2, 16)]),
    "one projection of a width that does not fit": (heads_of_one_projection, [(2, 70, 3, 2, 7)]),
    "heads last": (heads_last, [(2, 70, 2, 16)] * 3),
    "turned": (transposed, [(2, 2, 16, 70)] * 3),
    "stretched": (expanded, [(1, 2, 70, 16), (1, 1, 70, 16), (2, 1, 70, 16)]),
    "cut": (sliced, [(2, 2, 70, 20)] * 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout):
    view, shapes = LAYOUTS[layout]
    tensors = random_tensors(*shapes)
    width = view(*tensors)[2].shape[-1]
    (grad_out,) = random_tensors((2, 2, 70, width), seed=5)
    check_against_reference(
        perturb(Epar(2, context=40, learnable=True)), tensors, grad_out, {"causal": True}, view=view
    )


@pytest.mark.parametrize("queries", [3, 70])
def test_expanded_output_gradient(queries):
    # what the sum of an output sends back is one number, stretched
    *tensors, grad_out = random_inputs(1, 2, 1, queries, 70, 16, 16)
    grad_out = torch.ones((), dtype=grad_out.dtype).expand_as(grad_out)
    check_against_reference(perturb(T5Bias(2, std=1.0)), tensors, grad_out, masks("causal", 1, queries, 70))


@pytest.mark.parametrize("wanted", ["q", "k", "v", "parameters"])
def test_subset_of_gradients(wanted):
    position = perturb(Epar(2, context=40, learnable=True) + T5Bias(2, std=1.0) + Sink(2)).requires_grad_(
        wanted == "parameters"
    )
    *tensors, grad_out = random_inputs(*SHORT[:6], 24)
    exact, plain = reference_and_eager(position, tensors, grad_out, {"causal": True})
    leaves = [x.clone().requires_grad_(name == wanted) for name, x in zip("qkv", tensors, strict=True)]
    out = attend(*leaves, position=position, causal=True, backend="triton")
    requested_leaves = list(position.parameters()) if wanted == "parameters" else [leaves["qkv".index(wanted)]]
    actual = torch.autograd.grad(out, requested_leaves, grad_out)
    kept = slice(4, None) if wanted == "parameters" else slice("qkv".index(wanted) + 1, "qkv".index(wanted) + 2)
    assert_within_budget([out.detach(), *actual], [exact[0], *exact[kept]], [plain[0], *plain[kept]], torch.float32, 1)


def test_result_without_gradients():
    position = perturb(Epar(2, context=40, learnable=True) + PowerPrior(2, alpha=0.1, beta=0.8))
    *tensors, _ = random_inputs(*SHORT)
    options = {"position": position, "causal": True, "backend": "triton"}
    with torch.no_grad():
        silent = attend(*tensors, **options)
    recorded = attend(*tensors, **options)
    assert recorded.requires_grad and not silent.requires_grad
    torch.testing.assert_close(silent, recorded, rtol=1e-6, atol=1e-6)


# --- dropout --------------------------------------------------------------------------------------------------------------

SHARE = 0.4


def draw_dropout_mask(position, q, k, options):
    """The mask that the kernels draw from the current seed: with the unit vectors as values, the output is the weights."""
    units = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)
    with torch.no_grad():
        mask_output = attend(q, k, units, position=position, backend="triton", dropout=SHARE, **options)
        whole = attend(q, k, units, position=position, backend="triton", **options)
    kept = mask_output != 0
    torch.testing.assert_close(mask_output, torch.where(kept, whole / (1 - SHARE), 0.0), rtol=1e-5, atol=1e-7)
    return kept, whole != 0


DROPPED = [
    ("none", "both sides", 40, False),
    ("Epar", "causal", 70, False),
    ("T5Bias", "segment_ids", 40, False),
    ("T5Bias", "causal", 70, True),
    ("Alibi + Sink", "window", 70, False),
    ("Epar + T5Bias", "causal", 3, False),
    ("Epar + T5Bias", "lengths", 3, True),
]


@pytest.mark.parametrize("mechanism, mask, queries, ordered", DROPPED)
def test_backward_uses_the_dropout_mask_of_forward(mechanism, mask, queries, ordered, request):
    if ordered:
        request.getfixturevalue("deterministic")
    position = MECHANISMS[mechanism](2)
    position = None if position is None else perturb(position)
    keys = max(40, queries)
    batch = 2 if mask == "lengths" else 1
    *tensors, grad_out = random_inputs(batch, 2, 1, queries, keys, 16, 20)
    options = masks(mask, batch, queries, keys)
    torch.manual_seed(7)
    kept, _ = draw_dropout_mask(position, *tensors[:2], options)

    def by_hand(position, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        _, weights = attend(*leaves, position=position, backend="reference", return_weights=True, **options)
        out = (weights * kept / (1 - SHARE)) @ leaves[2].repeat_interleave(2, 1)
        parameters = [] if position is None else list(position.parameters())
        grads = torch.autograd.grad(out, [*leaves, *parameters], grad_out.to(dtype), allow_unused=True)
        pairs = zip([*leaves, *parameters], grads, strict=True)
        return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in pairs)]

    exact = by_hand(copy.deepcopy(position).double() if position is not None else None, torch.float64)
    plain = by_hand(position, torch.float32)
    torch.manual_seed(7)
    actual = run(position, tensors, grad_out, options | {"dropout": SHARE}, backend="triton")
    assert_within_budget(actual, exact, plain, torch.float32)


def test_dropout_rate_and_new_mask_per_call():
    q, k, *_ = random_inputs(2, 2, 1, 70, 70, 16, 16)
    torch.manual_seed(0)
    first, seen = draw_dropout_mask(None, q, k, {})
    second, _ = draw_dropout_mask(None, q, k, {})
    count = seen.sum()
    for kept in (first, second, first[0], first[:, 1]):  # each sequence and each head for itself
        assert abs(kept.float().mean() - (1 - SHARE)) < 5 * (SHARE * (1 - SHARE) / kept.numel()) ** 0.5
    agreeing = (first == second).sum() / count
    assert abs(agreeing - (SHARE**2 + (1 - SHARE) ** 2)) < 0.02
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[:, 0], first[:, 1])


# --- the guards themselves -----------------------------------------------------------------------------------------------


def test_guard_detects_addresses_out_of_bounds(monkeypatch):
    from whence.attention.fused import backend

    def cut_short(tables, scales):
        packed = pack_tables(tables, scales)
        return None if packed is None else packed[:, :4].contiguous()

    monkeypatch.setattr(backend, "pack_tables", cut_short)
    *tensors, _ = random_inputs(*SHORT)
    with pytest.raises(Exception, match="outside every tensor"):
        attend(*tensors, position=Epar(2, context=40), causal=True, backend="triton")


@pytest.mark.parametrize(
    "operation, left, right", [("add", 2**31 - 1, 1), ("sub", -(2**31), 1), ("mul", 2**17, -(2**15))]
)
def test_guard_detects_integer_overflow(operation, left, right):
    from triton.runtime.interpreter import interpreter_semantic as semantic

    left, right = (semantic.to_tensor(x, False) for x in (left, right))
    getattr(semantic, operation)(right, right, True)
    with pytest.raises(AssertionError, match=f"int32 overflow in {operation}"):
        getattr(semantic, operation)(left, right, True)

"""Derivatives of every kind: forward mode, torch.func, second derivatives. Each backend is right or refuses."""

import pytest
import torch

import whence
from whence import attend

torch.manual_seed(0)
Q, K, V = (torch.randn(2, 4, 7, 4, dtype=torch.float64) for _ in range(3))
KEYS, VALUES = K[:, ::2], V[:, ::2]  # two query heads on each key head
MASKS = {
    "causal": {"causal": True},
    "window": {"causal": True, "window": 3},
    "key_mask": {"key_mask": torch.arange(7) < torch.tensor([[7], [4]])},
    "segment_ids": {"causal": True, "segment_ids": torch.tensor([0, 0, 0, 1, 1, 1, 1])},
}
POSITIONS = {
    "none": lambda: None,
    "bias": lambda: whence.Alibi(4, form="symmetric"),
    "learned bias": lambda: whence.Kerple(4),
    "score_scale": lambda: whence.Epar(4, learnable=True, context=8),
    "rotation and sink": lambda: whence.Rotary() + whence.Sink(4),
    "content_bias": lambda: whence.Shaw(4, clip=3),
}


def build(name):
    position = POSITIONS[name]()
    return position if position is None else position.double()


def function(position, mask, backend):
    def of(q, k, v):
        return attend(q, k, v, position=position, backend=backend, **MASKS[mask]).square().sum()

    return of


def directional(of, q=Q):
    tangents = tuple(torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape) for x in (q, KEYS, VALUES))
    return torch.func.jvp(of, (q, KEYS, VALUES), tangents)


def second(of, position):
    inputs = [x.clone().requires_grad_() for x in (Q, KEYS, VALUES)]
    inputs_and_parameters = [*inputs, *(() if position is None else position.parameters())]
    first = torch.autograd.grad(of(*inputs), inputs_and_parameters, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), inputs_and_parameters)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("backend", ["auto", "blockwise"])
def test_forward_mode_and_functional_gradients(name, mask, backend):
    position = build(name)
    actual, wanted = (function(position, mask, b) for b in (backend, "reference"))
    for a, b in zip(directional(actual), directional(wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        torch.func.grad(actual)(Q, KEYS, VALUES), torch.func.grad(wanted)(Q, KEYS, VALUES), rtol=1e-9, atol=1e-9
    )


def test_forward_mode_is_the_limit_of_differences():
    """The reference's own forward mode, against no derivative at all."""
    of = function(build("score_scale"), "causal", "reference")
    step = 1e-6 * torch.linspace(-1, 1, Q.numel(), dtype=Q.dtype).reshape(Q.shape)
    difference = (of(Q + step, KEYS, VALUES) - of(Q - step, KEYS, VALUES)) / 2e-6
    _, actual = torch.func.jvp(lambda q: of(q, KEYS, VALUES), (Q,), (step * 1e6,))
    torch.testing.assert_close(actual, difference, rtol=1e-6, atol=1e-8)


def test_dual_numbers_without_torch_func():
    position = build("score_scale")
    with torch.autograd.forward_ad.dual_level():
        q = torch.autograd.forward_ad.make_dual(Q, torch.ones_like(Q))
        actual, wanted = (
            torch.autograd.forward_ad.unpack_dual(attend(q, KEYS, VALUES, position=position, backend=b)).tangent
            for b in ("auto", "reference")
        )
    torch.testing.assert_close(actual, wanted)
    assert actual.abs().max() > 0


@pytest.mark.parametrize("name", ["none", "score_scale", "content_bias"])
def test_gradients_of_each_sample(name):
    position = build(name)
    actual, wanted = (function(position, "causal", b) for b in ("auto", "reference"))
    several = torch.stack([Q, Q + 1])
    torch.testing.assert_close(
        *(torch.vmap(torch.func.grad(of), in_dims=(0, None, None))(several, KEYS, VALUES) for of in (actual, wanted))
    )


def test_forward_mode_inside_a_compiled_function():
    of = function(build("score_scale"), "causal", "auto")
    actual = torch.compile(lambda q: torch.func.jvp(lambda x: of(x, KEYS, VALUES), (q,), (q,))[1], backend="eager")(Q)
    torch.testing.assert_close(actual, torch.func.jvp(lambda x: of(x, KEYS, VALUES), (Q,), (Q,))[1])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", [n for n in POSITIONS if n not in ("none", "bias")])
def test_second_derivatives(name, mask):
    position = build(name)
    actual, wanted = (second(function(position, mask, b), position) for b in ("blockwise", "reference"))
    for a, b in zip(actual, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_second_derivatives_with_dropout_are_refused():
    of = function(None, "causal", "blockwise")
    assert second(of, None)[0].isfinite().all()
    q = Q.clone().requires_grad_()
    out = attend(q, KEYS, VALUES, causal=True, backend="blockwise", dropout=0.5)
    with pytest.raises(whence.WhenceError, match="dropout=0, or use backend='reference'"):
        torch.autograd.grad(out.sum(), q, create_graph=True)


@pytest.mark.parametrize("name", ["none", "bias"])
def test_torchs_kernel_refuses_what_it_cannot_differentiate(name):
    of = function(build(name), "causal", "sdpa")
    with pytest.raises(whence.WhenceError, match="use backend='blockwise'"):
        torch.func.grad(of)(Q, KEYS, VALUES)
    with pytest.raises(whence.WhenceError, match="use backend='blockwise' or backend='reference'"):
        second(of, None)
    q = Q.clone().requires_grad_()  # a graph that nobody uses is no reason to refuse
    (first,) = torch.autograd.grad(of(q, KEYS, VALUES), q, create_graph=True)
    torch.testing.assert_close(first, torch.func.grad(function(build(name), "causal", "reference"))(Q, KEYS, VALUES))

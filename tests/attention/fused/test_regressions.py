"""Regression tests of defects found in review of the fused backend, under Triton's interpreter."""

import sys

import pytest
import torch
from reference_comparison import check_against_reference, random_inputs

from whence import Alibi, Epar, Kerple, PowerPrior, Sink, StableMask, T5Bias, attend
from whence.attention.fused.parameter_tables import parameter_tables
from whence.position.base import Position
from whence.position.hook_types import HookGradients, ParameterGradient

pytestmark = pytest.mark.usefixtures("interpreted")


def both(*tensors, **options):
    """The fused answer, and the reference's in float64."""
    wide = dict(options)
    if wide.get("position") is not None:
        import copy

        wide["position"] = copy.deepcopy(wide["position"]).double()
    exact = attend(*(t.double() for t in tensors), backend="reference", **wide)
    return attend(*tensors, backend="triton", **options), exact


def close(actual, exact, allowed=1e-5):
    assert (actual.double() - exact).norm() <= allowed * exact.norm()


def test_views_of_one_storage():
    x = torch.randn(1, 2, 40, 16)
    close(*both(x[:, :, :20], x, x, q_positions=torch.arange(20), k_positions=torch.arange(40), position=Kerple(2)))
    y = torch.randn(1, 4, 40, 16)
    close(*both(y, y[:, ::2], y[:, ::2], causal=True, position=Alibi(4)))
    close(*both(y[..., :8], y[..., :8], y, causal=True))


@pytest.mark.parametrize("learnable", [False, True])
def test_overridden_bias_drops_inherited_derivatives(learnable):
    class Bumpy(Alibi):
        def bias(self, distance, length):
            return super().bias(distance, length) + 3.0 * (distance == 5)

    q, k, v = (torch.randn(1, 2, 40, 16) for _ in range(3))
    close(*both(q, k, v, position=Bumpy(2, learnable=learnable), causal=True))
    halves = [t.half() for t in (q, k, v)]
    close(*both(*halves, position=Bumpy(2, learnable=learnable), causal=True), allowed=3e-3)
    assert Bumpy(2).parameter_gradients(torch.arange(3.0), None) is None and Bumpy(2).bias_slope() is None


@pytest.mark.parametrize("causal", [True, False])
def test_huge_window(causal):
    *tensors, grad_out = random_inputs(1, 2, 2, 40, 40, 16, 16)
    for window in (2**31 - 1, sys.maxsize):
        check_against_reference(Kerple(2), tensors, grad_out, {"causal": causal, "window": window})


def test_too_distant_positions_raise():
    q = torch.randn(1, 1, 3, 16)
    places = {"q_positions": torch.arange(3) + 2**31, "k_positions": torch.arange(3)}
    with pytest.raises(Exception, match="2147483648"):
        attend(q, q, q, position=Kerple(1), causal=True, backend="triton", **places)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_padding_with_any_segment_id_dtype(dtype):
    q, k, v = (torch.randn(2, 2, 40, 16) for _ in range(3))
    segment_ids = (torch.arange(40) // 20).to(dtype)
    options = {"segment_ids": segment_ids, "lengths": torch.tensor([40, 10]), "causal": True, "position": Kerple(2)}
    close(*both(q, k, v, **options))


def test_gradient_of_a_table_from_an_external_tensor():
    class Given(Position):
        slopes = None

        def bias(self, distance, length):
            return -self.slopes * distance

    source = torch.tensor([[0.3], [0.1]], requires_grad=True)
    options = Given(heads=2)
    options.slopes = source * 2
    q, k, v = (torch.randn(1, 2, 30, 16) for _ in range(3))
    actual = []
    for backend in ("triton", "reference"):
        options.slopes = source * 2
        out = attend(q, k, v, position=options + Alibi(2, learnable=True), causal=True, backend=backend)
        actual.append(torch.autograd.grad(out.square().sum(), source)[0])
    torch.testing.assert_close(*actual, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("slope", [1e3, 1e6, 1e37])
def test_very_steep_slopes(slope):
    q, k, v = (torch.randn(1, 1, 70, 16).half() for _ in range(3))
    steep = Alibi(1)
    steep.slope.fixed.fill_(slope)  # no constructor takes the last one, but training could get there
    out, exact = both(q, k, v, position=steep + Sink(1), causal=True)
    assert out.isfinite().all()
    close(out, exact, allowed=3e-3)


def test_nan_key_is_not_skipped():
    q, k, v = (torch.randn(1, 1, 200, 16) for _ in range(3))
    k[0, 0, 0, 0] = torch.nan
    options = {"position": Alibi(1, slope=[3.0]), "causal": True, "backend": "triton"}
    rows = attend(q, k, v, **options).isnan().any(-1).sum()
    assert rows == attend(q, k, v, skip_blocks=False, **options).isnan().any(-1).sum() == 200


MIXED = {
    "fixed, shared by heads, and a slope": lambda: Epar(context=40) + Alibi(2, learnable=True),
    "fixed, shared by heads, and two numbers": lambda: Epar(context=40) + Kerple(2),
    "fixed, shared by heads, and a table": lambda: Epar(context=40) + T5Bias(2),
    "a learning factor and a fixed bias": lambda: (
        Epar(2, learnable=True, context=40) + PowerPrior(alpha=0.1, learnable=False)
    ),
    "learning, shared by heads": lambda: Epar(context=40, learnable=True) + PowerPrior(alpha=0.1),
}


@pytest.mark.parametrize("case", MIXED)
def test_learnable_and_fixed_parts(case):
    *tensors, grad_out = random_inputs(1, 2, 1, 40, 40, 16, 16)
    check_against_reference(MIXED[case](), tensors, grad_out, {"causal": True})


def test_sink_parameters_have_no_derivative_tables():
    class Quiet(Position):
        def __init__(self):
            super().__init__(heads=2)
            self.level = torch.nn.Parameter(torch.zeros(2, 1))

        def bias(self, distance, length):
            return -0.1 * distance

        def sink(self, position, length):
            return self.level + 0 * position

        def parameter_gradients(self, distance, length):
            return HookGradients(None, -0.1 * distance, ())

    assert parameter_tables(Quiet(), torch.arange(9.0), 2, 9) is None
    *tensors, grad_out = random_inputs(1, 2, 1, 40, 40, 16, 16)
    check_against_reference(Quiet(), tensors, grad_out, {"causal": True})


def test_wrong_derivative_shape_raises():
    class Crooked(Position):
        def __init__(self):
            super().__init__(heads=2)
            self.number = torch.nn.Parameter(torch.ones(2, 1))

        def bias(self, distance, length):
            return -self.number * distance

        def parameter_gradients(self, distance, length):
            return HookGradients(
                None, self.bias(distance, length), (ParameterGradient(self.number, "bias", -distance[:3]),)
            )

    q = torch.randn(1, 2, 9, 16)
    with pytest.raises(Exception, match=r"Crooked\.parameter_gradients"):
        attend(q, q, q, position=Crooked(), causal=True, backend="triton")


def test_compiled_position_dependent_sink():
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 2, 20, 16, requires_grad=True) for _ in range(3))
    key_mask = torch.arange(20) >= torch.tensor([[0], [4]])
    position = StableMask(2, context=64, learnable=True)

    def step(q, k, v):
        return attend(q, k, v, position=position, causal=True, key_mask=key_mask, backend="triton")

    parameters = [q, k, v, *position.parameters()]
    eager = torch.autograd.grad(step(q, k, v).square().sum(), parameters)
    compiled = torch.autograd.grad(torch.compile(step, backend="aot_eager")(q, k, v).square().sum(), parameters)
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a, b)


def test_deterministic_without_visible_keys():
    torch.use_deterministic_algorithms(True)
    try:
        q, k, v = (torch.randn(1, 1, 20, 16, requires_grad=True) for _ in range(3))
        position = T5Bias(1)
        places = {"q_positions": torch.arange(20), "k_positions": torch.arange(1000, 1020)}
        out = attend(q, k, v, position=position, causal=True, backend="triton", **places)
        (parameters,) = torch.autograd.grad(out.sum(), position.table)
        assert (out == 0).all() and (parameters == 0).all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_fp32_precision_setting():
    before = torch.backends.cuda.matmul.fp32_precision
    q = torch.randn(1, 1, 20, 16)
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        close(*both(q, q, q, position=Kerple(1), causal=True), allowed=1e-2)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before

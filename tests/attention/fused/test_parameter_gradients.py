"""Derivatives, slopes and decays that mechanisms supply for the kernels agree with their hooks."""

import re

import pytest
import torch
from reference_comparison import perturb

from whence import (
    Alibi,
    Epar,
    Fire,
    GrapeA,
    Kerple,
    Position,
    PowerPrior,
    Rotary,
    Sink,
    T5Bias,
    TransformerXL,
    WhenceError,
    attend,
)
from whence.attention.arguments import Arguments
from whence.attention.fused import backend
from whence.attention.fused.parameter_tables import parameter_tables
from whence.attention.layout import resolve_layout
from whence.derivatives import find_wrong_derivative
from whence.position.catalogue import CATALOGUE
from whence.position.hook_types import HookGradients, PairFunction, ParameterGradient
from whence.position.relative_keys import RelativeKeys

HEADS, LENGTH = 3, 50


def mechanisms():
    """Every mechanism of the catalogue, and every other form that has derivatives or a slope of its own."""
    yield from ((entry.name, entry.make(HEADS, 8)) for entry in CATALOGUE)
    yield "Alibi, learnt", Alibi(HEADS, learnable=True)
    yield "Alibi, symmetric and scaled", Alibi(HEADS, form="symmetric", scale=2.5, learnable=True)
    yield "Epar, one for all heads", Epar(None, context=64, learnable=True)
    yield "Epar, sequence length", Epar(HEADS, length="sequence", learnable=True)
    yield "PowerPrior, one for all heads", PowerPrior(None, alpha=0.2, beta=1.3)
    yield "PowerPrior of a negative alpha", PowerPrior(HEADS, alpha=[-0.3, -1.0, -2.0], beta=[0.5, 1.0, 2.0])
    yield "PowerPrior, beyond its lowest", PowerPrior(HEADS, alpha=1e5, beta=[3.0, 5.0, 9.0])
    yield "Kerple, steep", Kerple(HEADS, form="power", r1=2.0, r2=1.9)


def overriding(hook):
    actual = {name: p for name, p in mechanisms() if getattr(type(p), hook) is not getattr(Position, hook)}
    assert actual
    return actual


DISTANCES = torch.cat([torch.arange(-70, 71), torch.tensor([1000, 5000])]).double()


def distances(position):
    return DISTANCES[DISTANCES >= 0] if position.causal_only else DISTANCES


def length_of(position):
    return position.context if position.length == "context" else LENGTH if position.length else None


LEARNING = [name for name, position in overriding("parameter_gradients").items() if position.trainable]


def prepare_position(name, stir):
    torch.manual_seed(0)
    position = overriding("parameter_gradients")[name].double()
    return perturb(position) if stir and "beyond" not in name else position


@pytest.mark.parametrize("stir", [False, True], ids=["at its start", "later"])
@pytest.mark.parametrize("name", overriding("parameter_gradients"))
def test_tables_with_derivatives_equal_the_hooks(name, stir):
    position = prepare_position(name, stir)
    for dtype, rtol in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        distance, length = distances(position).to(dtype), length_of(position)
        actual = position.to(dtype).parameter_gradients(distance, length)
        for hook in ("score_scale", "bias"):
            answer, expected = getattr(actual, hook), getattr(position, hook)(distance, length)
            assert (answer is None) == (expected is None)
            if answer is not None:
                assert answer.shape == expected.shape and answer.dtype == expected.dtype
                torch.testing.assert_close(answer, expected.detach(), rtol=rtol, atol=0)


@pytest.mark.parametrize("stir", [False, True], ids=["at its start", "later"])
@pytest.mark.parametrize("name", LEARNING)
def test_derivatives_equal_autograd(name, stir):
    """At every distance: each parameter's gradient through the hooks is the one through its number, times the rate.

    A parameter stands behind one number only, so no two mistakes can cancel.
    """
    position = prepare_position(name, stir)
    wanted = list(position.parameters())
    distance, length = distances(position), length_of(position)
    parameter_gradients = position.parameter_gradients(distance, length).gradients
    assert parameter_gradients and all(rate.hook in position.effects for rate in parameter_gradients)
    for hook in ("score_scale", "bias"):
        if hook not in position.effects:
            continue
        answer = getattr(position, hook)(distance, length)
        through = torch.zeros(answer.shape, dtype=answer.dtype)
        for rate in parameter_gradients:
            if rate.hook != hook:
                continue
            assert rate.value.requires_grad and rate.value.shape in {(), (HEADS, 1)}
            # None: a number that scales the whole factor
            table = answer.detach() / rate.value.detach() if rate.derivative is None else rate.derivative
            assert not table.requires_grad
            through = through + rate.value * table
        # at every distance and head for itself, all gradients: a Jacobian, not a sum in which mistakes could cancel
        pair = [jacobian(x, wanted) for x in (answer, through)]
        for a, b in zip(*pair, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-12, msg=lambda text, hook=hook: f"{hook}: {text}")


def jacobian(answer, wanted):
    """Of every number of the answer by every parameter, the answer's numbers first."""
    each = torch.eye(answer.numel(), dtype=answer.dtype).view(-1, *answer.shape)
    actual = torch.autograd.grad(answer, wanted, each, retain_graph=True, allow_unused=True, is_grads_batched=True)
    none = [torch.zeros(answer.numel(), *p.shape, dtype=p.dtype) for p in wanted]
    return [empty if g is None else g for g, empty in zip(actual, none, strict=True)]


@pytest.mark.parametrize("name", LEARNING)
def test_derivatives_cover_every_parameter(name):
    # a number left out would silently get no gradient at all
    position = overriding("parameter_gradients")[name]
    parameter_gradients = position.parameter_gradients(distances(position).float(), length_of(position)).gradients
    total = sum(rate.value.sum() for rate in parameter_gradients)
    grads = torch.autograd.grad(total, list(position.parameters()), allow_unused=True)
    assert all(g is not None and (g != 0).all() for g in grads)


@pytest.mark.parametrize("name", overriding("parameter_gradients"))
def test_derivatives_are_finite_in_float32(name):
    position = overriding("parameter_gradients")[name]
    distance = distances(position).float()
    for rate in position.parameter_gradients(distance, length_of(position)).gradients:
        if rate.derivative is not None:
            assert torch.isfinite(rate.derivative).all()
            assert rate.derivative.shape in {(len(distance),), (HEADS, len(distance))}


@pytest.mark.parametrize("name", overriding("bias_slope"))
def test_slope_times_distance_equals_bias(name):
    position = perturb(overriding("bias_slope")[name].double())
    distance = DISTANCES[DISTANCES >= 0]
    slope = position.bias_slope()
    torch.testing.assert_close(slope * distance, position.bias(distance, length_of(position)), rtol=1e-12, atol=0)
    if position.trainable:  # it carries the gradient of the parameters behind it
        wanted = list(position.parameters())
        weights = torch.linspace(-1, 1, HEADS * len(distance), dtype=torch.float64).view(HEADS, -1)
        pair = [
            torch.autograd.grad((b * weights).sum(), wanted) for b in (slope * distance, position.bias(distance, None))
        ]
        torch.testing.assert_close(*pair)


@pytest.mark.parametrize("name", overriding("score_scale_decay"))
def test_decay_equals_score_scale(name):
    position = perturb(overriding("score_scale_decay")[name].double())
    distance = DISTANCES[DISTANCES >= 0]
    floor, span, fall = position.score_scale_decay(length_of(position))
    actual = floor + span * torch.exp(-fall * distance)
    torch.testing.assert_close(actual, position.score_scale(distance, length_of(position)), rtol=1e-12, atol=0)
    assert (fall >= 0).all()


def test_check_reports_a_wrong_decay():
    class Wrong(Epar):
        def score_scale_decay(self, length):
            floor, span, fall = super().score_scale_decay(length)
            return floor, span, 2 * fall

    class Growing(Epar):
        def score_scale_decay(self, length):
            floor, span, fall = super().score_scale_decay(length)
            return floor, span, -fall

    for kind, output in ((Wrong, "score_scale_decay"), (Growing, "decay below 0")):
        assert re.search(output, find_wrong_derivative(kind(HEADS).double(), DISTANCES))


def test_pair_functions_equal_the_hooks_and_check_reports_a_wrong_one():
    class Wrong(Fire):
        def pair_function(self, hook):
            own = super().pair_function(hook)
            return own and PairFunction(1.01 * own.numbers, own.evaluate)

    for kind in (Epar, Fire):
        position = kind(HEADS, length="query").double()
        assert find_wrong_derivative(position, DISTANCES) is None
        assert find_wrong_derivative(position.select_heads(1, 2), DISTANCES) is None
    assert "pair_function('bias') and bias() differ" in find_wrong_derivative(Wrong(HEADS).double(), DISTANCES)
    assert Fire(HEADS, hidden_dim=3).pair_function("bias").numbers.shape == (HEADS, 12)
    position.network[1] = torch.nn.GELU()
    assert position.pair_function("bias") is None


def test_relative_keys_and_slopes_equal_content_bias_and_check_reports_wrong_ones():
    class Wrong(TransformerXL):
        def relative_keys(self, distance):
            own = super().relative_keys(distance)
            return RelativeKeys(own.vectors, own.projection, own.v, own.u)

    class Flat(Position):
        def content_bias(self, rows):
            return torch.zeros_like(rows.scores)

        def distance_slopes(self, q, k):
            return None, k[..., 0]

    for position in (TransformerXL(HEADS, 4, std=1.0).double(), GrapeA(HEADS, 4).double()):
        assert find_wrong_derivative(position, DISTANCES) is None
        assert find_wrong_derivative(position.select_heads(1, 2), DISTANCES) is None
    assert "distance_slopes() and content_bias() differ" in find_wrong_derivative(Flat(), DISTANCES)
    assert "relative_keys() and content_bias() differ" in find_wrong_derivative(Wrong(HEADS, 4).double(), DISTANCES)


def test_decay_is_used_only_as_the_whole_effect():
    q = torch.zeros(1, HEADS, 9, 4)
    layouts = {causal: resolve_layout(Arguments(q, q, q, causal=causal)) for causal in (True, False)}
    epar = Epar(HEADS, context=64, learnable=True)
    assert backend.decay_per_head(epar, layouts[True], HEADS, 9).shape == (HEADS, 3)
    assert backend.decay_per_head(Rotary() + epar, layouts[True], HEADS, 9) is not None
    assert backend.decay_per_head(epar, layouts[False], HEADS, 9) is None
    assert backend.decay_per_head(epar + Alibi(HEADS), layouts[True], HEADS, 9) is None
    assert backend.decay_per_head(Alibi(HEADS), layouts[True], HEADS, 9) is None


@pytest.mark.parametrize(
    "name, position", [(n, p) for n, p in mechanisms() if p.decays], ids=lambda x: x if isinstance(x, str) else ""
)
def test_decaying_biases_fall(name, position):
    bias = position.double().bias(torch.tensor([0.0, 10.0, 100.0, 1e4], dtype=torch.float64), None).detach()
    falls = bias.diff(dim=-1)
    assert (falls <= 0).all() and (bias[..., -1] < bias[..., 0]).all()


# --- parameter tables of several parts -----------------------------------------------------------


def tables_of(position, heads=HEADS):
    return parameter_tables(position, torch.arange(0.0, 9.0), heads, 9)


def test_order_of_derivatives():
    factor, bias, numbers, parameter_gradients = tables_of(
        PowerPrior(HEADS, alpha=0.1, beta=0.8) + Epar(HEADS, context=64, learnable=True)
    )
    assert [(rate.hook, rate.derivative is None) for rate in parameter_gradients] == [
        ("score_scale", False), ("score_scale", False), ("bias", False), ("bias", False), ("score_scale", True),
    ]  # fmt: skip
    assert numbers.shape == (HEADS, 5) and numbers.requires_grad
    assert not any(
        t.requires_grad
        for t in (factor, bias, *(r.derivative for r in parameter_gradients if r.derivative is not None))
    )


def test_shared_parameters_are_expanded_to_heads():
    _, _, numbers, parameter_gradients = tables_of(PowerPrior(None, alpha=0.5, beta=1.5))
    assert numbers.shape == (HEADS, 2) and all(rate.derivative.shape == (HEADS, 9) for rate in parameter_gradients)
    torch.testing.assert_close(numbers[:, 0], torch.full((HEADS,), 0.5))


@pytest.mark.parametrize("first", [True, False])
def test_derivative_of_a_product_of_score_scales(first):
    epar, fixed = Epar(HEADS, context=64, learnable=True), Epar(HEADS, context=5, beta=2.0)
    factor, _, _, alone = tables_of(epar)
    whole, _, _, together = tables_of(epar + fixed if first else fixed + epar)
    other = fixed.score_scale(torch.arange(0.0, 9.0), 5)
    torch.testing.assert_close(whole, factor * other)
    for a, b in zip(alone, together, strict=True):
        assert (a.derivative is None) == (b.derivative is None)
        if a.derivative is not None:
            torch.testing.assert_close(b.derivative, a.derivative * other)


NO_PARAMETER_TABLES = {
    "a part without parameter gradients": lambda: T5Bias(HEADS) + Alibi(HEADS, learnable=True),
    "two that scale the factor": lambda: Epar(HEADS, learnable=True) + Epar(HEADS, learnable=True, context=7),
    "five tables": lambda: Kerple(HEADS) + PowerPrior(HEADS) + Alibi(HEADS, learnable=True),
    "nothing that learns": lambda: Epar(HEADS) + Alibi(HEADS),
    "only a sink learns": lambda: Alibi(HEADS) + Sink(HEADS),
}


@pytest.mark.parametrize("case", NO_PARAMETER_TABLES)
def test_dense_gradients_where_parameter_tables_do_not_apply(case):
    assert tables_of(NO_PARAMETER_TABLES[case]()) is None


def test_no_parameter_tables_without_grad():
    with torch.no_grad():
        assert tables_of(Epar(HEADS, learnable=True)) is None


def test_wrong_table_shape_raises():
    class Wrong(Alibi):
        def parameter_gradients(self, distance, length):
            return HookGradients(None, torch.zeros(2, 3), (ParameterGradient(self.slope(), "bias", -distance.abs()),))

    with pytest.raises(WhenceError, match="Wrong"):
        tables_of(Wrong(HEADS, learnable=True))


class ScaledAlibi(Alibi):
    """A parameter that the parent's derivatives know nothing of."""

    def __init__(self, heads, *, learnable):
        super().__init__(heads, learnable=learnable)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))


class DoubledEpar(Epar):
    def __init__(self):
        super().__init__(HEADS, context=16, learnable=True)
        self.alpha.extra = torch.nn.Parameter(torch.tensor(0.7))
        self.alpha.forward = lambda: torch.nn.functional.softplus(self.alpha.raw) * self.alpha.extra


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "make", [lambda: ScaledAlibi(HEADS, learnable=False), lambda: ScaledAlibi(HEADS, learnable=True), DoubledEpar]
)
def test_parameter_added_by_a_subclass_gets_a_gradient(make, dtype):
    q, k, v = (torch.randn(1, HEADS, 9, 16, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(3))
    actual = {}
    for name in ("reference", "blockwise", "triton"):
        position = make()
        attend(q, k, v, position=position, causal=True, backend=name).float().square().sum().backward()
        actual[name] = {n: p.grad for n, p in position.named_parameters()}
    for name, gradient in actual["reference"].items():
        assert gradient is not None and gradient.abs().max() > 0
        for fast in ("blockwise", "triton"):
            torch.testing.assert_close(actual[fast][name], gradient, rtol=0.02, atol=1e-3)

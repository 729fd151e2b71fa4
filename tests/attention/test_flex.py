"""FlexAttention against the float64 reference, and what it refuses.

On a CPU torch runs the same score_mod and mask_mod in plain operations. Its public function has no backward pass there, which
the tests switch on; ``gpu`` tests run the compiled kernels.
"""

import dataclasses

import pytest
import torch
from backend_requests import D, H, chosen_name, reason_against, request
from torch.nn.attention import flex_attention as torch_flex

import whence
from whence import (
    Alibi,
    Cope,
    Epar,
    Fire,
    ForgetGate,
    Rotary,
    Sink,
    T5Bias,
    WhenceError,
    attend,
    explain,
    from_score_mod,
)
from whence.attention.arguments import Arguments
from whence.attention.block_visibility import find_visible_blocks
from whence.attention.call import describe, prepare
from whence.attention.flex import MIN_SCORES, Flex
from whence.attention.layout import resolve_layout

B, G, T = 2, 2, 140  # two blocks of queries and keys, the second not full


def capped(score, b, h, q_idx, kv_idx):
    return 5 * torch.tanh(score / 5) - 0.1 * (h + 1) * (q_idx - kv_idx).abs() + 0.05 * b


def dilated(batch, head, q_position, k_position):
    return (q_position - k_position) % (2 + head) == 0


class ByQuery(whence.Position):
    """A function of distance and query length that states no pair_function."""

    def __init__(self):
        super().__init__(length="query")

    def bias(self, distance, length):
        return -distance / length


def additive_mask():
    mask = torch.randn(B, H, T, T, generator=torch.Generator().manual_seed(3))
    return mask.masked_fill(mask > 1.2, -torch.inf)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here; run on a machine with a GPU")
ROW = torch.arange(T)
CASES = {
    "scale, sink and temperature": (
        lambda: Rotary() + Epar(H, beta=3.0) + Sink(H),
        {"causal": True, "window": 50, "temperature": 1.7},
    ),
    "segments": (lambda: Alibi(H, form="symmetric"), {"window": 50, "segment_ids": ROW // 30}),
    "left padding, and a row of padding": (
        lambda: Alibi(H) + Sink(H),
        {"causal": True, "key_mask": torch.tensor([[40], [T]]) <= ROW},
    ),
    "positions with gaps": (lambda: T5Bias(H), {"causal": True, "q_positions": ROW * 3 + ROW // 7}),
    "query lengths": (
        lambda: Epar(H, beta=3.0, length="query") + Fire(H, hidden_dim=5, threshold=20.0) + T5Bias(H),
        {"causal": True, "key_mask": torch.tensor([[40], [0]]) <= ROW},
    ),
    "functions of both positions": (lambda: from_score_mod(capped), {"causal": True, "mask_fn": dilated}),
    "a clock": (
        lambda: ForgetGate(H * D, H) + Alibi(H) + Sink(H),
        {"causal": True, "key_mask": torch.tensor([[40], [0]]) <= ROW, "segment_ids": ROW // 90, "temperature": 1.3},
    ),
    "a float mask": (lambda: Alibi(H), {"causal": True, "attn_mask": additive_mask()}),
    "a boolean mask": (lambda: None, {"attn_mask": additive_mask()[:1, :1] > 0}),
}


def frozen(position):
    return None if position is None else position.requires_grad_(False)


def tensors(dtype=torch.float64, width=D):
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(B, heads, T, width, generator=generator) for heads in (H, G, G, H))
    return [x.to(dtype).requires_grad_() for x in (q, k, v)], grad


def clock_of(position, q):
    """The steps of a clock; the queries stand for the layer input."""
    has_clock = position is not None and "clock" in position.effects
    return position.clock(q.detach().transpose(1, 2).flatten(2)[..., : H * D]) if has_clock else None


def results(position, leaves, grad, options, backend):
    out = attend(*leaves, position=position, clock=clock_of(position, leaves[0]), backend=backend, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(out))]


@pytest.fixture
def plain_flex(monkeypatch):
    """FlexAttention's plain operations with a backward pass, and without the compiler's tracing of each call."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    supports = Flex.supports
    monkeypatch.setattr(Flex, "supports", lambda self, r: supports(self, dataclasses.replace(r, input_gradient=False)))


@pytest.mark.parametrize("case", CASES)
def test_output_and_gradients_are_those_of_the_reference(case, plain_flex):
    make, options = CASES[case]
    position, (leaves, grad) = make(), tensors()
    position = None if position is None else frozen(position.double())
    expected = results(position, leaves, grad, options, "reference")
    for got, exact in zip(results(position, leaves, grad, options, "flex"), expected, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-10, atol=1e-12)
    assert expected[0].abs().max() > 0.1


@torch.no_grad()
def test_half_precision_and_other_numbers_of_queries(plain_flex):
    (q, k, v), _ = tensors(torch.bfloat16)
    position, positions = Alibi(H), {"q_positions": ROW[-9:], "k_positions": ROW}
    exact = attend(q[:, :, -9:].double(), k.double(), v.double(), position=Alibi(H).double(), causal=True, backend="reference", **positions)  # fmt: skip
    out = attend(q[:, :, -9:], k, v, position=position, causal=True, backend="flex", **positions)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), exact, rtol=torch.finfo(torch.bfloat16).eps, atol=1e-5)


@torch.no_grad()
def test_it_traces_as_one_graph():
    (q, k, v), _ = tensors(torch.float32)
    position, lengths = Alibi(H) + Sink(H) + Epar(H, length="query"), torch.tensor([9, T])

    def call(q, k, v):
        return attend(q, k, v, position=position, causal=True, lengths=lengths, backend="flex")

    compiled = torch.compile(call, backend="eager", fullgraph=True)(q, k, v)
    expected = attend(q, k, v, position=position, causal=True, lengths=lengths, backend="reference")
    torch.testing.assert_close(compiled, expected, rtol=1e-5, atol=1e-5)


# --- what it refuses, and where auto takes it ---------------------------------------------------------------------------


def test_what_it_refuses():
    (q, k, v), _ = tensors(torch.float32)
    slope = torch.tensor(0.5, requires_grad=True)
    learnable = from_score_mod(lambda score, b, h, q_idx, kv_idx: score - slope * (q_idx - kv_idx).abs())
    for position, reason in (
        (Alibi(H, learnable=True), "atomic addition"),
        (learnable, "atomic addition"),
        (Cope(D), "Cope depends on the content"),
        (ByQuery(), "length='query'"),
        (ForgetGate(H * D, H), "atomic addition"),
        (Alibi(H), "on a CPU FlexAttention computes no gradient"),
    ):
        with pytest.raises(WhenceError, match=reason) as error:
            attend(q, k, v, position=position, clock=clock_of(position, q), causal=True, backend="flex")
        assert "backend='blockwise'" in str(error.value) or "backend='sdpa'" in str(error.value)
    with torch.no_grad():  # nothing learns here
        position, steps = ForgetGate(H * D, H), torch.full((B, H, T), -0.3)
        steps[..., 0] = -1e6
        outs = [
            attend(q, k, v, position=position, clock=steps, backend=name, causal=True) for name in ("flex", "reference")
        ]
        torch.testing.assert_close(*outs)  # sums in float32 would be wrong by 0.06
        assert explain(q, k, v, position=learnable, causal=True, backend="flex").backend == "flex"
        far = {"q_positions": torch.arange(T) * 10_000, "causal": True, "position": Alibi(H)}
        with pytest.raises(WhenceError, match="span 2780001 distances"):
            attend(q, k, v, backend="flex", **far)
    assert reason_against("flex", request(dropout=True)) == "it does not apply dropout"
    assert reason_against("flex", request("sink", learnable=True, learnable_scores=False)) is None  # outside the kernel


def test_auto_takes_it_on_a_gpu_where_triton_cannot_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    large = request(
        "bias",
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        bias_numbers=MIN_SCORES + 1,
        head_dim=64,
        value_dim=64,
    )
    masked = dataclasses.replace(large, no_table="mask_fn acts on single pairs", pair_mask="boolean")
    assert chosen_name(large) == "triton"
    assert chosen_name(masked) == "flex"
    assert chosen_name(dataclasses.replace(masked, bias_numbers=10)) == "blockwise"  # too small to compile for
    for change in ({"learnable_scores": True}, {"dropout": True}, {"head_dim": 8}, {"dtype": torch.float64}):
        assert chosen_name(dataclasses.replace(masked, **change)) in ("blockwise", "sdpa")
    assert chosen_name(dataclasses.replace(masked, device=torch.device("cpu"))) == "blockwise"
    there = {name: getattr(large, name) for name in ("device", "dtype", "bias_numbers", "head_dim", "value_dim")}
    q = torch.zeros(1, H, 4, D)
    for position, backend in (
        (frozen(Fire(H) + T5Bias(H)), "flex"),
        (Fire(H) + T5Bias(H), "blockwise"),
        (Fire(H), "triton"),
        (ByQuery(), "blockwise"),
    ):
        facts = describe(prepare(Arguments(q, q, q, position=position, causal=True)))
        assert chosen_name(dataclasses.replace(facts, **there)) == backend


@pytest.mark.parametrize("case", CASES)
def test_blocks_without_a_visible_pair_are_found_and_no_others_lost(case):
    options, (leaves, _) = CASES[case][1], tensors()
    names = {field.name for field in dataclasses.fields(Arguments)} - {"attn_mask", "mask_fn"}
    layout = resolve_layout(Arguments(*leaves, **{n: x for n, x in options.items() if n in names}))
    visible = layout.visible()[:, 0]
    some, every = find_visible_blocks(layout, 10, 14)
    blocks = visible.unflatten(-1, (10, 14)).unflatten(-3, (14, 10)).transpose(-3, -2)
    assert not (blocks.any(-1).any(-1) & ~some).any() and not (~blocks.all(-1).all(-1) & every).any()
    if case in ("segments", "scale, sink and temperature"):
        assert not some.all() and every.any()


# --- on a GPU -----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "case",
    ["scale, sink and temperature", "positions with gaps", "functions of both positions", "query lengths", "a clock"],
)
def test_compiled_kernels_match_the_reference(case):
    """Error of output and gradients at most twice that of the dense computation in the same precision, plus rounding."""
    make, options = CASES[case]
    options = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    position, (leaves, grad) = make(), tensors(torch.bfloat16, width=64)
    position = None if position is None else frozen(position.cuda())
    leaves, grad = [x.detach().cuda().requires_grad_() for x in leaves], grad.cuda()
    double = [x.detach().double().requires_grad_() for x in leaves]
    exact = results(position, double, grad.double(), options, "reference")
    plain = results(position, leaves, grad, options, "reference")
    for i, (got, other, x) in enumerate(
        zip(results(position, leaves, grad, options, "flex"), plain, exact, strict=True)
    ):
        size = x.square().mean().sqrt()
        lost, baseline = ((y.double() - x).square().mean().sqrt() / size for y in (got, other))
        assert lost <= 2 * (baseline + torch.finfo(torch.bfloat16).eps), f"result {i}"


@pytest.mark.gpu
@needs_gpu
def test_auto_runs_a_long_masked_call_on_a_gpu():
    q = torch.randn(1, 8, 2048, 64, device="cuda", dtype=torch.bfloat16)
    options = {"position": whence.Alibi(8).cuda(), "causal": True, "mask_fn": dilated}
    assert explain(q, q, q, **options).backend == "flex"
    out, exact = attend(q, q, q, **options), attend(*[q.double()] * 3, backend="reference", **options)
    assert (out.double() - exact).abs().max() < 8 * torch.finfo(torch.bfloat16).eps * exact.abs().max()

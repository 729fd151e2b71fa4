"""Planned eager calls on a GPU: results against the float64 reference, by pointers and by TMA, and the number of launches."""

import pytest
import torch
from reference_comparison import check_against_reference, perturb, random_inputs, run
from test_kernels_on_gpu import arguments, poison

from whence import (
    Alibi,
    Epar,
    Fire,
    ForgetGate,
    Kerple,
    KVCache,
    NoPosition,
    PowerPrior,
    Rotary,
    Shaw,
    Sink,
    SwinBias,
    T5Bias,
    attend,
)
from whence.attention.fused import compiled_launcher, direct_launch, eager, ops, packing, tile_configs
from whence.position.rotary_scaling import Yarn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here; run on a machine with a GPU"),
]
HEADS = 4
MECHANISMS = {
    "Epar": lambda: Epar(HEADS, context=64, learnable=True),
    "Epar, basic, one for all heads": lambda: Epar(None, form="basic", context=64, learnable=True),
    "Epar, fixed": lambda: Epar(HEADS, context=64, gamma=4.0),
    "Alibi": lambda: Alibi(HEADS, form="symmetric", learnable=True),
    "PowerPrior": lambda: PowerPrior(HEADS, alpha=0.1, beta=0.8),
    "PowerPrior, one for all heads": lambda: PowerPrior(None, alpha=-0.1, beta=1.2),
    "Rotary + Epar": lambda: Rotary() + Epar(HEADS, context=64, learnable=True),
    "Alibi + Rotary": lambda: (
        Alibi(HEADS, learnable=True) + Rotary(layout="interleaved", rotary_dim=32, scaling=Yarn(4.0, 16))
    ),
    "T5Bias": lambda: T5Bias(HEADS, form="bidirectional", std=1.0),
    "Kerple": lambda: Kerple(HEADS),  # its hooks are evaluated
    "NoPosition": lambda: NoPosition(),
    "Rotary": lambda: Rotary(),
    "Rotary + Epar + T5Bias": lambda: Rotary() + Epar(None, context=64, learnable=True) + T5Bias(HEADS, std=1.0),
}
CASES = [
    (name, mask) for name in MECHANISMS for mask in ("causal", "window", "both sides")
    if not (mask == "both sides" and MECHANISMS[name]().causal_only)
]  # fmt: skip


@pytest.fixture(params=["pointers", "TMA"])
def plans(request, monkeypatch):
    monkeypatch.setattr(eager, "ENABLED", True)
    monkeypatch.setattr(tile_configs, "FEW_PAIRS", 2**40 if request.param == "pointers" else 0)


@pytest.mark.usefixtures("plans")
@pytest.mark.parametrize("name, mask", CASES)
def test_planned_calls(name, mask):
    position = perturb(MECHANISMS[name]()).cuda()
    index = CASES.index((name, mask))
    dtype = (torch.bfloat16, torch.float16, torch.float32)[index % 3]
    width = (64, 96, 80, 160)[index % 4]
    for shape in ((2, HEADS, 2, 333, 333, width, width), (2, HEADS, HEADS, 9, 9, 128, 128)):
        *tensors, grad_out = random_inputs(*shape, dtype=dtype, device="cuda")
        options = arguments(mask, 2, *shape[3:5]) | {"skip_blocks": False}
        for _ in range(2):  # Triton launches the first time, the plan itself the second time
            poison()
            check_against_reference(position, tensors, grad_out, options)


@pytest.mark.usefixtures("plans")
@pytest.mark.parametrize(
    "name, mask",
    [("Rotary + Epar", "lengths"), ("T5Bias", "left padding"), ("Kerple", "segment_ids"), ("Alibi", "segment_ids")],
)
def test_planned_calls_with_padding_and_segments(name, mask, monkeypatch):
    from whence.attention.fused import planned_masks

    read = []
    ids = planned_masks.PlannedMask.ids
    monkeypatch.setattr(planned_masks.PlannedMask, "ids", lambda self, x: read.append(x) or ids(self, x))
    position = perturb(MECHANISMS[name]()).cuda()
    for length in (333, 9):
        *tensors, grad_out = random_inputs(2, HEADS, 2, length, length, 64, 64, dtype=torch.bfloat16, device="cuda")
        options = arguments(mask, 2, length, length)
        for _ in range(2):
            poison()
            check_against_reference(position, tensors, grad_out, options)
    assert len(read) == 4


@pytest.mark.usefixtures("plans")
@pytest.mark.parametrize("name", ["Epar, fixed", "Rotary + Epar", "Alibi", "T5Bias", "Kerple"])
def test_cached_steps_equal_one_pass(name):
    position, cache = perturb(MECHANISMS[name]()).cuda(), KVCache(capacity=1500)
    q, k, v, _ = random_inputs(2, HEADS, 2, 700, 700, 64, 64, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        whole = attend(q, k, v, position=position, causal=True, backend="reference")
        pieces = zip(*(x.split([600, 50, 1, 1, 1, 1, 2, 2, 42], 2) for x in (q, k, v)), strict=True)
        steps = [attend(*piece, position=position, causal=True, backend="triton", cache=cache) for piece in pieces]
    torch.testing.assert_close(torch.cat(steps, 2), whole, rtol=2**-6, atol=2**-6)


OPERATOR = {
    "Epar, T5Bias and Sink": lambda: Epar(HEADS, context=64, learnable=True) + T5Bias(HEADS, std=1.0) + Sink(HEADS),
    "Alibi": lambda: Alibi(HEADS, learnable=True),
    "Epar, query": lambda: Epar(HEADS, length="query", learnable=True),
    "Fire": lambda: Fire(HEADS),
    "Shaw": lambda: Shaw(64, clip=5, value_dim=64),
    "SwinBias": lambda: SwinBias(HEADS, (9, 37)),
    "ForgetGate": lambda: ForgetGate(64, HEADS, form="bias"),
}


@pytest.mark.parametrize("pairs", [0, 2**40], ids=["TMA", "pointers"])
@pytest.mark.parametrize("name", OPERATOR)
def test_the_operator_repeats_its_launches(name, pairs, monkeypatch):
    """Triton binds the arguments of the first call; later ones, and compiled ones, launch the compiled kernels directly."""
    monkeypatch.setattr(eager, "ENABLED", False)
    monkeypatch.setattr(tile_configs, "FEW_PAIRS", pairs)
    position = perturb(OPERATOR[name]()).cuda()
    *tensors, grad_out = random_inputs(2, HEADS, 2, 333, 333, 64, 64, dtype=torch.bfloat16, device="cuda")
    leaves = [x.requires_grad_() for x in tensors]

    def forward(q, k, v):
        clock = position.clock(k[:, 0]) if "clock" in position.effects else None
        return attend(q, k, v, position=position, clock=clock, causal=True, backend="triton")

    def results(function):
        out = function(*leaves)
        return [out, *torch.autograd.grad(out, [*leaves, *position.parameters()], grad_out)]

    first = results(forward)
    for function in (forward, forward, torch.compile(forward, fullgraph=True)):
        poison()
        for i, (x, y) in enumerate(zip(results(function), first, strict=True)):
            size = y.double().square().mean().sqrt()
            if i > 3:  # a parameter sums terms of unit size, which may cancel
                size = size.clamp(min=1.0)
            assert (x.double() - y.double()).square().mean().sqrt() <= 2**-8 * size  # atomics add in any order


def test_launches(monkeypatch):
    monkeypatch.setattr(eager, "ENABLED", True)
    for name, most in (("Epar", (3, 7)), ("Rotary + Epar", (4, 9)), ("T5Bias", (3, 8))):
        position = MECHANISMS[name]().cuda()
        *tensors, grad_out = random_inputs(1, HEADS, HEADS, 16, 16, 64, 64, dtype=torch.bfloat16, device="cuda")
        leaves = [x.requires_grad_() for x in tensors]

        def forward(leaves=leaves, position=position):
            return attend(*leaves, position=position, causal=True, backend="triton")

        def both(position=position, leaves=leaves, grad_out=grad_out, forward=forward):
            torch.autograd.grad(forward(), [*leaves, *position.parameters()], grad_out)

        for call, limit in ((torch.no_grad()(forward), most[0]), (both, most[1])):
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                call()
                torch.cuda.synchronize()
            kernels = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
            assert 0 < len(kernels) <= limit, kernels


def test_a_graph_of_a_planned_call(monkeypatch):
    """A captured call reads the parameters when it is replayed."""
    monkeypatch.setattr(eager, "ENABLED", True)
    position = MECHANISMS["Rotary + Epar"]().cuda()
    q, k, v, _ = random_inputs(1, HEADS, HEADS, 100, 100, 64, 64, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            attend(q, k, v, position=position, causal=True, backend="triton")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = attend(q, k, v, position=position, causal=True, backend="triton")
        for p in position.parameters():
            p.add_(0.7)
        graph.replay()
        exact = attend(q, k, v, position=position, causal=True, backend="reference")
    torch.testing.assert_close(out, exact, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("planned", [True, False])
def test_a_graph_draws_another_dropout_in_each_replay(planned, monkeypatch):
    """With the unit vectors as values the output is the weights; the gradient of the values is their transpose."""
    monkeypatch.setattr(eager, "ENABLED", planned)
    keys, position = 100, MECHANISMS["Epar"]().cuda()
    q, k, *_ = random_inputs(1, HEADS, HEADS, keys, keys, 64, 64, dtype=torch.float32, device="cuda")
    units = torch.eye(keys, device="cuda").expand(1, HEADS, -1, -1).contiguous().requires_grad_()

    def step():
        out = attend(q, k, units, position=position, causal=True, backend="triton", dropout=0.3)
        (back,) = torch.autograd.grad(out, units, torch.eye(keys, device="cuda").expand_as(out))
        return out, back

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, back = step()
    masks = []
    for _ in range(2):
        graph.replay()
        torch.testing.assert_close(back, out.mT, rtol=1e-3, atol=1e-5)
        masks.append(out.detach() != 0)
    assert not torch.equal(*masks)


@pytest.mark.parametrize("name", ["NoPosition", "Epar", "Rotary + Epar", "T5Bias", "Kerple"])
def test_compiled_with_cuda_graphs(name):
    """``mode="reduce-overhead"`` replays captured kernels; each step has other inputs and parameters."""
    position = MECHANISMS[name]().cuda()
    parameters = list(position.parameters())
    compiled = torch.compile(
        lambda q, k, v: attend(q, k, v, position=position, causal=True, backend="triton"),
        mode="reduce-overhead", fullgraph=True,
    )  # fmt: skip
    for step in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        *tensors, grad_out = random_inputs(
            1, HEADS, HEADS, 100, 100, 64, 64, dtype=torch.bfloat16, device="cuda", seed=step
        )
        inputs = [x.requires_grad_() for x in tensors]
        got = [x.clone() for x in torch.autograd.grad(compiled(*inputs), [*inputs, *parameters], grad_out)]
        eager_out = attend(*inputs, position=position, causal=True, backend="triton")
        wanted = torch.autograd.grad(eager_out, [*inputs, *parameters], grad_out)
        for a, b in zip(got, wanted, strict=True):
            assert (a.double() - b.double()).norm() <= 2**-6 * b.double().norm()
        with torch.no_grad():
            for p in parameters:
                p.add_(0.1)


@pytest.mark.parametrize(
    "name, mask", [("Epar", "causal"), ("Alibi", "window"), ("PowerPrior", "segment_ids"), ("PowerPrior", "lengths")]
)
def test_pointer_loads_without_plans(name, mask, monkeypatch):
    monkeypatch.setattr(packing, "has_tma", lambda device: False)
    position = perturb(MECHANISMS[name]()).cuda()
    for dtype, width in ((torch.bfloat16, 64), (torch.float16, 128), (torch.float32, 64), (torch.bfloat16, 80)):
        shape = (2, HEADS, 2, 333, 333, width, width)
        *tensors, grad_out = random_inputs(*shape, dtype=dtype, device="cuda")
        poison()
        check_against_reference(position, tensors, grad_out, arguments(mask, 2, 333, 333))


@pytest.mark.skipif(
    compiled_launcher.VERSION not in compiled_launcher.KNOWN_VERSIONS, reason="an unknown version of Triton"
)
@pytest.mark.parametrize("compiled", [False, True], ids=["plan", "operator"])
@pytest.mark.parametrize("width, dtype", [(64, torch.bfloat16), (96, torch.float32), (128, torch.float16)])
def test_launches_below_triton_change_nothing(monkeypatch, width, dtype, compiled):
    # 128: the warp-specialised kernel on Hopper
    monkeypatch.setattr(tile_configs, "FEW_PAIRS", 0)
    monkeypatch.setattr(eager, "ENABLED", not compiled)
    shape = (2, HEADS, 2, 300, 300, width, width)
    *tensors, grad_out = random_inputs(*shape, dtype=dtype, device="cuda")
    launched, results = [], []
    launch = direct_launch.DirectLaunch.__call__

    def record(self, programs, *arguments):
        launch(self, programs, *arguments)
        launched.append(self)

    monkeypatch.setattr(direct_launch.DirectLaunch, "__call__", record)
    for find in (compiled_launcher.find_launcher, lambda kernel: None):
        monkeypatch.setattr(direct_launch, "find_launcher", find)
        ops.operator_facts.kept.clear()
        launched.clear()
        position = perturb(Epar(HEADS, context=64, learnable=True)).cuda()
        answers, held = [], []
        for step in range(6):  # torch hands out known addresses, and then others
            if step >= 3:
                held.append([torch.empty_like(x) for x in tensors])
            poison()
            given = [x.clone() for x in tensors]
            answers.append(run(position, given, grad_out.clone(), {"causal": True}, backend="triton"))
        results.append(answers)
        found = [one._launcher is not None for one in launched]
        assert any(one._launcher.slots for one in launched if one._launcher is not None) is all(found) is any(found)
        assert all(found) is (find is compiled_launcher.find_launcher)
    for answers in zip(*results, strict=True):
        for one, other, first in zip(*answers, results[0][0], strict=True):
            assert torch.equal(one, other)
            assert torch.equal(one, first)


@pytest.mark.parametrize("few_keys", [0, 256])
def test_few_queries_and_few_keys_inside_a_compiled_call(monkeypatch, few_keys):
    monkeypatch.setattr(tile_configs, "FEW_KEYS", few_keys)
    monkeypatch.setattr(tile_configs, "FEW_PAIRS", 2**40)
    monkeypatch.setattr(eager, "ENABLED", False)
    for queries, width, dtype in ((16, 64, torch.bfloat16), (3, 128, torch.float16), (9, 96, torch.float32)):
        position = perturb(Epar(HEADS, context=64, learnable=True) + Alibi(HEADS) + Sink(HEADS)).cuda()
        *tensors, grad_out = random_inputs(2, HEADS, 2, queries, queries, width, width, dtype=dtype, device="cuda")
        for _ in range(2):
            poison()
            check_against_reference(position, tensors, grad_out, {"causal": True})

"""Eager calls that follow a plan: the same results as without one, few launches, and a new plan for every other signature."""

import copy

import pytest
import torch
from kernel_cases import masks
from reference_comparison import check_against_reference, perturb, random_inputs, run
from torch.utils._python_dispatch import TorchDispatchMode

from whence import Alibi, Cope, Epar, KVCache, NoPosition, Position, PowerPrior, Rotary, Shaw, T5Bias, attend
from whence.attention.arguments import Arguments
from whence.attention.fused import direct_launch, eager, packing, tile_configs
from whence.position.rotary_scaling import Yarn

pytestmark = pytest.mark.usefixtures("interpreted", "poisoned")


class Bell(Position):
    """A user's own function of distance, the same for all heads."""

    def __init__(self, width=3.0):
        super().__init__()
        self.width = width
        self.height = torch.nn.Parameter(torch.tensor(0.5))

    def bias(self, distance, length):
        return self.height * torch.exp(-((distance / self.width) ** 2))


TABLE_KERNELS = {"table_kernel", "bucket_table_kernel", "pack_kernel"}
MECHANISMS = {
    "Epar": lambda h: Epar(h, context=40, learnable=True),
    "Epar, basic, one for all heads": lambda h: Epar(None, form="basic", context=40, learnable=True),
    "Alibi": lambda h: Alibi(h, form="symmetric", learnable=True),
    "PowerPrior": lambda h: PowerPrior(h, alpha=0.1, beta=0.8),
    "PowerPrior, one for all heads": lambda h: PowerPrior(None, alpha=-0.1, beta=1.2),
    "Rotary + Epar": lambda h: Rotary() + Epar(h, context=40, learnable=True),
    "Alibi + Rotary": lambda h: (
        Alibi(h, learnable=True) + Rotary(layout="interleaved", rotary_dim=8, scaling=Yarn(4.0, 16))
    ),
    "T5Bias": lambda h: T5Bias(h, buckets=8, max_distance=16, std=1.0),
    "T5Bias, both sides": lambda h: T5Bias(h, form="bidirectional", buckets=12, max_distance=20, std=1.0),
    "Bell + Rotary": lambda h: Bell() + Rotary(),
    "Epar + T5Bias": lambda h: Epar(None, context=40, learnable=True) + T5Bias(h, std=1.0),
    "NoPosition": lambda h: NoPosition(),
    "Rotary": lambda h: Rotary(),
}
# batch, heads, key heads, queries, keys, key width, value width; tiles of 40 and 48 have two parts
FEW, ONE_BLOCK, BLOCKS, GROUPED, TWO_SEQUENCES = (
    (2, 2, 1, 5, 5, 16, 16),
    (1, 2, 2, 63, 63, 16, 48),
    (1, 1, 1, 70, 70, 16, 16),
    (2, 2, 1, 66, 66, 48, 16),
    (2, 1, 1, 70, 70, 16, 16),
)


@pytest.fixture
def plans(monkeypatch):
    """Plans are used; the list of kernels that they and the operator launch."""
    launched = []
    launch = direct_launch.DirectLaunch.__call__

    def record(self, programs, *arguments):
        launched.append(self.kernel.__name__)
        launch(self, programs, *arguments)

    monkeypatch.setattr(eager, "ENABLED", True)
    monkeypatch.setattr(direct_launch.DirectLaunch, "__call__", record)
    return launched


CASES = [
    ("Epar", "causal", FEW, torch.float32),
    ("Epar", "window", GROUPED, torch.float16),
    ("Epar", "both sides", ONE_BLOCK, torch.float32),
    ("Epar, basic, one for all heads", "scaled", BLOCKS, torch.float32),
    ("Alibi", "both sides", BLOCKS, torch.float32),
    ("Alibi", "causal", FEW, torch.float16),
    ("PowerPrior", "window, both sides", FEW, torch.float32),
    ("PowerPrior, one for all heads", "negative scale", ONE_BLOCK, torch.float32),
    ("Rotary + Epar", "causal", GROUPED, torch.float32),
    ("Alibi + Rotary", "causal", BLOCKS, torch.float16),
    ("T5Bias", "causal", FEW, torch.float32),
    ("T5Bias, both sides", "window, both sides", ONE_BLOCK, torch.float32),
    ("Bell + Rotary", "both sides", FEW, torch.float32),
    ("Epar + T5Bias", "scaled", GROUPED, torch.float16),
    ("Epar", "lengths", TWO_SEQUENCES, torch.float32),
    ("Rotary + Epar", "key_mask", TWO_SEQUENCES, torch.float16),
    ("T5Bias", "segment_ids, window", TWO_SEQUENCES, torch.float32),
    ("Bell + Rotary", "lengths, both sides", FEW, torch.float32),
    ("NoPosition", "window", GROUPED, torch.float16),
    ("Rotary", "lengths, both sides", FEW, torch.float32),
]


@pytest.mark.parametrize(
    "mechanism, mask, shape, dtype", CASES, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else str(x)
)
def test_planned_calls_equal_the_reference(plans, monkeypatch, mechanism, mask, shape, dtype):
    by_descriptor = CASES.index((mechanism, mask, shape, dtype)) % 2
    monkeypatch.setattr(tile_configs, "FEW_PAIRS", 0 if by_descriptor else 2**40)
    position = perturb(MECHANISMS[mechanism](shape[1]))
    *tensors, grad_out = random_inputs(*shape, dtype=dtype)
    options = masks(mask, shape[0], shape[3], shape[4]) | {"skip_blocks": False}
    first = check_against_reference(position, tensors, grad_out, options)
    assert sum(kernel in TABLE_KERNELS for kernel in plans) == (mechanism not in ("NoPosition", "Rotary"))
    assert "forward_kernel" in plans
    assert len(plans) <= 12
    if shape is FEW:  # later calls, which are not validated again
        for x, y in zip(run(position, tensors, grad_out, options, backend="triton"), first, strict=True):
            assert torch.equal(x, y)


def planned(position, *tensors, **options):
    return attend(*tensors, position=position, **({"causal": True, "backend": "triton"} | options))


def test_launches_of_forward_backward_and_decode(plans):
    # a GPU test counts them with torch.profiler
    position = Epar(2, context=40, learnable=True)
    q, k, v, grad_out = (x.requires_grad_() for x in random_inputs(1, 2, 2, 16, 16, 16, 16))
    out = planned(position, q, k, v)
    assert plans == ["table_kernel", "forward_kernel"]
    out.backward(grad_out)
    assert plans[2:] == ["backward_dq_kernel", "backward_dkdv_kernel", "parameter_gradient_kernel"]
    plans.clear()
    planned(None, q, k, v).backward(grad_out)
    assert plans == ["forward_kernel", "backward_dq_kernel", "backward_dkdv_kernel"]
    plans.clear()
    planned(None, q, k, v, backend="auto")  # torch's own kernel
    assert not plans


class Operators(TorchDispatchMode):
    """The names of the operators that are called inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [lambda: Cope(16), lambda: Shaw(16), lambda: Epar(2, length="query")])
def test_operators_of_a_call_without_a_plan(interpreted, make):
    """Each is a kernel on a GPU: positions of tokens are one, and there is no table of distances where nothing reads it."""
    position, (q, k, v, _) = make(), random_inputs(1, 2, 2, 16, 16, 16, 16)
    attend(q, k, v, position=position, causal=True, backend="triton")
    with Operators() as operators:
        attend(q, k, v, position=position, causal=True, backend="triton")
    ranges = sum(name.startswith("aten::arange") for name in operators.names)
    assert ranges == (2 if position.length == "query" else 1)
    assert "aten::full" not in operators.names and "aten::where.self" not in operators.names


UNREAD = {"sink_b", "sink_h", "sink_t", "bias_grad_offset"}  # without a sink, and without two dense gradients


@pytest.mark.parametrize("make", [lambda: None, lambda: Epar(2, context=40, learnable=True)], ids=["None", "Epar"])
def test_a_plan_launches_what_the_operator_launches(monkeypatch, make):
    """The same kernels with the same grids, numbers, compile-time arguments and options; ``test_operator`` compiles such a call."""
    launched, launch = {}, direct_launch.DirectLaunch.__call__

    def record(self, programs, *arguments):
        named = zip(self.kernel.arg_names, arguments, strict=False)
        numbers = {name: x for name, x in named if isinstance(x, int | float) and name not in UNREAD}
        if self.kernel.__name__ in ("forward_kernel", "backward_dq_kernel", "backward_dkdv_kernel"):
            facts = (programs, numbers, self.constants, self.options)
            launched.setdefault(self.kernel.__name__, []).append(facts)
        launch(self, programs, *arguments)

    monkeypatch.setattr(direct_launch.DirectLaunch, "__call__", record)
    *tensors, grad_out = random_inputs(*GROUPED, dtype=torch.float16)
    position = make()
    for enabled in (True, False):
        monkeypatch.setattr(eager, "ENABLED", enabled)
        run(position, tensors, grad_out, {"causal": True, "window": 40}, backend="triton")
    assert len(launched) == 3
    for planned_launch, other in launched.values():
        assert planned_launch == other


@pytest.mark.parametrize(
    "make",
    [lambda: T5Bias(2, std=1.0), lambda: Rotary() + PowerPrior(2, alpha=0.1), Bell],
    ids=["T5Bias", "rotary", "Bell"],
)
def test_cached_steps_equal_one_pass(plans, make):
    position, cache = make(), KVCache(capacity=30)
    q, k, v, _ = random_inputs(2, 2, 1, 27, 27, 16, 16)
    with torch.no_grad():
        whole = attend(q, k, v, position=position, causal=True, backend="reference")
        pieces = zip(*(x.split([20, 1, 1, 1, 2, 2], 2) for x in (q, k, v)), strict=True)
        steps = torch.cat([planned(position, *piece, cache=cache) for piece in pieces], 2)
    assert len(cache) == 27
    assert plans.count("split_k_kernel") == 5  # the first chunk finds an empty cache
    torch.testing.assert_close(steps, whole)


CHANGES = {
    "width": lambda p: setattr(p, "width", 1.0),  # the plain attribute that a hook reads
    "values": lambda p: p.alpha.raw.data.mul_(3.0),  # leaves no trace in a version counter
    "context": lambda p: setattr(p, "context", 7),
    "form": lambda p: setattr(p, "form", "basic"),
    "another parameter": lambda p: setattr(p.beta, "raw", torch.nn.Parameter(p.beta.raw.detach() + 1.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_position_is_never_stale(plans, change, monkeypatch):
    position = Bell() if change == "width" else Epar(2, context=40, learnable=True)
    q, k, v, _ = random_inputs(1, 2, 2, 5, 5, 16, 16)
    for _ in range(2):
        before = planned(position, q, k, v)
    CHANGES[change](position)
    after = planned(position, q, k, v)
    monkeypatch.setattr(eager, "ENABLED", False)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, planned(position, q, k, v))


def test_other_arguments_are_validated(plans):
    position = Epar(2, context=40)
    q, k, v, _ = random_inputs(1, 2, 2, 5, 5, 16, 16)
    for _ in range(2):
        planned(position, q, k, v)
    assert plans.count("table_kernel") == 2
    for options in ({"causal": 1}, {"temperature": 0.0}, {"window": True}, {"backend": "nothing"}, {"dropout": 2.0}):
        with pytest.raises(Exception, match=next(iter(options))):
            planned(position, q, k, v, **options)
    with pytest.raises(Exception, match="float64"):
        planned(position, q, k.double(), v)
    planned(position, q, k, v, q_positions=torch.arange(5))  # a plan covers no explicit positions
    assert plans.count("table_kernel") == 2


def test_values_of_padding_and_segments_are_read_in_each_call(plans):
    position = Epar(2, context=40)
    q, k, v, _ = random_inputs(1, 2, 2, 5, 5, 16, 16)
    cases = {
        "lengths": ([3], [[6], [-1]]),
        "key_mask": ([[False, True, True, False, False]], [[[True, False, True, True, False]]]),
        "segment_ids": ([0, 0, 1, 1, 1], [[0, 1, 1, 0, 0]]),
    }
    for name, (regular, irregular) in cases.items():
        for _ in range(2):
            planned(position, q, k, v, **{name: torch.tensor(regular)})
        assert plans.count("table_kernel") == 2
        plans.clear()
        for values in irregular:
            with pytest.raises(Exception, match=name if name != "key_mask" else "consecutive"):
                planned(position, q, k, v, **{name: torch.tensor(values)})
        assert set(plans) == {"token_ids_kernel"}
        plans.clear()
    falling = {"segment_ids": torch.tensor([1, 1, 0, 0, 0])}  # allowed, but not covered
    exact = planned(position, q, k, v, backend="reference", **falling)
    torch.testing.assert_close(planned(position, q, k, v, **falling), exact)
    assert plans[0] == "token_ids_kernel"
    assert "table_kernel" not in plans


def test_hooks_of_a_planned_call_are_validated(plans):
    """A hook may return something else in a later call, or depend on a tensor that is no parameter."""

    class Varied(Bell):
        def bias(self, distance, length):
            return super().bias(distance, length) * factor

    position, factor = Varied(), torch.tensor(1.0)
    q, k, v, _ = random_inputs(1, 2, 2, 5, 5, 16, 16)
    with torch.no_grad():
        before = planned(position, q, k, v)
    position.height.requires_grad_(False)
    factor = torch.tensor(1.0, requires_grad=True)
    for _ in range(2):
        planned(position, q, k, v, causal=False)
        out = planned(position, q, k, v)
        (gradient,) = torch.autograd.grad(out.square().sum(), factor)
        assert gradient != 0
    torch.testing.assert_close(out, before)
    (exact,) = torch.autograd.grad(planned(position, q, k, v, backend="reference").square().sum(), factor)
    torch.testing.assert_close(gradient, exact)
    factor = torch.ones(3, 1)
    with pytest.raises(Exception, match=r"Varied.bias.*\[3, 5\]"):
        planned(position, q, k, v)
    factor, position.causal_only = torch.tensor(1.0), True
    planned(position, q, k, v)
    with pytest.raises(Exception, match="causal=False"):
        planned(position, q, k, v, causal=False)


def test_dropout_is_that_of_a_call_without_a_plan(plans, monkeypatch):
    position = Epar(2, context=40, learnable=True)
    *tensors, grad_out = random_inputs(*FEW)
    results = []
    for enabled in (True, False):
        monkeypatch.setattr(eager, "ENABLED", enabled)
        torch.manual_seed(3)
        results.append(run(position, tensors, grad_out, {"causal": True, "dropout": 0.4}, backend="triton"))
    assert plans.count("table_kernel") == 1  # of the plan
    assert plans.count("forward_kernel") == 2
    assert not torch.allclose(results[0][0], planned(position, *tensors), atol=0.1)
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)


def test_second_derivative_raises(plans):
    q, k, v, _ = random_inputs(1, 2, 2, 5, 5, 16, 16)
    q.requires_grad_()
    position = Epar(2, context=9)
    for _ in range(2):
        out = planned(position, q, k, v)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(first.square().sum(), q)


def test_a_tensor_kept_beyond_a_transform_has_no_plan(plans):
    q, kept = torch.randn(1, 2, 5, 16), []

    def keep(x):
        kept.append(x * 1.0)
        return x.sum()

    torch.func.grad(keep)(q)
    for position in (None, Alibi(2)):  # torch's own kernel takes such a tensor
        expected = attend(q, q, q, position=position, causal=True)
        torch.testing.assert_close(attend(kept[0], q, q, position=position, causal=True), expected)


def test_decode_kernels_take_as_many_rows_as_fit_the_shared_memory(plans):
    position, positions = Epar(4, context=40), torch.arange(20)
    for queries, splits in ((8, True), (16, False)):  # 32 and 64 rows of 256 float32 numbers
        plans.clear()
        q, k, v, _ = random_inputs(1, 4, 1, queries, 20, 256, 256)
        given = {"position": position, "q_positions": positions[-queries:], "k_positions": positions, "causal": True}
        out = attend(q, k, v, backend="triton", **given)
        torch.testing.assert_close(out, attend(q, k, v, backend="reference", **given), rtol=1e-4, atol=1e-4)
        assert ("split_k_kernel" in plans) is splits


def test_a_plan_made_in_inference_mode_trains(plans):
    position = perturb(Epar(2, context=40, learnable=True))
    *tensors, grad_out = random_inputs(*FEW)
    with torch.inference_mode():
        first = attend(*tensors, position=position, causal=True, backend="triton")
        second = attend(*tensors, position=position, causal=True, backend="triton")
    assert torch.equal(first, second)
    check_against_reference(position, tensors, grad_out, {"causal": True})
    assert plans.count("table_kernel") == 3


def test_plans_are_no_part_of_the_state(plans):
    position = Epar(2, context=40)
    q, k, v, _ = random_inputs(1, 2, 2, 5, 5, 16, 16)
    planned(position, q, k, v)
    assert eager.ATTRIBUTE in vars(position)
    assert eager.ATTRIBUTE not in position.__getstate__()  # what another process gets
    for copied in (copy.copy(position), copy.deepcopy(position)):
        assert eager.ATTRIBUTE not in vars(copied)
    assert repr(copied) == repr(position)


def test_blocks_are_skipped_instead_of_a_plan_if_there_are_many_pairs(plans):
    for tokens, has_plan in ((2048, True), (32768, False)):
        q = torch.zeros(1, 1, 1, 16, dtype=torch.float16).expand(1, 8, tokens, 16)
        call = eager.describe_call(Arguments(q, q, q, position=Alibi(8), causal=True, backend="triton"))
        assert (call is not None) is has_plan
        assert eager.describe_call(Arguments(q, q, q, position=Alibi(8), causal=True, skip_blocks=False)) is not None


def test_short_sequences_load_by_pointers_if_the_tiles_fit(plans, monkeypatch):
    monkeypatch.setattr(tile_configs, "FEW_PAIRS", 1)
    for dtype, width, has_tma in ((torch.float32, 128, False), (torch.float32, 256, True), (torch.float16, 256, False)):
        position = Epar(1)
        q = torch.zeros(1, 1, 1, width, dtype=dtype)
        planned(position, q, q, q)
        assert [plan.has_tma for plan in vars(position)[eager.ATTRIBUTE].values()] == [has_tma], (dtype, width)


@pytest.mark.parametrize("mechanism, mask", [("Epar", "window"), ("PowerPrior", "segment_ids")])
def test_pointer_loads(monkeypatch, mechanism, mask):
    """The kernels without plans, as on GPUs without TMA."""
    monkeypatch.setattr(packing, "has_tma", lambda device: False)
    position = perturb(MECHANISMS[mechanism](2))
    for shape in ((1, 2, 1, 70, 70, 20, 24), (1, 2, 1, 3, 90, 20, 24)):
        *tensors, grad_out = random_inputs(*shape)
        check_against_reference(position, tensors, grad_out, masks(mask, shape[0], shape[3], shape[4]))

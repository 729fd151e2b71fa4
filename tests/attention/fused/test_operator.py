"""The fused operator in torch: registration, compilation, lazy import, and calls it does not support."""

import re
import subprocess
import sys

import pytest
import torch
from reference_comparison import check_against_reference, perturb, random_inputs, random_tensors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from whence import Alibi, Cope, Epar, Fire, PowerPrior, Shaw, Sink, SwinBias, T5Bias, WhenceError, attend, explain
from whence.attention.fused import eager, tile_configs
from whence.attention.fused.direct_launch import DirectLaunch
from whence.attention.fused.fused_call import (
    NUM_ARGUMENTS,
    NUM_TENSORS,
    EffectGradients,
    FusedCall,
    Mask,
    ScoreEffects,
    Softmax,
)
from whence.attention.fused.ops import operator_facts
from whence.attention.fused.packing import TABLE_PADDING

HEADS = 2

# --- registration ------------------------------------------------------------------------------------------


def arguments(*, effects=(), masks=False, causal=True, window=None, dropout=0.0, queries=20, grad=True, layout=None):
    """Flat arguments of the operator as the backend passes them, with queries at the end of the keys."""
    torch.manual_seed(0)
    keys, offset = 24, 24 - queries
    first = 0 if causal else offset - keys + 1
    entries = offset + queries - first

    def random(*shape):
        return torch.randn(*shape, requires_grad=grad)

    q, k, v = random(2, HEADS, queries, 16), random(2, 1, keys, 16), random(2, 1, keys, 8)
    if layout is not None:
        q, k, v = (layout(t).detach().requires_grad_(grad) for t in (q, k, v))
    held = [name in effects for name in ("score_scale", "bias")]
    table = random(HEADS, entries + 2 * TABLE_PADDING, sum(held)) if any(held) else None
    slope = random(HEADS) if "slope" in effects else None
    sink = random(2, HEADS, queries) if "sink" in effects else None
    q_clock = k_clock = None
    if "clock" in effects:
        k_clock = -torch.rand(2, HEADS, keys, dtype=torch.float64).cumsum(-1)
        q_clock, k_clock = (x.clone().requires_grad_(grad) for x in (k_clock[..., offset:], k_clock))
        q_clock = None if queries == keys else q_clock  # the backend passes one for both
    tables = (random(2, HEADS, queries, 5), -2, True, 4, 0, False) if "row tables" in effects else ()
    if "coordinates" in effects:
        places = (torch.arange(keys, dtype=torch.int32) % 5).expand(2, -1).contiguous()
        tables = (random(HEADS, 9), 0, False, 0, 0, False, places[:, offset:].contiguous(), places)
    numbers = parameter_gradients = None
    if "numbers" in effects:  # two shape the factor, one the bias, one scales the factor
        numbers, parameter_gradients = random(HEADS, 4), torch.randn(HEADS, entries + 2 * TABLE_PADDING, 4)
        table = None if table is None else table.detach()
    real = q_segment_ids = k_segment_ids = None
    if masks:
        real = torch.arange(keys) < torch.tensor([[keys], [15]])
        k_segment_ids = (torch.arange(keys) // 10)[None]
        q_segment_ids = k_segment_ids[:, offset:]
    decay = torch.rand(HEADS, 3) if "decay" in effects else None
    seed = torch.tensor(3) if dropout else None  # on the device of q
    tables_of = numbers is not None
    call = FusedCall(
        q,
        k,
        v,
        ScoreEffects(table, *held, first, -1, slope, decay, sink, q_clock, k_clock, *tables),
        EffectGradients(
            *(has and not tables_of for has in held),
            numbers,
            parameter_gradients,
            2 * tables_of,
            1 * tables_of,
            tables_of,
        ),
        Mask(offset, causal, window, real, q_segment_ids, k_segment_ids, "skip" in effects),
        Softmax(0.25, 1.3, dropout, seed),
    )
    return call.flatten()


def test_flat_arguments_follow_the_schema():
    effects = ("score_scale", "bias", "sink", "numbers", "decay", "slope", "clock", "coordinates")
    flat = arguments(effects=effects, masks=True, dropout=0.1)
    names = [argument.name for argument in torch.ops.whence.fused_attention.default._schema.arguments]
    assert len(flat) == len(names) == NUM_ARGUMENTS
    assert all(isinstance(x, torch.Tensor) for x in flat[:NUM_TENSORS])
    assert not any(isinstance(x, torch.Tensor) for x in flat[NUM_TENSORS:])
    call = FusedCall.unflatten(tuple(names))  # each name arrives at the field of that name
    groups = (call.effects, call.gradients, call.mask, call.softmax)
    fields = {name: value for group in groups for name, value in vars(group).items()}
    assert fields | {"q": call.q, "k": call.k, "v": call.v} == {name: name for name in names}
    assert call.flatten() == tuple(names)


def heads_last(t):
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def transposed(t):
    return t.mT.contiguous().mT


OPCHECK_CASES = {
    "no table": {},
    "score_scale": {"effects": ("score_scale",)},
    "factor, bias and sink": {"effects": ("score_scale", "bias", "sink")},
    "few numbers": {"effects": ("score_scale", "bias", "numbers")},
    "a decay": {"effects": ("score_scale", "numbers", "decay")},
    "a slope": {"effects": ("slope", "sink")},
    "a clock": {"effects": ("clock", "sink")},
    "a shared clock": {"effects": ("clock", "sink"), "queries": 24},
    "row tables": {"effects": ("row tables", "bias")},
    "a table of coordinates": {"effects": ("coordinates",)},
    "leaving out far keys": {"effects": ("bias", "skip")},
    "masks and a window": {"effects": ("bias",), "masks": True, "window": 5},
    "both sides": {"effects": ("score_scale", "bias"), "causal": False},
    "few queries": {"effects": ("score_scale", "bias", "sink"), "queries": 3},
    "no gradient": {"effects": ("score_scale", "bias"), "grad": False},
    "heads last": {"effects": ("bias",), "layout": heads_last},
    "width not together": {"effects": ("bias",), "layout": transposed},
}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("case", OPCHECK_CASES)
def test_opcheck(case, monkeypatch):
    # rows of the log-sum-exp that no kernel reads are not written, and the check compares them
    make = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *shape, **about: make(*shape, **about).zero_())
    # schema, autograd registration, fake tensors with the right shapes and strides, and a traced forward and backward
    about = dict(OPCHECK_CASES[case])
    parts = ("test_schema", "test_faketensor", "test_autograd_registration", "test_aot_dispatch_static")
    results = torch.library.opcheck(torch.ops.whence.fused_attention.default, arguments(**about), test_utils=parts)
    assert set(results.values()) == {"SUCCESS"}


FEW_QUERIES = {
    "no table": {},
    "both tables and a sink": {"effects": ("score_scale", "bias", "sink")},
    "masks and a window": {"effects": ("bias",), "masks": True, "window": 5},
    "a slope": {"effects": ("slope",)},
    "a clock": {"effects": ("clock",)},
    "deterministic": {"effects": ("score_scale", "bias")},
}


@pytest.mark.usefixtures("interpreted", "poisoned")
@pytest.mark.parametrize("case", FEW_QUERIES)
def test_few_queries_with_few_and_with_many_keys(case, monkeypatch, request):
    # one forward kernel and the decode kernels give the same, and no kernel reads a row that none has written
    if case == "deterministic":
        request.getfixturevalue("deterministic")
    names, results, launch = [], [], DirectLaunch.__call__

    def record(self, programs, *arguments):
        names.append(self.kernel.__name__)
        launch(self, programs, *arguments)

    monkeypatch.setattr(DirectLaunch, "__call__", record)
    for few_keys, kernels in ((256, ["forward_kernel"]), (0, ["split_k_kernel", "combine_kernel"])):
        monkeypatch.setattr(tile_configs, "FEW_KEYS", few_keys)
        operator_facts.kept.clear()
        names.clear()
        given = arguments(queries=3, **FEW_QUERIES[case])
        leaves = [x for x in given[:NUM_TENSORS] if x is not None and x.requires_grad]
        out = torch.ops.whence.fused_attention(*given)[0]
        assert [name for name in names if name in ("forward_kernel", "split_k_kernel", "combine_kernel")] == kernels
        gradients = torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)
        results.append([out, *(x for x in gradients if x is not None)])
    assert len(results[0]) == len(results[1]) >= 4
    for one, other in zip(*results, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("interpreted", "poisoned")
def test_rows_that_only_the_backward_pass_reads_are_filled(monkeypatch):
    # the dq kernel has blocks of 128 rows here, the forward kernel of 64; the sum for the slope is over all rows of a block
    monkeypatch.setattr(eager, "ENABLED", False)
    *tensors, grad_out = random_inputs(1, HEADS, 1, 20, 20, 80, 80, dtype=torch.float16)
    check_against_reference(Alibi(HEADS, learnable=True), tensors, grad_out, {"causal": True})
    (facts,) = operator_facts.kept.values()
    assert facts.fills_lse
    assert not facts.fills_delta(facts.dq_tile(0, 0))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    "layout", [None, heads_last, transposed], ids=["contiguous", "heads last", "width not together"]
)
def test_fake_backward_has_the_real_strides(layout):
    # a compiler lays out memory by what the fake operator says; q comes transposed from every projection
    options = arguments(effects=("score_scale", "bias", "sink", "clock", "row tables"), grad=False, layout=layout)
    answers = torch.ops.whence.fused_attention(*options)
    whole = [torch.ones_like(answers[0]), torch.ones_like(answers[3]), *answers, *options]
    needed = [True, False, True, False, True, True, True]
    real = torch.ops.whence.fused_attention_backward(*whole, needed)
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in whole]
        announced = torch.ops.whence.fused_attention_backward(*fakes, needed)
    for i, (a, b) in enumerate(zip(real, announced, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), i
        assert a.numel() == 0 or a.stride() == b.stride(), i


@pytest.mark.usefixtures("interpreted")
def test_second_derivative_raises():
    q, *rest = random_inputs(1, 1, 1, 5, 5, 16, 16)
    q.requires_grad_()
    out = attend(q, *rest[:2], position=Epar(1, context=9), causal=True, backend="triton")
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):  # not a silent zero
        torch.autograd.grad(first.square().sum(), q)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("make", [lambda: Epar(HEADS, context=9, learnable=True), lambda: T5Bias(HEADS, std=1.0)])
def test_gradients_under_activation_checkpointing(make, reentrant):
    # what is saved may be unpacked once only
    position = perturb(make())
    *tensors, grad_out = random_inputs(1, HEADS, 1, 20, 20, 16, 16)

    def function(*options):
        return attend(*options, position=position, causal=True, backend="triton")

    results = []
    for call in (function, lambda *options: checkpoint(function, *options, use_reentrant=reentrant)):
        leaves = [x.clone().requires_grad_() for x in tensors]
        position.zero_grad()
        call(*leaves).backward(grad_out)
        results.append([x.grad for x in leaves] + [p.grad.clone() for p in position.parameters()])
    for plain, checkpointed in zip(*results, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=0, atol=0)


# --- compilation ------------------------------------------------------------------------------------------------------------


COMPILED = {
    "no position": (lambda: None, {"causal": True, "window": 7}),
    "few numbers": (lambda: Epar(HEADS, context=9, learnable=True) + PowerPrior(HEADS, alpha=0.1), {"causal": True}),
    "dense": (lambda: T5Bias(HEADS, std=1.0) + Sink(HEADS), {"causal": True, "lengths": torch.tensor([20, 11])}),
    "fixed": (lambda: Alibi(HEADS), {"causal": True, "segment_ids": torch.arange(20) // 8}),
    "row tables": (lambda: Shaw(16, clip=3, value_dim=24), {"causal": True}),
    "coordinates": (lambda: SwinBias(HEADS, (4, 5)), {"causal": False}),
}


@pytest.mark.usefixtures("interpreted", "fresh_compiler")
@pytest.mark.parametrize("case", COMPILED)
def test_compiled_equals_eager(case, monkeypatch):
    make, options = COMPILED[case]
    position = make() if make() is None else perturb(make())
    *tensors, grad_out = random_inputs(2, HEADS, 1, 20, 20, 16, 24)
    parameters = [] if position is None else [p for p in position.parameters() if p.requires_grad]

    def function(q, k, v):
        return attend(q * 1.0, k, v, position=position, backend="triton", **options)

    results, launches = [], []
    launch = DirectLaunch.__call__

    def record(self, programs, *arguments):
        numbers = [x for x in arguments if isinstance(x, int | float)]
        launches[-1].append((self, self.kernel.__name__, programs, numbers, self.constants, self.options))
        launch(self, programs, *arguments)

    monkeypatch.setattr(DirectLaunch, "__call__", record)
    for call in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
        leaves = [x.clone().requires_grad_() for x in tensors]
        launches.append([])
        out = call(*leaves)
        results.append([out, *torch.autograd.grad(out, [*leaves, *parameters], grad_out)])
    for one, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, one, rtol=1e-5, atol=1e-5)
    first, second = launches  # the same launches, which the eager call has kept
    assert first == second
    if case == "no position":
        assert [name for _, name, *_ in first] == ["forward_kernel", "backward_dq_kernel", "backward_dkdv_kernel"]


@pytest.mark.usefixtures("interpreted", "fresh_compiler")
def test_compiles_to_one_operator():
    seen = []

    def spy(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    q, k, v, _ = random_inputs(1, HEADS, 1, 20, 20, 16, 16)
    position = Epar(HEADS, context=9, learnable=True)
    torch.compile(
        lambda: attend(q, k, v, position=position, causal=True, backend="triton"), fullgraph=True, backend=spy
    )()
    assert sum("whence.fused_attention" in name for name in seen) == 1


@pytest.mark.usefixtures("interpreted")
def test_signatures_tell_tensors_apart(monkeypatch):
    """A fixture checks that a reused launch fits its arguments; each of these needs another compiled kernel."""
    monkeypatch.setattr(tile_configs, "FEW_PAIRS", 2**40)  # pointers with strides
    position = perturb(T5Bias(HEADS, std=1.0))
    *tensors, grad_out = random_inputs(2, HEADS, 1, 20, 20, 16, 24)
    results = []
    for layout in (lambda t: t, heads_last):
        for grad_layout in (lambda t: t, heads_last):
            leaves = [layout(x).detach().requires_grad_() for x in tensors]
            out = attend(*leaves, position=position, causal=True, backend="triton")
            results.append([out, *torch.autograd.grad(out, [*leaves, position.table], grad_layout(grad_out))])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("interpreted")
def test_modes_intercept_the_operator(monkeypatch):
    """Without a mode, a plan launches the kernels, or the operator's implementation runs without a second turn through the
    dispatcher. Selective checkpointing is a mode, too: it could not keep the result of a plan."""
    monkeypatch.setattr("whence.attention.fused.eager.ENABLED", True)
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            seen.append(str(function))
            return function(*arguments, **(keywords or {}))

    q, k, v, grad_out = (x.requires_grad_() for x in random_inputs(1, HEADS, 1, 20, 20, 16, 16))
    with Watch():
        attend(q, k, v, position=Alibi(HEADS), causal=True, backend="triton").backward(grad_out.detach())
    assert {"whence.fused_attention.default", "whence.fused_attention_backward.default"} <= set(seen)


# --- lazy import ------------------------------------------------------------------------------------------------------


def fresh(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_triton_is_imported_lazily():
    code = (
        "import os, sys, torch, whence\nq = torch.zeros(1, 2, 4, 16)\n"
        "def say(): return dict(whence.explain(q, q, q, position=whence.Alibi(2), causal=True).others)['triton']\n"
        "say()\n"
        "whence.attend(q, q, q, position=whence.Alibi(2), causal=True)\n"
        "print('triton' in sys.modules)\n"
        # from here on as on a machine without it
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'triton' else find(name, *a)\n"
        "os.environ['TRITON_INTERPRET'] = '1'\n"
        "print(say())"
    )
    assert fresh(code).splitlines() == ["False", "triton is not installed"]


# --- unsupported calls ------------------------------------------------------------------------------------------------


def tokens(width=16, **about):
    return random_tensors((1, HEADS, 6, width), **about)[0]


UNSUPPORTED = {
    "dropped weights beside vectors of values": (
        lambda: ({"position": Shaw(16), "dropout": 0.1}, tokens()),
        "content_bias.*value_bias.*dropout",
    ),
    "gated counts beside a sink": (
        lambda: ({"position": Cope(16) + Sink(HEADS)}, tokens()),
        "content_bias.*Cope.*sink",
    ),
    "a length for each query beside a table": (
        lambda: ({"position": T5Bias(HEADS) + Fire(HEADS)}, tokens()),
        r"Fire.*length='query'",
    ),
    "a sequence length of padded texts": (
        lambda: ({"position": Epar(HEADS, length="sequence"), "lengths": torch.tensor([4])}, tokens()),
        r"Epar.*length='sequence'",
    ),
    "scattered positions": (
        lambda: ({"q_positions": torch.tensor([0, 1, 2, 3, 4, 9])}, tokens()),
        "positions.*consecutive",
    ),
    "float64": (lambda: ({}, tokens(dtype=torch.float64)), "float64"),
    "width": (lambda: ({}, tokens(width=300)), "256.*300|300.*256"),
    "weights": (
        lambda: ({"return_weights": True}, tokens()),
        "return_weights",
    ),
}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("case", UNSUPPORTED)
def test_unsupported_calls_are_explained_and_raise(case):
    make, reason = UNSUPPORTED[case]
    options, q = make()
    explained = dict(explain(q, q, q, causal=True, **options).others)["triton"]
    assert re.search(reason, explained)
    with pytest.raises(WhenceError) as caught:
        attend(q, q, q, causal=True, backend="triton", **options)
    assert explained in str(caught.value)


def test_cpu_without_interpreter_is_unsupported(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q, reason = tokens(), "CUDA.*cpu"
    assert re.search(reason, dict(explain(q, q, q, position=Alibi(HEADS), causal=True).others)["triton"])
    with pytest.raises(WhenceError, match=reason):
        attend(q, q, q, position=Alibi(HEADS), causal=True, backend="triton")


@pytest.mark.usefixtures("interpreted")
def test_auto_selects_triton():
    q = tokens()
    assert explain(q, q, q, position=Alibi(HEADS), causal=True).backend == "triton"
    assert explain(q, q, q, causal=True).backend == "sdpa"

"""The warp-specialised kernels in the operator: which calls they take, how tiles are divided, its compilation, and its results on a GPU."""

import os
import subprocess
import sys

import pytest
import torch
from reference_comparison import check_against_reference, perturb, random_inputs

import whence
from whence.attention.fused import eager, packing

pytest.importorskip("triton")
from whence.attention.fused import eager_plan, gluon_launch, launch, tile_configs

HEADS = 4


class Bump(whence.Position):
    """A user's own function."""

    def __init__(self, heads):
        super().__init__(heads=heads)
        self.centre = torch.nn.Parameter(torch.linspace(16, 300, heads)[:, None])

    def score_scale(self, distance, length):
        return 1 + 0.5 * torch.exp(-(((distance - self.centre) / 64) ** 2))


class Near(whence.Position):
    """A bias that lets far blocks be skipped, more of them in each head."""

    decays = True

    def bias(self, distance, length):
        return -((distance * torch.linspace(0.02, 0.2, self.heads, device=distance.device)[:, None]) ** 1.5)


class Steep(whence.Alibi):
    """A slope of one's own, without derivative tables."""

    def bias(self, distance, length):
        return 2 * super().bias(distance, length)

    def bias_slope(self):
        return 2 * super().bias_slope()


MECHANISMS = {
    "Steep": lambda h: Steep(h, learnable=True),
    "Steep, fixed": Steep,
    "Near": lambda h: Near(heads=h),
    "none": lambda h: None,
    "Epar": lambda h: whence.Epar(h, context=64, learnable=True),
    "PowerPrior": lambda h: whence.PowerPrior(h, alpha=0.1, beta=0.8),
    "T5Bias": lambda h: whence.T5Bias(h, std=1.0),
    "Epar + T5Bias": lambda h: whence.Epar(h, context=64, learnable=True) + whence.T5Bias(h, std=1.0),
    "Rotary + Epar": lambda h: whence.Rotary() + whence.Epar(h, context=64, learnable=True),
    "function": Bump,
    "Alibi": lambda h: whence.Alibi(h, learnable=True),
    "Sink": lambda h: whence.Epar(h, context=64) + whence.Sink(h),
}


# --- without a GPU ---------------------------------------------------------------------------------------------------

TAKEN = [{"name": name} for name in ("none", "Epar", "PowerPrior", "Epar + T5Bias", "Rotary + Epar", "function")]
TAKEN += [{"name": "PowerPrior", "skip_blocks": True}, {"head_dim": 64}]
TAKEN += [{"name": "Alibi"}, {"name": "Alibi", "head_dim": 64}]
OTHERS = [
    {"name": "Alibi", "scale": -0.1},
    {"name": "Alibi", "head_dim": 64, "kv_heads": HEADS},
    {"name": "Alibi", "window": 5},
    {"name": "Sink"},
    {"window": 5},
    {"causal": False, "name": "function"},
    {"scale": -0.1},
    {"dropout": 0.1},
    {"dtype": torch.float32},
    {"head_dim": 96},
    {"value_dim": 64},
    {"length": 9},
    {"keys": 30, "q_positions": torch.arange(10, 30), "k_positions": torch.arange(30)},
    {"lengths": torch.tensor([20, 11])},
    {"segment_ids": torch.arange(20) // 7},
    {"q_positions": torch.arange(5, 25), "k_positions": torch.arange(20)},
]


def make_call(
    name="Epar", length=20, keys=None, head_dim=128, value_dim=None, kv_heads=2, dtype=torch.bfloat16, **options
):
    keys, value_dim = keys or length, value_dim or head_dim
    q, k, v = (torch.zeros(2, h, n, d, dtype=dtype) for h, n, d in
               ((HEADS, length, head_dim), (kv_heads, keys, head_dim), (kv_heads, keys, value_dim)))  # fmt: skip
    options = {"causal": True, "skip_blocks": False} | options
    return whence.attend(q, k, v, position=MECHANISMS[name](HEADS), backend="triton", **options)


@pytest.fixture
def chosen(monkeypatch, interpreted):
    """Whether each call takes the kernel; the calls end there."""
    choices = []

    def stop_forward(call, lse):
        choices.append(launch.uses_gluon(call))
        return packing.empty_output(call.q, call.v), lse.new_empty(0, dtype=torch.int32), lse.new_empty(0)

    def stop_plan(plan, call, k, v, offset):
        choices.append(plan.uses_gluon)
        return packing.empty_output(call.arguments.q, v)

    monkeypatch.setattr(launch, "forward", stop_forward)
    monkeypatch.setattr(eager_plan.Plan, "run", stop_plan)
    monkeypatch.setattr(packing, "is_hopper", lambda device: True)
    monkeypatch.setattr(gluon_launch, "ENABLED", True)
    return choices


@pytest.mark.parametrize("planned", [False, True])
def test_which_calls_it_takes(chosen, monkeypatch, planned):
    monkeypatch.setattr(eager, "ENABLED", planned)
    for case in (*TAKEN, *OTHERS):
        make_call(**case)
        assert chosen.pop() == (case in TAKEN), case
    cache = whence.KVCache(capacity=64)
    with torch.no_grad():
        for length in (20, 17):  # what was appended before makes the keys more than the queries
            make_call(length=length, cache=cache)
    assert chosen.pop() is False


def test_a_slope_that_learns_is_a_table_only_with_derivative_tables(chosen, monkeypatch):
    monkeypatch.setattr(eager, "ENABLED", False)
    for name in ("Steep, fixed", "Steep", "Alibi"):
        make_call(name=name)
    assert chosen == [True, False, True]


@pytest.mark.parametrize(
    ("name", "hopper", "count_of_graphs"),
    [("none", True, 1), ("Epar", True, 1), ("Alibi", False, 1), ("Alibi", True, 2)],  # 2: a slope, then a table
)
def test_graphs_of_lengths_that_take_other_kernels(chosen, monkeypatch, fresh_compiler, name, hopper, count_of_graphs):
    monkeypatch.setattr(packing, "is_hopper", lambda device: hopper)
    monkeypatch.setattr(tile_configs, "FEW_PAIRS", 4 * 30**2)
    graphs, position = [], MECHANISMS[name](HEADS)

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, dynamic=True, backend=count)
    def run(q):
        return whence.attend(q, q, q, position=position, causal=True, skip_blocks=False, backend="triton")

    for length in (20, 24, 36, 40):
        run(torch.zeros(1, HEADS, length, 128, dtype=torch.bfloat16))
    assert len(graphs) == count_of_graphs and len(chosen) == 4


@pytest.mark.parametrize("reason", ["off", "no Hopper GPU", "another version", "no dialect", "loads by pointers"])
def test_the_triton_kernel_runs_otherwise(chosen, monkeypatch, reason):
    make_call()
    if reason == "off":
        monkeypatch.setattr(gluon_launch, "ENABLED", False)
    elif reason == "no Hopper GPU":
        monkeypatch.setattr(packing, "is_hopper", lambda device: False)
    elif reason == "another version":
        monkeypatch.setattr(gluon_launch.triton, "__version__", "3.8.0")
    elif reason == "no dialect":
        for name in ("gluon_forward", "gluon_dq", "gluon_dkdv"):
            monkeypatch.delitem(sys.modules, f"whence.attention.fused.{name}", raising=False)
            monkeypatch.delattr(f"whence.attention.fused.{name}", raising=False)
        monkeypatch.setitem(sys.modules, "triton.experimental.gluon", None)
    else:
        monkeypatch.setattr(packing, "has_tma", lambda device: False)
    make_call()
    assert chosen == [True, False]


def test_on_by_default():
    assert (os.environ.get("WHENCE_GLUON") != "0") == gluon_launch.ENABLED


@pytest.mark.parametrize(
    "heads, row_blocks, multiprocessors, excess",
    [(64, 32, 132, 0.02), (16, 128, 132, 0.02), (24, 40, 132, 0.05), (128, 9, 132, 0.05), (12, 40, 114, 0.05),
     (3, 3, 132, 0.0), (1, 1, 132, 0.0), (7, 5, 4, 0.05), (6, 7, 4, 0.05)],
)  # fmt: skip
def test_programs_compute_every_tile_once_and_end_together(heads, row_blocks, multiprocessors, excess):
    from gluon_emulator import gluon_roles  # imported there, since elsewhere in these tests kernels are interpreted

    count_tiles, find_tile = gluon_roles.count_tiles, gluon_roles.find_tile
    programs = min(heads * row_blocks, multiprocessors)
    tiles, *settings = gluon_launch.make_schedule(heads, row_blocks, programs)
    rounds = settings[2]
    found, costs = [], []
    for program in range(programs):
        turns = range(count_tiles.fn(program, programs, tiles, rounds))
        own = [find_tile.fn(program, programs, turn, *settings) for turn in turns]
        found += own
        costs.append(sum(block + 2 for _, block in own))  # blocks of keys, and what a tile costs beside them
    assert sorted(found) == [(head, block) for head in range(heads) for block in range(row_blocks)]
    ideal = max(sum(costs) / programs, row_blocks + 1)
    assert max(costs) <= (1 + excess) * ideal


LOWER = """
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from whence.attention.fused.gluon_dkdv import gluon_dkdv_kernel
from whence.attention.fused.gluon_dq import gluon_dq_kernel
from whence.attention.fused.gluon_forward import gluon_forward_kernel
from whence.attention.fused.gluon_launch import DQ_HEAD_DIM, covers_forward, dkdv_constants

tiles = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
numbers = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)
options = backend.parse_options({"num_warps": 4})


def lower(kernel, key_rows, lse, constants, head_dim):
    names = kernel.arg_names
    types = {"LSE": lse, "DELTA": lse, "MAX_DISTANCE": "*i32", "qk_scale": "fp32", "qk_grad_scale": "fp32"}
    types |= dict.fromkeys(("TABLE", "DERIVATIVES", "PARTIAL_SUMS"), "*fp32")
    for name in ("Q", "K", "V", "GRAD_OUT", "OUT", "DQ", "DK", "DV"):
        types[name] = f"tensordesc<bf16[1, 1, {key_rows if name in 'KV' else 64}, {head_dim}],{tiles!r}>"
    types |= dict.fromkeys(constants, "constexpr")
    values = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, {name: types.get(name, "i32") for name in names}, values, {})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    implementation = backend.get_codegen_implementation(options)
    assert source.make_ir(target, options, implementation, backend.get_module_map(), context).verify()


for head_dim in (64, 128):
    for scale, bias, derivatives in ((False, False, 0), (True, False, 2), (False, True, 3), (True, True, 0)):
        flags = {"HAS_SCORE_SCALE": scale, "HAS_BIAS": bias, "BLOCK_D": head_dim}
        if covers_forward(head_dim, scale, bias):
            lower(gluon_forward_kernel, 128, "*fp32", flags | {"SKIP_BLOCKS": derivatives == 3}, head_dim)
        if head_dim == DQ_HEAD_DIM:
            own = {"DERIVS": derivatives, "DERIV_WIDTH": (1, 1, 2, 4)[derivatives], "AMPLITUDE": derivatives == 2}
            lower(gluon_dq_kernel, 128, "*fp32", flags | own, head_dim)
        own = dkdv_constants(head_dim, scale, bias)
        lower(gluon_dkdv_kernel, 64, f"tensordesc<fp32[1, 64],{numbers!r}>", flags | own, head_dim)
"""


def test_they_lower_for_hopper_with_every_flag():
    """To Triton's intermediate form, in which layouts and barriers are checked; compile_targets.py goes on to machine code."""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    result = subprocess.run([sys.executable, "-c", LOWER], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]


# --- on a GPU --------------------------------------------------------------------------------------------------------

on_hopper = pytest.mark.skipif(
    not (torch.cuda.is_available() and packing.is_hopper(torch.device("cuda", 0))),
    reason="no GPU of compute capability 9.x here",
)
#: mechanism; batch, heads, key heads, tokens; dtype; options
CASES = {
    "EPAR": ("Epar", (2, 4, 4, 300), torch.bfloat16, {}),
    "EPAR, float16, grouped heads": ("Epar", (1, 4, 2, 3001), torch.float16, {}),
    "prior, float16": ("PowerPrior", (1, 2, 2, 129), torch.float16, {}),
    "prior, 5000 tokens": ("PowerPrior", (1, 2, 1, 5000), torch.bfloat16, {}),
    "T5, odd numbers of heads and blocks": ("T5Bias", (1, 3, 3, 300), torch.bfloat16, {}),
    "scale and bias": ("Epar + T5Bias", (2, 4, 1, 513), torch.bfloat16, {}),
    "rotary, one block": ("Rotary + Epar", (1, 2, 2, 64), torch.bfloat16, {}),
    "function, several rounds of pairs": ("function", (8, 16, 4, 1100), torch.bfloat16, {}),
    "blocks skipped": ("Near", (3, 8, 4, 3001), torch.bfloat16, {"skip_blocks": True}),
    "no position, scaled": ("none", (2, 4, 2, 700), torch.float16, {"scale": 0.2, "temperature": 1.3}),
    "ALiBi as a table": ("Alibi", (1, 4, 4, 300), torch.bfloat16, {}),
    "window: the Triton kernel": ("Epar", (1, 4, 4, 300), torch.bfloat16, {"window": 45}),
    "64: EPAR": ("Epar", (2, 4, 2, 300), torch.bfloat16, {}),
    "64: EPAR, half a block": ("Epar", (1, 2, 2, 193), torch.float16, {}),
    "64: prior, 5000 tokens": ("PowerPrior", (1, 2, 1, 5000), torch.bfloat16, {}),
    "64: scale and bias": ("Epar + T5Bias", (2, 4, 1, 513), torch.bfloat16, {}),
    "64: rotary, one block": ("Rotary + Epar", (1, 2, 2, 64), torch.bfloat16, {}),
    "64: function, several rounds of pairs": ("function", (8, 16, 4, 1100), torch.bfloat16, {}),
    "64: ALiBi as a table": ("Alibi", (1, 4, 2, 300), torch.bfloat16, {}),
    "64: ALiBi: the Triton kernel": ("Alibi", (1, 4, 4, 300), torch.bfloat16, {}),
    "64: blocks skipped": ("Near", (3, 8, 4, 3001), torch.bfloat16, {"skip_blocks": True}),
    "64: no position, scaled": ("none", (2, 4, 2, 700), torch.float16, {"scale": 0.2, "temperature": 1.3}),
}


#: cases whose kernel of dq, or kernels of all gradients, are Triton's: dense gradients, and skipped blocks
DENSE = ("T5, odd numbers of heads and blocks", "scale and bias", "function, several rounds of pairs")
DENSE += tuple(f"64: {name}" for name in DENSE)  # names begin with a head dimension other than 128
SKIPPING = ("blocks skipped", "64: blocks skipped")


@pytest.fixture
def launches(monkeypatch):
    """The kernels are on; their launches are counted."""
    counted = dict.fromkeys(("arguments", "dq_arguments", "dkdv_arguments"), 0)

    def count(name, function):
        def run(*tensors):
            counted[name] += 1
            return function(*tensors)

        return run

    monkeypatch.setattr(gluon_launch, "ENABLED", True)
    for name in counted:
        monkeypatch.setattr(gluon_launch, name, count(name, getattr(gluon_launch, name)))
    return counted


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name, planned, launches, monkeypatch, poisoned):
    monkeypatch.setattr(eager, "ENABLED", planned)
    mechanism, (batch, heads, groups, tokens), dtype, options = CASES[name]
    torch.manual_seed(1)
    position = MECHANISMS[mechanism](heads)
    position = None if position is None else perturb(position).cuda()
    head_dim = 64 if name.startswith("64") else 128
    *tensors, grad_out = random_inputs(
        batch, heads, groups, tokens, tokens, head_dim, head_dim, dtype=dtype, device="cuda"
    )
    for _ in range(1 + planned):  # Triton launches the first time, the plan itself the second time
        check_against_reference(position, tensors, grad_out, {"causal": True, "skip_blocks": False} | options)
    calls = 0 if "Triton" in name else 1 + planned
    assert launches["arguments"] == (0 if name == "64: scale and bias" else calls)
    assert launches["dq_arguments"] == (0 if name in DENSE + SKIPPING or head_dim == 64 else calls)
    assert launches["dkdv_arguments"] == (0 if name in SKIPPING else calls)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("planned", [False, True])
def test_in_a_graph(planned, launches, monkeypatch):
    monkeypatch.setattr(eager, "ENABLED", planned)
    position = whence.Epar(HEADS, context=64).cuda().requires_grad_(False)
    q, k, v, other = random_inputs(2, HEADS, 2, 1100, 1100, 128, 128, dtype=torch.bfloat16, device="cuda")

    def attend():
        return whence.attend(q, k, v, position=position, causal=True, backend="triton")

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend()
    q.copy_(other)
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, attend())
    assert launches["arguments"] == 4


@pytest.mark.gpu
@on_hopper
def test_compiled_equals_eager(launches, monkeypatch):
    monkeypatch.setattr(eager, "ENABLED", False)
    position = whence.PowerPrior(HEADS, alpha=0.1, beta=0.8).cuda()
    *tensors, grad_out = random_inputs(2, HEADS, 2, 700, 700, 128, 128, dtype=torch.bfloat16, device="cuda")
    results = []

    def attend(q, k, v):
        return whence.attend(q, k, v, position=position, causal=True, backend="triton", skip_blocks=False)

    for call in (attend, torch.compile(attend, fullgraph=True)):
        leaves = [x.clone().requires_grad_() for x in tensors]
        out = call(*leaves)
        results.append([out, *torch.autograd.grad(out, [*leaves, *position.parameters()], grad_out)])
    torch._dynamo.reset()
    for plain, compiled in zip(*results, strict=True):
        error = (compiled.float() - plain.float()).square().mean().sqrt() / plain.float().square().mean().sqrt()
        assert error <= 2**-6
    assert [*launches.values()] == [2, 2, 2]

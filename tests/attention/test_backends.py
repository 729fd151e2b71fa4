"""Which backend runs a call, why, and that each backend supports what it states."""

import dataclasses
import inspect
import itertools
import sys

import pytest
import torch
from backend_requests import D, H, chosen_name, explain_call, reason_against, request, tokens

from whence import (
    Alibi,
    Cope,
    Epar,
    Fire,
    Kerple,
    KVCache,
    Position,
    Rotary,
    Shaw,
    Sink,
    T5Bias,
    WhenceError,
    attend,
    explain,
)
from whence.attention.arguments import Arguments
from whence.attention.attend import Options
from whence.attention.backends import BACKENDS, choose
from whence.attention.sdpa import DENSE_BIAS

NO_EFFECT = "no part acts on the scores, so torch's kernel computes the whole call"
NO_GPU = "it needs a CUDA device, and q is on cpu"
TABLE = "of distance alone: tiles read a table, and memory stays linear in length"

CHOICES = {
    "no position": (lambda: explain_call(), "sdpa", NO_EFFECT),
    "rotary acts before any backend": (lambda: explain_call(Rotary()), "sdpa", NO_EFFECT),
    "a fixed small bias": (
        lambda: explain_call(Alibi(H)),
        "sdpa",
        "the only effect is a fixed bias of 144 numbers, small enough for a dense mask",
    ),
    "a fixed small bias for each row of a padded batch": (
        lambda: explain_call(Alibi(H), key_mask=torch.arange(6) >= torch.tensor([[0], [2]])),
        "sdpa",
        "the only effect is a fixed bias of 288 numbers, small enough for a dense mask",
    ),
    "a learnable bias": (lambda: explain_call(Kerple(H)), "blockwise", f"bias {TABLE}"),
    "a learnable bias without gradients": (
        lambda: explain_call(Kerple(H), grad=False),
        "sdpa",
        "the only effect is a fixed bias of 144 numbers, small enough for a dense mask",
    ),
    "a fixed bias too large to be dense": (lambda: explain_call(Alibi(H), length=1025), "blockwise", f"bias {TABLE}"),
    "a factor": (lambda: explain_call(Epar(H)), "blockwise", f"score_scale {TABLE}"),
    "a sink": (lambda: explain_call(Sink(H)), "blockwise", f"sink {TABLE}"),
    "three effects": (lambda: explain_call(Rotary() + Alibi(H) + Epar(H) + Sink(H)), "blockwise", f"bias and score_scale and sink {TABLE}"),
    "a length that differs for each query": (
        lambda: explain_call(Fire(H)),
        "blockwise",
        "rows are recomputed block by block (Fire has length='query', so the effect of a distance differs between queries), "
        "and memory stays linear in length",
    ),
    "content_bias": (
        lambda: explain_call(Shaw(D)),
        "blockwise",
        "rows are recomputed block by block (Shaw depends on the content of queries or keys), "
        "and memory stays linear in length",
    ),
    "positions with gaps": (
        lambda: explain_call(Epar(H), q_positions=torch.tensor([0, 1, 2, 3, 4, 9])),
        "blockwise",
        "rows are recomputed block by block (the positions are not one consecutive run), "
        "and memory stays linear in length",
    ),
    "consecutive positions": (lambda: explain_call(Epar(H), q_positions=torch.arange(6) + 3), "blockwise", f"score_scale {TABLE}"),
    "a sequence length in a padded batch": (
        lambda: explain_call(Epar(H, length="sequence"), lengths=torch.tensor([3, 6])),
        "blockwise",
        "rows are recomputed block by block (Epar has length='sequence', which differs between padded or packed sequences), "
        "and memory stays linear in length",
    ),
    "weights": (
        lambda: explain_call(Alibi(H), return_weights=True),
        "reference",
        "return_weights=True needs the dense computation, which forms the weights",
    ),
    "a name": (lambda: explain_call(Alibi(H), backend="reference"), "reference", "named by the caller"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_the_choice_and_its_reason(case):
    make, backend, why = CHOICES[case]
    actual = make()
    assert (actual.backend, actual.why) == (backend, why)
    assert {name for name, _ in actual.others} == set(BACKENDS) - {backend}
    assert str(actual).splitlines()[0] == f"{backend}: {why}"


def test_the_whole_text_of_an_explanation():
    assert str(explain_call(Epar(H))) == (
        f"blockwise: score_scale {TABLE}\n  flex: supported; memory linear in length on a GPU, quadratic on a CPU\n"
        "  reference: supported; memory quadratic in length\n"
        f"  sdpa: it does not apply score_scale\n  triton: {NO_GPU}"
    )
    weights = "it does not form the weights that return_weights=True returns"
    assert str(explain_call(return_weights=True)) == (
        "reference: return_weights=True needs the dense computation, which forms the weights\n"
        f"  blockwise: {weights}\n  flex: {weights}\n  sdpa: {weights}\n  triton: {weights}"
    )


@pytest.fixture
def gpu(monkeypatch):
    """A device on which the kernels would run, for decisions only."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return torch.device("cuda")


def test_the_limit_of_a_dense_bias_is_where_sdpa_states_it():
    assert chosen_name(request("bias", bias_numbers=DENSE_BIAS)) == "sdpa"
    assert chosen_name(request("bias", bias_numbers=DENSE_BIAS + 1)) == "blockwise"
    assert chosen_name(request(mask_numbers=DENSE_BIAS)) == "sdpa"
    assert chosen_name(request(mask_numbers=DENSE_BIAS + 1)) == "blockwise"
    traced = {"no_table": "of gaps", "compiling": True}
    assert chosen_name(request(mask_numbers=DENSE_BIAS + 1, input_gradient=True, **traced)) == "sdpa"
    assert chosen_name(request(mask_numbers=DENSE_BIAS + 1, **traced)) == "blockwise"
    assert chosen_name(request("bias", learnable=True)) == "blockwise"
    assert chosen_name(request("bias", dtype=torch.bfloat16)) == "blockwise"


@pytest.mark.parametrize("about", [{}, {"capacity": 9}, {"window": 3}], ids=["growing", "preallocated", "sliding"])
def test_explain_leaves_the_cache_as_it_was(about):
    cache, q = KVCache(**about), torch.randn(2, H, 4, D)
    same = {"position": Alibi(H), "causal": True, "window": about.get("window"), "cache": cache}
    explain(q, q, q, **same)
    assert (len(cache), cache.seq_length) == (0, 0)
    first = attend(q, q, q, **same)
    held = [t.clone() for t in cache._view()]
    for _ in range(2):
        assert explain(q[:, :, :1], q[:, :, :1], q[:, :, :1], **same).backend == "sdpa"
    assert repr(cache).endswith(f"{len(cache)} of 4 tokens stored)")
    assert all(torch.equal(a, b) for a, b in zip(held, cache._view(), strict=True))
    assert first.shape == q.shape


def test_explain_looks_into_a_cache_that_carries_gradients():
    cache, q = KVCache(), torch.randn(1, H, 3, D, requires_grad=True)
    attend(q * 2, q * 2, q * 2, causal=True, cache=cache)
    assert explain(q, q, q, causal=True, position=Epar(H), cache=cache).backend == "blockwise"
    assert cache._entries.k.requires_grad and len(cache) == 3


def test_explain_names_what_attend_then_runs(monkeypatch):
    ran = []
    for name in ("blockwise", "sdpa", "reference"):
        kind, original = type(BACKENDS[name]), type(BACKENDS[name]).run
        monkeypatch.setattr(kind, "run", lambda self, call, _f=original: (ran.append(self.name), _f(self, call))[1])
    q = tokens()
    for position in (None, Rotary(), Alibi(H), Epar(H), Kerple(H), Shaw(D), Cope(D), Sink(H), T5Bias(H)):
        for weights in (False, True):
            named = explain(q, q, q, position=position, causal=True, return_weights=weights).backend
            attend(q, q, q, position=position, causal=True, return_weights=weights)
            assert ran.pop() == named


# --- the support table is honest ----------------------------------------------------------------------------------------

HOOKS = {
    "score_scale": lambda self, distance, length: torch.ones_like(distance) * 0.5,
    "bias": lambda self, distance, length: -distance.abs(),
    "sink": lambda self, position, length: torch.zeros_like(position),
    "content_bias": lambda self, rows: rows.scores * 0.5,
    "value_bias": lambda self, weights, rows: weights @ rows.k,
    "rotate": lambda self, q, k, q_positions, k_positions: (q * 2, k * 2),
    "clock": lambda self, x: -x[..., :H].abs().transpose(1, 2),
}


def build_position(*names):
    return type("Mine", (Position,), {name: HOOKS[name] for name in names})()


def runs(backend, effects, weights=False):
    torch.manual_seed(0)
    q = torch.randn(1, H, 5, D, dtype=torch.float64)
    try:
        position = build_position(*effects)
        clock = position.clock(q.transpose(1, 2).flatten(2)) if "clock" in effects else None
        out = attend(q, q, q, position=position, clock=clock, backend=backend, return_weights=weights)
    except WhenceError:
        return None
    return out


HERE = [name for name in BACKENDS if name not in ("triton", "flex")]  # these have tests of their own
ANY_EFFECTS = [c for n in (0, 1, 2, 3, len(HOOKS)) for c in itertools.combinations(HOOKS, n)]


@pytest.mark.parametrize("backend", HERE)
def test_support_says_yes_exactly_where_a_call_runs(backend):
    for effects in ANY_EFFECTS:
        out = runs(backend, effects)
        says = set(effects) - {"rotate"} <= BACKENDS[backend].effects
        assert (out is not None) == says, effects
        if out is not None:  # and what runs is right: an effect that is accepted is also applied
            expected, about = runs("reference", effects), f"{effects}: "
            torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12, msg=about.__add__)


@pytest.mark.parametrize("backend", HERE)
def test_support_of_weights_is_what_happens(backend):
    assert (runs(backend, (), weights=True) is not None) == BACKENDS[backend].returns_weights


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_backend_takes_the_dtypes_it_lists(backend, dtype):
    assert BACKENDS[backend].dtypes == "fp64, fp32, fp16, bf16"
    q = torch.randn(1, H, 5, D).to(dtype)
    out = attend(q, q, q, position=Alibi(H), causal=True, backend=backend)
    assert out.dtype == dtype
    exact = attend(*(t.double() for t in (q, q, q)), position=Alibi(H).double(), causal=True, backend="reference")
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", HERE)
def test_every_backend_gives_gradients_to_every_parameter_it_can_run(backend):
    assert BACKENDS[backend].gradients.startswith("q, k, v and every parameter")
    position = Alibi(H, learnable=True)
    q = torch.randn(1, H, 5, D, requires_grad=True)
    attend(q, q, q, position=position, causal=True, backend=backend).square().sum().backward()
    assert all(t.grad is not None and t.grad.abs().max() > 0 for t in (q, *position.parameters()))


def test_which_backends_give_gradients_of_any_order():
    """The others refuse a second derivative; ``test_derivatives`` holds the values against each other."""
    position = Epar(1, learnable=True).double()
    for name, actual in BACKENDS.items():
        if name in ("reference", "blockwise"):
            assert actual.gradients.endswith("of any order")
            q = torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True)
            out = attend(q, q, q, position=position, backend=name)
            first = torch.autograd.grad(out.sum(), q, create_graph=True)[0]
            assert torch.autograd.grad(first.square().sum(), q)[0].abs().max() > 0
        else:
            assert "any order" not in actual.gradients


def test_what_compilers_and_exporters_may_use():
    assert reason_against("blockwise", request("score_scale", learnable=True)) is None
    exporting = request("score_scale", compiling=True, exporting=True)
    assert reason_against("blockwise", exporting) == "its loops do not export"
    assert choose(exporting)[1] == "no faster backend supports this call"
    rows = request("score_scale", compiling=True, no_table="of gaps", input_gradient=True)
    assert chosen_name(dataclasses.replace(rows, input_gradient=False)) == "blockwise"  # nothing is recomputed
    assert (
        reason_against("blockwise", rows)
        == "torch.compile cannot trace its recomputed rows, which are needed because of gaps"
    )
    assert chosen_name(exporting) == chosen_name(rows) == "reference"
    assert reason_against("reference", rows) is None


def test_what_auto_chooses_can_always_run(gpu):
    flag = (False, True)
    some_effects = (), ("bias",), ("score_scale",), ("bias", "content_bias"), ("sink",)
    for effects, weights, learnable, no_table, compiling, exporting, device in itertools.product(
        some_effects, flag, flag, (None, "x"), flag, flag, (torch.device("cpu"), gpu)
    ):
        facts = request(
            *effects, return_weights=weights, learnable=learnable, no_table=no_table, compiling=compiling,
            exporting=exporting, device=device,
        )  # fmt: skip
        assert choose(facts)[0].supports(facts) is None, facts


def test_on_a_gpu_tables_are_fused(gpu):
    there = request("score_scale", learnable=True, dtype=torch.bfloat16, device=gpu)
    backend, why = choose(there)
    assert (backend.name, why) == ("triton", "score_scale of distance alone: one fused kernel reads a table")
    masked = dataclasses.replace(there, effects=frozenset(), mask_numbers=9)
    assert choose(masked)[0].name == "triton" and "dense mask of 9 numbers" in choose(masked)[1]
    assert chosen_name(dataclasses.replace(masked, mask_numbers=0)) == "sdpa"
    assert chosen_name(dataclasses.replace(there, no_table="of gaps")) == "blockwise"
    assert chosen_name(dataclasses.replace(there, exporting=True, compiling=True)) == "reference"
    assert chosen_name(dataclasses.replace(there, return_weights=True)) == "reference"


def test_head_dimensions_fit_into_shared_memory(gpu, monkeypatch):
    from whence.attention.fused import packing

    largest = {(8, 0): (256, 128), (8, 6): (128, 64), (8, 9): (128, 64), (9, 0): (256, 256), (12, 0): (128, 64)}
    for capability, dims in largest.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert packing.has_tma(gpu) == (capability == (9, 0))
        for dtype, dim in zip((torch.bfloat16, torch.float32), dims, strict=True):
            facts = request("bias", dtype=dtype, device=gpu, head_dim=dim, value_dim=16)
            assert reason_against("triton", facts) is None, (capability, dtype)
            reason = reason_against("triton", dataclasses.replace(facts, value_dim=dim + 1))
            assert reason == f"it supports head dimensions up to {dim}, not {dim + 1}"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "8.0 or newer" in reason_against("triton", facts)


def test_torch_compile_asks_for_the_capability_of_the_gpu(gpu, monkeypatch):
    """A traced call is refused where an eager one is."""
    facts = request("bias", dtype=torch.bfloat16, device=gpu, head_dim=256)
    for capability in ((7, 5), (8, 6), (9, 0)):
        torch._dynamo.reset()
        driver = torch.compiler.disable(lambda device, capability=capability: capability)  # as the driver, not traced
        monkeypatch.setattr(torch.cuda, "get_device_capability", driver)
        traced = torch.compile(lambda x: (x, reason_against("triton", facts)), fullgraph=True, backend="eager")
        assert traced(torch.zeros(1))[1] == reason_against("triton", facts)
        assert (reason_against("triton", facts) is None) == (capability == (9, 0))


@pytest.mark.parametrize("keys, skips", [(1024, False), (1025, True)])
def test_far_keys_are_left_out_where_that_pays(keys, skips):
    from types import SimpleNamespace

    from whence.attention.fused.backend import can_skip_blocks

    layout = SimpleNamespace(offset=0, causal=True, real=None, q_segment_ids=None, k_segment_ids=None)
    assert can_skip_blocks(layout, keys, keys) is skips
    layout.real = torch.ones(1, keys, dtype=torch.bool)  # kernels look at the padding themselves
    assert can_skip_blocks(layout, keys, keys) is skips
    layout.offset = -1  # the first query has no key of its own
    assert not can_skip_blocks(layout, keys, keys)


# --- one list of arguments ----------------------------------------------------------------------------------------------


def test_the_arguments_of_attend_are_those_of_the_call_object():
    """``Arguments`` lists them; the signature and the types for type checkers say the same."""
    signature = inspect.signature(attend).parameters
    fields = {field.name: field.default for field in dataclasses.fields(Arguments)}
    assert list(signature) == list(fields)
    assert all(signature[name].default == default for name, default in fields.items() if name not in ("q", "k", "v"))
    assert set(Options.__annotations__) | {"q", "k", "v", "return_weights"} == set(fields)


def test_attend_hands_on_every_argument(monkeypatch):
    sentinels = {field.name: object() for field in dataclasses.fields(Arguments)}
    received = []
    monkeypatch.setattr(
        sys.modules["whence.attention.attend"], "compute", lambda arguments: (received.append(arguments), None)
    )
    attend(**sentinels)
    assert {name: getattr(received[0], name) for name in sentinels} == sentinels


def test_explain_refuses_an_unknown_argument():
    with pytest.raises(TypeError, match="padding"):
        explain(tokens(), tokens(), tokens(), padding=None)


@pytest.mark.parametrize("position", ["rotary", Rotary])
def test_a_position_is_an_instance(position):
    with pytest.raises(WhenceError, match=r"(?i)position=.*rotary.*instance.*Rotary\("):
        attend(tokens(), tokens(), tokens(), position=position)

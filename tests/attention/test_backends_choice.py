"""Which backend runs a call: the choice, its text, and that what the support table says is what happens."""

import dataclasses
import importlib
import itertools

import pytest
import torch

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
from whence.attention.support import DENSE_BIAS, SUPPORT, Request, prefer, why_not

H, D = 4, 8


def tokens(length=6, heads=H, **about):
    return torch.zeros(2, heads, length, D, **about)


def ask(position=None, length=6, causal=True, grad=True, **arguments):
    q = tokens(length)
    with torch.set_grad_enabled(grad):
        return explain(q, q, q, position=position, causal=causal, **arguments)


NO_EFFECT = "no part acts on the scores, so torch's own kernel does all of it"
NO_GPU = "it needs a CUDA device, and q is on cpu"
TABLE = "of distance alone: tiles read a table, and memory stays linear in length"

CHOICES = {
    "no position": (lambda: ask(), "sdpa", NO_EFFECT),
    "rotary acts before any backend": (lambda: ask(Rotary()), "sdpa", NO_EFFECT),
    "a fixed small bias": (
        lambda: ask(Alibi(H)),
        "sdpa",
        "the only effect is a fixed bias of 144 numbers, small enough for a dense mask",
    ),
    "a fixed small bias for each row of a padded batch": (
        lambda: ask(Alibi(H), key_mask=torch.arange(6) >= torch.tensor([[0], [2]])),
        "sdpa",
        "the only effect is a fixed bias of 288 numbers, small enough for a dense mask",
    ),
    "a learnable bias": (lambda: ask(Kerple(H)), "blockwise", f"bias {TABLE}"),
    "a learnable bias without gradients": (
        lambda: ask(Kerple(H), grad=False),
        "sdpa",
        "the only effect is a fixed bias of 144 numbers, small enough for a dense mask",
    ),
    "a fixed bias too large to be dense": (lambda: ask(Alibi(H), length=1025), "blockwise", f"bias {TABLE}"),
    "a factor": (lambda: ask(Epar(H)), "blockwise", f"factor {TABLE}"),
    "a sink": (lambda: ask(Sink(H)), "blockwise", f"sink {TABLE}"),
    "three effects": (lambda: ask(Rotary() + Alibi(H) + Epar(H) + Sink(H)), "blockwise", f"bias and factor and sink {TABLE}"),
    "a length that differs for each query": (
        lambda: ask(Fire(H)),
        "blockwise",
        "rows are recomputed block by block (Fire has length='query', so a distance weighs differently for each query), "
        "and memory stays linear in length",
    ),
    "content_bias": (
        lambda: ask(Shaw(D)),
        "blockwise",
        "rows are recomputed block by block (Shaw depends on the content of queries or keys), "
        "and memory stays linear in length",
    ),
    "positions with gaps": (
        lambda: ask(Epar(H), q_positions=torch.tensor([0, 1, 2, 3, 4, 9])),
        "blockwise",
        "rows are recomputed block by block (the positions are not one consecutive run), "
        "and memory stays linear in length",
    ),
    "consecutive positions": (lambda: ask(Epar(H), q_positions=torch.arange(6) + 3), "blockwise", f"factor {TABLE}"),
    "a sequence length in a padded batch": (
        lambda: ask(Epar(H, length="sequence"), lengths=torch.tensor([3, 6])),
        "blockwise",
        "rows are recomputed block by block (Epar has length='sequence', which differs between padded or packed texts), "
        "and memory stays linear in length",
    ),
    "weights": (
        lambda: ask(Alibi(H), return_weights=True),
        "reference",
        "the weights were asked for, and only the dense computation forms them",
    ),
    "a name": (lambda: ask(Alibi(H), backend="reference"), "reference", "it was asked for by name"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_the_choice_and_its_reason(case):
    make, backend, why = CHOICES[case]
    found = make()
    assert (found.backend, found.why) == (backend, why)
    assert {name for name, _ in found.others} == set(SUPPORT) - {backend}
    assert str(found).splitlines()[0] == f"{backend}: {why}"


def test_the_whole_text_of_an_explanation():
    assert str(ask(Epar(H))) == (
        f"blockwise: factor {TABLE}\n  reference: possible; memory quadratic in length\n"
        f"  triton: {NO_GPU}\n  sdpa: it has no factor effect"
    )
    assert str(ask(return_weights=True)) == (
        "reference: the weights were asked for, and only the dense computation forms them\n"
        "  blockwise: it never forms the weights that return_weights asks for\n"
        "  triton: it never forms the weights that return_weights asks for\n"
        "  sdpa: it never forms the weights that return_weights asks for"
    )


def test_the_limit_of_a_dense_bias_is_where_the_table_says():
    request = Request(frozenset({"bias"}), False, False, False, DENSE_BIAS, 0, None, NO_GPU, False, False)
    assert prefer(request)[0] == "sdpa"
    assert prefer(dataclasses.replace(request, dense_numbers=DENSE_BIAS + 1))[0] == "blockwise"


@pytest.mark.parametrize("about", [{}, {"capacity": 9}, {"window": 3}], ids=["growing", "preallocated", "sliding"])
def test_explain_leaves_the_cache_as_it_was(about):
    cache, q = KVCache(**about), torch.randn(2, H, 4, D)
    same = {"position": Alibi(H), "causal": True, "window": about.get("window"), "cache": cache}
    explain(q, q, q, **same)
    assert (len(cache), cache.seen) == (0, 0)
    first = attend(q, q, q, **same)
    held = [t.clone() for t in cache._view()]
    for _ in range(2):
        assert explain(q[:, :, :1], q[:, :, :1], q[:, :, :1], **same).backend == "sdpa"
    assert repr(cache).endswith(f"{len(cache)} tokens held of 4 seen)")
    assert all(torch.equal(a, b) for a, b in zip(held, cache._view(), strict=True))
    assert first.shape == q.shape


def test_explain_looks_into_a_cache_that_carries_gradients():
    cache, q = KVCache(), torch.randn(1, H, 3, D, requires_grad=True)
    attend(q * 2, q * 2, q * 2, causal=True, cache=cache)
    assert explain(q, q, q, causal=True, position=Epar(H), cache=cache).backend == "blockwise"
    assert cache._held.k.requires_grad and len(cache) == 3


def test_explain_names_what_attend_then_runs(monkeypatch):
    ran = []
    for name in ("blockwise", "sdpa", "reference"):
        module = importlib.import_module(f"whence.attention.{name}")
        original = module.attend
        monkeypatch.setattr(module, "attend", lambda *a, _n=name, _f=original, **k: (ran.append(_n), _f(*a, **k))[1])
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
}


def user(*names):
    return type("Mine", (Position,), {name: HOOKS[name] for name in names})()


def runs(backend, effects, weights=False):
    torch.manual_seed(0)
    q = torch.randn(1, H, 5, D, dtype=torch.float64)
    try:
        out = attend(q, q, q, position=user(*effects), backend=backend, return_weights=weights)
    except WhenceError:
        return None
    return out


HERE = [name for name in SUPPORT if name != "triton"]  # tests/attention/fused has the same for the kernels
ANY_EFFECTS = [c for n in range(len(HOOKS) + 1) for c in itertools.combinations(HOOKS, n)]


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("effects", ANY_EFFECTS, ids=lambda c: "+".join(c) or "none")
def test_support_says_yes_exactly_where_a_call_runs(backend, effects):
    out = runs(backend, effects)
    says = set(effects) - {"rotate"} <= SUPPORT[backend].effects
    assert (out is not None) == says
    if out is not None:  # and what runs is right: an effect that is accepted is also applied
        torch.testing.assert_close(out, runs("reference", effects), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", HERE)
def test_support_of_weights_is_what_happens(backend):
    assert (runs(backend, (), weights=True) is not None) == SUPPORT[backend].weights


@pytest.mark.parametrize("backend", HERE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_backend_takes_the_dtypes_it_lists(backend, dtype):
    assert SUPPORT[backend].dtypes == "fp64, fp32, fp16, bf16"
    q = torch.randn(1, H, 5, D).to(dtype)
    out = attend(q, q, q, position=Alibi(H), causal=True, backend=backend)
    assert out.dtype == dtype
    exact = attend(*(t.double() for t in (q, q, q)), position=Alibi(H).double(), causal=True, backend="reference")
    tolerance = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", HERE)
def test_every_backend_gives_gradients_to_every_parameter_it_can_run(backend):
    assert SUPPORT[backend].gradients.startswith("q, k, v and every parameter")
    position = Alibi(H, learnable=True)
    q = torch.randn(1, H, 5, D, requires_grad=True)
    attend(q, q, q, position=position, causal=True, backend=backend).square().sum().backward()
    assert all(t.grad is not None and t.grad.abs().max() > 0 for t in (q, *position.parameters()))


def test_which_backends_give_gradients_of_any_order():
    """The others refuse a second derivative; ``test_derivatives`` holds the values against each other."""
    position = Epar(1, learnable=True).double()
    for name, support in SUPPORT.items():
        if name in ("reference", "blockwise"):
            assert support.gradients.endswith("of any order")
            q = torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True)
            out = attend(q, q, q, position=position, backend=name)
            first = torch.autograd.grad(out.sum(), q, create_graph=True)[0]
            assert torch.autograd.grad(first.square().sum(), q)[0].abs().max() > 0
        else:
            assert "any order" not in support.gradients


def test_what_compilers_and_exporters_may_use():
    plain = Request(frozenset({"score_scale"}), False, True, False, 10, 0, None, NO_GPU, False, False)
    assert why_not("blockwise", plain) is None
    exporting = dataclasses.replace(plain, compiling=True, exporting=True)
    assert why_not("blockwise", exporting) == "its loops do not export"
    assert prefer(exporting) == ("reference", "blockwise is closed here (its loops do not export)")
    rows = dataclasses.replace(plain, compiling=True, tables_closed="of gaps")
    reason = "torch.compile cannot trace its recomputed rows, which are needed because of gaps"
    assert why_not("blockwise", rows) == reason
    assert prefer(rows) == ("reference", f"blockwise is closed here ({reason})")
    assert why_not("reference", rows) is None


@pytest.mark.parametrize(
    "effects, weights, learns, closed, compiling, exporting",
    list(itertools.product(
        [(), ("bias",), ("score_scale",), ("bias", "content_bias"), ("rotate", "sink")], *([[False, True]] * 2),
        [None, "x"], *([[False, True]] * 2),
    )),
)  # fmt: skip
def test_what_auto_prefers_can_always_run(effects, weights, learns, closed, compiling, exporting):
    for here in (NO_GPU, None):
        request = Request(frozenset(effects), weights, learns, False, 10, 0, closed, here, compiling, exporting)
        backend, _ = prefer(request)
        assert why_not(backend, request) is None


def test_on_a_gpu_tables_are_fused():
    there = Request(frozenset({"score_scale"}), False, True, True, 10, 0, None, None, False, False)
    assert prefer(there) == ("triton", "factor of distance alone: one fused kernel reads a table")
    masked = dataclasses.replace(there, effects=frozenset(), mask_numbers=9)
    assert prefer(masked) == ("triton", "torch's own kernel would need a dense mask of 9 numbers")
    assert prefer(dataclasses.replace(masked, mask_numbers=0))[0] == "sdpa"
    assert prefer(dataclasses.replace(there, tables_closed="of gaps"))[0] == "blockwise"
    assert prefer(dataclasses.replace(there, exporting=True, compiling=True))[0] == "reference"
    assert prefer(dataclasses.replace(there, weights=True))[0] == "reference"


@pytest.mark.parametrize("keys, skips", [(1024, False), (1025, True)])
def test_far_keys_are_left_out_where_that_pays(keys, skips):
    from types import SimpleNamespace

    from whence.attention.fused.backend import can_skip

    layout = SimpleNamespace(offset=0, causal=True, real=None, q_segment_ids=None, k_segment_ids=None)
    assert can_skip(layout, keys, keys) is skips
    layout.real = torch.ones(1, keys, dtype=torch.bool)
    assert not can_skip(layout, keys, keys)

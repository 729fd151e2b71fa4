"""Random calls with wrong arguments: refused well, or accepted and right. ``--cases 10000`` runs that many in all."""

import pytest
import torch
from call_verification import require_finite_far_away
from invalid_calls import FAMILIES, run_cases

import whence
from whence import Alibi, Attention, Kerple, KVCache, Learned, Position, PowerPrior, Rotary, Sink, Sum, attend
from whence.position.hooks import HOOKS

CASES = 2000
#: of ten calls
SHARES = {"constructors": 3, "attend": 2, "cached attend": 1.5, "Attention": 1, "sums": 0.5, "cache": 0.5, "pointers": 1, "explain": 0.5}  # fmt: skip


def test_every_family_has_its_share():
    assert SHARES.keys() == FAMILIES.keys() and sum(SHARES.values()) == 10


@pytest.mark.parametrize("family", FAMILIES)
def test_an_invalid_call_raises_or_equals_the_reference(family, request, record_property):
    cases = request.config.getoption("--cases") or CASES
    outcome = run_cases(family, round(cases * SHARES[family] / 10))
    record_property("counts", dict(outcome.counts))
    print(family, dict(outcome.counts))
    assert not outcome.wrong, f"{len(outcome.wrong)} of {outcome.counts.total()}:\n" + "\n".join(outcome.wrong[:10])
    assert outcome.counts["refused"] and outcome.counts["accepted"]  # a fuzzer that sees only one of them is broken


def assert_error(make, *words):
    with pytest.raises(whence.WhenceError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def tensors(dtype=torch.float64):
    return [torch.randn(1, 2, 4, 8, dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize("flag", ["causal", "skip_blocks", "return_weights", "check_finite"])
@pytest.mark.parametrize("value", ["no", 1, None, torch.tensor(True)], ids=["str", "int", "None", "tensor"])
def test_a_truthy_value_is_no_flag(flag, value):
    assert_error(lambda: attend(*tensors(), **{flag: value}), f"attend({flag}=...)", "True or False")


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: Alibi(True), "heads"),
        (lambda: Attention(16, True), "heads"),
        (lambda: Alibi(2**40), "heads"),
        (lambda: whence.Sinusoidal(8, scale="x"), "scale"),
        (lambda: Learned(8, 8, std=float("nan")), "std"),
        (lambda: Learned(2**24, 2**31 - 1), "table"),
        (lambda: whence.position.Yarn(2.0, 8, attention_factor=float("nan")), "attention_factor"),
        (lambda: whence.Fire(2, length=None), "length"),
        (lambda: whence.Epar(length=None), "length"),
        (lambda: whence.Epar(length="query", context="x"), "context"),
        (lambda: whence.Epar(2, alpha=1e308), "overflow"),
        (lambda: whence.Epar(2, alpha=1e-308), "vanish"),
        (lambda: whence.Epar(2, alpha="1"), "alpha"),
        (lambda: whence.Epar(2, alpha=[True, 1.0]), "alpha"),
        (lambda: Kerple(2, learnable="yes"), "learnable"),
        (lambda: whence.T5Bias(2, buckets=2**20), "buckets"),
        (lambda: Attention(16, 2, causal="no"), "causal"),
        (lambda: Attention(16, 2, backend=["sdpa"]), "backend"),
        (lambda: Attention(16, 2, temperature=0), "temperature"),
        (lambda: KVCache(capacity=2**62), "capacity"),
        (lambda: attend(*tensors(), backend={}), "backend"),
        (lambda: attend(*tensors(), window=2**70), "window"),
    ],
)
def test_arguments_of_wrong_type_or_size_raise(make, name):
    assert_error(make, name)


@pytest.mark.parametrize(
    "position",
    [
        Alibi(2, scale=1e10, slope=[1e10, 1e-15]),
        Kerple(2, form="power", r1=1e6, r2=2.0, learnable=False),
        Kerple(2, form="log", r1=1e6, r2=1e10),
        PowerPrior(2, alpha=1e30, beta=1e10),
        whence.Epar(2, alpha=1e10, beta=1e10, gamma=1e10, context=1),
        whence.Epar(2, alpha=1e-15, beta=1e-15, gamma=1e-15, learnable=True, length="query"),
        whence.Fire(2, c=1e10, threshold=1e-15),
        whence.Sandwich(2, base=1e-15),
        whence.T5Bias(2, std=1000),
    ],
    ids=str,
)
def test_the_largest_numbers_allowed_lead_to_finite_results(position):
    require_finite_far_away(position)
    q, k, v = (x.float() for x in tensors())
    far = torch.tensor([0, 1, 2**20, 2**20 + 1])
    learnt = [x for x in position.parameters() if x.requires_grad]
    for backend in ("reference", "blockwise"):
        out = attend(q, k, v, position=position, causal=True, q_positions=far, backend=backend)
        assert torch.isfinite(out).all()
        for grad in torch.autograd.grad(out.square().sum(), learnt) if learnt else ():
            assert torch.isfinite(grad).all()


def test_the_boundaries_of_far_buckets_are_found_without_counting_up_to_them():
    # one step for each distance would take minutes
    assert whence.position.t5.bucket_boundaries("causal", 32, 2**31 - 1)[-1] < 2**31 - 1


@pytest.mark.parametrize(
    "spoil, kind",
    [
        (lambda x: x.to_sparse(), "torch.sparse_coo"),
        (lambda x: x.to(torch.complex64), "complex64"),
        (lambda x: torch.nested.nested_tensor([x[0]]), "nested"),
        (lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8), "quantized"),
        (lambda x: x.to(torch.float8_e4m3fn), "float8"),
    ],
)
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_are_dense_and_real(spoil, kind, name):
    given = dict(zip("qkv", tensors(), strict=True))
    given[name] = spoil(given[name])
    assert_error(lambda: attend(**given), f"attend({name})", kind)
    assert_error(lambda: Attention(8, 2)(spoil(torch.randn(1, 4, 8))), "Attention(x)", kind)


def test_a_tensor_on_the_meta_device_has_no_numbers():
    assert_error(lambda: attend(*(x.to("meta") for x in tensors())), "attend(q)", "meta device")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_of_an_instance_is_an_error(hook):
    # it would be ignored: hooks are found on the class
    position = Alibi(2)
    assert_error(lambda: setattr(position, hook, lambda *_: None), f"Alibi.{hook}", "subclass")
    position.note = "other attributes are free"

    class Mine(Position):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.ones(3))

    assert_error(Mine, "Mine.bias", "another name")


def test_a_mechanism_without_super_init_raises():
    class Mine(Position):
        def __init__(self):
            pass

    for use in (
        lambda: attend(*tensors(), position=Mine()),
        lambda: Mine() + Alibi(2),
        lambda: Attention(8, 2, Mine()),
    ):
        assert_error(use, "Mine", "super().__init__()")


def test_sums_of_many_parts_and_wrong_parts():
    assert_error(lambda: sum([Alibi(2), Rotary()]), "only a Position can be added", "Sum(*positions)")
    assert_error(lambda: "x" + Alibi(2), "str")
    parts = [PowerPrior(alpha=1e-3) for _ in range(2000)]
    assert_error(lambda: Sum(*parts, parts[0]), "the same object twice")
    q, k, v = tensors()
    actual = attend(q, k, v, position=Sum(*parts).double())
    torch.testing.assert_close(actual, attend(q, k, v, position=PowerPrior(alpha=2.0).double()), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint64])
def test_a_cache_is_reordered_by_any_integers_and_never_to_nothing(dtype):
    cache = KVCache()
    x = torch.randn(2, 2, 3, 8)
    attend(x, x, x, causal=True, cache=cache)
    first = cache._entries.k.clone()
    cache.reorder(torch.tensor([1, 0], dtype=dtype))
    assert torch.equal(cache._entries.k, first.flip(0))
    assert_error(lambda: cache.reorder(torch.empty(0, dtype=dtype)), "reorder", "at least one")
    assert torch.equal(cache._entries.k, first.flip(0))


def test_a_layer_takes_the_dtype_it_has():
    layer = Attention(16, 2, Sink(2), causal=True)
    assert_error(lambda: layer(torch.randn(1, 3, 16).double()), "Attention(x)", "float64", "x.to(torch.float32)")
    assert_error(lambda: layer(torch.randn(1, 3, 16), memory_positions=torch.arange(3)), "memory_positions", "memory")
    assert_error(lambda: layer(torch.randn(1, 3, 16), cache={}), "Attention(cache=...)", "KVCache")
    with torch.autocast("cpu", torch.bfloat16):  # which converts as it goes
        assert layer(torch.randn(1, 3, 16).bfloat16()).shape == (1, 3, 16)
        assert_error(lambda: layer(torch.randn(1, 3, 16).double()), "Attention(x)", "float64")


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: whence.check(Alibi), "check(position)"),
        (lambda: whence.check(None), "check(position)"),
        (lambda: whence.without_embedding("rotary"), "without_embedding(position)"),
        (lambda: whence.show(Alibi), "show(position)"),
        (lambda: whence.show(Alibi(2), length=True), "length"),
        (lambda: whence.show(Alibi(2), length=10**6), "length"),
        (lambda: whence.show(Alibi(2), heads=0), "heads"),
        (lambda: whence.show(Alibi(2), head_dim="x"), "head_dim"),
        (lambda: whence.show(Alibi(2), seed=None), "seed"),
    ],
)
def test_show_and_check_refuse_nonsense(make, name):
    assert_error(make, name)

"""The fused kernels under Triton's interpreter, against the float64 reference: the output and every gradient.

Pairs of a mechanism and a mask are chosen so that every way through the kernels is met: no table, a factor, a bias, both,
a sink; few numbers and dense tables; blocks with and without a mask; rows, keys and widths that fill no block.
"""

import copy

import pytest
import torch
from against_reference import assert_within, compare, exact_and_plain, inputs, randoms, run, stirred

from whence import Alibi, Epar, Kerple, KVCache, Position, PowerPrior, Rotary, Sink, StableMask, T5Bias, attend
from whence.attention.fused.packing import pack_tables

pytestmark = pytest.mark.usefixtures("interpreted", "poisoned")

MECHANISMS = {
    "none": lambda h: None,
    "Epar": lambda h: Epar(h, context=40, learnable=True),
    "Epar, one for all heads": lambda h: Epar(None, form="basic", context=40, learnable=True),
    "Alibi": lambda h: Alibi(h, form="symmetric", learnable=True),
    "Alibi, fixed": lambda h: Alibi(h, form="symmetric"),
    "T5Bias": lambda h: T5Bias(h, std=1.0),
    "T5Bias, both sides": lambda h: T5Bias(h, form="bidirectional", std=1.0),
    "PowerPrior": lambda h: PowerPrior(h, alpha=0.1, beta=0.8),
    "Kerple": lambda h: Kerple(h, form="log"),
    "Kerple, power": lambda h: Kerple(h, form="power"),
    "Epar + T5Bias": lambda h: Epar(h, context=40, learnable=True) + T5Bias(h, form="bidirectional", std=1.0),
    "Epar + PowerPrior": lambda h: Epar(h, context=40, learnable=True) + PowerPrior(h, alpha=0.1, beta=0.8),
    "Epar + Epar": lambda h: (
        Epar(h, context=40, learnable=True) + Epar(h, context=9, learnable=True)
    ),  # two scale: dense
    "Epar + fixed Alibi": lambda h: Epar(h, context=40, learnable=True) + Alibi(h, form="symmetric"),
    "Kerple + Alibi": lambda h: Kerple(h) + Alibi(h, form="symmetric", learnable=True),  # three rates of a bias
    "Alibi + Sink": lambda h: Alibi(h, form="symmetric", learnable=True) + Sink(h),
    "Sink": lambda h: Sink(h),
    "StableMask": lambda h: StableMask(h, context=64, learnable=True),
    "Rotary + Epar + Sink": lambda h: Rotary() + Epar(h, context=40, learnable=True) + Sink(h),
}


MASK_WORDS = {
    "causal", "both sides", "window", "scaled", "negative scale", "lengths", "key_mask", "holes", "segment_ids"
}  # fmt: skip


def masks(name, batch, queries, keys):
    given = {"causal": "both sides" not in name}
    if queries != keys:
        given |= {"q_positions": torch.arange(keys - queries, keys), "k_positions": torch.arange(keys)}
    unknown = set(name.split(", ")) - MASK_WORDS
    assert not unknown, f"unknown mask {unknown}"  # a word that changes nothing would weaken the test silently
    if "window" in name:
        given["window"] = 13
    if "scaled" in name:
        given |= {"temperature": 1.7, "scale": 0.4}
    if "negative scale" in name:
        given["scale"] = -0.3
    if "lengths" in name:
        given["lengths"] = (keys - 41 * torch.arange(batch)).clamp(min=0)
    if "key_mask" in name:
        given["key_mask"] = torch.arange(keys) >= torch.arange(batch)[:, None] * 37
    if "holes" in name:
        given["key_mask"] = torch.rand(batch, keys, generator=torch.Generator().manual_seed(3)) > 0.4
        given["q_positions"] = torch.arange(keys)  # counted, padding would take no position, and tables need a run
    if "segment_ids" in name:
        runs = (torch.arange(keys) // 29).expand(batch, -1)
        given["segment_ids"] = runs if queries == keys else (runs[:, -queries:], runs)
    return given


# batch, heads, key heads, queries, keys, key width, value width
ONE, SHORT, BLOCK, OVER = (
    (1, 2, 2, 1, 1, 16, 16),
    (2, 2, 1, 17, 17, 20, 24),
    (1, 2, 2, 63, 63, 24, 16),
    (1, 2, 1, 65, 65, 16, 20),
)
LONG, PAIR, EVEN, ODD = (
    (1, 2, 1, 111, 111, 16, 16),
    (2, 2, 1, 111, 111, 16, 16),
    (1, 2, 2, 128, 128, 16, 16),
    (1, 3, 1, 70, 70, 7, 5),
)
LATER, EARLIER = (1, 2, 1, 40, 111, 16, 16), (1, 2, 2, 75, 130, 20, 16)

CASES = [
    ("none", "causal", LONG),
    ("none", "both sides", OVER),
    ("none", "window", LONG),
    ("none", "lengths, both sides", PAIR),
    ("none", "segment_ids", BLOCK),
    ("Epar", "causal", ONE),
    ("Epar", "causal", SHORT),
    ("Epar", "causal", EVEN),
    ("Epar", "both sides", PAIR),
    ("Epar", "window", LONG),
    ("Epar", "key_mask", PAIR),
    ("Epar", "causal", LATER),
    ("Epar, one for all heads", "scaled", OVER),
    ("Alibi", "causal", LONG),
    ("Alibi", "both sides", SHORT),
    ("Alibi", "window, both sides", LONG),
    ("Alibi", "segment_ids, window", PAIR),
    ("Alibi, fixed", "causal", OVER),
    ("T5Bias", "causal", LONG),
    ("T5Bias", "window", OVER),
    ("T5Bias", "segment_ids", PAIR),
    ("T5Bias", "key_mask", PAIR),
    ("T5Bias", "causal", LATER),
    ("T5Bias", "window", EARLIER),
    ("T5Bias, both sides", "both sides", EVEN),
    ("T5Bias, both sides", "lengths, both sides", PAIR),
    ("PowerPrior", "causal", OVER),
    ("PowerPrior", "holes, both sides", PAIR),
    ("PowerPrior", "segment_ids, both sides", OVER),
    ("Kerple", "causal", BLOCK),
    ("Kerple", "lengths", PAIR),
    ("Kerple, power", "window, both sides", OVER),
    ("Epar + T5Bias", "causal", ODD),
    ("Epar + T5Bias", "both sides", LONG),
    ("Epar + T5Bias", "window, scaled", LONG),
    ("Epar + T5Bias", "window, both sides", EARLIER),
    ("Epar + PowerPrior", "causal", LONG),
    ("Epar + PowerPrior", "scaled, window", OVER),
    ("Epar + PowerPrior", "segment_ids, both sides", OVER),
    ("Epar + Epar", "causal", OVER),
    ("Epar + fixed Alibi", "negative scale", OVER),
    ("Kerple + Alibi", "causal", OVER),
    ("Alibi + Sink", "causal", LONG),
    ("Alibi + Sink", "key_mask, scaled", PAIR),
    ("Sink", "window", BLOCK),
    ("StableMask", "causal", OVER),
    ("Rotary + Epar + Sink", "segment_ids, window", PAIR),
]


@pytest.mark.parametrize(
    "mechanism, mask, shape", CASES, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else x
)
def test_forward_and_gradients(mechanism, mask, shape):
    position = MECHANISMS[mechanism](shape[1])
    position = None if position is None else stirred(position)
    *tensors, upstream = inputs(*shape)
    compare(position, tensors, upstream, masks(mask, shape[0], shape[3], shape[4]))


# --- effects that come apart into a part of the row and a part of the key, in half precision ---------------------------

APART = {
    "slopes from gentle to steep": lambda h: Alibi(h, slope=[0.01, 0.08, 0.7, 40.0], learnable=True),
    "a gentle slope and a sink": lambda h: Alibi(h, slope=[0.02, 0.05, 0.01, 0.03], learnable=True) + Sink(h),
    "decays from slow to sudden": lambda h: Epar(h, context=40, beta=[1e-4, 2.0, 60.0, 9000.0], learnable=True),
    "a decay to nothing": lambda h: Epar(h, form="basic", context=40, alpha=3.0, beta=1.5, learnable=True),
    "a decay, fixed": lambda h: Epar(h, context=20, gamma=4.0),
}


@pytest.mark.parametrize("mask, groups", [("causal", 4), ("causal", 2), ("window, scaled", 4), ("segment_ids", 2)])
@pytest.mark.parametrize("mechanism", APART)
def test_effects_of_row_and_key_apart(mechanism, mask, groups):
    *tensors, upstream = inputs(1, 4, groups, 100, 100, 16, 16, dtype=torch.float16)
    compare(APART[mechanism](4), tensors, upstream, masks(mask, 1, 100, 100))


@pytest.mark.parametrize("mechanism", ["slopes from gentle to steep", "decays from slow to sudden"])
def test_effects_of_row_and_key_apart_with_earlier_keys(mechanism):
    *tensors, upstream = inputs(1, 4, 4, 75, 130, 20, 16, dtype=torch.float16)
    compare(APART[mechanism](4), tensors, upstream, masks("causal", 1, 75, 130))


# --- few queries against many keys ------------------------------------------------------------------------------------

DECODED = [
    ("none", "causal", 1),
    ("none", "both sides", 16),
    ("Epar", "causal", 1),
    ("Epar + T5Bias", "window", 3),
    ("T5Bias", "segment_ids", 16),
    ("Alibi + Sink", "key_mask", 3),
    ("Epar + PowerPrior", "lengths, scaled", 16),
    ("StableMask", "window", 1),
    ("Alibi", "segment_ids, window", 3),
]


@pytest.mark.parametrize("mechanism, mask, queries", DECODED)
def test_decoding(mechanism, mask, queries):
    position = MECHANISMS[mechanism](4)
    position = None if position is None else stirred(position)
    *tensors, upstream = inputs(2, 4, 2, queries, 90, 20, 24)
    compare(position, tensors, upstream, masks(mask, 2, queries, 90))


def test_decoding_with_more_rows_than_one_program_takes():
    # 16 queries of 12 heads that share their keys: too many for one tile of the splitting kernel
    *tensors, upstream = inputs(1, 12, 1, 16, 70, 16, 16)
    compare(stirred(Epar(12, context=40, learnable=True)), tensors, upstream, masks("causal", 1, 16, 70))


@pytest.mark.parametrize("window", [None, 13])
def test_a_cache_is_decoded_as_the_whole_is_computed(window):
    position = stirred(MECHANISMS["Alibi + Sink"](2))
    q, k, v, _ = inputs(1, 2, 1, 50, 50, 16, 16)
    given = {"position": position, "causal": True, "window": window, "backend": "triton"}
    with torch.no_grad():
        whole = attend(q, k, v, **given)
        for cache in (KVCache(window=window), KVCache(capacity=50) if window is None else KVCache()):
            pieces = zip(*(x.split([20, 1, 3, 26], 2) for x in (q, k, v)), strict=True)
            steps = torch.cat([attend(*piece, cache=cache, **given) for piece in pieces], 2)
            torch.testing.assert_close(steps, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mechanism, mask", [("Alibi", "causal"), ("Alibi + Sink", "window"), ("Epar + T5Bias", "lengths")]
)
def test_decoding_in_half_precision(mechanism, mask):
    *tensors, upstream = inputs(2, 4, 2, 3, 111, 20, 16, dtype=torch.float16)
    compare(stirred(MECHANISMS[mechanism](4)), tensors, upstream, masks(mask, 2, 3, 111))


# --- half precision ---------------------------------------------------------------------------------------------------

HALF = [
    ("none", "causal", LONG),
    ("Epar", "causal", LONG),
    ("Alibi", "causal", LONG),  # a slope, where nothing but the slope acts and all keys are in the past
    ("Alibi", "window", OVER),
    ("Alibi", "segment_ids", PAIR),
    ("Alibi", "causal", LATER),
    ("Alibi", "both sides", OVER),
    ("Alibi + Sink", "key_mask", PAIR),
    ("Alibi + Sink", "scaled, window", OVER),
    ("Epar + T5Bias", "both sides", ODD),
    ("PowerPrior", "window, both sides", LONG),
]


@pytest.mark.parametrize(
    "mechanism, mask, shape", HALF, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else x
)
def test_half_precision(mechanism, mask, shape):
    position = MECHANISMS[mechanism](shape[1])
    position = None if position is None else stirred(position)
    *tensors, upstream = inputs(*shape, dtype=torch.float16)
    compare(position, tensors, upstream, masks(mask, shape[0], shape[3], shape[4]))


@pytest.mark.parametrize(
    "width, dtype", [(80, torch.float32), (80, torch.float16), (136, torch.float16), (256, torch.float32)]
)
def test_wide_heads(width, dtype):
    position = stirred(Epar(1, context=40, learnable=True) + T5Bias(1, std=1.0))
    *tensors, upstream = inputs(1, 1, 1, 70, 70, width, width - 24, dtype=dtype)
    compare(position, tensors, upstream, {"causal": True})


# --- deterministic dense gradients --------------------------------------------------------------------------------------


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


ORDERED = [
    ("T5Bias", "causal", LONG),
    ("T5Bias", "window", EARLIER),
    ("T5Bias", "key_mask", PAIR),
    ("T5Bias, both sides", "both sides", EVEN),
    ("T5Bias, both sides", "segment_ids, window, both sides", PAIR),
    ("Epar + T5Bias", "causal", ODD),
    ("Epar + T5Bias", "both sides, scaled", LATER),
    ("Epar + Epar", "lengths", PAIR),
]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    "mechanism, mask, shape", ORDERED, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else x
)
def test_deterministic_gradients(mechanism, mask, shape):
    *tensors, upstream = inputs(*shape)
    compare(stirred(MECHANISMS[mechanism](shape[1])), tensors, upstream, masks(mask, shape[0], shape[3], shape[4]))


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("width, queries", [(16, 17), (80, 3), (80, 17), (80, 130), (136, 70)])
def test_deterministic_gradients_in_half_precision(width, queries):
    # here the kernel for tables takes other blocks of rows than the kernel that wrote their normalisers
    *tensors, upstream = inputs(1, 1, 1, queries, 130, width, width, dtype=torch.float16)
    compare(stirred(T5Bias(1, std=1.0)), tensors, upstream, masks("causal", 1, queries, 130))


@pytest.mark.usefixtures("deterministic")
def test_deterministic_dense_gradients_are_not_those_added_in_memory(monkeypatch):
    # the fixture is of no use if the kernel apart is not what runs
    from whence.attention.fused import backward_tables

    ran = []
    original = backward_tables.table_gradients
    monkeypatch.setattr(backward_tables, "table_gradients", lambda *a: (ran.append(1), original(*a))[1])
    *tensors, upstream = inputs(*SHORT)
    run(T5Bias(2, std=1.0), tensors, upstream, {"causal": True}, backend="triton")
    assert ran


# --- rows and distances that see nothing ----------------------------------------------------------------------------------


class Gap(Position):
    """A learnable bias that hides some distances altogether."""

    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.table = torch.nn.Parameter(torch.linspace(-1, 1, 256))

    def bias(self, distance, length):
        return self.table[distance.abs().long()].masked_fill(self.hidden(distance.abs()), -torch.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("queries", [3, 70])
def test_an_endless_bias_at_some_distance(queries, dtype):
    *tensors, upstream = inputs(1, 2, 1, queries, 70, 16, 16, dtype=dtype)
    compare(Gap(lambda d: (d == 0) | (d == 5) | (d > 40)), tensors, upstream, masks("causal", 1, queries, 70))


@pytest.mark.parametrize("queries", [3, 70])
def test_rows_that_see_only_an_endless_bias(queries):
    *tensors, upstream = inputs(1, 2, 1, queries, 70, 16, 16)
    found = compare(Gap(lambda d: d < 200), tensors, upstream, masks("both sides", 1, queries, 70))
    assert not any(x.any() for x in found)


ALONE = {
    "lengths of zero": {"causal": True, "lengths": torch.tensor([0, 70])},
    "lengths of zero, both sides": {"lengths": torch.tensor([0, 70])},
    "queries before all keys": {"causal": True, "q_positions": torch.arange(70), "k_positions": torch.arange(50, 120)},
    "queries behind the window": {
        "causal": True, "window": 9, "q_positions": torch.arange(40, 110), "k_positions": torch.arange(70)
    },
    "queries of another document": {
        "causal": True, "q_positions": torch.arange(70), "k_positions": torch.arange(70),
        "segment_ids": (torch.arange(70) // 20, torch.arange(70) // 20 * 2),
    },
}  # fmt: skip


@pytest.mark.parametrize("sink", [False, True], ids=["no sink", "a sink"])
@pytest.mark.parametrize("case", ALONE)
def test_rows_that_see_nothing(case, sink):
    position = Epar(2, context=40, learnable=True) + T5Bias(2, form="bidirectional", std=1.0)
    position = stirred(position + Sink(2) if sink else position)
    *tensors, upstream = inputs(2, 2, 1, 70, 70, 16, 16)
    found = compare(position, tensors, upstream, ALONE[case])
    assert (found[0] == 0).all(-1).any()  # there is such a row


FAR_APART = {
    # no query sees any key, and blocks are rounded: nothing may be read or written where no table is
    "far behind the window": ({"causal": True, "window": 9}, 5000, 0),
    "far behind the window, both sides": ({"window": 9}, 5000, 0),
    "far before, both sides": ({"window": 9}, 0, 5000),
    "far before all keys": ({"causal": True}, 0, 5000),
}


@pytest.mark.parametrize("queries", [3, 70])
@pytest.mark.parametrize("case", FAR_APART)
def test_queries_far_from_all_keys(case, queries):
    given, q_from, k_from = FAR_APART[case]
    where = {"q_positions": torch.arange(queries) + q_from, "k_positions": torch.arange(70) + k_from}
    *tensors, upstream = inputs(1, 1, 1, queries, 70, 16, 16)
    found = compare(stirred(T5Bias(1, form="bidirectional", std=1.0)), tensors, upstream, given | where)
    assert not any(x.any() for x in found)


def test_keys_far_behind_the_last_query():
    # a cache with room to spare: causality hides the keys that are not there yet
    *tensors, upstream = inputs(1, 1, 1, 20, 700, 16, 16)
    given = {"causal": True, "q_positions": torch.arange(20), "k_positions": torch.arange(700)}
    compare(stirred(T5Bias(1, std=1.0)), tensors, upstream, given)


def test_queries_far_behind_the_last_key_in_a_window():
    *tensors, upstream = inputs(1, 1, 1, 700, 20, 16, 16)
    given = {"causal": True, "window": 9, "q_positions": torch.arange(700), "k_positions": torch.arange(20)}
    compare(stirred(T5Bias(1, std=1.0)), tensors, upstream, given)


def test_a_text_of_padding_alone_in_a_window():
    # nothing to walk over, so nothing may be added to a table either, however far the rows are from it
    *tensors, upstream = inputs(1, 1, 1, 700, 700, 16, 16)
    given = {"causal": True, "window": 9, "lengths": torch.tensor([0])}
    found = compare(stirred(T5Bias(1, std=1.0)), tensors, upstream, given)
    assert not any(x.any() for x in found)


# --- memory layouts -----------------------------------------------------------------------------------------------------


def heads_of_one_projection(qkv):
    return [x.transpose(1, 2) for x in qkv.unbind(2)]  # [B, n, 3, H, D]


def turned(q, k, v):
    return q.mT, k.mT, v.mT


def stretched(q, k, v):
    return q.expand(2, -1, -1, -1), k.expand(2, 2, -1, -1), v.expand(2, 2, -1, -1)


def cut(q, k, v):
    return q[..., 1:-3], k[..., 3:-1], v[..., 2:-2]  # begins between the places that the copy engine can read


def heads_last(q, k, v):
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


LAYOUTS = {
    "one projection": (heads_of_one_projection, [(2, 70, 3, 2, 16)]),
    "one projection of a width that does not fit": (heads_of_one_projection, [(2, 70, 3, 2, 7)]),
    "heads last": (heads_last, [(2, 70, 2, 16)] * 3),
    "turned": (turned, [(2, 2, 16, 70)] * 3),
    "stretched": (stretched, [(1, 2, 70, 16), (1, 1, 70, 16), (2, 1, 70, 16)]),
    "cut": (cut, [(2, 2, 70, 20)] * 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides(layout):
    view, shapes = LAYOUTS[layout]
    tensors = randoms(*shapes)
    width = view(*tensors)[2].shape[-1]
    (upstream,) = randoms((2, 2, 70, width), seed=5)
    compare(stirred(Epar(2, context=40, learnable=True)), tensors, upstream, {"causal": True}, view=view)


@pytest.mark.parametrize("queries", [3, 70])
def test_a_gradient_without_strides(queries):
    # what the sum of an output sends back is one number, stretched
    *tensors, upstream = inputs(1, 2, 1, queries, 70, 16, 16)
    upstream = torch.ones((), dtype=upstream.dtype).expand_as(upstream)
    compare(stirred(T5Bias(2, std=1.0)), tensors, upstream, masks("causal", 1, queries, 70))


@pytest.mark.parametrize("wanted", ["q", "k", "v", "parameters"])
def test_only_some_gradients_are_wanted(wanted):
    position = stirred(Epar(2, context=40, learnable=True) + T5Bias(2, std=1.0) + Sink(2)).requires_grad_(
        wanted == "parameters"
    )
    *tensors, upstream = inputs(*SHORT[:6], 24)
    exact, plain = exact_and_plain(position, tensors, upstream, {"causal": True})
    leaves = [x.clone().requires_grad_(name == wanted) for name, x in zip("qkv", tensors, strict=True)]
    out = attend(*leaves, position=position, causal=True, backend="triton")
    asked = list(position.parameters()) if wanted == "parameters" else [leaves["qkv".index(wanted)]]
    found = torch.autograd.grad(out, asked, upstream)
    kept = slice(4, None) if wanted == "parameters" else slice("qkv".index(wanted) + 1, "qkv".index(wanted) + 2)
    assert_within([out.detach(), *found], [exact[0], *exact[kept]], [plain[0], *plain[kept]], torch.float32, 1)


def test_without_gradients_the_answer_is_the_same():
    position = stirred(Epar(2, context=40, learnable=True) + PowerPrior(2, alpha=0.1, beta=0.8))
    *tensors, _ = inputs(*SHORT)
    given = {"position": position, "causal": True, "backend": "triton"}
    with torch.no_grad():
        silent = attend(*tensors, **given)
    recorded = attend(*tensors, **given)
    assert recorded.requires_grad and not silent.requires_grad
    torch.testing.assert_close(silent, recorded, rtol=1e-6, atol=1e-6)


# --- dropout --------------------------------------------------------------------------------------------------------------

SHARE = 0.4


def drops(position, q, k, given):
    """The mask that the kernels draw from the current seed: with the unit vectors as values, the output is the weights."""
    units = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1)
    with torch.no_grad():
        shown = attend(q, k, units, position=position, backend="triton", dropout=SHARE, **given)
        whole = attend(q, k, units, position=position, backend="triton", **given)
    kept = shown != 0
    torch.testing.assert_close(shown, torch.where(kept, whole / (1 - SHARE), 0.0), rtol=1e-5, atol=1e-7)
    return kept, whole != 0


DROPPED = [
    ("none", "both sides", 40, False),
    ("Epar", "causal", 70, False),
    ("T5Bias", "segment_ids", 40, False),
    ("T5Bias", "causal", 70, True),
    ("Alibi + Sink", "window", 70, False),
    ("Epar + T5Bias", "causal", 3, False),
    ("Epar + T5Bias", "lengths", 3, True),
]


@pytest.mark.parametrize("mechanism, mask, queries, ordered", DROPPED)
def test_the_gradient_drops_what_the_forward_dropped(mechanism, mask, queries, ordered, request):
    if ordered:
        request.getfixturevalue("deterministic")
    position = MECHANISMS[mechanism](2)
    position = None if position is None else stirred(position)
    keys = max(40, queries)
    batch = 2 if mask == "lengths" else 1
    *tensors, upstream = inputs(batch, 2, 1, queries, keys, 16, 20)
    given = masks(mask, batch, queries, keys)
    torch.manual_seed(7)
    kept, _ = drops(position, *tensors[:2], given)

    def by_hand(position, dtype):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        _, weights = attend(*leaves, position=position, backend="reference", return_weights=True, **given)
        out = (weights * kept / (1 - SHARE)) @ leaves[2].repeat_interleave(2, 1)
        learnt = [] if position is None else list(position.parameters())
        grads = torch.autograd.grad(out, [*leaves, *learnt], upstream.to(dtype), allow_unused=True)
        pairs = zip([*leaves, *learnt], grads, strict=True)
        return [out.detach(), *(torch.zeros_like(x) if g is None else g for x, g in pairs)]

    exact = by_hand(copy.deepcopy(position).double() if position is not None else None, torch.float64)
    plain = by_hand(position, torch.float32)
    torch.manual_seed(7)
    found = run(position, tensors, upstream, given | {"dropout": SHARE}, backend="triton")
    assert_within(found, exact, plain, torch.float32)


def test_dropout_drops_the_share_it_says_and_anew_each_time():
    q, k, *_ = inputs(2, 2, 1, 70, 70, 16, 16)
    torch.manual_seed(0)
    first, seen = drops(None, q, k, {})
    second, _ = drops(None, q, k, {})
    count = seen.sum()
    for kept in (first, second, first[0], first[:, 1]):  # each sequence and each head for itself
        assert abs(kept.float().mean() - (1 - SHARE)) < 5 * (SHARE * (1 - SHARE) / kept.numel()) ** 0.5
    agreeing = (first == second).sum() / count
    assert abs(agreeing - (SHARE**2 + (1 - SHARE) ** 2)) < 0.02
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[:, 0], first[:, 1])


# --- leaving out keys that cannot matter ------------------------------------------------------------------------------------

STEEP = {
    "Alibi": lambda: Alibi(2, slope=[1.2, 0.7], learnable=True),
    "Alibi + Sink": lambda: Alibi(2, slope=[1.2, 0.7], learnable=True) + Sink(2),
    "PowerPrior": lambda: PowerPrior(2, alpha=[1.2, -0.7], beta=[1.0, 1.1]),
    "T5Bias + PowerPrior": lambda: T5Bias(2, std=1.0) + PowerPrior(2, alpha=[1.2, 0.7], beta=[1.0, 1.1]),
    "Epar + Alibi": lambda: Epar(2, context=40, learnable=True) + Alibi(2, slope=[1.2, 0.7]),
}


BOTH = [(name, torch.float32) for name in STEEP] + [
    (name, torch.float16) for name in ("Alibi", "Alibi + Sink", "T5Bias + PowerPrior")
]


@pytest.fixture
def reached(monkeypatch):
    """How far each call found that its heads must look; the heads behind it are in that order."""
    from whence.attention.fused import block_skipping

    found, original = [], block_skipping.max_distances

    def max_distances(call):
        result = original(call)
        if result.numel():
            distances, order = result[:-1].view(2, -1).tolist()
            assert [distances[head] for head in order] == sorted(distances, reverse=True)
            assert sorted(order) == list(range(len(distances)))
            found.append(torch.tensor(distances))
        return result

    monkeypatch.setattr(block_skipping, "max_distances", max_distances)
    return found


def small(dtype, length=150, keys=None):
    """Queries and keys short enough for the bound to bite within a test's length."""
    q, k, v, upstream = inputs(1, 2, 1, length, keys or length, 16, 16, dtype=dtype)
    return [q / 2, k / 2, v], upstream


@pytest.mark.parametrize("mechanism, dtype", BOTH)
def test_leaving_out_far_keys_changes_nothing(mechanism, dtype, reached):
    tensors, upstream = small(dtype)
    position = STEEP[mechanism]()
    found = compare(position, tensors, upstream, {"causal": True, "skip_blocks": True})
    assert len(reached) == 1 and int(reached[0].min()) < 100  # something was left out
    everything = run(position, tensors, upstream, {"causal": True, "skip_blocks": False}, backend="triton")
    assert len(reached) == 1
    for a, b in zip(found, everything, strict=True):
        # the same sums in the same blocks, less what is below the last digit
        torch.testing.assert_close(a, b, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("case", ["later", "segment_ids", "window", "deterministic"])
def test_leaving_out_far_keys_with_a_mask(case, reached, request):
    tensors, upstream = small(torch.float32, 150, 180 if case == "later" else 150)
    given = {"causal": True}
    if case == "later":
        given |= {"q_positions": torch.arange(30, 180), "k_positions": torch.arange(180)}
    if case == "segment_ids":
        given["segment_ids"] = torch.arange(150) // 110
    if case == "window":
        given["window"] = 120
    if case == "deterministic":
        request.getfixturevalue("deterministic")
    compare(STEEP["T5Bias + PowerPrior"](), tensors, upstream, given)
    assert len(reached) == 1 and int(reached[0].min()) < 100


@pytest.mark.parametrize("mechanism, dtype", BOTH)
def test_a_far_key_that_matters_is_not_left_out(mechanism, dtype):
    tensors, upstream = small(dtype)
    q, k, _ = tensors
    aim = torch.nn.functional.normalize(torch.ones(16), dim=0).to(dtype)
    q[:, :, 140:] = 8 * aim  # the last rows look for one key at the very beginning
    k[:, :, 2] = 180 * aim
    position = STEEP[mechanism]()
    with torch.no_grad():
        _, weights = attend(*tensors, position=position, causal=True, backend="reference", return_weights=True)
    assert weights[:, :, 140:, 2].min() > 0.9
    # logits of hundreds leave few digits behind the point, and a parameter's share of them is as large
    compare(position, tensors, upstream, {"causal": True}, slack=4)


@pytest.mark.parametrize("scale", [-0.25, 0.25])
def test_a_far_key_that_matters_by_a_negative_scale(scale):
    tensors, upstream = small(torch.float32)
    aim = torch.nn.functional.normalize(torch.ones(16), dim=0)
    tensors[0][:, :, 140:] = 8 * aim
    tensors[1][:, :, 2] = (180 if scale > 0 else -180) * aim
    compare(STEEP["Alibi"](), tensors, upstream, {"causal": True, "scale": scale}, slack=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_far_keys_stay_where_a_query_does_not_see_its_own(dtype):
    # the bound is reckoned from a query's own key; another document hides it here, and only far keys are left
    tensors, upstream = small(dtype, 260)
    given = {"causal": True, "q_positions": torch.arange(260), "k_positions": torch.arange(260)}
    given["segment_ids"] = ((torch.arange(260) >= 130).long(), (torch.arange(260) < 100).long())
    # a slope's gradient weighs what rounding leaves of a row by its distances, all of which are large here
    found = compare(STEEP["Alibi"](), tensors, upstream, given, slack=4)
    assert (found[0][:, :, 130:] != 0).any(-1).all()


def test_an_endless_bias_of_the_own_key_leaves_nothing_out():
    class Blind(Alibi):
        def bias(self, distance, length):
            return super().bias(distance, length).masked_fill(distance < 80, -torch.inf)

        parameter_gradients = Position.parameter_gradients
        bias_slope = Position.bias_slope

    tensors, upstream = small(torch.float32)
    found = compare(Blind(2, slope=[1.2, 0.7], learnable=True), tensors, upstream, {"causal": True})
    assert (found[0][:, :, 80:] != 0).any(-1).all()


# --- the guards themselves -----------------------------------------------------------------------------------------------


def test_the_guard_sees_an_address_outside(monkeypatch):
    from whence.attention.fused import backend

    def cut_short(tables, scales):
        packed = pack_tables(tables, scales)
        return None if packed is None else packed[:, :4].contiguous()

    monkeypatch.setattr(backend, "pack_tables", cut_short)
    *tensors, _ = inputs(*SHORT)
    with pytest.raises(Exception, match="outside every tensor"):
        attend(*tensors, position=Epar(2, context=40), causal=True, backend="triton")


@pytest.mark.parametrize(
    "operation, left, right", [("add", 2**31 - 1, 1), ("sub", -(2**31), 1), ("mul", 2**17, -(2**15))]
)
def test_the_guard_sees_a_number_beyond_its_type(operation, left, right):
    from triton.runtime.interpreter import interpreter_semantic as semantic

    left, right = (semantic.to_tensor(x, False) for x in (left, right))
    getattr(semantic, operation)(right, right, True)
    with pytest.raises(AssertionError, match=f"int32 overflow in {operation}"):
        getattr(semantic, operation)(left, right, True)

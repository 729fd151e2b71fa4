"""The fused kernels under Triton's interpreter, against the float64 reference: the output and every gradient.

The pairs of mechanism and mask cover every path through the kernels: no table, score scale, bias, both, sink; parameter
and dense table gradients; blocks with and without a mask; queries, keys and head dims that do not fill a block.
"""

import pytest
import torch
from kernel_cases import BLOCK, EARLIER, EVEN, LATER, LONG, MECHANISMS, ODD, ONE, OVER, PAIR, SHORT, masks
from reference_comparison import check_against_reference, perturb, random_inputs, run

from whence import Alibi, Epar, KVCache, Position, Sink, T5Bias, attend

pytestmark = pytest.mark.usefixtures("interpreted", "poisoned")

CASES = [
    ("none", "causal", LONG),
    ("none", "both sides", OVER),
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
    ("T5Bias", "causal", LONG),
    ("T5Bias", "window", OVER),
    ("T5Bias", "key_mask", PAIR),
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
    ("Epar + T5Bias", "window, scaled", LONG),
    ("Epar + T5Bias", "window, both sides", EARLIER),
    ("Epar + PowerPrior", "scaled, window", OVER),
    ("Epar + PowerPrior", "segment_ids, both sides", OVER),
    ("Epar + Epar", "causal", OVER),
    ("Epar + fixed Alibi", "negative scale", OVER),
    ("Kerple + Alibi", "causal", OVER),
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
    position = None if position is None else perturb(position)
    *tensors, grad_out = random_inputs(*shape)
    check_against_reference(position, tensors, grad_out, masks(mask, shape[0], shape[3], shape[4]))


# --- slopes and decays, which factor into a query part and a key part in half precision ---------------------------

FACTORED = {
    "slopes from gentle to steep": lambda h: Alibi(h, slope=[0.01, 0.08, 0.7, 40.0], learnable=True),
    "a gentle slope and a sink": lambda h: Alibi(h, slope=[0.02, 0.05, 0.01, 0.03], learnable=True) + Sink(h),
    "decays from slow to sudden": lambda h: Epar(h, context=40, beta=[1e-4, 2.0, 60.0, 9000.0], learnable=True),
    "a decay to nothing": lambda h: Epar(h, form="basic", context=40, alpha=3.0, beta=1.5, learnable=True),
    "a decay, fixed": lambda h: Epar(h, context=20, gamma=4.0),
}


@pytest.mark.parametrize("mask, groups", [("causal", 4), ("causal", 2), ("window, scaled", 4), ("segment_ids", 2)])
@pytest.mark.parametrize("mechanism", FACTORED)
def test_slopes_and_decays_that_factor_into_query_and_key(mechanism, mask, groups):
    *tensors, grad_out = random_inputs(1, 4, groups, 100, 100, 16, 16, dtype=torch.float16)
    check_against_reference(FACTORED[mechanism](4), tensors, grad_out, masks(mask, 1, 100, 100))


@pytest.mark.parametrize("mechanism", ["slopes from gentle to steep", "decays from slow to sudden"])
def test_factored_effects_with_earlier_keys(mechanism):
    *tensors, grad_out = random_inputs(1, 4, 4, 75, 130, 20, 16, dtype=torch.float16)
    check_against_reference(FACTORED[mechanism](4), tensors, grad_out, masks("causal", 1, 75, 130))


# --- split-k decode ------------------------------------------------------------------------------------

DECODE_CASES = [
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


@pytest.mark.parametrize("mechanism, mask, queries", DECODE_CASES)
def test_decode(mechanism, mask, queries):
    position = MECHANISMS[mechanism](4)
    position = None if position is None else perturb(position)
    *tensors, grad_out = random_inputs(2, 4, 2, queries, 90, 20, 24)
    check_against_reference(position, tensors, grad_out, masks(mask, 2, queries, 90))


def test_decode_with_more_rows_than_one_tile():
    # 16 queries of 12 heads that share their keys: too many for one tile of the splitting kernel
    *tensors, grad_out = random_inputs(1, 12, 1, 16, 70, 16, 16)
    check_against_reference(
        perturb(Epar(12, context=40, learnable=True)), tensors, grad_out, masks("causal", 1, 16, 70)
    )


@pytest.mark.parametrize("window", [None, 13])
def test_cached_decode_equals_one_pass(window):
    position = perturb(MECHANISMS["Alibi + Sink"](2))
    q, k, v, _ = random_inputs(1, 2, 1, 50, 50, 16, 16)
    options = {"position": position, "causal": True, "window": window, "backend": "triton"}
    with torch.no_grad():
        whole = attend(q, k, v, **options)
        for cache in (KVCache(window=window), KVCache(capacity=50) if window is None else KVCache()):
            pieces = zip(*(x.split([20, 1, 3, 26], 2) for x in (q, k, v)), strict=True)
            steps = torch.cat([attend(*piece, cache=cache, **options) for piece in pieces], 2)
            torch.testing.assert_close(steps, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mechanism, mask", [("Alibi", "causal"), ("Alibi + Sink", "window"), ("Epar + T5Bias", "lengths")]
)
def test_decode_in_half_precision(mechanism, mask):
    *tensors, grad_out = random_inputs(2, 4, 2, 3, 111, 20, 16, dtype=torch.float16)
    check_against_reference(perturb(MECHANISMS[mechanism](4)), tensors, grad_out, masks(mask, 2, 3, 111))


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
    position = None if position is None else perturb(position)
    *tensors, grad_out = random_inputs(*shape, dtype=torch.float16)
    check_against_reference(position, tensors, grad_out, masks(mask, shape[0], shape[3], shape[4]))


@pytest.mark.parametrize(
    "width, dtype", [(80, torch.float32), (80, torch.float16), (136, torch.float16), (256, torch.float32)]
)
def test_large_head_dims(width, dtype):
    position = perturb(Epar(1, context=40, learnable=True) + T5Bias(1, std=1.0))
    *tensors, grad_out = random_inputs(1, 1, 1, 70, 70, width, width - 24, dtype=dtype)
    check_against_reference(position, tensors, grad_out, {"causal": True})


# --- deterministic dense gradients --------------------------------------------------------------------------------------


DETERMINISTIC = [
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
    "mechanism, mask, shape", DETERMINISTIC, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple) else x
)
def test_deterministic_gradients(mechanism, mask, shape):
    *tensors, grad_out = random_inputs(*shape)
    check_against_reference(
        perturb(MECHANISMS[mechanism](shape[1])), tensors, grad_out, masks(mask, shape[0], shape[3], shape[4])
    )


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("width, queries", [(16, 17), (80, 3), (80, 17), (80, 130), (136, 70)])
def test_deterministic_gradients_in_half_precision(width, queries):
    # here the kernel for tables takes other blocks of rows than the kernel that wrote their normalisers
    *tensors, grad_out = random_inputs(1, 1, 1, queries, 130, width, width, dtype=torch.float16)
    check_against_reference(perturb(T5Bias(1, std=1.0)), tensors, grad_out, masks("causal", 1, queries, 130))


@pytest.mark.usefixtures("deterministic")
def test_deterministic_mode_runs_the_kernel_without_atomics(monkeypatch):
    # the fixture is of no use if the kernel apart is not what runs
    from whence.attention.fused import backward_tables

    ran = []
    original = backward_tables.table_gradients
    monkeypatch.setattr(backward_tables, "table_gradients", lambda *a: (ran.append(1), original(*a))[1])
    *tensors, grad_out = random_inputs(*SHORT)
    run(T5Bias(2, std=1.0), tensors, grad_out, {"causal": True}, backend="triton")
    assert ran


# --- rows and distances without visible keys ----------------------------------------------------------------------------------


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
def test_infinite_bias_at_some_distances(queries, dtype):
    *tensors, grad_out = random_inputs(1, 2, 1, queries, 70, 16, 16, dtype=dtype)
    check_against_reference(
        Gap(lambda d: (d == 0) | (d == 5) | (d > 40)), tensors, grad_out, masks("causal", 1, queries, 70)
    )


@pytest.mark.parametrize("queries", [3, 70])
def test_rows_with_only_infinite_biases(queries):
    *tensors, grad_out = random_inputs(1, 2, 1, queries, 70, 16, 16)
    actual = check_against_reference(Gap(lambda d: d < 200), tensors, grad_out, masks("both sides", 1, queries, 70))
    assert not any(x.any() for x in actual)


NO_VISIBLE_KEYS = {
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
@pytest.mark.parametrize("case", NO_VISIBLE_KEYS)
def test_rows_without_visible_keys(case, sink):
    position = Epar(2, context=40, learnable=True) + T5Bias(2, form="bidirectional", std=1.0)
    position = perturb(position + Sink(2) if sink else position)
    *tensors, grad_out = random_inputs(2, 2, 1, 70, 70, 16, 16)
    actual = check_against_reference(position, tensors, grad_out, NO_VISIBLE_KEYS[case])
    assert (actual[0] == 0).all(-1).any()  # there is such a row


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
    options, q_from, k_from = FAR_APART[case]
    where = {"q_positions": torch.arange(queries) + q_from, "k_positions": torch.arange(70) + k_from}
    *tensors, grad_out = random_inputs(1, 1, 1, queries, 70, 16, 16)
    actual = check_against_reference(
        perturb(T5Bias(1, form="bidirectional", std=1.0)), tensors, grad_out, options | where
    )
    assert not any(x.any() for x in actual)


def test_keys_far_behind_the_last_query():
    # a cache with room to spare: causality hides the keys that are not there yet
    *tensors, grad_out = random_inputs(1, 1, 1, 20, 700, 16, 16)
    options = {"causal": True, "q_positions": torch.arange(20), "k_positions": torch.arange(700)}
    check_against_reference(perturb(T5Bias(1, std=1.0)), tensors, grad_out, options)


def test_queries_far_behind_the_last_key_in_a_window():
    *tensors, grad_out = random_inputs(1, 1, 1, 700, 20, 16, 16)
    options = {"causal": True, "window": 9, "q_positions": torch.arange(700), "k_positions": torch.arange(20)}
    check_against_reference(perturb(T5Bias(1, std=1.0)), tensors, grad_out, options)


def test_sequence_of_padding_with_a_window():
    # nothing to walk over, so nothing may be added to a table either, however far the rows are from it
    *tensors, grad_out = random_inputs(1, 1, 1, 700, 700, 16, 16)
    options = {"causal": True, "window": 9, "lengths": torch.tensor([0])}
    actual = check_against_reference(perturb(T5Bias(1, std=1.0)), tensors, grad_out, options)
    assert not any(x.any() for x in actual)

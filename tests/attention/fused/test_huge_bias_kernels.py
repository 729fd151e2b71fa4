"""The kernels with a bias of -1e9 or ``finfo.min`` at all keys of some rows, under Triton's interpreter."""

import math

import pytest
import torch
from barriers import BARRED, NEAR_LIMIT, VALUES, Barrier, check_barrier
from kernel_cases import masks
from reference_comparison import random_inputs, run

from whence import Epar, Sink, attend

pytestmark = pytest.mark.usefixtures("interpreted")
SHAPE, DECODED = (1, 2, 1, 70, 70, 16, 16), (1, 2, 1, 3, 70, 16, 16)


@pytest.mark.parametrize("barred", BARRED)
@pytest.mark.parametrize("value", VALUES)
def test_output_and_gradients(value, barred):
    check_barrier(Barrier(2, value, barred), SHAPE, {"causal": True}, torch.float32, "equal")


@pytest.mark.parametrize("shape", [SHAPE, DECODED], ids=["full", "decode"])
@pytest.mark.parametrize("value", NEAR_LIMIT)
def test_only_rows_beyond_the_limit_have_a_factor(value, shape, monkeypatch):
    from whence.attention.fused import launch

    forward, stored = launch.forward, []
    monkeypatch.setattr(launch, "forward", lambda call, lse: stored.append(lse) or forward(call, lse))
    options = masks("causal", shape[0], *shape[3:5])
    check_barrier(Barrier(2, value, "everywhere"), shape, options, torch.float32, "random")
    q, k, v, _ = random_inputs(*shape)
    attend(torch.zeros_like(q), k, v, position=Barrier(2, value, "everywhere"), backend="triton", **options)
    lse, factor = stored[-1][..., : shape[3]]
    keys = torch.arange(shape[4] - shape[3], shape[4]) + 1.0
    top = torch.full_like(keys, float(value)) * math.log2(math.e)
    torch.testing.assert_close(factor, (1 / keys if value == "-365" else torch.ones_like(keys)).expand_as(factor))
    torch.testing.assert_close(lse, (top if value == "-365" else top + keys.log2()).expand_as(lse))
    assert [len(lse) for lse in stored] == [2, 2]


def test_tensors_without_a_bias_table(monkeypatch):
    from whence.attention.fused import launch

    forward, stored = launch.forward, []
    monkeypatch.setattr(launch, "forward", lambda call, lse: stored.append(lse) or forward(call, lse))
    monkeypatch.setattr(launch, "scale_rows", None)
    q, k, v, grad_out = random_inputs(*SHAPE)
    run(Epar(2, context=40), [q, k, v], grad_out, {"causal": True}, backend="triton")
    assert [len(lse) for lse in stored] == [1]


@pytest.mark.parametrize("shape", [SHAPE, DECODED], ids=["full", "decode"])
@pytest.mark.parametrize("mask", ["both sides, holes", "causal, window, segment_ids", "causal, scaled"])
@pytest.mark.parametrize("value", ["-1e9", "finfo.min"])
def test_masks(value, mask, shape):
    shape = (2, *shape[1:])  # with holes that differ between sequences
    options = masks(mask, shape[0], *shape[3:5])
    if "q_positions" in options and shape[1:] == DECODED[1:]:
        options["q_positions"] = torch.arange(67, 70)
    check_barrier(Barrier(2, value, "near"), shape, options, torch.float32, "equal")


@pytest.mark.parametrize("scores", ["equal", "random"])
@pytest.mark.parametrize("value", VALUES)
def test_beside_other_effects(value, scores):
    position = Barrier(2, value, "near") + Epar(2, context=40, learnable=True) + Sink(2)
    check_barrier(position, SHAPE, {"causal": True}, torch.float32, scores)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("value", VALUES)
def test_table_gradients_without_atomics(value):
    check_barrier(Barrier(2, value, "near"), SHAPE, {"causal": True}, torch.float32, "equal")


def test_half_precision_and_a_fixed_bias():
    check_barrier(Barrier(2, "-1e4", "near", learnable=False), SHAPE, {"causal": True}, torch.float16, "equal")

"""The kernels with a bias of -1e9 or ``finfo.min`` at all keys of some rows, under Triton's interpreter."""

import pytest
import torch
from barriers import BARRED, VALUES, Barrier, check_barrier
from kernel_cases import masks

from whence import Epar, Sink

pytestmark = pytest.mark.usefixtures("interpreted")
SHAPE, DECODED = (2, 2, 1, 70, 70, 16, 16), (2, 2, 1, 3, 70, 16, 16)


@pytest.mark.parametrize("barred", BARRED)
@pytest.mark.parametrize("value", VALUES)
def test_output_and_gradients(value, barred):
    check_barrier(Barrier(2, value, barred), SHAPE, {"causal": True}, torch.float32, "equal")


@pytest.mark.parametrize("shape", [SHAPE, DECODED], ids=["full", "decode"])
@pytest.mark.parametrize("mask", ["both sides, holes", "causal, window, segment_ids", "causal, scaled"])
@pytest.mark.parametrize("value", ["-1e9", "finfo.min"])
def test_masks(value, mask, shape):
    options = masks(mask, shape[0], *shape[3:5])
    if "q_positions" in options and shape == DECODED:
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

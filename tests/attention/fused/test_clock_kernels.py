"""Clocks in the fused kernels under Triton's interpreter, against the float64 reference, with the gradient of every step."""

import pytest
import torch
from kernel_cases import EARLIER, LATER, LONG, ODD, OVER, PAIR, masks
from reference_comparison import check_against_reference, perturb, random_inputs

from whence import Alibi, Epar, Position, Sink, T5Bias

pytestmark = pytest.mark.usefixtures("interpreted", "poisoned")


class Steps(Position):
    """The steps are given with the call."""

    def clock(self, x):
        raise NotImplementedError


MECHANISMS = {
    "clock": lambda h: Steps(),
    "clock + Sink": lambda h: Steps() + Sink(h),
    "clock + Alibi": lambda h: Steps() + Alibi(h, learnable=True) + Sink(h),
    "clock + Epar": lambda h: Steps() + Epar(h, context=40, learnable=True),
    "clock + T5Bias": lambda h: Steps() + T5Bias(h, form="bidirectional", std=1.0),
    "clock + Epar + T5Bias": lambda h: Steps() + Epar(h, context=40, learnable=True) + T5Bias(h, std=1.0) + Sink(h),
}
CASES = [
    ("clock", "causal", LONG),
    ("clock + Sink", "both sides", OVER),
    ("clock", "window, scaled", EARLIER),
    ("clock + Alibi", "causal", PAIR),
    ("clock + Epar", "lengths", PAIR),
    ("clock + T5Bias", "segment_ids, both sides", OVER),
    ("clock + Epar + T5Bias", "holes", PAIR),
    ("clock + Epar + T5Bias", "causal", ODD),
    ("clock", "causal", LATER),
]


def draw(shape, dtype, size=0.5):
    *tensors, grad_out = random_inputs(*shape, dtype=dtype)
    generator = torch.Generator().manual_seed(5)
    steps = -2 * size * torch.rand(shape[0], shape[1], shape[4], generator=generator)
    return [*tensors, steps], grad_out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("mechanism, mask, shape", CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_forward_and_gradients(mechanism, mask, shape, dtype):
    tensors, grad_out = draw(shape, dtype)
    position = perturb(MECHANISMS[mechanism](shape[1]))
    check_against_reference(position, tensors, grad_out, masks(mask, shape[0], shape[3], shape[4]))

"""The warp-specialised kernels alone, compared with attention in float64: emulated with threads, and on a GPU."""

import pytest
import torch

pytest.importorskip("triton")
import gluon_cases
from gluon_emulator import EmulatedDescriptors, Emulator

from whence.attention.fused import gluon_launch, packing
from whence.attention.fused.descriptors import Descriptors

#: batch, heads, key heads, tokens; programs that run at the same time
SHAPES = {
    "several tiles a program": ((1, 2, 2, 300), 2),
    "grouped heads": ((2, 4, 2, 200), 3),
    "one tile": ((1, 1, 1, 128), 1),
    "five blocks": ((1, 2, 1, 600), 2),
}


@pytest.mark.parametrize("head_dim", gluon_launch.HEAD_DIMS)
@pytest.mark.parametrize("kind", gluon_cases.KINDS)
@pytest.mark.parametrize("name", SHAPES)
def test_emulated(name, kind, head_dim, monkeypatch):
    shape, programs = SHAPES[name]
    late = ([*SHAPES].index(name) + [*gluon_cases.KINDS].index(kind)) % 2 == 0  # products run when they are waited for
    monkeypatch.setattr(packing, "num_multiprocessors", lambda device: programs)
    errors = gluon_cases.run_case(
        kind, shape, Emulator(late=late, seed=len(name)).launch, EmulatedDescriptors(), head_dim=head_dim
    )
    assert gluon_cases.is_accurate(errors), errors


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() and packing.is_hopper(torch.device("cuda", 0))),
    reason="no GPU of compute capability 9.x here",
)
@pytest.mark.parametrize("few_programs", [False, True])
@pytest.mark.parametrize("shape", [(1, 2, 2, 300), (2, 4, 2, 1000), (1, 3, 1, 129)])
@pytest.mark.parametrize("kind", gluon_cases.KINDS)
@pytest.mark.parametrize("head_dim", gluon_launch.HEAD_DIMS)
def test_on_a_gpu(head_dim, kind, shape, few_programs, monkeypatch):
    if few_programs:  # each computes many tiles
        monkeypatch.setattr(packing, "num_multiprocessors", lambda device: 3)

    def launch(kernel, programs, arguments, constants):
        kernel[(programs,)](*arguments, **constants, **gluon_launch.TILE.options)

    descriptors = Descriptors(torch.device("cuda", 0), gluon_launch.describe)
    errors = gluon_cases.run_case(kind, shape, launch, descriptors, head_dim=head_dim, device="cuda")
    assert gluon_cases.is_accurate(errors), errors

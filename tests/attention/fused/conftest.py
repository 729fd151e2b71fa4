"""Fixtures for the fused kernels without a GPU: the interpreter, and two guards that make silent mistakes loud.

A kernel may touch memory that is not its own and mask the answer afterwards: on a GPU that is an illegal access on some
days. A kernel may also leave a number unwritten and read it later: whether that shows depends on what lay there. Under
the interpreter both can be seen for certain.
"""

import numpy as np
import pytest
import torch


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels run in Python on CPU tensors, and every address they touch is checked."""
    pytest.importorskip("triton")
    from whence.attention.fused.forward import forward_kernel

    if type(forward_kernel).__name__ != "InterpretedFunction":
        pytest.skip("the kernels are compiled here: a GPU is present, and test_on_gpu.py runs them there")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    watch_addresses(monkeypatch)


@pytest.fixture
def poisoned(monkeypatch):
    """Memory that is handed out empty holds NaN, or a number that no index may be."""

    def filled(make):
        def made(*arguments, **about):
            out = make(*arguments, **about)
            return out.fill_(torch.nan if out.is_floating_point() else 2**30)

        return made

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, filled(getattr(owner, name)))


def watch_addresses(monkeypatch):
    """Raise where a kernel loads, stores or adds outside the tensors it was given."""
    from triton.runtime import interpreter

    starts, ends = np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    prepare = interpreter.GridExecutor._init_args_hst

    def note(executor, arguments, named):
        nonlocal starts, ends
        ready = prepare(executor, arguments, named)
        bases = [getattr(x, "base", x) for x in (*ready[0], *ready[1].values())]
        spans = sorted(extent(x) for x in bases if isinstance(x, torch.Tensor) and x.numel())
        starts, ends = (np.array(side, np.uint64) for side in zip(*spans, strict=True))
        # tensors may overlap: an address is fine when any of those that start before it reaches beyond it
        ends = np.maximum.accumulate(ends)
        return ready

    def check(pointers, mask):
        used = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        place = np.searchsorted(starts, used, side="right").astype(np.int64) - 1
        wild = (place < 0) | (used >= ends[place])
        if wild.any():
            raise IndexError(f"{wild.sum()} of {used.size} addresses lie outside every tensor of this kernel")

    def checked(method, pointers_at, mask_at):
        original = getattr(interpreter.InterpreterBuilder, method)

        def call(builder, *arguments, **about):
            check(arguments[pointers_at], arguments[mask_at])
            return original(builder, *arguments, **about)

        monkeypatch.setattr(interpreter.InterpreterBuilder, method, call)

    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", note)
    checked("create_masked_load", 0, 1)
    checked("create_masked_store", 0, 2)
    checked("create_atomic_rmw", 1, 3)


def extent(x):
    """The first address of a tensor and one past its last, as far as its own elements go."""
    reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()

"""Which of torch's kernels training runs on: on a GPU those that repeat themselves, on an ARM processor the faster ones."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ARM = ("aarch64", "arm64")


@contextmanager
def chosen_kernels() -> Iterator[None]:
    """While it lasts; what was set before comes back."""
    if torch.cuda.is_available():
        with _repeatable():
            yield
    elif platform.machine() in ARM:
        with _without_onednn():
            yield
    else:
        yield


@contextmanager
def _repeatable() -> Iterator[None]:
    """Kernels that add up in a fixed order, where there are any: the same seed gives the same numbers."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory = torch.utils.deterministic
    filling = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for, before its first product
    # warnings alone, for a few operators have no such kernel; torch's fused attention takes its own only when told strictly
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a debugging aid, and slow
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filling  # type: ignore[attr-defined]


@contextmanager
def _without_onednn() -> Iterator[None]:
    """oneDNN on ARM takes about half a millisecond for every small product with a transposed right side, which is what
    attention and its gradient are made of: training is several times faster without it, and no product slower."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before

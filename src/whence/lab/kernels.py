"""Choose torch's kernels for training: deterministic ones on a GPU, the faster ones on an ARM processor."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ARM = ("aarch64", "arm64")


@contextmanager
def training_kernels() -> Iterator[None]:
    """Set the kernels inside the context, and restore the previous settings after it."""
    if torch.cuda.is_available():
        with _deterministic_kernels():
            yield
    elif platform.machine() in ARM:
        with _without_onednn():
            yield
    else:
        yield


@contextmanager
def _deterministic_kernels() -> Iterator[None]:
    """Deterministic kernels where torch has them, so that the same seed gives the same numbers."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory = torch.utils.deterministic
    filling = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it before its first matrix product
    # warn_only, because a few operators have no deterministic kernel; SDPA's MATH backend is set explicitly below
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a slow debugging aid
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filling  # type: ignore[attr-defined]


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Disable oneDNN. On ARM it needs about half a millisecond for every small matrix product with a transposed right
    operand, which attention and its gradient consist of. Training is several times faster without it, and no product is
    slower."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before

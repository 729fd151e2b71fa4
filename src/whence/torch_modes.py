"""Modes of torch: whether code runs under a compiler, an exporter or a function transform, whether tensor values can be
read, and evaluation mode for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad


def is_tracing() -> bool:
    """Whether ``torch.compile``, ``torch.export`` or ``torch.jit.trace`` is running, so no values may be read."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_exporting() -> bool:
    """Whether an exporter is running. The flag is read directly: torch 2.11's compiler treats ``is_exporting()`` as True."""
    return torch.compiler._is_exporting_flag or torch.jit.is_tracing()


def is_transforming() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode AD is active, for which custom operators have no rule."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def can_read_values(*tensors: Tensor) -> bool:
    """Whether the values of tensors can be read here. They cannot while tracing, during CUDA graph capture, inside
    ``vmap``, or for meta and fake tensors."""
    return has_values(*tensors) and not any(x.is_cuda and torch.cuda.is_current_stream_capturing() for x in tensors)


def has_values(*tensors: Tensor) -> bool:
    """Whether tensors have values, also those that a captured CUDA graph computes later: a kernel of one's own can run."""
    if is_tracing():
        return False
    return not any(x.is_meta or isinstance(x, FakeTensor) or torch._C._functorch.is_batchedtensor(x) for x in tensors)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Turn autocast off on the device of a tensor, around code that promises at least float32."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block. Every module gets its own mode back, because some may be frozen on purpose.

    >>> model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5).eval())
    >>> with eval_mode(model):
    ...     [m.training for m in model.modules()]
    [False, False, False]
    >>> [m.training for m in model.modules()]
    [True, True, False]
    """
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training

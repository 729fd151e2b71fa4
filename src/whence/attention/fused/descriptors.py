"""TMA descriptors of a plan. Triton checks each descriptor that it builds, which takes longer than a launch; a plan checks each form once.

A form is a shape with strides and a tile. Tensors of one form differ in their address, which the caller aligns to 16 bytes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

MAX_FORMS = 64  # with a cache, the number of keys differs from call to call


def build_descriptor(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Tiles ``[rows, columns]`` of ``[B, H, length, dim]``, checked."""
    # an axis of size 1 may have any stride, but TMA checks it anyway
    strides = [stride if n > 1 else columns for stride, n in zip(x.stride()[:3], x.shape[:3], strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, columns])


class Descriptors:
    """The descriptors of tensors of one dtype."""

    def __init__(self) -> None:
        self._forms: dict[tuple[Any, ...], dict[str, Any]] = {}

    def describe(self, x: Tensor, rows: int, columns: int) -> TensorDescriptor:
        key = (x.shape, x.stride(), rows, columns)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            # without the tensor, so that its memory is not kept
            form = self._forms[key] = {**vars(build_descriptor(x, rows, columns)), "base": None}
        descriptor = object.__new__(TensorDescriptor)
        vars(descriptor).update(form, base=x)
        return descriptor

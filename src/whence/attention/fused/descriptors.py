"""TMA descriptors. Triton checks each descriptor that it builds, and encodes it in each launch; both take longer than the launch.

A form is a shape with strides, a dtype and a tile. Tensors of one form differ in their address, which the caller aligns to 16
bytes. Each form is checked once. On a GPU, descriptors are kept by form and address, together with what the GPU takes for
them: torch hands out the same addresses again and again, and what the GPU takes depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from whence.attention.fused.compiled_launcher import KNOWN_VERSIONS, VERSION

MAX_FORMS = 1024  # with a cache, the number of keys differs from call to call
#: kept with their addresses, 2 KB each, for each device. A training step of a model with 80 layers needs 1,300
MAX_KEPT = 4096


def build_descriptor(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Tiles ``[rows, columns]`` of ``[B, H, length, dim]``, checked."""
    # an axis of size 1 may have any stride, but TMA checks it anyway
    strides = [stride if n > 1 else columns for stride, n in zip(x.stride()[:3], x.shape[:3], strict=True)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, columns])


class Address:
    """Stands for a tensor in a kept descriptor, so that its memory is not kept."""

    __slots__ = ("_address", "dtype")

    def __init__(self, x: Tensor) -> None:
        self._address, self.dtype = x.data_ptr(), x.dtype

    def data_ptr(self) -> int:
        return self._address


class Descriptors:
    """The descriptors of tensors on one device, made by ``build``. On a GPU, the caller keeps a tensor until the launch."""

    def __init__(self, device: torch.device, build: Callable[..., Any] = build_descriptor) -> None:
        self._build, self._keeps = build, device.type == "cuda" and VERSION in KNOWN_VERSIONS
        self._forms: dict[tuple[Any, ...], tuple[type[Any], dict[str, Any]]] = {}
        self._kept: dict[tuple[Any, ...], Any] = {}

    def describe(self, x: Tensor, *tile: int) -> Any:
        if not self._keeps:
            return self._describe(x, tile)
        key = (x.data_ptr(), x.dtype, x.shape, x.stride(), tile)
        descriptor = self._kept.get(key)
        if descriptor is None:
            descriptor = self._describe(x, tile)
            vars(descriptor).update(base=Address(x), maps={})  # maps: by the slot of a kernel, see ``Slot``
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[key] = descriptor
        return descriptor

    def _describe(self, x: Tensor, tile: tuple[int, ...]) -> Any:
        key = (x.dtype, x.shape, x.stride(), tile)
        form = self._forms.get(key)
        if form is None:
            checked = self._build(x, *tile)
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            form = self._forms[key] = type(checked), {**vars(checked), "base": None}  # without the tensor
        kind, fields = form
        descriptor = object.__new__(kind)
        vars(descriptor).update(fields, base=x)
        return descriptor

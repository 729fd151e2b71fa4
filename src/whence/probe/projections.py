"""The matrix of a linear projection, whatever its weights are stored as.

A quantised layer keeps packed integers under the name ``weight``, an adapter adds a product of two matrices, and an
offloaded layer has its weights elsewhere. What they have in common is their forward. So the matrix is read through it: the
outputs for unit vectors are its columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import usage_error

VECTORS = 512  # unit vectors in one forward
LINEAR = 0.05  # how far, of an output's length, a projection may be from linear: 8-bit inputs stay within 0.02


def is_projection(module: object) -> bool:
    """Whether it is a linear layer, or stands for one."""
    return isinstance(module, nn.Module) and hasattr(module, "in_features") and hasattr(module, "out_features")


@torch.no_grad()
def projection_matrix(projection: nn.Module, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix ``[out, in]`` that a projection multiplies its input by, in float32 on the CPU; its bias is left out.

    Args:
        projection: a linear layer: plain, quantised, offloaded or with an adapter.
        dtype: of the inputs that its model gives it.
        device: where they are.
    """
    weight: Any = getattr(projection, "weight", None)
    # a subclass may compute something else, and so may a tensor that is no plain one (torchao, quanto)
    plain = type(projection) is nn.Linear and type(weight) is nn.Parameter and type(weight.data) is Tensor
    if plain and weight.is_floating_point() and not weight.is_meta and not hasattr(projection, "_hf_hook"):
        return weight.detach().float().cpu()
    width = int(projection.in_features)  # type: ignore[arg-type]
    zero = projection(torch.zeros(1, width, dtype=dtype, device=device)).float()
    columns = []
    for start in range(0, width, VECTORS):
        units = torch.zeros(min(VECTORS, width - start), width, dtype=dtype, device=device)
        units[torch.arange(len(units)), torch.arange(start, start + len(units))] = 1
        columns.append((projection(units).float() - zero).cpu())
    matrix = torch.cat(columns).T.contiguous()
    _require_linear(projection, matrix, zero, dtype, device)
    return matrix


def _require_linear(projection: Any, matrix: Tensor, zero: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(4, matrix.shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = x.float() @ matrix.T
    got = (projection(x.to(device)).float() - zero).cpu()
    if not bool(((got - wanted).norm(dim=1) <= LINEAR * wanted.norm(dim=1)).all()):
        raise usage_error(
            f"projection_matrix({type(projection).__name__})",
            "outputs that are not linear in the input",
            "scores are split through the matrix of a projection",
            "use a model whose weights alone are quantised",
        )

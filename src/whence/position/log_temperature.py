"""Log-n temperature: a query is multiplied by a factor that grows with the logarithm of its position.

More keys flatten a softmax; a growing factor counteracts that. With i the query's position, counted from 0:

    llama4        1 + scale * ln(1 + floor((i + 1) / original))      scale 0.1, original 8192
    ministral3    1 + scale * ln(1 + floor(i / original))            scale 0.1, original 16384
    inkling       1 + scale * ln(max(1, (i + 1) / original))         scale 0.1, original without a published value
    log           max(1, ln(i + 1) / ln(original))                   original is the trained length

The first three are the models' code in transformers. Llama 4 applies it only in layers without rotation, Ministral 3 in all
layers, after rotation. Inkling multiplies its score bias by the same factor; here only the query is multiplied. Llama 4's
code counts slots of the cache, so that left padding changes its factor; here i is the position. ``"log"`` is Su's (2021) and
Qwen's form of Chiang and Cholak 2022, arXiv 2202.12172.

Use it beside another mechanism in models that read much longer inputs than they were trained on, so that attention
stays as sharp as in training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from whence.errors import usage_error
from whence.position.base import Position
from whence.validation import require_choice, require_integer, require_number

#: the published length at which the factor of each form begins to grow; None where there is none
PUBLISHED_LENGTHS = {"log": None, "llama4": 8192, "ministral3": 16384, "inkling": None}


class LogTemperature(Position):
    """Multiplies queries by a factor that grows with the logarithm of their position.

    Args:
        form: ``"llama4"``, ``"ministral3"``, ``"inkling"`` or ``"log"``; see the formulas above.
        original: the length at which the factor begins to grow; ``None`` for the published number. ``"log"`` and
            ``"inkling"`` have none.
        scale: growth of the factor with the logarithm; not used by ``"log"``.

    >>> q = torch.ones(1, 1, 3, 1)
    >>> LogTemperature().rotate(q, q, torch.tensor([[8190, 8191, 131071]]), torch.arange(3)[None])[0].flatten()
    tensor([1.0000, 1.0693, 1.2833])
    """

    relative = False
    rotates = False

    def __init__(self, *, form: str = "llama4", original: int | None = None, scale: float = 0.1) -> None:
        super().__init__()
        self.form = require_choice("LogTemperature", "form", form, tuple(PUBLISHED_LENGTHS))
        original = PUBLISHED_LENGTHS[form] if original is None else original
        if original is None:
            rule = f"form={form!r} has no published length"
            raise usage_error("LogTemperature(original=...)", "None", rule, "pass the trained length")
        self.original = require_integer("LogTemperature", "original", original, low=2, remedy="pass the trained length")
        self.scale = require_number("LogTemperature", "scale", scale, low=0, remedy="use 0.1, as published")

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(q.dtype, torch.float32)
        factor = query_factor(q_positions.to(dtype).clamp(min=0), self.original, self.form, self.scale)
        return (q * factor[:, None, :, None]).to(q.dtype), k

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "form", self.form
        yield "original", self.original
        if self.form != "log":
            yield "scale", self.scale


def query_factor(position: Tensor, original: int, form: str = "log", scale: float = 0.1) -> Tensor:
    """The factor of queries at these positions, counted from 0.

    >>> query_factor(torch.tensor([8190.0, 8191.0, 131071.0]), 8192, "llama4")
    tensor([1.0000, 1.0693, 1.2833])
    """
    if form == "log":
        return ((position + 1).log() / math.log(original)).clamp(min=1)
    if form == "inkling":
        return 1 + scale * ((position + 1) / original).clamp(min=1).log()
    count = position + 1 if form == "llama4" else position
    return 1 + scale * torch.log1p(torch.floor(count / original))

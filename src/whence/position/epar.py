"""EPAR: the score is multiplied by an explicit function of distance (the position effect of the EPAR framework).

    basic      alpha * exp(-beta * |d| / L)
    enhanced   alpha * (1 + gamma * exp(-beta * |d| / L)) / (1 + gamma)

The enhanced form never falls below ``alpha / (1 + gamma)``, so the scores of far keys do not vanish.

Use it to test a decay that multiplies scores, beside rotary or another embedding: a factor leaves a score of 0 as it
is, so it does not replace a bias. The ledger of ``whence_papers`` has the comparisons with other mechanisms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.position.base import LENGTHS, Position
from whence.position.hook_types import DECAY, HookGradients, PairFunction, ParameterGradient
from whence.position.parameter import BoundedParameter
from whence.validation import require_choice, require_flag

Number = float | Sequence[float]


class Epar(Position):
    """Scores multiplied by an exponential decay.

    Args:
        heads: one set of parameters per head; ``None`` for one set shared by all heads.
        form: ``"enhanced"`` or ``"basic"`` (which has no gamma).
        alpha: strength, above 0.
        beta: decay, at least 0.
        gamma: ratio of the decaying to the constant part of the score, at least 0.
        learnable: make the parameters learnable within those bounds.
        length: ``"context"``, ``"query"`` or ``"sequence"``; see ``Position``.
        context: the L of ``length="context"``.

    >>> Epar(context=100).score_scale(torch.tensor([0.0, 100.0]), 100)
    tensor([1.0000, 0.7893])
    """

    model_arguments = ("heads",)
    #: the defaults of the class in the source; its text and its protocol file have (1, 1, 0.5)
    CODE_DEFAULTS = {"alpha": 1.0, "beta": 2.0, "gamma": 1.5}

    def __init__(
        self,
        heads: int | None = None,
        *,
        form: str = "enhanced",
        alpha: Number = 1.0,
        beta: Number = 1.0,
        gamma: Number = 0.5,
        learnable: bool = False,
        length: str = "context",
        context: int | None = 4096,
    ) -> None:
        require_choice("Epar", "length", length, LENGTHS)
        super().__init__(heads=heads, length=length, context=context)
        self.form = require_choice("Epar", "form", form, ("basic", "enhanced"))
        require_flag("Epar", "learnable", learnable)
        self.alpha = BoundedParameter("Epar.alpha", alpha, heads=heads, learnable=learnable, zero_allowed=False)
        self.beta = BoundedParameter("Epar.beta", beta, heads=heads, learnable=learnable)
        gamma_parameter = BoundedParameter("Epar.gamma", gamma, heads=heads, learnable=learnable)
        if form == "enhanced":
            self.gamma = gamma_parameter

    def score_scale(self, distance: Tensor, length: Any) -> Tensor:
        decay = torch.exp(-self.beta() * (distance.abs() / length))
        if self.form == "basic":
            return self.alpha() * decay
        gamma = self.gamma()
        lowest = self.alpha() / (1 + gamma)
        return lowest + lowest * gamma * decay

    def parameter_gradients(self, distance: Tensor, length: Any) -> HookGradients:
        alpha, beta = self.alpha(), self.beta()
        gamma = self.gamma() if self.form == "enhanced" else None
        with torch.no_grad():
            far = distance.abs() / length
            decay = torch.exp(-beta * far)
            amplitude = ParameterGradient(alpha, "score_scale", None)
            if gamma is None:
                return HookGradients(
                    alpha * decay, None, (amplitude, ParameterGradient(beta, "score_scale", -alpha * (far * decay)))
                )
            lowest = alpha / (1 + gamma)
            span = lowest * gamma
            by_gamma = lowest / (1 + gamma) * (decay - 1)
            gradients = (
                amplitude,
                ParameterGradient(beta, "score_scale", -span * (far * decay)),
                ParameterGradient(gamma, "score_scale", by_gamma),
            )
            return HookGradients(lowest + span * decay, None, gradients)

    def score_scale_decay(self, length: Any) -> tuple[Tensor, Tensor, Tensor]:
        alpha, decay = self.alpha(), self.beta() / length
        if self.form == "basic":
            return torch.zeros_like(alpha), alpha, decay
        gamma = self.gamma()
        lowest = alpha / (1 + gamma)
        return lowest, lowest * gamma, decay

    def pair_function(self, hook: str) -> PairFunction | None:
        if hook != "score_scale":
            return None
        numbers = torch.cat([x.reshape(-1, 1) for x in self.score_scale_decay(1)], -1)
        return PairFunction(
            numbers,
            lambda read, distance, length: read(0) + read(1) * torch.exp(-read(2) * (distance.abs() / length)),
            DECAY,
        )

    def repr_items(self) -> Iterator[tuple[str, object]]:
        yield "form", self.form
        yield "alpha", self.alpha()
        yield "beta", self.beta()
        if self.form == "enhanced":
            yield "gamma", self.gamma()

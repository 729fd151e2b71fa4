"""Mechanisms whose tables one kernel evaluates (see ``table_kernels``): EPAR, ALiBi and the power prior."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from whence.position.alibi import Alibi
from whence.position.base import Position
from whence.position.epar import Epar
from whence.position.parameter import BoundedParameter
from whence.position.power_prior import PowerPrior

EPAR_BASIC, EPAR_ENHANCED, SLOPE, LINEAR, POWER = range(5)


@dataclass(frozen=True)
class ClosedForm:
    """One mechanism as ``table_kernel`` takes it.

    ``tensors`` are its one to three parameters or buffers, each a scalar or ``[heads, 1]``. ``bounded``: they are the
    unbounded numbers behind ``BoundedParameter``, except the first one of POWER. ``constant`` is the length of EPAR and the
    scale of ALiBi.
    """

    family: int
    tensors: tuple[Tensor, ...]
    bounded: bool
    shared: bool  # one set of numbers for all heads
    constant: float

    @property
    def signature(self) -> tuple[object, ...]:
        """Everything but the values of the tensors."""
        facts = tuple((x.shape, x.dtype, x.device, x.requires_grad) for x in self.tensors)
        return self.family, self.bounded, self.shared, self.constant, facts

    @property
    def has_score_scale(self) -> bool:
        return self.family in (EPAR_BASIC, EPAR_ENHANCED)

    @property
    def has_bias(self) -> bool:
        return self.family in (LINEAR, POWER)

    @property
    def num_derivatives(self) -> int:
        """The number of derivative tables; the amplitude of EPAR and a slope need none."""
        return {EPAR_BASIC: 1, EPAR_ENHANCED: 2, SLOPE: 0, LINEAR: 1, POWER: 2}[self.family]


def closed_form(part: Position, *, slope: bool) -> ClosedForm | None:
    """The form of a mechanism; None for a subclass and for everything else. ``slope``: ALiBi may be a slope per head."""
    if type(part) is Epar:
        if part.length != "context" or not part.context:
            return None
        if part.form == "enhanced":
            return _build(EPAR_ENHANCED, (part.alpha, part.beta, part.gamma), part, float(part.context))
        return _build(EPAR_BASIC, (part.alpha, part.beta), part, float(part.context))
    if type(part) is Alibi:
        return _build(SLOPE if slope else LINEAR, (part.slope,), part, float(part.scale))
    if type(part) is PowerPrior:
        return _build(POWER, (part.alpha, part.beta), part, 0.0)
    return None


def _build(family: int, values: tuple[Tensor | nn.Module, ...], part: Position, constant: float) -> ClosedForm | None:
    tensors: list[Tensor] = []
    learnable: list[bool] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif type(value) is BoundedParameter:
            tensors.append(value.fixed if value.raw is None else value.raw)
            learnable.append(value.raw is not None)
        else:  # parametrized
            return None
    if learnable.count(learnable[0]) != len(learnable):
        return None
    return ClosedForm(family, tuple(tensors), learnable[0], part.heads is None, constant)

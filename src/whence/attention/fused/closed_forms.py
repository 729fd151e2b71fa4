"""Mechanisms whose tables one kernel evaluates (see ``table_kernels``): EPAR, ALiBi and the power prior."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from whence.position.alibi import Alibi
from whence.position.base import Position
from whence.position.epar import Epar
from whence.position.parameter import BoundedParameter
from whence.position.power_prior import PowerPrior

EPAR_BASIC, EPAR_ENHANCED, SLOPE, LINEAR, POWER = range(5)


class ClosedForm(NamedTuple):
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
        facts = tuple([(x.shape, x.dtype, x.device, x.requires_grad) for x in self.tensors])
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
        enhanced = part.form == "enhanced"
        names = ("alpha", "beta", "gamma") if enhanced else ("alpha", "beta")
        return _build(EPAR_ENHANCED if enhanced else EPAR_BASIC, part, names, float(part.context))
    if type(part) is Alibi:
        return _build(SLOPE if slope else LINEAR, part, ("slope",), float(part.scale))
    if type(part) is PowerPrior:
        return _build(POWER, part, ("alpha", "beta"), 0.0)
    return None


def _build(family: int, part: Position, names: tuple[str, ...], constant: float) -> ClosedForm | None:
    # the dictionaries of a module are read directly: its own attribute lookup would cost as much host time as a launch
    modules, state = part.__dict__["_modules"], part.__dict__
    tensors: list[Tensor] = []
    num_learnable = num_fixed = 0
    for name in names:
        module = modules.get(name)
        if module is None:
            tensor = state["_parameters"].get(name)
            tensors.append(state["_buffers"][name] if tensor is None else tensor)
        elif type(module) is BoundedParameter:
            raw = module.__dict__["_parameters"].get("raw")
            num_learnable += raw is not None
            num_fixed += raw is None
            tensors.append(module.__dict__["_buffers"]["fixed"] if raw is None else raw)
        else:  # parametrized
            return None
    if num_learnable and num_fixed:
        return None
    return ClosedForm(family, tuple(tensors), num_learnable > 0, part.heads is None, constant)
